package idemredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSuccessIsAckedOnce(t *testing.T) {
	r, l, runs := newRig(t), dial(t), tally{}
	r.publish("a", "b", "c")
	r.consume(r.receiver(runs.counting), r.source(l))
	r.settled()
	assert.ElementsMatch(t, []string{"a", "b", "c"}, runs.all())
	assert.Equal(t, 3, l.count("xack"))
	assert.Equal(t, uint64(3), r.guard.Stats().Completed)
	assert.Empty(t, r.deadLetters())
}

func TestFailureComesBackAfterTheDelay(t *testing.T) {
	r, l, runs := newRig(t), dial(t), tally{}
	var failedAt, cameBack time.Time
	var delivered []int64
	r.publish("a")
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		delivered = append(delivered, d.Delivered())
		if runs.add(idOf(d)) == 1 {
			failedAt = time.Now()
			return errHandler
		}
		cameBack = time.Now()
		return nil
	}), r.source(l, WithRequeueDelay(150*time.Millisecond)))
	r.settled()
	assert.Equal(t, 2, runs.of("a"))
	assert.GreaterOrEqual(t, cameBack.Sub(failedAt), 150*time.Millisecond)
	assert.Less(t, cameBack.Sub(failedAt), patience, "not only when it has been idle for a minute")
	assert.Equal(t, []int64{1, 2}, delivered, "a failure counts")
	assert.Equal(t, uint64(1), r.guard.Stats().Released)
}

func TestPoisonGoesToTheDeadLetters(t *testing.T) {
	r, runs := newRig(t), tally{}
	r.publish("poison", "good")
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		runs.add(idOf(d))
		if idOf(d) == "poison" {
			return idem.WithOutcome(errors.New("amount is negative: -3"), idem.Reject)
		}
		return nil
	}), r.source(dial(t)))
	r.settled()
	assert.Equal(t, 1, runs.of("poison"))
	assert.Equal(t, uint64(1), r.guard.Stats().Rejected)
	dead := r.deadEntries()
	require.Len(t, dead, 1)
	first, err := r.rdb.XRangeN(t.Context(), r.place.Stream, "-", "+", 1).Result()
	require.NoError(t, err)
	assert.Equal(t, map[string]any{
		"id": "poison", "payload": "of poison",
		"dead-stream": r.place.Stream, "dead-group": "billing", "dead-entry": first[0].ID, "dead-reason": "amount is negative: -3",
	}, dead[0].Values)
}

func TestDuplicateAfterSuccessIsAckedUnrun(t *testing.T) {
	r, l, runs := newRig(t), dial(t), tally{}
	r.consume(r.receiver(runs.counting), r.source(l))
	r.publish("a")
	r.settled()
	r.publish("a", "b")
	r.settled()
	assert.Equal(t, []string{"a", "b"}, runs.all())
	assert.Equal(t, 3, l.count("xack"))
	assert.Equal(t, uint64(1), r.guard.Stats().DuplicatesCompleted)
}

func TestDuplicateAfterRejectIsRejectedAgain(t *testing.T) {
	r, runs := newRig(t), tally{}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		runs.add(idOf(d))
		return idem.WithOutcome(errHandler, idem.Reject)
	}), r.source(dial(t)))
	r.publish("a")
	r.settled()
	r.publish("a")
	r.settled()
	assert.Equal(t, []string{"a"}, runs.all())
	assert.Equal(t, []string{"a", "a"}, r.deadLetters(), "neither run nor lost")
	assert.Equal(t, idem.ErrRejected.Error(), r.deadEntries()[1].Values["dead-reason"])
}

// A publisher's copy: an entry of its own.
func TestDuplicateInFlight(t *testing.T) {
	for _, policy := range []idem.InFlightPolicy{idem.HoldInFlight, idem.RequeueInFlight, idem.AckInFlight} {
		for _, first := range []error{nil, errHandler} {
			t.Run(fmt.Sprintf("%v, the first run returns %v", policy, first), func(t *testing.T) {
				r, l, g := newRig(t), dial(t), newGated()
				receiver := r.receiver(g.handle)
				receiver.OnInFlight = policy
				r.consume(receiver, r.source(l))
				r.publish("a")
				require.Equal(t, "a", <-g.entered)
				r.publish("a")
				r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight > 0 })
				switch policy {
				case idem.HoldInFlight:
					assert.Len(t, r.pending(), 2, "nothing is settled")
				case idem.RequeueInFlight:
					r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight >= 3 })
				case idem.AckInFlight:
					r.eventually(func() bool { return len(r.pending()) == 1 })
				}
				g.gate <- first
				if first != nil {
					require.Equal(t, "a", <-g.entered)
					g.gate <- nil
				}
				r.settled()
				assert.Empty(t, g.entered)
				assert.Equal(t, uint64(1), r.guard.Stats().Completed)
				assert.Equal(t, 2, l.count("xack"))
			})
		}
	}
}

