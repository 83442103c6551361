package idemwatermill

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// heard asserts how often the broker has heard what.
func (r *rig) heard(acks, nacks int) {
	r.t.Helper()
	a, n, _ := r.counts()
	assert.Equal(r.t, acks, a, "acks")
	assert.Equal(r.t, nacks, n, "nacks")
}

func TestSuccessIsCompletedOnce(t *testing.T) {
	r := newRig(t)
	r.start(r.ok, r.dedup)
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	r.settled()
	r.heard(1, 0)
	assert.Equal(t, []string{"a"}, r.ranSoFar())
	assert.Equal(t, []string{"invoice of a"}, r.waiting(invoices))
}

func TestFailureRunsAgain(t *testing.T) {
	r := newRig(t)
	r.start(r.failing(2, errHandler), r.dedup)
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	r.settled()
	r.heard(1, 2)
	assert.Equal(t, []string{"a", "a", "a"}, r.ranSoFar())
	assert.Equal(t, uint64(2), r.guard.Stats().Released)
	assert.Zero(t, r.guard.Stats().DuplicatesInFlight, "released before the nack")
}

func TestFailedPublishRunsAgain(t *testing.T) {
	for _, policy := range []idem.InFlightPolicy{idem.HoldInFlight, idem.RequeueInFlight, idem.AckInFlight} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, WithInFlight(policy), WithRequeuePause(time.Hour)) // not to be needed
			r.refuse = failFirst(2, invoices)
			r.start(r.ok, r.dedup)
			const n = 200 // AckInFlight would drop the nacked ones that come back too soon
			for i := range n {
				r.publish(fmt.Sprint(i))
			}
			r.eventually(func() bool { return r.guard.Stats().Completed == n })
			r.settled()
			r.heard(n, 2*n)
			assert.Len(t, r.ranSoFar(), 3*n)
			assert.Len(t, r.waiting(invoices), n)
			stats := r.guard.Stats()
			assert.Equal(t, uint64(2*n), stats.Released)
			assert.Zero(t, stats.DuplicatesInFlight, "a nacked message doesn't meet itself")
		})
	}
}

func TestClaimIsKeptWhileOutputsArePublished(t *testing.T) {
	r := newRig(t)
	publishing, gate := make(chan struct{}, 10), make(chan error)
	r.refuse = func(topic, _ string) error {
		if topic != invoices {
			return nil
		}
		publishing <- struct{}{}
		return <-gate
	}
	r.start(r.ok, r.dedup)
	r.publish("a")
	<-publishing
	stats := r.guard.Stats()
	assert.Equal(t, 1, stats.InFlight)
	assert.Zero(t, stats.Completed, "the handler has returned, and is not done")
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
	gate <- errors.New("no broker")
	<-publishing // the copy, or the nacked one
	gate <- nil
	r.settled()
	assert.Len(t, r.ranSoFar(), 2)
	assert.Len(t, r.waiting(invoices), 1)
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
}

func TestDuplicateAfterSuccessIsAckedWithoutOutputs(t *testing.T) {
	r := newRig(t)
	r.start(r.ok, r.dedup)
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	r.publish("a")
	r.publish("b")
	r.eventually(func() bool { return r.guard.Stats().Completed == 2 })
	r.settled()
	r.heard(3, 0)
	assert.Equal(t, []string{"a", "b"}, r.ranSoFar())
	assert.Len(t, r.waiting(invoices), 2)
	assert.Equal(t, uint64(1), r.guard.Stats().DuplicatesCompleted)
}

func TestLostAckIsRedeliveredAndSuppressed(t *testing.T) {
	r := newRig(t)
	r.lose = 2
	r.start(r.ok, r.dedup)
	r.publish("a")
	r.eventually(func() bool { acks, _, _ := r.counts(); return acks == 3 })
	r.settled()
	assert.Equal(t, []string{"a"}, r.ranSoFar())
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
}

func TestSlowHandlerPastTheDeadlineRunsOnce(t *testing.T) {
	r := newRig(t)
	g := r.gated()
	r.start(g.handle, r.dedup)
	r.publish("a")
	g.next(t)
	for n := range uint64(3) {
		r.redeliver()
		r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == n+1 })
	}
	g.gate <- nil
	r.settled()
	assert.Equal(t, []string{"a"}, r.ranSoFar())
	assert.Len(t, r.waiting(invoices), 1)
}

