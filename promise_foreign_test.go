package idem

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 10, foreign code never runs under a lock; a panic in it leaves the
// guard usable, and the call all-or-nothing.

// badClock does what it is told to when it is read.
type badClock struct {
	guardClock
	do func()
}

func (c *badClock) Now() time.Time {
	if c.do != nil {
		c.do()
	}
	return c.guardClock.Now()
}

func newBadClock() *badClock { return &badClock{guardClock: guardClock{now: time.Unix(0, 0)}} }

// guardCalls are all that read the clock, with ids and claims of all kinds.
func guardCalls(g *Generational, inFlight, settled, lapsed Claim) map[string]func() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return map[string]func(){
		"TryBegin new":       func() { g.TryBegin(ID("new")) },
		"TryBegin in flight": func() { g.TryBegin(inFlight.Identity()) },
		"TryBegin completed": func() { g.TryBegin(settled.Identity()) },
		"Complete":           func() { g.Complete(inFlight) },
		"Complete settled":   func() { g.Complete(settled) },
		"Complete lapsed":    func() { g.Complete(lapsed) },
		"Reject":             func() { g.Reject(inFlight) },
		"Release":            func() { g.Release(inFlight) },
		"Forget":             func() { g.Forget(settled.Identity()) },
		"Wait":               func() { _ = g.Wait(ctx, inFlight.Identity()) },
		"Stats":              func() { g.Stats() },
	}
}

func TestForeignClockThatPanicsOrExitsChangesNothing(t *testing.T) {
	exits := map[string]func(){"panics": func() { panic("bad clock") }, "exits": runtime.Goexit}
	for how, exit := range exits {
		for name := range guardCalls(nil, Claim{}, Claim{}, Claim{}) {
			t.Run(name+" "+how, func(t *testing.T) {
				clock := newBadClock()
				g, err := NewGenerational(WithClock(clock), WithLease(100), WithWindow(1000))
				require.NoError(t, err)
				lapsed := mustBegin(t, g, ID("lapsed"))
				clock.add(200)
				inFlight, settled := mustBegin(t, g, ID("f")), mustBegin(t, g, ID("s"))
				g.Complete(settled)
				before := g.Stats()

				clock.do = exit
				elsewhere(func() {
					if how == "panics" {
						defer func() { assert.Equal(t, "bad clock", recover(), "the panic goes on with its own value") }()
					}
					guardCalls(g, inFlight, settled, lapsed)[name]()
					t.Error("the clock was not read")
				})
				clock.do = nil

				want := InFlight
				if name == "Release" { // who cleans up must be able to, whatever the clock does
					before.InFlight, before.Released, want = before.InFlight-1, before.Released+1, Begun
				}
				require.Equal(t, before, g.Stats(), "all or nothing")
				require.Equal(t, Begun, look(g, ID("new")))
				require.Equal(t, want, look(g, ID("f")))
				require.Equal(t, Completed, look(g, ID("s")))
				guardCalls(g, inFlight, settled, lapsed)[name]() // usable
				g.Complete(lapsed)
				require.Equal(t, Completed, look(g, ID("lapsed")))
			})
		}
	}
}

// elsewhere runs fn in a goroutine of its own, to its end.
func elsewhere(fn func()) {
	var wg sync.WaitGroup
	wg.Go(fn)
	wg.Wait()
}

func TestForeignClockMayCallTheGuard(t *testing.T) {
	// It would deadlock if it were read under a lock.
	for name := range guardCalls(nil, Claim{}, Claim{}, Claim{}) {
		t.Run(name, func(t *testing.T) {
			clock := newBadClock()
			g, err := NewGenerational(WithClock(clock), WithMaxTracked(100))
			require.NoError(t, err)
			inFlight, settled := mustBegin(t, g, ID("f")), mustBegin(t, g, ID("s"))
			g.Complete(settled)
			calls := 0
			clock.do = func() {
				do := clock.do
				clock.do = nil
				for i := range 3 {
					g.Release(mustBegin(t, g, number(i)))
				}
				g.Stats()
				clock.do = do
				calls++
			}
			guardCalls(g, inFlight, settled, inFlight)[name]()
			require.Equal(t, 1, calls)
			clock.do = nil
		})
	}
}

func TestForeignClockThatPanicsInTheMiddleOfDo(t *testing.T) {
	clock := newBadClock()
	g, err := NewGenerational(WithClock(clock))
	require.NoError(t, err)
	require.PanicsWithValue(t, "bad clock", func() {
		_, _ = Do(t.Context(), g, ID("a"), func(context.Context) error {
			clock.do = func() { clock.do = nil; panic("bad clock") } // Complete reads it
			return nil
		})
	})
	require.Zero(t, g.Stats().InFlight, "released on the way out")
	require.Equal(t, Begun, look(g, ID("a")))
}

func TestForeignClockThatPanicsLeavesNobodyWaiting(t *testing.T) {
	// Released while the clock panics: who waits hears of that, too.
	synctest.Test(t, func(t *testing.T) {
		clock := newBadClock()
		g, err := NewGenerational(WithClock(clock))
		require.NoError(t, err)
		c, start := mustBegin(t, g, ID("a")), time.Now()
		waited := make(chan error, 1)
		go func() { waited <- g.Wait(t.Context(), ID("a")) }()
		synctest.Wait()
		clock.do = func() { clock.do = nil; panic("bad clock") }
		require.Panics(t, func() { g.Release(c) })
		require.NoError(t, <-waited)
		require.Zero(t, time.Since(start), "without the look once a second")
	})
}