// The copy that is claimed while the entry is being handled is the same entry: an
// XACK of it would take the only one there is.
func TestAClaimedCopyIsHeldAndNotAcked(t *testing.T) {
	for _, first := range []error{nil, errHandler} {
		t.Run(fmt.Sprintf("the first run returns %v", first), func(t *testing.T) {
			r, l, g := newRig(t), dial(t), newGated()
			l.lose = func(cmd redis.Cmder) error { // signs of life
				if nameOf(cmd) == "renew" {
					return net.ErrClosed
				}
				return nil
			}
			r.publish("a")
			r.consume(r.receiver(g.handle), r.source(l, WithMinIdle(200*time.Millisecond)))
			require.Equal(t, "a", <-g.entered)
			r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight >= 2 })
			assert.Zero(t, l.count("xack"))
			assert.Len(t, r.pending(), 1)
			g.gate <- first
			if first != nil {
				require.Equal(t, "a", <-g.entered, "a copy's turn")
				g.gate <- nil
			}
			r.settled()
			assert.Empty(t, g.entered)
			assert.Equal(t, uint64(1), r.guard.Stats().Completed)
		})
	}
}

// Documented: don't. All copies of an entry share its one place among the pending.
func TestAckInFlightOfAClaimedCopyLosesTheEntry(t *testing.T) {
	r, g, s := newRig(t), newGated(), (*Source)(nil)
	s = r.source(dial(t))
	receiver := r.receiver(g.handle)
	receiver.OnInFlight = idem.AckInFlight
	r.publish("a")
	result := make(chan error)
	first := r.next(s)
	go func() { result <- receiver.Receive(context.Background(), first) }()
	<-g.entered
	r.age()
	require.NoError(t, receiver.Receive(t.Context(), r.next(r.sourceAs("other", dial(t)))))
	require.Empty(t, r.pending())
	g.gate <- errHandler
	require.ErrorIs(t, <-result, errHandler)
	r.nothing(s)
}

// Two consumers of one group, in one process and with one guard.
func TestTwoConsumersAreNotAtOneEntryAtOnce(t *testing.T) {
	r, g := newRig(t), newGated()
	receiver := r.receiver(g.handle)
	one, other := r.sourceAs("one", dial(t)), r.sourceAs("other", dial(t))
	r.publish("a")
	results := make(chan error, 2)
	receive := func(s *Source) {
		d := r.next(s)
		go func() { results <- receiver.Receive(context.Background(), d) }()
	}
	receive(one)
	<-g.entered
	r.age()
	receive(other)
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
	require.Equal(t, "other", r.pending()[0].Consumer)
	g.gate <- errHandler
	require.ErrorIs(t, <-results, errHandler, "what it gives back is not its own any more")
	<-g.entered
	require.Equal(t, "other", r.pending()[0].Consumer)
	r.nothing(one)
	g.gate <- nil
	require.NoError(t, <-results)
	r.settled()
}

func TestLostAckIsRedeliveredAndSuppressed(t *testing.T) {
	r, l, runs := newRig(t), dial(t), tally{}
	l.lose = func(cmd redis.Cmder) error {
		if nameOf(cmd) == "xack" && l.count("xack") < 3 {
			return net.ErrClosed
		}
		return nil
	}
	r.publish("a")
	r.consume(r.receiver(runs.counting), r.source(l, WithMinIdle(100*time.Millisecond)))
	r.eventually(func() bool { return l.count("xack") == 3 })
	r.settled()
	assert.Equal(t, []string{"a"}, runs.all())
	assert.Equal(t, uint64(2), r.guard.Stats().DuplicatesCompleted)
}

