package idemtest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/idem-go/idem"
)

// ErrDeliveryGone is returned by the verbs of a [Delivery] whose message the queue
// has meanwhile delivered again.
var ErrDeliveryGone = errors.New("idemtest: the message was delivered again meanwhile")

// Delivery is an [idem.Delivery] from a [Queue]. It records every verb called on
// it, for a test to look at.
//
// All methods may be called from any number of goroutines.
type Delivery struct {
	queue   *Queue
	letter  *letter
	attempt int
	turn    chan struct{} // holds a token while a verb is being carried out

	// Protected by the queue's lock.
	settled idem.Outcome
	calls   []Call
}

var _ idem.Delivery = (*Delivery)(nil)

// NewDelivery returns the first delivery of a message, from a queue of its own:
// all that a test of a handler needs.
func NewDelivery(id idem.Identity) *Delivery {
	q := NewQueue()
	q.Publish(id)
	d, _, _ := q.take()
	return d
}

// Call is one call of a verb on a [Delivery].
type Call struct {
	Verb  idem.Outcome // Ack, Requeue or Reject
	Cause error        // what Requeue and Reject were given
	Err   error        // what the verb returned
}

// String is the call as it might be written: Requeue(cause).
func (c Call) String() string {
	text := c.Verb.String() + "()"
	if c.Verb != idem.Ack {
		text = fmt.Sprintf("%v(%v)", c.Verb, c.Cause)
	}
	if c.Err != nil {
		text += ": " + c.Err.Error()
	}
	return text
}

// Identity names the message, as it was published. It never returns an error.
func (d *Delivery) Identity() (idem.Identity, error) { return d.letter.id, nil }

// Attempt is 1 for the first delivery of a message, and one more each time it
// comes again.
func (d *Delivery) Attempt() int { return d.attempt }

// Queue returns the queue that the delivery came from.
func (d *Delivery) Queue() *Queue { return d.queue }

// Settled returns what the delivery was settled with. A verb that has returned an
// error settles nothing.
func (d *Delivery) Settled() idem.Outcome {
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	return d.settled
}

// Calls returns every call of a verb that has returned, in that order, also those
// that did nothing because the delivery was settled.
func (d *Delivery) Calls() []Call {
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	return slices.Clone(d.calls)
}

// Ack settles the delivery: the queue forgets the message.
func (d *Delivery) Ack(ctx context.Context) error { return d.call(ctx, idem.Ack, nil) }

// Requeue settles the delivery: the message goes to the end of the queue.
func (d *Delivery) Requeue(ctx context.Context, cause error) error {
	return d.call(ctx, idem.Requeue, cause)
}

// Reject settles the delivery: the message goes to the dead letters.
func (d *Delivery) Reject(ctx context.Context, cause error) error {
	return d.call(ctx, idem.Reject, cause)
}

func (d *Delivery) call(ctx context.Context, verb idem.Outcome, cause error) error {
	err := d.settle(ctx, verb)
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	d.calls = append(d.calls, Call{Verb: verb, Cause: cause, Err: err})
	return err
}

// settle carries out one verb at a time: a second one has to know whether the
// first has failed.
func (d *Delivery) settle(ctx context.Context, verb idem.Outcome) error {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return failed(verb, ctx.Err())
	}
	if d.Settled() != idem.Unsettled {
		return nil
	}
	if err := d.refusal(ctx, verb); err != nil {
		return failed(verb, err)
	}
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	if err := d.queue.settle(d, verb); err != nil {
		return failed(verb, err)
	}
	d.settled = verb
	return nil
}

// refusal is why a verb can't be carried out now, nil if it can.
func (d *Delivery) refusal(ctx context.Context, verb idem.Outcome) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.queue.mu.Lock()
	fault := d.queue.fault
	d.queue.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(ctx, verb)
}

func failed(verb idem.Outcome, err error) error {
	return fmt.Errorf("idemtest: %v failed: %w", verb, err)
}
