package idem

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWaitReturnsAtOnceWhenNothingIsInFlight(t *testing.T) {
	g, _ := newGuard(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	mustHandle(t, g, ID("done"))
	g.Reject(mustBegin(t, g, ID("dead")))
	for _, id := range []string{"new", "done", "dead", ""} {
		require.NoError(t, g.Wait(ended, ID(id)), "what counts is the id, not the context")
	}
}

func TestWaitIsWokenByTheSettle(t *testing.T) {
	for name, verb := range verbs {
		synctest.Test(t, func(t *testing.T) {
			g, err := NewGenerational()
			require.NoError(t, err)
			c := mustBegin(t, g, ID("a"))
			start := time.Now()
			var woken [10]time.Duration
			var wg sync.WaitGroup
			for i := range woken {
				wg.Go(func() {
					assert.NoError(t, g.Wait(t.Context(), ID("a")))
					woken[i] = time.Since(start)
				})
			}
			time.Sleep(300 * time.Millisecond)
			synctest.Wait()
			verb(g, c)
			wg.Wait()
			for i := range woken {
				require.Equal(t, 300*time.Millisecond, woken[i], "at once, by %s", name)
			}
			require.Empty(t, g.shard(c.hash).waits)
		})
	}
}

func TestWaitIsNotWokenByAnotherId(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerational(WithMaxTracked(100))
		require.NoError(t, err)
		a, b := mustBegin(t, g, ID("a")), mustBegin(t, g, ID("b"))
		done := make(chan error)
		go func() { done <- g.Wait(t.Context(), ID("a")) }()
		synctest.Wait()
		g.Complete(b)
		g.Complete(b)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("woken by another id: %v", err)
		default:
		}
		g.Complete(a)
		require.NoError(t, <-done)
	})
}

func TestWaitGoesOnWhenAnotherTookTheId(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerational()
		require.NoError(t, err)
		c := mustBegin(t, g, ID("a"))
		done := make(chan error, 1)
		go func() { done <- g.Wait(t.Context(), ID("a")) }()
		synctest.Wait()
		sh := g.shard(c.hash)
		// Released and begun again before the waiter comes to look.
		sh.mu.Lock()
		now := g.line.now()
		sh.settle(&now, &c, release)
		var k key
		k.set(g.seed, ID("a"), IDAndDestination)
		token, state, ok := sh.tryBegin(&now, &k, first)
		sh.mu.Unlock()
		require.True(t, ok)
		require.Equal(t, Begun, state)
		synctest.Wait()
		require.Empty(t, done)
		g.Complete(Claim{id: ID("a"), token: token, hash: k.hash})
		require.NoError(t, <-done)
	})
}

func TestWaitNoticesALeaseThatRanOutWithinASecond(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, 10*time.Second + 300*time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			g, err := NewGenerational(WithLease(lease))
			require.NoError(t, err)
			start := time.Now()
			mustBegin(t, g, ID("a"))
			require.NoError(t, g.Wait(t.Context(), ID("a")))
			waited := time.Since(start)
			require.GreaterOrEqual(t, waited, lease)
			require.LessOrEqual(t, waited, 2*lease+time.Second)
			require.Equal(t, Begun, look(g, ID("a")))
		})
	}
}

func TestWaitNoticesAnInjectedClockWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, clock := newGuard(t, WithLease(time.Hour))
		mustBegin(t, g, ID("a"))
		done := make(chan error, 1)
		go func() { done <- g.Wait(t.Context(), ID("a")) }()
		synctest.Wait()
		clock.add(2 * time.Hour)
		start := time.Now()
		require.NoError(t, <-done)
		require.LessOrEqual(t, time.Since(start), time.Second)
	})
}

func TestWaitNoticesALateComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerational(WithLease(time.Minute))
		require.NoError(t, err)
		late := mustBegin(t, g, ID("a"))
		time.Sleep(2 * time.Minute)
		mustBegin(t, g, ID("a"))
		done := make(chan error, 1)
		go func() { done <- g.Wait(t.Context(), ID("a")) }()
		synctest.Wait()
		start := time.Now()
		g.Complete(late)
		require.NoError(t, <-done)
		require.Zero(t, time.Since(start), "woken at once")
	})
}

func TestWaitEndsWithTheContextsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerational()
		require.NoError(t, err)
		c := mustBegin(t, g, ID("a"))

		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, g.Wait(ctx, ID("a")), context.DeadlineExceeded)
		require.Equal(t, 1500*time.Millisecond, time.Since(start))
		require.ErrorIs(t, g.Wait(ctx, ID("a")), context.DeadlineExceeded, "also when it has ended before")

		require.Empty(t, g.shard(c.hash).waits, "no room is left behind")
		_, state := g.TryBegin(ID("a"))
		require.Equal(t, InFlight, state, "waiting changes nothing")
	})
}

func TestWaitCanceledLeavesTheOthersWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerational()
		require.NoError(t, err)
		c := mustBegin(t, g, ID("a"))
		ctx, cancel := context.WithCancel(t.Context())
		one, two := make(chan error, 1), make(chan error, 1)
		go func() { one <- g.Wait(ctx, ID("a")) }()
		go func() { two <- g.Wait(t.Context(), ID("a")) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-one, context.Canceled)
		synctest.Wait()
		require.Empty(t, two)
		start := time.Now()
		g.Release(c)
		require.NoError(t, <-two)
		require.Zero(t, time.Since(start))
	})
}

func TestWaitKeepsNoTimerWhenNobodyWaits(t *testing.T) {
	// In a bubble time moves to the next timer. With none left but the test's own
	// the sleep is one step; and no goroutine is left, or synctest fails the test.
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerational()
		require.NoError(t, err)
		c := mustBegin(t, g, ID("a"))
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- g.Wait(ctx, ID("a")) }()
			synctest.Wait()
			cancel()
			require.Error(t, <-done)
		}
		require.Empty(t, g.shard(c.hash).waits)
	})
}

func TestWaitHasRoomsByHash(t *testing.T) {
	var w waits
	w.wake(1) // nobody there
	a, b := w.enter(1), w.enter(1)
	assert.Same(t, a, b)
	other := w.enter(2)
	assert.NotSame(t, a, other)
	w.wake(1)
	select {
	case <-a.woken:
	default:
		t.Fatal("not woken")
	}
	next := w.enter(1)
	assert.NotSame(t, a, next, "who comes later waits anew")
	w.leave(1, a)
	w.leave(1, b)
	assert.Same(t, next, w[1], "the old room's guests don't close the new one")
	w.leave(1, next)
	w.leave(2, other)
	assert.Empty(t, w)
}
