package idemkafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/idem-go/idem"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrNoDeadLetter is wrapped by Reject where [WithDeadLetter] is missing.
var ErrNoDeadLetter = errors.New("idemkafka: there is no dead-letter function, the record was not rejected")

// errAbandoned is the error of a verb that has not returned.
var errAbandoned = errors.New("idemkafka: a function of the caller's panicked or left by runtime.Goexit")

// Delivery is one arrival of a record. It is an [idem.Delivery]. All methods may
// be called from any goroutine.
//
// A verb that fails gives the record back: the source hands it out again after a
// second, before any other of its partition, in a delivery of its own. The failed
// one is done with, and a second call returns the same error. An error that wraps
// [ErrLost] says that the partition is another owner's now, who gets the record.
//
// The record's offset must not be committed by other means.
type Delivery struct {
	source *Source
	part   *partition
	record *kgo.Record
	verb   chan struct{} // holds one while a verb is under way
	done   chan struct{} // closed when a verb has ended

	mu      sync.Mutex // protects what follows
	outcome idem.Outcome
	err     error // of the verb, once done is closed
}

func newDelivery(s *Source, p *partition, r *kgo.Record) *Delivery {
	return &Delivery{source: s, part: p, record: r, verb: make(chan struct{}, 1), done: make(chan struct{})}
}

// Record returns the record.
func (d *Delivery) Record() *kgo.Record { return d.record }

// Identity returns the id, by the function that [New] was given, with topic and
// group ("topic/group") as its destination: two groups on one guard both get the
// message.
func (d *Delivery) Identity() (idem.Identity, error) {
	id, err := d.source.id(d.record)
	if err != nil {
		return idem.Identity{}, fmt.Errorf("idemkafka: id of %s: %w", at(d.record), err)
	}
	return idem.IDAt(id, d.record.Topic+"/"+d.source.groupName()), nil
}

// Ack settles the record: the group's offset moves behind it. Nil means that it is
// committed, or with [WithCommitInterval] that it will be.
func (d *Delivery) Ack(ctx context.Context) error {
	return d.settle(ctx, idem.Ack, d.pass)
}

// Requeue without a cause, which says that nothing has failed, has the record
// handed out again at once. With a cause it goes to [WithRetry]'s function, and
// where there is none the partition stops at it, see [Stop].
func (d *Delivery) Requeue(ctx context.Context, cause error) error {
	return d.settle(ctx, idem.Requeue, func(ctx context.Context) error {
		switch {
		case cause == nil:
			d.source.giveBack(d, 0)
		case d.source.retry == nil:
			d.stop(cause)
		case d.source.isGone(d.part):
			// The next owner gets it anyway.
		default:
			return d.hand(ctx, d.source.retry, cause)
		}
		return nil
	})
}

// Reject settles the record once it has gone to [WithDeadLetter]'s function. Where
// there is none it is refused: the partition stops at the record, which is given
// back, and the error wraps [ErrNoDeadLetter].
func (d *Delivery) Reject(ctx context.Context, cause error) error {
	return d.settle(ctx, idem.Reject, func(ctx context.Context) error {
		switch {
		case d.source.isGone(d.part):
			return ErrLost
		case d.source.deadLetter == nil:
			d.stop(cause)
			d.refused()
			return ErrNoDeadLetter
		default:
			return d.hand(ctx, d.source.deadLetter, cause)
		}
	})
}

// Settled returns what was called on the delivery, also when the call failed: what
// the caller wanted is known then, and when the record comes again it will be
// treated accordingly. A Reject that was refused counts as Requeue.
func (d *Delivery) Settled() idem.Outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.outcome
}

// settle runs call as the delivery's one verb.
func (d *Delivery) settle(ctx context.Context, o idem.Outcome, call func(context.Context) error) error {
	if !d.lock(ctx) {
		return fmt.Errorf("idemkafka: %v of %s: %w", o, at(d.record), ctx.Err())
	}
	defer func() { <-d.verb }()
	if settled, err := d.begin(o); settled {
		return err
	}
	err := errAbandoned
	defer func() { d.end(err) }() // also when a function of the caller's panics
	if err = ctx.Err(); err == nil {
		err = errAbandoned
		err = call(ctx)
	}
	if err != nil {
		err = fmt.Errorf("idemkafka: %v of %s: %w", o, at(d.record), err)
	}
	return err
}

// lock waits for the verb that is under way, which decides, but no longer than
// ctx. The first one never fails here: it must give the record back.
func (d *Delivery) lock(ctx context.Context) bool {
	select {
	case d.verb <- struct{}{}:
		return true
	default:
	}
	select {
	case d.verb <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (d *Delivery) begin(o idem.Outcome) (settled bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.outcome != idem.Unsettled {
		return true, d.err
	}
	d.outcome = o
	return false, nil
}

func (d *Delivery) end(err error) {
	if err != nil && !errors.Is(err, ErrNoDeadLetter) {
		d.source.giveBack(d, d.source.rest)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	close(d.done)
}

func (d *Delivery) refused() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outcome = idem.Requeue
}

// pass commits the record, and goes on behind it.
func (d *Delivery) pass(ctx context.Context) error {
	if err := d.source.commitBehind(ctx, d.part, d.record); err != nil {
		return err
	}
	d.source.advance(d)
	return nil
}

// hand gives the record to a function of the caller's, and then passes it. The
// function gets no longer than ctx, whether it heeds that or not.
func (d *Delivery) hand(ctx context.Context, f func(context.Context, *kgo.Record, error) error, cause error) error {
	end := make(chan ending, 1)
	go func() {
		e := ending{err: errAbandoned}
		defer func() {
			e.panicked = recover()
			end <- e
		}()
		e.err = f(ctx, d.record, cause)
	}()
	select {
	case e := <-end:
		return d.handed(ctx, e)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ending is how a function of the caller's has ended.
type ending struct {
	err      error
	panicked any
}

// handed raises a panic here, where the receiver of the delivery can deal with it.
func (d *Delivery) handed(ctx context.Context, e ending) error {
	switch {
	case e.panicked != nil:
		panic(e.panicked)
	case e.err != nil:
		return e.err
	default:
		return d.pass(ctx)
	}
}

// stop stops the partition, and tells.
func (d *Delivery) stop(cause error) {
	stop := Stop{Record: d.record, Cause: cause}
	if !d.source.stop(d, stop) {
		return
	}
	d.source.log().Warn("idemkafka: partition stopped", slog.String("at", at(d.record)), slog.Any("cause", cause))
	if d.source.onStop != nil {
		d.source.onStop(stop)
	}
}

// at is where a record is, for people.
func at(r *kgo.Record) string { return fmt.Sprintf("%s/%d@%d", r.Topic, r.Partition, r.Offset) }

func compare(a, b *kgo.Record) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}
