package idem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 6, atomicity: of any number of concurrent calls for one id exactly one
// begins per life, across rotations, shards and evictions.

// rounds are fewer where they take long.
func rounds(n int) int {
	if raceEnabled || testing.Short() || runtime.GOARCH == "386" || invariants {
		return n / 10
	}
	return n
}

// few is for what takes its time without any goroutines.
func few(n int) int {
	if raceEnabled || testing.Short() || invariants {
		return n / 5
	}
	return n
}

func TestAtomicityOneBeginPerId(t *testing.T) {
	const racers = 64
	for _, m := range []int{100, manyShards} {
		g, _ := newGuard(t, WithMaxTracked(m))
		var begun atomic.Int32
		for round := range rounds(10_000) {
			begun.Store(0)
			start := make(chan struct{})
			var wg sync.WaitGroup
			for range racers {
				wg.Go(func() {
					<-start
					if _, state := g.TryBegin(number(round)); state == Begun {
						begun.Add(1)
					} else if state != InFlight {
						t.Errorf("found %v", state)
					}
				})
			}
			close(start)
			wg.Wait()
			require.EqualValues(t, 1, begun.Load())
		}
	}
}

func TestAtomicityOneBeginPerIdForAllIdsAtOnce(t *testing.T) {
	// The racers walk the same ids in the same order, and complete what they begin:
	// turns by size happen all the time, but never within H of each other.
	const racers = 16
	ids := rounds(20_000)
	for _, m := range []int{2000, manyShards} {
		g, _ := newGuard(t, WithMaxTracked(m))
		begun := make([]atomic.Int32, ids)
		var at [racers]atomic.Int64
		var wg sync.WaitGroup
		for r := range racers {
			wg.Go(func() {
				for i := range begun {
					at[r].Store(int64(i))
					for r > 0 && int64(i) > at[r-1].Load()+int64(m/4/racers) {
						runtime.Gosched() // don't run so far ahead that ids are rightly forgotten
					}
					for r == 0 && int64(i) > at[racers-1].Load()+int64(m/4/racers) {
						runtime.Gosched()
					}
					c, state := g.TryBegin(number(i))
					if state == Begun {
						begun[i].Add(1)
						g.Complete(c)
					}
				}
				at[r].Store(1 << 40)
			})
		}
		wg.Wait()
		for i := range begun {
			require.EqualValues(t, 1, begun[i].Load(), "id %d, maxTracked %d", i, m)
		}
		requireBalance(t, g.Stats())
	}
}

func TestAtomicityHolderAloneUntilItSettles(t *testing.T) {
	// Owners hold a flag of their id; who begins must find it free. Nobody's lease
	// runs out and H is never reached, so every Begun is exclusive.
	g, err := NewGenerational(WithWindow(2*time.Millisecond), WithMaxTracked(manyShards))
	require.NoError(t, err)
	const ids = 32
	var owned [ids]atomic.Bool
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 3))
			for range rounds(40_000) {
				i := rnd.IntN(ids)
				c, state := g.TryBegin(number(i))
				if state != Begun {
					continue
				}
				if !owned[i].CompareAndSwap(false, true) {
					t.Errorf("id %d has two owners", i)
				}
				if rnd.IntN(4) == 0 {
					runtime.Gosched()
				}
				owned[i].Store(false)
				verbsInOrder[rnd.IntN(3)](g, c)
			}
		})
	}
	wg.Wait()
	requireBalance(t, g.Stats())
	require.Zero(t, g.Stats().InFlight)
	require.Zero(t, g.Stats().LeasesExpired)
}

func TestAtomicityNoLifeIsShorterThanHalfTheWindow(t *testing.T) {
	// With the real clock: from when an id is completed until it begins again no
	// less than W/2 goes by, however the calls are interrupted.
	const w = 4 * time.Millisecond
	g, err := NewGenerational(WithWindow(w), WithMaxTracked(manyShards))
	require.NoError(t, err)
	const ids = 16
	var completed [ids]atomic.Int64
	epoch := time.Now()
	deadline := epoch.Add(300 * time.Millisecond)
	var lives atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := 0; time.Now().Before(deadline); i = (i + 1) % ids {
				c, state := g.TryBegin(number(i))
				if state != Begun {
					continue
				}
				if last := time.Duration(completed[i].Load()); last != 0 && time.Since(epoch)-last < w/2 {
					t.Errorf("id %d begun again after %v", i, time.Since(epoch)-last)
				}
				completed[i].Store(int64(time.Since(epoch)))
				g.Complete(c)
				lives.Add(1)
			}
		})
	}
	wg.Wait()
	require.Greater(t, lives.Load(), int64(ids))
}

func TestAtomicityTheEffectIsSeenWhenTheCallHasReturned(t *testing.T) {
	for _, m := range []int{1000, manyShards} {
		g, _ := newGuard(t, WithMaxTracked(m))
		type sent struct {
			i    int
			want State
			c    Claim
		}
		relay := make(chan sent)
		var wg sync.WaitGroup
		wg.Go(func() {
			defer close(relay)
			for i := range rounds(20_000) {
				c, _ := g.TryBegin(number(i))
				relay <- sent{i, InFlight, c}
				c, _ = g.TryBegin(number(i + 1<<20))
				g.Complete(c)
				relay <- sent{i + 1<<20, Completed, c}
			}
		})
		for s := range relay {
			_, state := g.TryBegin(number(s.i))
			require.Equal(t, s.want, state)
			g.Release(s.c)
		}
		wg.Wait()
	}
}