func TestStormOfCopiesRunsOnce(t *testing.T) {
	r := newRig(t)
	g := r.gated()
	r.start(g.handle, r.dedup)
	r.publish("a")
	g.next(t)
	const copies = 970
	for range copies {
		r.publish("a")
	}
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == copies })
	g.gate <- nil
	r.settled()
	r.heard(copies+1, 0)
	assert.Equal(t, []string{"a"}, r.ranSoFar())
	assert.Equal(t, 1, r.guard.Stats().Tracked)
}

func TestHandlerSettlesByItself(t *testing.T) {
	for _, returns := range []error{nil, errHandler, idem.WithOutcome(errHandler, idem.Reject)} {
		t.Run(fmt.Sprintf("Ack, and returns %v", returns), func(t *testing.T) {
			r := newRig(t)
			r.start(func(msg *message.Message) ([]*message.Message, error) {
				r.ran(msg)
				msg.Ack()
				return nil, returns
			}, r.dedup)
			r.publish("a")
			r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
			r.settled()
			assert.Equal(t, []string{"a"}, r.ranSoFar())
		})
		t.Run(fmt.Sprintf("Nack, and returns %v", returns), func(t *testing.T) {
			r := newRig(t)
			r.start(func(msg *message.Message) ([]*message.Message, error) {
				if r.ran(msg) > 1 {
					return nil, nil
				}
				msg.Nack()
				return nil, returns
			}, r.dedup)
			r.publish("a")
			r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
			r.settled()
			assert.Equal(t, []string{"a", "a"}, r.ranSoFar())
			assert.Equal(t, uint64(1), r.guard.Stats().Released)
		})
	}
}

func TestPanicRunsAgain(t *testing.T) {
	for name, m := range map[string][]message.HandlerMiddleware{
		"router":            nil,
		"Recoverer outside": {middleware.Recoverer},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.start(func(msg *message.Message) ([]*message.Message, error) {
				if r.ran(msg) == 1 {
					panic("a fault")
				}
				return nil, nil
			}, append(m, r.dedup)...)
			r.publish("a")
			r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
			r.settled()
			r.heard(1, 1)
			assert.Equal(t, uint64(1), r.guard.Stats().Released)
		})
	}
}

func TestPanicAfterAckIsCompleted(t *testing.T) {
	r := newRig(t)
	r.start(func(msg *message.Message) ([]*message.Message, error) {
		r.ran(msg)
		msg.Ack()
		panic("a fault")
	}, r.dedup)
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	r.settled()
	assert.Equal(t, []string{"a"}, r.ranSoFar())
}

func TestPanicGoesOnWithItsOwnValue(t *testing.T) {
	r := newRig(t)
	h := r.dedup(func(*message.Message) ([]*message.Message, error) { panic(errHandler) })
	assert.PanicsWithValue(t, errHandler, func() { _, _ = h(identified("a")) })
	assert.Zero(t, r.guard.Stats().InFlight)
}

func TestGoexitReleases(t *testing.T) {
	r := newRig(t)
	h := r.dedup(func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil })
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = h(identified("a"))
	}()
	<-done
	assert.Equal(t, uint64(1), r.guard.Stats().Released)
	assert.Zero(t, r.guard.Stats().InFlight)
}

func TestUnidentifiedMessagesAllRun(t *testing.T) {
	r := newRig(t)
	r.start(r.ok, r.dedup)
	r.publish("", "same body")
	r.publish("", "same body")
	r.publish("", "other body")
	r.eventually(func() bool { acks, _, _ := r.counts(); return acks == 3 })
	assert.Len(t, r.ranSoFar(), 3)
	stats := r.guard.Stats()
	assert.Equal(t, uint64(3), stats.Unidentified)
	assert.Zero(t, stats.Tracked)
}

func TestIDThatFailsIsNotRun(t *testing.T) {
	errID := errors.New("no such field")
	r := newRig(t, WithID(func(*message.Message) (string, error) { return "x", errID }))
	r.start(r.ok, r.poison(), r.dedup)
	r.publish("a")
	r.eventually(func() bool { return len(r.waiting(poisoned)) == 1 })
	assert.Empty(t, r.ranSoFar())
	assert.Equal(t, uint64(0), r.guard.Stats().Begun, "not touched")

	_, err := r.dedup(r.ok)(identified("a"))
	require.ErrorIs(t, err, errID)
	require.ErrorContains(t, err, "idemwatermill: ")
}

