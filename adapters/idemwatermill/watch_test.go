package idemwatermill

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func newGuard(t *testing.T, opts ...idem.Option) *idem.Generational {
	t.Helper()
	guard, err := idem.NewGenerational(opts...)
	require.NoError(t, err)
	return guard
}

// handled hands a message to the middleware as a router would, and leaves it
// unsettled.
func handled(t *testing.T, r *rig, msg *message.Message) {
	t.Helper()
	_, err := r.dedup(r.ok)(msg)
	require.NoError(t, err)
	synctest.Wait()
	require.Equal(t, 1, r.guard.Stats().InFlight)
}

// Each of these runs in a bubble, which notices a goroutine that stays.
func TestTheMessageDecides(t *testing.T) {
	for name, tt := range map[string]struct {
		settle    func(msg *message.Message, end context.CancelFunc)
		completed uint64
	}{
		"acked":                   {func(msg *message.Message, _ context.CancelFunc) { msg.Ack() }, 1},
		"nacked":                  {func(msg *message.Message, _ context.CancelFunc) { msg.Nack() }, 0},
		"acked, and over at once": {func(msg *message.Message, end context.CancelFunc) { msg.Ack(); end() }, 1},
		"over, and acked later": {func(msg *message.Message, end context.CancelFunc) {
			end()
			time.Sleep(5*time.Second - time.Nanosecond)
			msg.Ack()
		}, 1},
		"over, and nacked later": {func(msg *message.Message, end context.CancelFunc) {
			end()
			time.Sleep(5*time.Second - time.Nanosecond)
			msg.Nack()
		}, 0},
		"over, and never settled": {func(_ *message.Message, end context.CancelFunc) {
			end()
			time.Sleep(5 * time.Second)
		}, 0},
		"slow publishing, then acked": {func(msg *message.Message, _ context.CancelFunc) {
			time.Sleep(10 * time.Hour)
			msg.Ack()
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.guard = newGuard(t, idem.WithLease(100*time.Hour))
				r.dedup = newDedup(t, r.guard, WithSettleTimeout(5*time.Second))
				msg := identified("a")
				ctx, end := contextOf(t)
				defer end()
				msg.SetContext(ctx)
				handled(t, r, msg)
				tt.settle(msg, end)
				synctest.Wait()
				stats := r.guard.Stats()
				assert.Zero(t, stats.InFlight)
				assert.Equal(t, tt.completed, stats.Completed)
				assert.Equal(t, 1-tt.completed, stats.Released)
			})
		})
	}
}

// The end of the context alone settles nothing: the router may be publishing.
func TestTheEndOfTheContextLeavesTimeToSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		msg := identified("a")
		ctx, end := contextOf(t)
		msg.SetContext(ctx)
		handled(t, r, msg)
		end()
		time.Sleep(defaultSettleTimeout - time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, 1, r.guard.Stats().InFlight)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Zero(t, r.guard.Stats().InFlight)
	})
}

func TestTheSubscriptionsEndCountsAsTheMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		msg := identified("a")
		sub, end := contextOf(t)
		msg.SetContext(context.WithValue(context.Background(), subscriptionKey{}, sub))
		handled(t, r, msg)
		end()
		time.Sleep(defaultSettleTimeout - time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, 1, r.guard.Stats().InFlight)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Zero(t, r.guard.Stats().InFlight)
	})
}

// A message that a middleware has put in the place of the router's, with a context
// that never ends.
func TestAMessageThatNobodySettlesIsNotWatchedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.guard = newGuard(t, idem.WithLease(100*time.Hour))
		r.dedup = newDedup(t, r.guard)
		handled(t, r, identified("a"))
		time.Sleep(longestWatch - time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, 1, r.guard.Stats().InFlight)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, uint64(1), r.guard.Stats().Released)
	})
}

// An outer Retry or Duplicator: the message would wait for itself.
func TestTheSameMessageHandedInAgainRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		msg := identified("a")
		handled(t, r, msg)
		handled(t, r, msg)
		msg.Ack()
		synctest.Wait()
		assert.Len(t, r.ranSoFar(), 2)
		stats := r.guard.Stats()
		assert.Equal(t, uint64(1), stats.Released)
		assert.Equal(t, uint64(1), stats.Completed)
		assert.Zero(t, stats.DuplicatesInFlight)
	})
}

func TestAHoldEndsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		first, second := identified("a"), identified("a")
		handled(t, r, first)
		begin := time.Now()
		outputs, err := r.dedup(r.ok)(second)
		require.NoError(t, err)
		assert.Empty(t, outputs)
		assert.Equal(t, defaultHoldTimeout, time.Since(begin))
		assert.True(t, isClosed(second.Nacked()))
		first.Ack()
	})
}

// The ack has ended its context, which says nothing about the work.
func TestACopyThatIsAckedAlreadyIsHeldToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		first, second := identified("a"), over(identified("a"), true)
		second.Ack()
		handled(t, r, first)
		held := make(chan error, 1)
		go func() { _, err := r.dedup(r.ok)(second); held <- err }()
		synctest.Wait()
		assert.Empty(t, held)
		first.Ack()
		require.NoError(t, <-held)
		assert.Len(t, r.ranSoFar(), 1)
	})
}

func TestARequeuedCopyRestsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, WithInFlight(idem.RequeueInFlight))
		first, second := identified("a"), identified("a")
		handled(t, r, first)
		begin := time.Now()
		_, err := r.dedup(r.ok)(second)
		require.NoError(t, err)
		assert.Equal(t, defaultRequeuePause, time.Since(begin))
		assert.True(t, isClosed(second.Nacked()))
		first.Ack()
	})
}

// What no NewMessage has made has no channels to watch.
func TestAMessageThatNobodyCanWatchIsSettledAtOnce(t *testing.T) {
	r := newRig(t)
	h := r.dedup(r.failing(1, errHandler))
	msg := &message.Message{Metadata: message.Metadata{field: "a"}}
	_, err := h(msg)
	require.ErrorIs(t, err, errHandler)
	_, err = h(msg)
	require.NoError(t, err)
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
}

func TestNothingIsKeptOfSettledMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard := newGuard(t)
		m := &dedup{guard: guard, settleTimeout: time.Second}
		one, other := newTurn(m, identified("a"), idem.ID("a")), newTurn(m, identified("a"), idem.ID("a"))
		one.claim, _ = guard.TryBegin(idem.IDAt("a", "one"))
		other.claim, _ = guard.TryBegin(idem.IDAt("a", "other"))
		m.watch(one, idem.Ack)
		m.watch(other, idem.Ack)
		one.msg.Ack()
		synctest.Wait()
		assert.Len(t, m.flights.of("a"), 1)
		other.msg.Nack()
		synctest.Wait()
		assert.Empty(t, m.flights.byID)
	})
}

// brokenClock panics once it is broken.
type brokenClock struct{ broken atomic.Bool }

func (c *brokenClock) Now() time.Time {
	if c.broken.Load() {
		panic("clock stopped")
	}
	return time.Unix(1_700_000_000, 0)
}

// Nobody could recover a panic of the goroutine that waits for the ack.
func TestAClockThatPanicsAtTheAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clock brokenClock
		r := newRig(t)
		r.guard = newGuard(t, idem.WithClock(&clock))
		r.dedup = newDedup(t, r.guard)
		msg := identified("a")
		handled(t, r, msg)
		clock.broken.Store(true)
		msg.Ack()
		synctest.Wait()
		clock.broken.Store(false)
		assert.Zero(t, r.guard.Stats().InFlight, "released")
		again := identified("a")
		handled(t, r, again)
		again.Ack()
	})
}
