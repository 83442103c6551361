package idem

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// turn is one delivery on its way through a Receiver.
type turn[D Delivery] struct {
	r     *Receiver[D]
	ctx   context.Context // nothing is begun after it is done
	d     D
	guard IdempotencyGuard
	id    Identity
	claim Claim // the zero Claim until the message is begun
	spent bool  // a verb was called: no other may be
}

// take asks the guard, and does what follows from the answer.
func (t *turn[D]) take(work context.Context, s *seat) (handling, settling error) {
	if isOff(t.guard) {
		t.guard = off
		return t.run(work)
	}
	var err error
	if t.id, err = t.d.Identity(); err != nil {
		t.guard = off // not to be touched
		return t.settle(fmt.Errorf("idem: no identity: %w", err))
	}
	switch state := t.begin(s); state {
	case Begun:
		return t.run(work)
	case Completed:
		return nil, t.drop(Ack, nil, slog.LevelDebug, "idem: acking a duplicate of a completed message")
	case Rejected:
		return nil, t.drop(Reject, ErrRejected, slog.LevelWarn, "idem: rejecting again a message that was rejected before")
	case InFlight:
		return nil, t.crowdedOut(s)
	default:
		return nil, t.drop(Requeue, nil, slog.LevelWarn, fmt.Sprintf("idem: giving a delivery back, the guard answered %v", state))
	}
}

// begin asks the guard, and holds the delivery if that is the policy.
func (t *turn[D]) begin(s *seat) State {
	var state State
	t.claim, state = t.guard.TryBegin(t.id)
	if state == InFlight && t.r.OnInFlight == HoldInFlight {
		return t.hold(s)
	}
	return state
}

// hold waits until the running one is settled. It answers InFlight when the time
// to hold is over. The seat is free meanwhile.
func (t *turn[D]) hold(s *seat) State {
	ctx, cancel := context.WithTimeout(t.ctx, orDefault(t.r.HoldTimeout, defaultHoldTimeout))
	defer cancel()
	k := t.keepAlive()
	defer k.stop()
	state := t.await(ctx, s)
	k.stop()
	k.raise()
	return state
}

func (t *turn[D]) await(ctx context.Context, s *seat) (state State) {
	for state = InFlight; state == InFlight; {
		s.leave()
		if t.guard.Wait(ctx, t.id) != nil {
			return InFlight
		}
		if !s.take(ctx) {
			return t.lookUnseated()
		}
		t.claim, state = lookAgain(t.guard, t.id)
	}
	return state
}

// lookUnseated is for a copy that no worker has time for: one that is settled
// needs none. One that could begin is as good as in flight.
func (t *turn[D]) lookUnseated() (state State) {
	t.claim, state = lookAgain(t.guard, t.id)
	if state == Begun {
		t.guard.Release(t.claim)
		return InFlight
	}
	return state
}

// crowdedOut deals with a copy of a running message that is not held, or not
// any longer.
func (t *turn[D]) crowdedOut(s *seat) error {
	if t.r.OnInFlight == AckInFlight {
		return t.drop(Ack, nil, slog.LevelDebug, "idem: acking a duplicate of a running message")
	}
	if t.r.OnInFlight == RequeueInFlight {
		t.pause(s)
	}
	return t.drop(Requeue, nil, slog.LevelDebug, "idem: giving back a duplicate of a running message")
}

// pause lets a copy rest before it is given back, without a seat.
func (t *turn[D]) pause(s *seat) {
	pause := defaultPause
	if p, ok := any(t.d).(Pauser); ok {
		pause = p.RequeuePause()
	}
	if pause <= 0 {
		return
	}
	k := t.keepAlive()
	defer k.stop()
	s.leave()
	rest(t.ctx, pause)
	k.stop()
	k.raise()
}

// rest returns after d, or when ctx is done.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// drop settles a delivery that isn't run.
func (t *turn[D]) drop(o Outcome, cause error, level slog.Level, text string) error {
	t.log(level, text)
	return t.verb(o, cause)
}

