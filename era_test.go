package idem

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// eraRig is what eras and two shards' twins do, without ids.
type eraRig struct {
	eras  eras
	line  timeline
	clock *guardClock
}

func newEraRig(half, life time.Duration, limit int64) *eraRig {
	r := &eraRig{clock: newGuardClock()}
	r.line = timeline{epoch: time.Now(), clock: r.clock}
	r.eras.init(&r.line, half, life, limit)
	return r
}

func (r *eraRig) at(d time.Duration) *moment {
	r.clock.set(newGuardClock().now.Add(d))
	m := r.line.now()
	return &m
}

func TestEraTurnsByTimeAndBySize(t *testing.T) {
	r := newEraRig(50, 100, 3)
	first := r.eras.at(r.at(0))
	require.False(t, first.young.alive(), "nothing has begun")
	one := r.eras.reserve(r.at(10))
	require.Equal(t, first.number, one.number)
	require.True(t, one.young.alive())
	require.Same(t, one, r.eras.reserve(r.at(59)), "a tick before its half")
	two := r.eras.reserve(r.at(60))
	require.Equal(t, one.number+1, two.number)
	require.Same(t, one.young.landed, two.old.landed)
	require.EqualValues(t, 2, two.old.landed.Load())
	require.Same(t, two, r.eras.reserve(r.at(60)))
	require.Same(t, two, r.eras.reserve(r.at(60)))
	three := r.eras.reserve(r.at(60))
	require.Equal(t, two.number+1, three.number, "full")
	require.EqualValues(t, 3, three.old.landed.Load())
	require.EqualValues(t, 1, three.young.landed.Load())
	require.EqualValues(t, 1, r.eras.early.Load())
	require.True(t, three.cut)
}

func TestEraAgesByTimeAlone(t *testing.T) {
	r := newEraRig(50, 100, 100)
	one := r.eras.reserve(r.at(0))
	two := r.eras.reserve(r.at(50))
	require.True(t, two.old.alive())
	require.Same(t, two, r.eras.at(r.at(99)))
	three := r.eras.at(r.at(100))
	require.False(t, three.old.alive(), "the old one has lived")
	require.Equal(t, two.number, three.number)
	require.Same(t, two.young.landed, three.young.landed)
	require.Same(t, three, r.eras.at(r.at(149)))
	four := r.eras.at(r.at(150))
	require.False(t, four.young.alive())
	require.False(t, four.old.alive())
	require.Equal(t, three.number+2, four.number, "both sets are for others now")
	require.Same(t, four, r.eras.at(r.at(1e9)))
	require.Same(t, four, r.eras.at(r.at(-1e9)))
	_ = one
}

func TestEraReservesExactlyItsLimit(t *testing.T) {
	// However many come at once, each generation has H, and no turn has fewer.
	const limit, goroutines, each = 100, 16, 1000
	r := newEraRig(50, 100, limit)
	now := r.at(0)
	var mu sync.Mutex
	landed := map[uint64]int{}
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			mine := map[uint64]int{}
			for range each {
				mine[r.eras.reserve(now).number]++
			}
			mu.Lock()
			defer mu.Unlock()
			for number, n := range mine {
				landed[number] += n
			}
		})
	}
	wg.Wait()
	require.Len(t, landed, goroutines*each/limit)
	for number, n := range landed {
		require.Equal(t, limit, n, "generation %d", number)
	}
	require.EqualValues(t, len(landed)-1, r.eras.early.Load())
}

func TestEraForeseesWhatTheRulesSay(t *testing.T) {
	// The three comparisons most calls get by with must agree with the times.
	starts := []time.Duration{-1 << 62, -1000, 0, 1, 37, 1000, 1 << 62}
	for _, half := range []time.Duration{1, 50, math.MaxInt64 / 2, math.MaxInt64} {
		life := twice(half)
		r := newEraRig(half, life, 100)
		for _, young := range starts {
			for _, old := range starts {
				e := &era{
					number: 7,
					young:  newGeneration(r.line.time(*r.at(young))),
					old:    newGeneration(r.line.time(*r.at(old))),
				}
				r.eras.foresee(e)
				for _, at := range starts {
					for _, edge := range []time.Duration{-life, -half, 0, half, life} {
						for d := time.Duration(-1); d <= 1; d++ {
							now := r.at(saturating(at, saturating(edge, d)))
							calm := now.since >= e.calm && now.since < e.stale
							if calm {
								require.Same(t, e, e.aged(r.line.time(*now), life), "at %d, young %d, old %d", now.since, young, old)
							}
							if now.since >= e.calm && now.since < e.closes {
								require.True(t, e.open(r.line.time(*now), half))
							}
						}
					}
				}
			}
		}
	}
}

