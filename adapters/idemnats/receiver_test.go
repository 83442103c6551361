package idemnats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const never = time.Minute // an AckWait that doesn't run out in a test

var errHandler = errors.New("handler failed")

func TestSuccessIsAckedOnce(t *testing.T) {
	r, runs, w := newRig(t, never), tally{}, wire{}
	r.publish("a")
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		assert.Equal(t, "payload of a", string(d.Msg().Data()))
		runs.add(idOf(d))
		return nil
	}), &w)

	r.settled()
	assert.Equal(t, []string{"ack"}, w.verbs())
	assert.Equal(t, 1, runs.of("a"))
	assert.Equal(t, uint64(1), r.info().AckFloor.Stream)
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
}

func TestDoubleAckIsConfirmed(t *testing.T) {
	r, w := newRig(t, never), wire{}
	r.publish("a")
	stop := r.consume(r.receiver(func(context.Context, *Delivery) error { return nil }), &w, WithDoubleAck())
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	require.ErrorIs(t, stop(), context.Canceled) // waits for the verb
	assert.Equal(t, []string{"double ack"}, w.verbs())
	assert.Zero(t, r.info().NumAckPending, "no need to wait: the server has confirmed it")
}

func TestFailureComesBackAfterTheDelay(t *testing.T) {
	r, runs, w := newRig(t, never), tally{}, wire{}
	var failedAt, cameBack time.Time
	r.publish("a")
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		if runs.add(idOf(d)) == 1 {
			failedAt = time.Now()
			return errHandler
		}
		cameBack = time.Now()
		return nil
	}), &w, WithRequeueDelay(150*time.Millisecond))

	r.settled()
	assert.Equal(t, []string{"nak 150ms", "ack"}, w.verbs())
	assert.Equal(t, 2, runs.of("a"))
	assert.GreaterOrEqual(t, cameBack.Sub(failedAt), 150*time.Millisecond)
	assert.Equal(t, uint64(1), r.guard.Stats().Released)
}

// advisory is the broker's word on a rejected message.
type advisory struct {
	StreamSeq uint64 `json:"stream_seq"`
	Reason    string `json:"reason"`
}

func TestPoisonIsTerminatedWithItsReason(t *testing.T) {
	r, runs, w := newRig(t, never), tally{}, wire{}
	advisories := r.terminated()
	r.publish("poison")
	r.publish("good")
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		runs.add(idOf(d))
		if idOf(d) == "poison" {
			return idem.WithOutcome(errors.New("amount is negative: -3"), idem.Reject)
		}
		return nil
	}), &w)

	r.settled()
	assert.ElementsMatch(t, []string{"term amount is negative: -3", "ack"}, w.verbs())
	assert.Equal(t, 1, runs.of("poison"))
	r.eventually(func() bool { return r.guard.Stats().Rejected == 1 }) // once the broker has it
	msg, err := advisories.NextMsg(patience)
	require.NoError(t, err)
	var got advisory
	require.NoError(t, json.Unmarshal(msg.Data, &got))
	assert.Equal(t, advisory{StreamSeq: 1, Reason: "amount is negative: -3"}, got)
}

func TestDuplicateAfterSuccessIsAckedUnrun(t *testing.T) {
	r, runs, w := newRig(t, never), tally{}, wire{}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error { runs.add(idOf(d)); return nil }), &w)
	r.publish("a")
	r.settled()
	r.publish("a")
	r.publish("b")
	r.settled()
	assert.Equal(t, []string{"ack", "ack", "ack"}, w.verbs())
	assert.Equal(t, 1, runs.of("a"))
	assert.Equal(t, 1, runs.of("b"))
	assert.Equal(t, uint64(1), r.guard.Stats().DuplicatesCompleted)
}

