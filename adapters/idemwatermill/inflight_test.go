package idemwatermill

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInFlightHold(t *testing.T) {
	for _, first := range []error{nil, errHandler} {
		t.Run(fmt.Sprintf("the first one returns %v", first), func(t *testing.T) {
			r := newRig(t)
			g := r.gated()
			r.start(g.handle, r.dedup)
			r.publish("a", "original")
			g.next(t)
			r.publish("a", "copy")
			r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
			r.heard(0, 0)
			g.gate <- first
			if first != nil {
				g.next(t) // the copy's turn, or the nacked one's
				g.gate <- nil
			}
			r.settled()
			assert.Len(t, r.waiting(invoices), 1)
			assert.Equal(t, uint64(1), r.guard.Stats().Completed)
			if first == nil {
				r.heard(2, 0)
				assert.Equal(t, []string{"original"}, r.ranSoFar())
			} else {
				r.heard(2, 1)
				assert.Len(t, r.ranSoFar(), 2)
			}
		})
	}
}

// What is given back is not the message's fault: PoisonQueue does not get it.
func TestCopiesGivenBackAreNotPoisoned(t *testing.T) {
	for name, opts := range map[string][]Option{
		"RequeueInFlight":          {WithInFlight(idem.RequeueInFlight), WithRequeuePause(tick)},
		"RequeueInFlight, at once": {WithInFlight(idem.RequeueInFlight), WithRequeuePause(0)},
		"HoldTimeout":              {WithHoldTimeout(tick)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, opts...)
			g := r.gated()
			r.start(g.handle, r.poison(), r.dedup)
			r.publish("a")
			g.next(t)
			r.publish("a")
			r.eventually(func() bool { _, nacks, _ := r.counts(); return nacks >= 3 })
			g.gate <- nil
			r.settled()
			assert.Equal(t, []string{"a"}, r.ranSoFar())
			assert.Empty(t, r.waiting(poisoned))
			acks, _, _ := r.counts()
			assert.Equal(t, 2, acks)
		})
	}
}

func TestInFlightAck(t *testing.T) {
	r := newRig(t, WithInFlight(idem.AckInFlight))
	g := r.gated()
	r.start(g.handle, r.dedup)
	r.publish("a")
	g.next(t)
	r.publish("a")
	r.eventually(func() bool { acks, _, _ := r.counts(); return acks == 1 })
	assert.Empty(t, r.waiting(invoices))
	g.gate <- nil
	r.settled()
	r.heard(2, 0)
	assert.Equal(t, []string{"a"}, r.ranSoFar())
	assert.Len(t, r.waiting(invoices), 1)
}

// A copy that is held past the end of its context is nacked, and not run.
func TestCloseEndsAHold(t *testing.T) {
	r := newRig(t, WithHoldTimeout(time.Hour))
	g := r.gated()
	first := r.start(g.handle, r.poison(), r.dedup)
	r.publish("a", "original")
	g.next(t)
	second := r.start(r.ok, r.poison(), r.dedup)
	r.publish("a", "copy")
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
	// Either router may hold it; the closed one gives it to the other.
	stopped := make(chan struct{})
	go func() { defer close(stopped); second() }()
	<-stopped
	g.gate <- nil
	r.settled()
	first()
	assert.Equal(t, []string{"original"}, r.ranSoFar())
	assert.Empty(t, r.waiting(poisoned))
}

// A Pub/Sub whose messages outlive their subscription.
func TestCloseEndsHoldsOfMessagesWithAContextOfTheirOwn(t *testing.T) {
	for _, policy := range []Option{WithInFlight(idem.HoldInFlight), WithInFlight(idem.RequeueInFlight)} {
		r := newRig(t, policy, WithHoldTimeout(time.Hour), WithRequeuePause(time.Hour))
		pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, nil)
		claim, state := r.guard.TryBegin(idem.IDAt("a", destination(orders, "billing"))) // the running one
		require.Equal(t, idem.Begun, state)
		stop := r.startOn(pubsub, CloseEndsHolds, r.ok, r.dedup)
		require.NoError(t, pubsub.Publish(orders, identified("a")))
		r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
		stop()
		r.guard.Release(claim)
		assert.Empty(t, r.ranSoFar())
		assert.Equal(t, uint64(1), r.guard.Stats().Begun)
	}
}

// over gives a message a context that is done: its own, or its subscription's.
func over(msg *message.Message, own bool) *message.Message {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if own {
		msg.SetContext(done)
	} else {
		msg.SetContext(context.WithValue(context.Background(), subscriptionKey{}, done))
	}
	return msg
}

func TestAMessageWhoseTimeIsOverIsNotBegun(t *testing.T) {
	for _, own := range []bool{true, false} {
		r := newRig(t)
		msg := over(identified("a"), own)
		outputs, err := r.dedup(r.ok)(msg)
		require.NoError(t, err)
		assert.Empty(t, outputs)
		assert.True(t, isClosed(msg.Nacked()))
		assert.Empty(t, r.ranSoFar())
		assert.Equal(t, uint64(1), r.guard.Stats().Released)
	}
}