func TestStressEveryMethodAtOnce(t *testing.T) {
	for _, m := range []int{2, 50, manyShards} {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) {
			clock := newGuardClock()
			g, err := NewGenerational(WithClock(clock), WithWindow(1000), WithLease(1000), WithMaxTracked(m))
			require.NoError(t, err)
			n := rounds(30_000)
			ctx, cancel := context.WithCancel(t.Context())
			var workers, watchers sync.WaitGroup
			work := func(name string, fn func(rnd *rand.Rand)) {
				workers.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(len(name)), 5))
					for range n {
						fn(rnd)
					}
				})
			}
			id := func(rnd *rand.Rand) Identity { return ids50k[rnd.IntN(200)] }
			claims := make(chan Claim, 64)
			for _, name := range []string{"settler", "settler two", "settler three"} {
				work(name, func(rnd *rand.Rand) {
					c, state := g.TryBegin(id(rnd))
					if (state == Begun) != (c.Token() != 0) {
						t.Errorf("%v with token %d", state, c.Token())
					}
					verbsInOrder[rnd.IntN(3)](g, c)
				})
			}
			work("leaker", func(rnd *rand.Rand) {
				if c, state := g.TryBegin(id(rnd)); state == Begun {
					select {
					case claims <- c:
					default: // leaked
					}
				}
			})
			work("late", func(rnd *rand.Rand) {
				select {
				case c := <-claims:
					verbsInOrder[rnd.IntN(3)](g, c)
					verbsInOrder[rnd.IntN(3)](g, c)
				default:
				}
			})
			work("forgetter", func(rnd *rand.Rand) { g.Forget(id(rnd)) })
			work("mover", func(rnd *rand.Rand) { clock.add(time.Duration(rnd.IntN(200) - 20)) })
			watch := func(fn func()) {
				watchers.Go(func() {
					for ctx.Err() == nil {
						fn()
						runtime.Gosched()
					}
				})
			}
			watch(func() {
				s := g.Stats()
				sum := s.Completed + s.Rejected + s.Released + uint64(s.InFlight) + s.LeasesExpired
				if s.Begun != sum {
					t.Errorf("out of balance: %+v", s)
				}
				if s.Tracked > m || s.InFlight > m || s.Tracked < 0 || s.InFlight < 0 {
					t.Errorf("beyond the ceiling: %+v", s)
				}
				if s.Horizon < 0 || s.Horizon > 500 {
					t.Errorf("horizon %d", s.Horizon)
				}
			})
			for range 4 {
				watch(func() {
					short, stop := context.WithTimeout(ctx, time.Millisecond)
					defer stop()
					_ = g.Wait(short, ids50k[rand.IntN(200)])
				})
			}
			workers.Wait()
			cancel()
			watchers.Wait()

			for i := range g.shards {
				if sh := g.shards[i].Load(); sh != nil {
					require.NoError(t, sh.check())
					require.Empty(t, sh.waits)
				}
			}
			clock.add(time.Hour)
			s := g.Stats()
			requireBalance(t, s)
			assert.Zero(t, s.Tracked)
			assert.Zero(t, s.InFlight)
			for i := range 200 {
				require.Equal(t, Begun, look(g, ids50k[i]))
			}
		})
	}
}

func TestStressTheCeilingHoldsWhileGenerationsTurn(t *testing.T) {
	// Few ids a generation and many shards: turns and landings meet all the time.
	g, _ := newGuard(t, WithMaxTracked(manyShards))
	const h = 10
	g.terminal.limit, g.inFlight.limit = h, h
	var workers sync.WaitGroup
	var done atomic.Bool
	for w := range 8 {
		workers.Go(func() {
			for i := range rounds(20_000) {
				c, _ := g.TryBegin(ids50k[(w*20_000+i)%50_000])
				if i%5 > 0 {
					g.Complete(c)
				}
			}
		})
	}
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for !done.Load() {
			if s := g.Stats(); s.Tracked > 2*h || s.InFlight > 2*h {
				t.Errorf("beyond the ceiling: %+v", s)
				return
			}
			runtime.Gosched()
		}
	})
	workers.Wait()
	done.Store(true)
	watcher.Wait()
	s := g.Stats()
	requireBalance(t, s)
	require.GreaterOrEqual(t, s.Tracked, h)
}

func TestStressWaitersOfAStorm(t *testing.T) {
	g, err := NewGenerational()
	require.NoError(t, err)
	const holders = 200
	running, ran, failed := atomic.Int32{}, atomic.Int32{}, atomic.Int32{}
	var wg sync.WaitGroup
	for range holders {
		wg.Go(func() {
			_, err := Do(t.Context(), g, ID("storm"), func(context.Context) error {
				if running.Add(1) != 1 {
					t.Error("two at once")
				}
				defer running.Add(-1)
				runtime.Gosched()
				if ran.Add(1) < 20 {
					failed.Add(1)
					return assert.AnError
				}
				return nil
			})
			if err != nil && !errors.Is(err, assert.AnError) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 20, ran.Load())
	s := g.Stats()
	require.Zero(t, s.InFlight)
	require.EqualValues(t, 19, s.Released)
	requireBalance(t, s)
}