func TestDuplicateAfterRejectIsRejectedAgain(t *testing.T) {
	r, runs, w := newRig(t, never), tally{}, wire{}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		runs.add(idOf(d))
		return idem.WithOutcome(errHandler, idem.Reject)
	}), &w)
	r.publish("a")
	r.settled()
	r.publish("a")
	r.settled()
	assert.Equal(t, []string{"term handler failed", "term " + idem.ErrRejected.Error()}, w.verbs())
	assert.Equal(t, 1, runs.of("a"))
}

// gated is a handler that waits at a gate, and then returns what it is told.
type gated struct {
	entered chan string
	gate    chan error
}

func newGated() *gated { return &gated{entered: make(chan string, 100), gate: make(chan error)} }

func (g *gated) handle(_ context.Context, d *Delivery) error {
	g.entered <- idOf(d)
	return <-g.gate
}

func TestInFlightHold(t *testing.T) {
	for _, first := range []error{nil, errHandler} {
		t.Run(fmt.Sprintf("the first one returns %v", first), func(t *testing.T) {
			r, g, w := newRig(t, never), newGated(), wire{}
			r.consume(r.receiver(g.handle), &w)
			r.publish("a")
			require.Equal(t, "a", <-g.entered)
			r.publish("a")
			r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
			assert.Empty(t, w.verbs(), "nothing is settled")
			assert.Equal(t, 2, r.info().NumAckPending)
			g.gate <- first
			if first == nil {
				r.settled()
				assert.Equal(t, []string{"ack", "ack"}, w.verbs())
				return
			}
			require.Equal(t, "a", <-g.entered, "the copy's turn, or that of the first one's redelivery")
			g.gate <- nil
			r.settled()
			assert.ElementsMatch(t, []string{"nak 20ms", "ack", "ack"}, w.verbs())
			assert.Empty(t, g.entered)
		})
	}
}

func TestInFlightRequeue(t *testing.T) {
	r, g, w := newRig(t, never), newGated(), wire{}
	receiver := r.receiver(g.handle)
	receiver.OnInFlight = idem.RequeueInFlight
	r.consume(receiver, &w)
	r.publish("a")
	<-g.entered
	r.publish("a")
	r.eventually(func() bool { return w.count("nak 0s") >= 3 })
	g.gate <- nil
	r.settled()
	assert.Equal(t, 2, w.count("ack"))
	assert.Empty(t, g.entered, "it ran once")
}

func TestInFlightAck(t *testing.T) {
	r, g, w := newRig(t, never), newGated(), wire{}
	receiver := r.receiver(g.handle)
	receiver.OnInFlight = idem.AckInFlight
	r.consume(receiver, &w)
	r.publish("a")
	<-g.entered
	r.publish("a")
	r.eventually(func() bool { info := r.info(); return info.NumPending == 0 && info.NumAckPending == 1 })
	assert.Equal(t, []string{"ack"}, w.verbs())
	g.gate <- nil
	r.settled()
	assert.Equal(t, []string{"ack", "ack"}, w.verbs())
	assert.Empty(t, g.entered, "it ran once")
}

// A storm of copies behind a slow one: they run once, and are all settled.
func TestStormOfCopiesRunsOnce(t *testing.T) {
	r, g, w := newRig(t, 500*time.Millisecond), newGated(), wire{}
	r.consume(r.receiver(g.handle), &w)
	r.publish("a")
	<-g.entered
	for range 5 {
		r.publish("a")
	}
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 5 })
	g.gate <- nil
	r.settled()
	assert.Empty(t, g.entered)
	assert.Equal(t, 6, w.count("ack"))
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
}

func TestLostAckIsRedeliveredAndSuppressed(t *testing.T) {
	r, runs := newRig(t, 100*time.Millisecond), tally{}
	w := wire{lose: func(verb string, meta *jetstream.MsgMetadata) bool { return verb == "ack" && meta.NumDelivered < 3 }}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error { runs.add(idOf(d)); return nil }), &w)
	r.publish("a")
	r.eventually(func() bool { return len(w.verbs()) == 3 })
	r.settled()
	assert.Equal(t, []string{"ack", "ack", "ack"}, w.verbs(), "each copy is acked for itself")
	assert.Equal(t, 1, runs.of("a"))
	assert.Equal(t, uint64(2), r.guard.Stats().DuplicatesCompleted)
}