// run runs the handler, once, and settles what comes of it.
func (t *turn[D]) run(work context.Context) (handling, settling error) {
	if t.ctx.Err() != nil {
		t.guard.Release(t.claim)
		return nil, t.drop(Requeue, nil, slog.LevelDebug, "idem: stopping, giving a delivery back")
	}
	k := t.keepAlive()
	defer k.stop() // also when the handler panics
	err := t.r.Handle(work, t.d)
	k.stop()
	handling, settling = t.settle(err)
	k.raise() // after the settle: the work is done, whatever Extend did
	return handling, settling
}

// settle brings guard and broker to agree on what the handler's err means. The
// order is what the promises hang on; see each verb.
func (t *turn[D]) settle(err error) (handling, settling error) {
	if o := t.d.Settled(); o != Unsettled {
		t.record(o)
		return reported(err), nil
	}
	switch o := t.r.classify(err); o {
	case Ack:
		// Complete first: a failing Ack doesn't undo the work, and the redelivery
		// that follows it is dropped and acked.
		t.guard.Complete(t.claim)
		settling = t.verb(Ack, nil)
	case Reject:
		settling = t.reject(causeOf(err, o))
	case Postpone:
		t.guard.Release(t.claim)
		settling = t.verb(Postpone, nil)
	default:
		settling = t.requeue(causeOf(err, Requeue), o)
	}
	return reported(err), settling
}

// record does to the claim what the handler has done to the delivery.
func (t *turn[D]) record(o Outcome) {
	switch o {
	case Ack:
		t.guard.Complete(t.claim)
	case Reject:
		t.guard.Reject(t.claim)
	default:
		t.guard.Release(t.claim)
	}
}

// reject asks the broker first: a message that it keeps must run again.
func (t *turn[D]) reject(cause error) error {
	err := t.verb(Reject, cause)
	if err != nil {
		t.guard.Release(t.claim)
	} else {
		t.guard.Reject(t.claim)
	}
	return err
}

// requeue releases first: the copy can be back before the verb returns.
func (t *turn[D]) requeue(cause error, o Outcome) error {
	t.guard.Release(t.claim)
	if o != Requeue {
		t.log(slog.LevelWarn, fmt.Sprintf("idem: treating outcome %v as Requeue", o))
	}
	return t.verb(Requeue, cause)
}

// verb settles the delivery with the broker, on a context that outlives the
// caller's: settling is clean-up, not work.
func (t *turn[D]) verb(o Outcome, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), orDefault(t.r.SettleTimeout, defaultSettleTimeout))
	defer cancel()
	t.spent = true
	err := t.call(ctx, o, cause)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("idem: %v of %q failed: %w", o, t.id.ID, err)
	t.log(slog.LevelWarn, "idem: settling failed", slog.Any("error", err))
	return err
}

func (t *turn[D]) call(ctx context.Context, o Outcome, cause error) error {
	switch o {
	case Ack, Postpone:
		return t.d.Ack(ctx)
	case Reject:
		return t.d.Reject(ctx, cause)
	default:
		return t.d.Requeue(ctx, cause)
	}
}

// abandon is for a turn that did not come to its end, because something
// panicked or left by Goexit. It recovers nothing: the panic goes on with its
// own value. Each step is deferred, so that a second panic stops none.
func (t *turn[D]) abandon() {
	if t.spent {
		t.guard.Release(t.claim) // changes nothing if it was settled
		return
	}
	settled := Unsettled
	defer func() { t.leaveAs(settled) }()
	settled = t.d.Settled()
}

// leaveAs ends a turn whose handler won't say what it was. No verb was called.
func (t *turn[D]) leaveAs(settled Outcome) {
	if settled != Unsettled {
		t.recordOrRelease(settled)
		return
	}
	defer func() { _ = t.verb(Requeue, errAbandoned) }() // logged there
	t.guard.Release(t.claim)
}

// recordOrRelease leaves no claim behind where the clock panics, too.
func (t *turn[D]) recordOrRelease(settled Outcome) {
	recorded := false
	defer func() {
		if !recorded {
			t.guard.Release(t.claim)
		}
	}()
	t.record(settled)
	recorded = true
}

func (t *turn[D]) log(level slog.Level, text string, attrs ...slog.Attr) {
	logger := t.r.logger()
	if !logger.Enabled(t.ctx, level) {
		return
	}
	attrs = append(attrs, slog.String("id", t.id.ID), slog.String("destination", t.id.Destination))
	logger.LogAttrs(t.ctx, level, text, attrs...)
}