// Each handler of a topic gets each message, and another topic's are others.
func TestHandlersAndTopicsAreTheDestination(t *testing.T) {
	r := newRig(t)
	pubsub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	for _, handlers := range []map[string]string{
		{"billing": "orders", "shipping": "orders"},
		{"billing": "returns"}, // in a router of its own
	} {
		router, err := message.NewRouter(message.RouterConfig{}, nil)
		require.NoError(t, err)
		router.AddMiddleware(r.dedup)
		for name, topic := range handlers {
			router.AddConsumerHandler(name, topic, pubsub, func(*message.Message) error {
				r.ran(message.NewMessage("", []byte(topic+" "+name)))
				return nil
			})
		}
		run(t, router)
	}
	for range 2 {
		require.NoError(t, pubsub.Publish("orders", identified("a")))
		require.NoError(t, pubsub.Publish("returns", identified("a")))
	}
	assert.ElementsMatch(t, []string{"orders billing", "orders shipping", "returns billing"}, r.ranSoFar())
}

// The guard looks at the id alone: one of two topics is enough.
func TestIDOnlyGuardSeesThroughTopics(t *testing.T) {
	guard, err := idem.NewGenerational(idem.WithMessageIdentity(idem.IDOnly))
	require.NoError(t, err)
	r := newRig(t)
	r.guard = guard
	r.refuse = failFirst(1, invoices)
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(t, err)
	router.AddMiddleware(newDedup(t, guard, WithInFlight(idem.AckInFlight)))
	router.AddHandler("one", orders, r.connect(), invoices, r.broker, r.ok)
	router.AddHandler("two", "orders.mirror", r.connect(), invoices, r.broker, r.ok)
	run(t, router)
	r.publish("a")
	r.eventually(func() bool { return guard.Stats().Completed == 1 })
	require.NoError(t, r.Publish("orders.mirror", identified("a")))
	r.eventually(func() bool { return guard.Stats().DuplicatesCompleted == 1 })
	r.settled()
	assert.Len(t, r.ranSoFar(), 2)
}

func identified(id string) *message.Message {
	msg := message.NewMessage("", []byte(id))
	msg.Metadata.Set(field, id)
	return msg
}

// A message fails again after it was moved back by hand, by a handler of the poison
// topic that is guarded as well: what it has in its hands the second time is no copy.
func TestWhatIsPoisonedAgainIsMovedBackAgain(t *testing.T) {
	r := newRig(t)
	r.broker.queues[poisoned] = nil
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	require.NoError(t, err)
	router.AddMiddleware(r.poison(), middleware.Recoverer, r.dedup)
	moves := make(chan int, 10)
	router.AddConsumerHandler("work", orders, r.connect(), func(msg *message.Message) error {
		switch r.ran(msg) {
		case 1:
			return errHandler
		case 2:
			panic(errHandler) // which counts, too
		case 3:
			return idem.WithOutcome(errHandler, idem.Reject)
		}
		return nil
	})
	router.AddConsumerHandler("mover", poisoned, r.connect(), func(msg *message.Message) error {
		moves <- 1
		return r.Publish(orders, msg)
	})
	run(t, router)
	r.publish("a")
	r.eventually(func() bool { return len(r.ranSoFar()) == 4 })
	r.settled()
	assert.Len(t, moves, 3)
	assert.Empty(t, r.waiting(poisoned))
}

// A copy of what was poisoned is one: on the poison topic, and moved back.
func TestCopiesOfWhatWasPoisonedAreDropped(t *testing.T) {
	r := newRig(t)
	msg := identified("a")
	_, err := r.dedup(r.failing(1, errHandler))(msg)
	require.ErrorIs(t, err, errHandler)
	msg.Metadata.Set(middleware.ReasonForPoisonedKey, err.Error()) // as PoisonQueue does
	for range 2 {
		again := msg.Copy()
		_, err := r.dedup(r.ok)(again)
		require.NoError(t, err)
		again.Ack()
		r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	}
	assert.Equal(t, []string{"a", "a"}, r.ranSoFar(), "failed, and done")
}

func TestMessageWithoutMetadataThatFails(t *testing.T) {
	r := newRig(t)
	r.dedup = newDedup(t, r.guard, WithUUID())
	msg := message.NewMessage("uuid", nil)
	msg.Metadata = nil
	_, err := r.dedup(r.failing(1, errHandler))(msg)
	require.ErrorIs(t, err, errHandler)
	assert.Equal(t, "1", msg.Metadata.Get(failuresKey))
}