func TestHandlerSettlesByItself(t *testing.T) {
	ctx := context.Background()
	for name, tt := range map[string]struct {
		settle func(*Delivery) error
		sent   []string
		runs   int
	}{
		"Msg.Ack":            {func(d *Delivery) error { return d.Msg().Ack() }, []string{"ack"}, 1},
		"Msg.DoubleAck":      {func(d *Delivery) error { return d.Msg().DoubleAck(ctx) }, []string{"double ack"}, 1},
		"Msg.Nak":            {func(d *Delivery) error { return d.Msg().Nak() }, []string{"nak", "ack"}, 2},
		"Msg.NakWithDelay":   {func(d *Delivery) error { return d.Msg().NakWithDelay(quick) }, []string{"nak 20ms", "ack"}, 2},
		"Msg.Term":           {func(d *Delivery) error { return d.Msg().Term() }, []string{"term"}, 1},
		"Msg.TermWithReason": {func(d *Delivery) error { return d.Msg().TermWithReason("no") }, []string{"term no"}, 1},
		"Ack":                {func(d *Delivery) error { return d.Ack(ctx) }, []string{"ack"}, 1},
		"Requeue":            {func(d *Delivery) error { return d.Requeue(ctx, nil) }, []string{"nak 0s", "ack"}, 2},
		"Reject":             {func(d *Delivery) error { return d.Reject(ctx, errHandler) }, []string{"term handler failed"}, 1},
	} {
		for _, returns := range []error{nil, errHandler} {
			t.Run(fmt.Sprintf("%s and returns %v", name, returns), func(t *testing.T) {
				r, runs, w := newRig(t, never), tally{}, wire{}
				r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
					if runs.add(idOf(d)) > 1 {
						return nil
					}
					assert.NoError(t, tt.settle(d))
					return returns
				}), &w)
				r.publish("a")
				r.eventually(func() bool { return len(w.verbs()) == len(tt.sent) })
				r.settled()
				r.eventually(func() bool { return r.guard.Stats().InFlight == 0 })
				assert.Equal(t, tt.sent, w.verbs())
				assert.Equal(t, tt.runs, runs.of("a"))
			})
		}
	}
}

// keptAlive is after how many signs of life a handler has outlived AckWait twice.
const keptAlive = 7

func TestSlowHandlerIsNotRedelivered(t *testing.T) {
	r, w := newRig(t, 300*time.Millisecond), wire{}
	entered, gate := make(chan struct{}, 10), make(chan struct{})
	r.consume(r.receiver(func(context.Context, *Delivery) error {
		entered <- struct{}{}
		<-gate
		return nil
	}), &w)
	r.publish("a")
	<-entered
	r.eventually(func() bool { return w.count("in progress") >= keptAlive })
	close(gate)
	r.settled()
	assert.Equal(t, uint64(1), r.info().Delivered.Consumer, "delivered once")
	assert.Equal(t, 1, w.count("ack"))
}

// The signs of life get lost: the broker delivers again while the handler runs.
func TestSlowHandlerPastAckWaitRunsOnce(t *testing.T) {
	r, g := newRig(t, 100*time.Millisecond), newGated()
	w := wire{lose: func(verb string, _ *jetstream.MsgMetadata) bool { return verb == "in progress" }}
	r.consume(r.receiver(g.handle), &w)
	r.publish("a")
	<-g.entered
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight >= 2 })
	g.gate <- nil
	r.settled()
	r.eventually(func() bool { return r.guard.Stats().InFlight == 0 })
	assert.Empty(t, g.entered)
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
}
