package idemwatermill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/idem-go/idem"
)

// errTooLate is where nothing can be given back any more.
var errTooLate = errors.New("idemwatermill: the message was not handled, and can't be given back: it is acked already")

// turn is one message on its way through the middleware.
type turn struct {
	m      *dedup
	msg    *message.Message
	id     idem.Identity
	claim  idem.Claim      // the zero Claim until the message is begun
	ctx    context.Context // the message's, as it came
	sub    context.Context // the subscription's, see [CloseEndsHolds]; nil if nobody told
	acked  <-chan struct{}
	nacked <-chan struct{}
	before idem.Outcome // what the message was settled with when it came
}

func newTurn(m *dedup, msg *message.Message, id idem.Identity) *turn {
	t := &turn{m: m, msg: msg, id: id, ctx: msg.Context(), acked: msg.Acked(), nacked: msg.Nacked()}
	t.sub = subscriptionOf(t.ctx)
	t.before = t.settled()
	if t.before == idem.Ack {
		t.ctx = context.WithoutCancel(t.ctx) // done by the ack, which says nothing about the work
	}
	return t
}

// settled is how the message is settled by now. A message is acked or nacked,
// never both.
func (t *turn) settled() idem.Outcome { return settledBy(t.acked, t.nacked) }

func settledBy(acked, nacked <-chan struct{}) idem.Outcome {
	select {
	case <-acked:
		return idem.Ack
	case <-nacked:
		return idem.Requeue
	default:
		return idem.Unsettled
	}
}

// take asks the guard, and does what follows from the answer.
func (t *turn) take(h message.HandlerFunc) ([]*message.Message, error) {
	t.m.flights.catchUp(t.m.guard, t.id.ID, t.msg)
	state := t.begin()
	switch state {
	case idem.Begun:
		return t.run(h)
	case idem.Completed:
		t.log(slog.LevelDebug, "idem: duplicate of a completed message acked")
		return nil, nil
	case idem.Rejected:
		t.log(slog.LevelWarn, "idem: message was rejected before, rejected again")
		return nil, idem.WithOutcome(fmt.Errorf("idemwatermill: message %q: %w", t.id.ID, idem.ErrRejected), idem.Reject)
	case idem.InFlight:
		return t.crowdedOut()
	default:
		return t.giveBack(slog.LevelWarn, fmt.Sprintf("idem: the guard answered %v, message given back", state))
	}
}

// begin asks the guard, and holds the message if that is the policy.
func (t *turn) begin() (state idem.State) {
	if t.m.off || t.m.inFlight != idem.HoldInFlight {
		t.claim, state = t.m.guard.TryBegin(t.id)
		return state
	}
	h := &hold{Context: t.ctx, turn: t}
	defer h.end()
	t.claim, state, _ = idem.Begin(h, t.m.guard, t.id) // an error comes with InFlight, and says no more
	return state
}

// hold is the context of a message that may have to be held. Its time begins when
// somebody waits for its end, which hardly any message comes to.
type hold struct {
	context.Context
	turn   *turn
	once   sync.Once
	timed  context.Context // nil until then
	cancel context.CancelFunc
}

func (h *hold) begun() context.Context {
	h.once.Do(func() { h.timed, h.cancel = h.turn.within(h.turn.m.holdTimeout) })
	return h.timed
}

func (h *hold) Done() <-chan struct{}       { return h.begun().Done() }
func (h *hold) Err() error                  { return h.begun().Err() }
func (h *hold) Deadline() (time.Time, bool) { return h.begun().Deadline() }

func (h *hold) end() {
	h.once.Do(func() {})
	if h.cancel != nil {
		h.cancel()
	}
}

// within is a context that ends after d, or when there is no time left.
func (t *turn) within(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(t.ctx, d)
	if t.sub == nil {
		return ctx, cancel
	}
	stop := context.AfterFunc(t.sub, cancel)
	return ctx, func() { stop(); cancel() }
}