func saturating(a, b time.Duration) time.Duration {
	switch sum := a + b; {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	default:
		return sum
	}
}

func TestElapsedTellsASlowCallFromAStep(t *testing.T) {
	mono := time.Now()
	wall := mono.Round(0)
	for _, c := range []struct {
		start, now time.Time
		d          time.Duration
		stepped    bool
	}{
		{wall, wall, 0, false},
		{wall, wall.Add(5), 5, false},
		{wall, wall.Add(-1), -1, true},
		{mono, mono.Add(-1), 0, false},
		{mono, mono.Add(-slowCall), 0, false},
		{mono, mono.Add(-slowCall - 1), -slowCall - 1, true},
		{mono, mono.Add(7), 7, false},
		{wall, farthest.Add(math.MaxInt64), math.MaxInt64, false},
	} {
		d, stepped := elapsed(c.start, c.now)
		assert.Equal(t, c.d, d)
		assert.Equal(t, c.stepped, stepped)
	}
}

func TestMomentOfTheStandardClockIsNeverBefore(t *testing.T) {
	line := timeline{epoch: time.Now()}
	now := line.now()
	assert.Equal(t, now.since, line.notBefore(now, now.since-1).since)
	assert.Equal(t, now.since+5, line.notBefore(now, now.since+5).since)
	assert.Equal(t, line.epoch.Add(now.since), line.time(now))
	injected := timeline{epoch: time.Now(), clock: newGuardClock()}
	now = injected.now()
	assert.Equal(t, now, injected.notBefore(now, now.since+5), "one that is injected may step back")
}

func TestMomentAfterDoesNotWrap(t *testing.T) {
	line := timeline{epoch: time.Now()}
	for _, c := range []struct {
		start time.Time
		d     time.Duration
		want  time.Duration
	}{
		{line.epoch, 0, 0},
		{line.epoch, 5, 5},
		{line.epoch.Add(10), 5, 15},
		{line.epoch.Add(10), math.MaxInt64, math.MaxInt64},
		{line.epoch.Add(-10), math.MaxInt64, math.MaxInt64 - 10},
		{line.epoch, math.MaxInt64, math.MaxInt64},
		{time.Time{}, 5, math.MinInt64},
		{time.Time{}, math.MaxInt64, math.MinInt64},
		{time.Unix(1<<40, 0), 0, math.MaxInt64},
		{time.Unix(1<<40, 0), 5, math.MaxInt64},
	} {
		assert.Equal(t, c.want, line.after(c.start, c.d))
	}
}

// twinRig is a twin of sets that are counters.
type counter struct{ n, recycled int }

func TestTwinFollowsWhateverItMissed(t *testing.T) {
	recycle := func(gone, _ *counter) { *gone = counter{recycled: gone.recycled + 1} }
	// A twin that sleeps for any number of turns or lives then holds what is still
	// to be consulted, and nothing else.
	for missed := range 6 {
		for _, by := range []string{"size", "time"} {
			t.Run(fmt.Sprintf("%d turns by %s", missed, by), func(t *testing.T) {
				r := newEraRig(50, 100, 2)
				var tw twin[counter]
				at := time.Duration(0)
				tw.follow(r.eras.reserve(r.at(at)), recycle)
				tw.young().n = 7
				if by == "size" {
					for range 2*missed + 1 { // the first fills the generation
						r.eras.reserve(r.at(at))
					}
				} else {
					for range missed {
						at += 50
						r.eras.reserve(r.at(at))
					}
				}
				e := r.eras.at(r.at(at))
				tw.follow(e, recycle)
				turns := int(e.number - 2)
				held := tw.sets[0].n + tw.sets[1].n
				if turns <= 1 {
					require.Equal(t, 7, held, "%d turns: still to be consulted", turns)
				} else {
					require.Zero(t, held, "%d turns: over", turns)
				}
				require.Zero(t, tw.young().n*turns)
			})
		}
	}
}

func TestTwinOfANewLifeStartsEmpty(t *testing.T) {
	recycle := func(gone, _ *counter) { *gone = counter{} }
	r := newEraRig(50, 100, 100)
	var tw twin[counter]
	tw.follow(r.eras.reserve(r.at(0)), recycle)
	tw.young().n = 7
	// The generation has lived, and another one has begun, before it looks.
	r.eras.at(r.at(100))
	tw.follow(r.eras.reserve(r.at(100)), recycle)
	require.Zero(t, tw.sets[0].n+tw.sets[1].n)
	tw.young().n = 3
	r.eras.at(r.at(300))
	r.eras.reserve(r.at(300))
	r.eras.reserve(r.at(350))
	tw.follow(r.eras.reserve(r.at(350)), recycle)
	require.Zero(t, tw.sets[0].n+tw.sets[1].n)
}