func TestHandlerSettlesByItself(t *testing.T) {
	ctx := context.Background()
	for name, tt := range map[string]struct {
		settle func(*rig, *Delivery) error
		runs   int
		dead   []string
	}{
		"Ack":             {func(_ *rig, d *Delivery) error { return d.Ack(ctx) }, 1, nil},
		"Requeue":         {func(_ *rig, d *Delivery) error { return d.Requeue(ctx, nil) }, 2, nil},
		"Requeue, failed": {func(_ *rig, d *Delivery) error { return d.Requeue(ctx, errHandler) }, 2, nil},
		"Reject":          {func(_ *rig, d *Delivery) error { return d.Reject(ctx, errHandler) }, 1, []string{"a"}},
		"XACK, unseen": {func(r *rig, d *Delivery) error {
			return r.rdb.XAck(ctx, r.place.Stream, r.place.Group, d.Message().ID).Err()
		}, 1, nil},
	} {
		for _, returns := range []error{nil, errHandler} {
			t.Run(fmt.Sprintf("%s, and returns %v", name, returns), func(t *testing.T) {
				r, runs := newRig(t), tally{}
				r.publish("a")
				r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
					if runs.add(idOf(d)) > 1 {
						return nil
					}
					assert.NoError(t, tt.settle(r, d))
					assert.NoError(t, tt.settle(r, d), "a second time")
					return returns
				}), r.source(dial(t)))
				r.eventually(func() bool { return runs.of("a") == tt.runs })
				r.settled()
				assert.Equal(t, tt.runs, runs.of("a"))
				assert.Equal(t, tt.dead, r.deadLetters())
			})
		}
	}
}

// keptAlive is after how many signs of life a handler has outlived the idle time
// twice.
const keptAlive = 7

func TestSlowHandlerIsNotClaimed(t *testing.T) {
	r, l, g := newRig(t), dial(t), newGated()
	r.publish("a")
	r.consume(r.receiver(g.handle), r.source(l, WithMinIdle(600*time.Millisecond)))
	<-g.entered
	r.eventually(func() bool { return l.count("renew") >= keptAlive })
	assert.Equal(t, int64(1), r.pending()[0].RetryCount, "delivered once")
	g.gate <- nil
	r.settled()
	assert.Equal(t, 1, l.count("xack"))
	assert.Zero(t, r.guard.Stats().DuplicatesInFlight)
}

func TestShutdownInMidHandler(t *testing.T) {
	r, g := newRig(t), newGated()
	for i := range 50 {
		r.publish(fmt.Sprint(i))
	}
	s := r.source(dial(t), WithBatch(16), WithRequeueDelay(0))
	stop, wait := r.start(r.receiver(g.handle), s)
	for range 4 {
		<-g.entered
	}
	stop()
	g.gate <- errHandler
	for range 3 {
		g.gate <- nil
	}
	require.ErrorIs(t, wait(), context.Canceled)
	require.NoError(t, s.GiveBack(t.Context()))
	stats := r.guard.Stats()
	assert.Equal(t, uint64(4), stats.Begun, "what was only fetched ahead doesn't touch the guard")
	assert.Equal(t, uint64(3), stats.Completed, "what was done is acked, on a context that lives")
	assert.Zero(t, stats.InFlight)

	runs := tally{}
	delivered := make(map[int64]int)
	second := r.receiver(func(_ context.Context, d *Delivery) error {
		runs.mu.Lock()
		delivered[d.Delivered()]++
		runs.mu.Unlock()
		runs.add(idOf(d))
		return nil
	})
	r.consume(second, r.sourceAs("second", dial(t)))
	r.settled()
	assert.Len(t, runs.all(), 47, "at once, although the idle time is a minute")
	assert.Equal(t, map[int64]int{1: 46, 2: 1}, delivered, "only the failed one has had a try")
	assert.Zero(t, r.guard.Stats().DuplicatesCompleted)
}