// The ack ends a message's context, and it can't be given back: it runs.
func TestAMessageThatIsAckedAlreadyRuns(t *testing.T) {
	for _, own := range []bool{true, false} {
		r := newRig(t)
		msg := over(identified("a"), own)
		msg.Ack()
		outputs, err := r.dedup(r.ok)(msg)
		require.NoError(t, err)
		assert.Len(t, outputs, 1)
		r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	}
}

// Handlers that run when the router closes: what they return is published and
// counts, also if the broker has taken the message back meanwhile.
func TestShutdownInMidHandler(t *testing.T) {
	r := newRig(t)
	g := r.gated()
	stop := r.start(g.handle, r.poison(), r.dedup)
	for i := range 4 {
		r.publish(fmt.Sprint(i))
	}
	for range 4 {
		g.next(t)
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	r.eventually(func() bool { _, _, open := r.counts(); return open == 0 }, "the connection is cut")
	assert.Equal(t, 4, r.guard.Stats().InFlight, "the end of the context alone releases nothing")

	r.start(r.ok, r.poison(), r.dedup) // takes them over, and holds them
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 4 })
	for range 3 {
		g.gate <- nil
	}
	g.gate <- errHandler // into the poison queue: released
	<-stopped
	r.settled()
	assert.Len(t, r.ranSoFar(), 5, "the failed one runs again")
	assert.Len(t, r.waiting(invoices), 4)
	assert.Equal(t, uint64(4), r.guard.Stats().Completed)
}

// A publisher that is closed under the handlers, as the router does with its own.
func TestOutputsThatFailAtShutdownAreMadeAgain(t *testing.T) {
	r := newRig(t)
	g := r.gated()
	stop := r.start(g.handle, r.dedup)
	r.publish("a")
	g.next(t)
	r.locked(func() { r.refuse = failFirst(1, invoices) })
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	r.eventually(func() bool { _, _, open := r.counts(); return open == 0 }, "the connection is cut")
	g.gate <- nil
	<-stopped
	assert.Empty(t, r.waiting(invoices))

	r.start(r.ok, r.dedup)
	r.settled()
	assert.Equal(t, []string{"a", "a"}, r.ranSoFar())
	assert.Len(t, r.waiting(invoices), 1)
}

func TestRouterBuiltAnewRemembers(t *testing.T) {
	r := newRig(t)
	stop := r.start(r.ok, r.dedup)
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	stop()
	r.publish("a")
	r.publish("b")
	r.start(r.ok, newDedup(t, r.guard)) // the guard is what remembers
	r.eventually(func() bool { return r.guard.Stats().Completed == 2 })
	r.settled()
	assert.Equal(t, []string{"a", "b"}, r.ranSoFar())
}

// Two routers of one process get the same message at the same time.
func TestTwoRoutersOnOneGuardRunItOnce(t *testing.T) {
	r := newRig(t)
	g := r.gated()
	r.start(g.handle, r.dedup)
	r.publish("a")
	g.next(t)
	r.start(g.handle, newDedup(t, r.guard))
	for range 10 {
		r.publish("a")
	}
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 10 })
	g.gate <- nil
	r.settled()
	assert.Equal(t, []string{"a"}, r.ranSoFar())
}

// InstantAck takes the promise of redelivery away; the guard follows what happens.
func TestInstantAck(t *testing.T) {
	for name, tt := range map[string]struct {
		order func(r *rig) []message.HandlerMiddleware
		want  []string
	}{
		// The broker forgets the message, and a copy may make good for it.
		"outside": {func(r *rig) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{middleware.InstantAck, r.dedup}
		}, []string{"a", "a"}},
		// The handler has acked it, for all the guard knows.
		"inside": {func(r *rig) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{r.dedup, middleware.InstantAck}
		}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.start(r.failing(1, errHandler), tt.order(r)...)
			for range 3 {
				r.publish("a")
			}
			r.eventually(func() bool { acks, _, _ := r.counts(); return acks == 3 })
			r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
			assert.Equal(t, tt.want, r.ranSoFar())
			r.settled()
		})
	}
}

// A copy that is acked already can't be given back: it is an error, for PoisonQueue
// or whoever listens.
func TestACopyThatCannotBeGivenBackIsAnError(t *testing.T) {
	r := newRig(t, WithHoldTimeout(tick))
	g := r.gated()
	r.start(g.handle, middleware.InstantAck, r.poison(), r.dedup)
	r.publish("a")
	g.next(t)
	r.publish("a", "copy")
	r.eventually(func() bool { return len(r.waiting(poisoned)) == 1 })
	assert.Equal(t, []string{"copy"}, r.waiting(poisoned))
	g.gate <- nil
	r.settled()
}