// over says whether there is no time left to begin anything. What was acked before
// is run in any case: it can't be given back.
func (t *turn) over() bool {
	return t.before != idem.Ack && (t.ctx.Err() != nil || (t.sub != nil && t.sub.Err() != nil))
}

// crowdedOut deals with a copy of a running message that is not held, or not any
// longer.
func (t *turn) crowdedOut() ([]*message.Message, error) {
	if t.m.inFlight == idem.AckInFlight {
		t.log(slog.LevelDebug, "idem: duplicate of a running message acked")
		return nil, nil
	}
	if t.m.inFlight == idem.RequeueInFlight && t.m.requeuePause > 0 {
		ctx, cancel := t.within(t.m.requeuePause)
		<-ctx.Done()
		cancel()
	}
	return t.giveBack(slog.LevelDebug, "idem: duplicate of a running message given back")
}

// giveBack nacks the message itself. To the router all is well, and the ack with
// which it answers comes too late: an error would go through PoisonQueue, which
// takes it for the message's fault.
func (t *turn) giveBack(level slog.Level, text string) ([]*message.Message, error) {
	t.log(level, text)
	if !t.msg.Nack() {
		return nil, errTooLate
	}
	return nil, nil
}

// run runs the handler, once.
func (t *turn) run(h message.HandlerFunc) ([]*message.Message, error) {
	if !t.m.off && t.over() {
		t.m.guard.Release(t.claim)
		return t.giveBack(slog.LevelDebug, "idem: stopping, message given back")
	}
	returned := false
	defer func() {
		if !returned { // a panic or runtime.Goexit, which goes on
			t.follow(t.settledMeanwhile())
		}
	}()
	outputs, err := h(t.msg)
	outcome := t.outcome(err)
	t.settle(outcome)
	returned = true
	if outcome == idem.Ack || outcome == idem.Postpone {
		return outputs, nil
	}
	return outputs, err
}

// outcome is what the handler's error means.
func (t *turn) outcome(err error) idem.Outcome {
	if err == nil {
		return idem.Ack
	}
	o := t.m.classify(err)
	switch o {
	case idem.Ack, idem.Postpone:
		t.log(slog.LevelWarn, fmt.Sprintf("idem: handler's error taken for %v", o), slog.Any("error", err))
	case idem.Requeue, idem.Reject:
	default:
		t.log(slog.LevelWarn, fmt.Sprintf("idem: outcome %v treated as Requeue", o), slog.Any("error", err))
		o = idem.Requeue
	}
	return o
}

// settle does to the claim what is certain by now. Whatever depends on the router
// waits for its ack.
func (t *turn) settle(o idem.Outcome) {
	if by := t.settledMeanwhile(); by != idem.Unsettled {
		t.follow(by)
		return
	}
	switch {
	case o != idem.Ack && o != idem.Reject:
		t.m.guard.Release(t.claim) // before the nack: the copy can come back at once
	case t.acked == nil: // not of NewMessage: nobody can see an ack
		conclude(t.m.guard, t.claim, o)
	case t.claim.Token() != 0:
		t.m.watch(t, o)
	}
}

// settledMeanwhile is what the handler itself has called on the message.
func (t *turn) settledMeanwhile() idem.Outcome {
	if t.before != idem.Unsettled {
		return idem.Unsettled
	}
	return t.settled()
}

// follow does to the claim what was done to the message.
func (t *turn) follow(o idem.Outcome) { conclude(t.m.guard, t.claim, o) }

// conclude settles a claim.
func conclude(guard idem.IdempotencyGuard, claim idem.Claim, o idem.Outcome) {
	switch o {
	case idem.Ack:
		guard.Complete(claim)
	case idem.Reject:
		guard.Reject(claim)
	default:
		guard.Release(claim)
	}
}

func (t *turn) log(level slog.Level, text string, attrs ...slog.Attr) {
	t.m.log(t.ctx, level, text, t.id, attrs...)
}