func TestHandlerThatHeedsTheShutdownRunsAgain(t *testing.T) {
	r, runs := newRig(t), tally{}
	entered := make(chan struct{}, 1)
	receiver := r.receiver(func(ctx context.Context, _ *Delivery) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	receiver.Drain = time.Millisecond
	r.publish("a")
	stop := r.consume(receiver, r.source(dial(t)))
	<-entered
	require.ErrorIs(t, stop(), context.Canceled)
	r.consume(r.receiver(runs.counting), r.sourceAs("second", dial(t), WithMinIdle(100*time.Millisecond)))
	r.settled()
	assert.Equal(t, []string{"a"}, runs.all())
}

// The connection is gone when the handlers are done: their acks can't succeed. The
// guard outlives the receiver, and drops what is claimed.
func TestReceiverRebuilt(t *testing.T) {
	r, l, g := newRig(t), dial(t), newGated()
	r.publish("a", "b")
	receiver := r.receiver(g.handle)
	receiver.SettleTimeout = time.Second
	ended := make(chan error, 1)
	s := r.source(l)
	go func() { ended <- receiver.Consume(context.Background(), 2, s.Next) }()
	<-g.entered
	<-g.entered
	l.cut()
	g.gate <- nil
	g.gate <- nil
	require.Error(t, <-ended, "the read has failed")
	require.Equal(t, uint64(2), r.guard.Stats().Completed, "a failed ack doesn't undo the work")
	require.Len(t, r.pending(), 2)

	again, runs := dial(t), tally{}
	r.consume(r.receiver(runs.counting), r.source(again, WithMinIdle(50*time.Millisecond)))
	r.settled()
	assert.Empty(t, runs.all())
	assert.Equal(t, 2, again.count("xack"))
	assert.Equal(t, uint64(2), r.guard.Stats().DuplicatesCompleted)
}

func TestUnidentifiedMessagesAlwaysRun(t *testing.T) {
	r, l, runs := newRig(t), dial(t), tally{}
	l.lose = func(cmd redis.Cmder) error {
		if nameOf(cmd) == "xack" && l.count("xack") == 1 {
			return net.ErrClosed
		}
		return nil
	}
	r.publish("", "")
	r.consume(r.receiver(runs.counting), r.source(l, WithMinIdle(100*time.Millisecond)))
	r.settled()
	assert.Equal(t, 3, runs.of(""), "two messages, one of them twice: nothing tells the copies")
	assert.Equal(t, uint64(3), r.guard.Stats().Unidentified)
}

// A failing id function is no reason to ack, nor to run.
func TestFailingIDIsRequeued(t *testing.T) {
	r, calls, runs := newRig(t), tally{}, tally{}
	s, err := New(dial(t), r.place, func(msg redis.XMessage) (string, error) {
		if calls.add("") == 1 {
			return "", errHandler
		}
		return msg.Values["payload"].(string), nil
	}, WithRequeueDelay(quick))
	require.NoError(t, err)
	r.publish("a")
	r.consume(r.receiver(runs.counting), s)
	r.settled()
	assert.Equal(t, []string{"a"}, runs.all())
	assert.Equal(t, uint64(1), r.guard.Stats().Begun)
}

func TestEntryIDTellsRedeliveriesOnly(t *testing.T) {
	r, l, runs := newRig(t), dial(t), tally{}
	l.lose = func(cmd redis.Cmder) error {
		if nameOf(cmd) == "xack" && l.count("xack") == 1 {
			return net.ErrClosed
		}
		return nil
	}
	s, err := New(l, r.place, EntryID(r.place.Stream), WithMinIdle(100*time.Millisecond))
	require.NoError(t, err)
	r.publish("a", "a")
	r.consume(r.receiver(runs.counting), s)
	r.settled()
	assert.Equal(t, []string{"a", "a"}, runs.all())
	assert.Equal(t, uint64(1), r.guard.Stats().DuplicatesCompleted)
}

// One guard for two groups: each is to get the entry, unless told otherwise.
func TestGroupsOnOneGuard(t *testing.T) {
	for mode, want := range map[idem.MessageIdentity]int{idem.IDAndDestination: 2, idem.IDOnly: 1} {
		r, runs := newRig(t), tally{}
		guard, err := idem.NewGenerational(idem.WithMessageIdentity(mode))
		require.NoError(t, err)
		r.guard = guard
		r.publish("a")
		r.consume(r.receiver(runs.counting), r.source(dial(t)))
		r.settled()
		r.place.Group = "another"
		require.NoError(t, r.rdb.XGroupCreate(t.Context(), r.place.Stream, "another", "0").Err())
		r.consume(r.receiver(runs.counting), r.source(dial(t)))
		r.eventually(func() bool { return guard.Stats().Completed+guard.Stats().DuplicatesCompleted == 2 })
		assert.Equal(t, want, runs.of("a"))
	}
}

// A storm of copies behind a slow one: they run once, and are all settled.
func TestStormOfCopiesRunsOnce(t *testing.T) {
	r, l, g := newRig(t), dial(t), newGated()
	r.consume(r.receiver(g.handle), r.source(l, WithMaxUnsettled(50), WithBatch(10)))
	r.publish("a")
	<-g.entered
	for range 200 {
		r.publish("a")
	}
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 49 })
	g.gate <- nil
	r.settled()
	assert.Empty(t, g.entered)
	assert.Equal(t, 201, l.count("xack"))
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
	assert.Equal(t, uint64(200), r.guard.Stats().DuplicatesInFlight+r.guard.Stats().DuplicatesCompleted)
}
