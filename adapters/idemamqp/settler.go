package idemamqp

import (
	"context"
	"fmt"
	"sync"

	"github.com/idem-go/idem"
	amqp "github.com/rabbitmq/amqp091-go"
)

// settler stands in for a delivery's Acknowledger. Whatever settles the delivery
// goes through it, so it goes out once: RabbitMQ closes the channel over a second
// time, and everything on it comes again.
type settler struct {
	native amqp.Acknowledger
	tag    uint64
	watch  *watch
	busy   chan struct{} // holds one while a call is under way

	mu      sync.Mutex // protects what follows
	outcome idem.Outcome
	done    bool // a call succeeded, the outcome is final
}

// The calls, each for this one delivery: multiple would settle others.
func (s *settler) ack() error      { return s.native.Ack(s.tag, false) }
func (s *settler) giveBack() error { return s.native.Nack(s.tag, false, true) }
func (s *settler) fail() error     { return s.native.Reject(s.tag, true) }
func (s *settler) reject() error   { return s.native.Reject(s.tag, false) }

// Ack is what the message's own Ack calls.
func (s *settler) Ack(tag uint64, multiple bool) error {
	return s.foreign(tag, multiple, idem.Ack, s.ack)
}

// Nack is what the message's own Nack calls.
func (s *settler) Nack(tag uint64, multiple, requeue bool) error {
	if requeue {
		return s.foreign(tag, multiple, idem.Requeue, s.giveBack)
	}
	return s.foreign(tag, multiple, idem.Reject, func() error { return s.native.Nack(s.tag, false, false) })
}

// Reject is what the message's own Reject calls.
func (s *settler) Reject(tag uint64, requeue bool) error {
	if requeue {
		return s.foreign(tag, false, idem.Requeue, s.fail)
	}
	return s.foreign(tag, false, idem.Reject, s.reject)
}

// foreign is a call that came by the client's API. It takes as long as it takes,
// as there.
func (s *settler) foreign(tag uint64, multiple bool, o idem.Outcome, call func() error) error {
	switch {
	case multiple:
		return fmt.Errorf("idemamqp: delivery %d: multiple must be false, not true: it would settle deliveries that are still being handled", s.tag)
	case tag != s.tag:
		return fmt.Errorf("idemamqp: delivery %d can't settle delivery %d", s.tag, tag)
	}
	s.busy <- struct{}{}
	defer func() { <-s.busy }()
	return s.send(o, call)
}

// await sends, one call at a time, and waits no longer than ctx: the client's
// calls have no ctx, and block while a write to the broker does. One that was
// left behind keeps the others out, so that nothing is settled twice.
func (s *settler) await(ctx context.Context, o idem.Outcome, call func() error) error {
	if s.isDone() {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	sent := make(chan error, 1)
	go func() {
		defer func() { <-s.busy }()
		sent <- s.send(o, call)
	}()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send notes o before the call, whose end nobody may wait for, and for good if it
// is what the broker was told.
func (s *settler) send(o idem.Outcome, call func() error) error {
	if s.isDone() {
		return nil
	}
	s.note(o, false)
	if err := s.watch.err(); err != nil {
		return err
	}
	if s.native == nil {
		return amqp.ErrDeliveryNotInitialized
	}
	err := call()
	if err == nil {
		s.note(o, true)
	}
	return err
}

func (s *settler) note(o idem.Outcome, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done || s.outcome == idem.Unsettled {
		s.outcome, s.done = o, done
	}
}

func (s *settler) isDone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

func (s *settler) settled() idem.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outcome
}
