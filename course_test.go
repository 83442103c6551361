package idem

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCourseForeseesWhatTheRulesSay(t *testing.T) {
	// The comparisons most calls get by with must agree with the times.
	starts := []time.Duration{-1 << 62, -1000, 0, 1, 37, 1000, 1 << 62}
	clock := newGuardClock()
	line := timeline{epoch: time.Now(), clock: clock}
	at := func(d time.Duration) moment {
		clock.set(newGuardClock().now.Add(d))
		return line.now()
	}
	for _, half := range []time.Duration{1, 50, math.MaxInt64 / 2, math.MaxInt64} {
		life := twice(half)
		for _, young := range starts {
			for _, old := range starts {
				var c course
				c.init(&line, half, life, 100)
				c.set(era{number: 7, young: generation{line.time(at(young)), true}, old: generation{line.time(at(old)), true}})
				for _, start := range starts {
					for _, edge := range []time.Duration{-life, -half, 0, half, life} {
						for d := time.Duration(-1); d <= 1; d++ {
							now := at(saturating(start, saturating(edge, d)))
							if now.since >= c.calm && now.since < c.stale {
								require.Equal(t, c.era, c.era.aged(line.time(now), life), "at %d, young %d, old %d", now.since, young, old)
							}
							if now.since >= c.calm && now.since < c.stale && now.since < c.closes {
								require.True(t, c.era.open(line.time(now), half))
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

func TestCourseForeseesTheEdgesExactly(t *testing.T) {
	clock := newGuardClock()
	line := timeline{epoch: clock.now, clock: clock}
	var c course
	c.init(&line, 50, 100, 1)
	require.Equal(t, time.Duration(math.MinInt64), c.closes, "nothing lands before a generation begins")
	c.set(era{number: 3, young: generation{clock.now.Add(50), true}, old: generation{clock.now, true}})
	require.EqualValues(t, []time.Duration{50, 100, 100}, []time.Duration{c.calm, c.stale, c.closes})
	c.set(era{number: 3, young: generation{clock.now.Add(20), true}})
	require.EqualValues(t, []time.Duration{20, 120, 70}, []time.Duration{c.calm, c.stale, c.closes})
}

func TestMomentOfASlowCallIsNotBefore(t *testing.T) {
	mono := time.Now()
	wall := mono.Round(0)
	for _, c := range []struct {
		name  string
		clock Clock
		read  time.Time
		slow  time.Duration
		moved bool
	}{
		{"the standard clock", nil, time.Time{}, time.Hour, true},
		{"a monotonic one", &guardClock{}, mono, slowCall, true},
		{"a monotonic one that has stepped back", &guardClock{}, mono, slowCall + 1, false},
		{"one that isn't monotonic", &guardClock{}, wall, 1, false},
		{"one that is later", &guardClock{}, mono, -1, false},
		{"one from before all time", &guardClock{}, mono, math.MinInt64, false},
	} {
		line := timeline{epoch: mono, clock: c.clock}
		now := moment{since: 1000, read: c.read}
		got := line.notBefore(now, now.since+c.slow)
		if !c.moved {
			assert.Equal(t, now, got, c.name)
			continue
		}
		assert.Equal(t, now.since+c.slow, got.since, c.name)
		if c.clock != nil {
			assert.True(t, got.read.Equal(c.read.Add(c.slow)), c.name)
		}
	}
}

func TestMomentOfTheStandardClock(t *testing.T) {
	line := timeline{epoch: time.Now()}
	now := line.now()
	assert.Equal(t, now.since, line.notBefore(now, now.since-1).since)
	assert.Equal(t, line.epoch.Add(now.since), line.time(now))
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

// counter stands in for a set.
type counter struct{ n, recycled, like int }

func TestTwinFollows(t *testing.T) {
	recycle := func(gone, like *counter) {
		*gone = counter{recycled: gone.recycled + 1}
		if like != nil {
			gone.like = like.n
		}
	}
	var tw twin[counter]
	e := era{number: 2}
	follow := func(next era) {
		tw.follow(e, next, recycle)
		e = next
	}
	follow(e.rotated(since(0), false))
	tw.young().n = 7
	follow(e.rotated(since(50), false))
	require.Equal(t, 7, tw.sets[oldSet].n, "still consulted")
	tw.young().n = 5
	follow(e.rotated(since(60), true))
	require.Equal(t, counter{recycled: 1, like: 5}, *tw.young(), "for about as many as the last one has")
	require.Equal(t, 5, tw.sets[oldSet].n)
	follow(e.aged(since(150), 100))
	require.Equal(t, counter{recycled: 3}, tw.sets[oldSet])
	tw.young().n = 3
	follow(e.aged(since(160), 100))
	require.Zero(t, tw.sets[youngSet].n+tw.sets[oldSet].n)
}

func TestTwinKeepsTheSetsThatAreStillConsulted(t *testing.T) {
	none := era{number: 2}
	one := none.rotated(since(0), false)
	two := one.rotated(since(50), false)
	const y, o, gone = 1, 2, 0 // what was in the young set and in the old one before
	for _, c := range []struct {
		name     string
		from, to era
		want     [2]int
	}{
		{"begins", none, one, [2]int{y, gone}},
		{"turns", one, two, [2]int{gone, y}},
		{"turns again", two, two.rotated(since(60), true), [2]int{gone, y}},
		{"the old one is over", two, two.aged(since(100), 100), [2]int{y, gone}},
		{"both are over", two, two.aged(since(150), 100), [2]int{gone, gone}},
		{"steps back", two, two.aged(since(-1), 100), [2]int{y, o}},
	} {
		tw := twin[counter]{sets: [2]counter{{n: y}, {n: o}}}
		tw.follow(c.from, c.to, func(set, _ *counter) { set.n = gone })
		assert.Equal(t, c.want, [2]int{tw.sets[youngSet].n, tw.sets[oldSet].n}, c.name)
	}
}

func TestTwinTakesBackPlacesOfItsYoungSetOnly(t *testing.T) {
	tw := twin[counter]{share: share{room: 3}}
	tw.giveBack(oldSet)
	require.Equal(t, 3, tw.room)
	tw.giveBack(youngSet)
	require.Equal(t, 4, tw.room)
}

func TestTwinKnowsWhenTheLastIDLanded(t *testing.T) {
	tw := twin[counter]{share: share{room: 3, newest: math.MinInt64}}
	tw.land(&moment{since: 7})
	tw.land(&moment{since: 3})
	require.Equal(t, share{room: 1, newest: 7}, tw.share)
	recycle := func(*counter, *counter) {}
	one := era{number: 2, young: began(0)}
	tw.follow(one, one.rotated(since(50), false), recycle)
	require.EqualValues(t, 7, tw.newest)
	tw.follow(one, one.aged(since(100), 100), recycle)
	require.Equal(t, time.Duration(math.MinInt64), tw.newest, "where nothing is known any more it says nothing")
}
