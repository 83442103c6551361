// Package idemnats puts NATS JetStream deliveries before an [idem.Receiver], so
// that a redelivered message is not handled twice. It is for consumers of
// github.com/nats-io/nats.go/jetstream that acknowledge each message.
//
// A [Source] knows what the messages of one consumer have in common. It makes a
// [Delivery] of each, either in a callback or, by [Source.Next], for
// Receiver.Consume.
package idemnats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/idem-go/idem"
	"github.com/nats-io/nats.go/jetstream"
)

// Receiver is the hook between a JetStream consumer and a handler.
type Receiver = idem.Receiver[*Delivery]

// Source makes deliveries of one consumer's messages. Make one with [New]. Its
// methods may be called from any number of goroutines.
type Source struct {
	destination  string
	ackWait      time.Duration
	backOff      []time.Duration // overrides ackWait: one step a delivery
	id           func(jetstream.Msg) (string, error)
	doubleAck    bool
	requeueDelay time.Duration // negative: not given
}

// Delivery makes a delivery of a message that was just received. The message is
// the delivery's from now on: settle it through the delivery only.
func (s *Source) Delivery(msg jetstream.Msg) *Delivery {
	return &Delivery{source: s, msg: recorder{Msg: msg}, busy: make(chan struct{}, 1), asked: time.Now()}
}

// Next is what feeds Receiver.Consume from an iterator of the consumer. It
// answers io.EOF after the iterator's Stop or Drain, so Consume returns nil; a
// closed connection and a deleted consumer are errors. A missed heartbeat is
// one too, unless the iterator was made with
// jetstream.WithMessagesErrOnMissingHeartbeat(false).
//
// What the iterator has fetched ahead grows old unseen: fetch no more than there
// are workers (jetstream.PullMaxMessages), or keep AckWait well above the time
// that a message waits there.
func (s *Source) Next(it jetstream.MessagesContext) func(context.Context) (*Delivery, error) {
	return func(ctx context.Context) (*Delivery, error) {
		msg, err := nextOf(ctx, it)
		switch {
		case err == nil:
			return s.Delivery(msg), nil
		case errors.Is(err, jetstream.ErrMsgIteratorClosed) && !errors.Is(err, jetstream.ErrConnectionClosed):
			return nil, io.EOF
		default:
			return nil, fmt.Errorf("idemnats: next message of %s: %w", s.destination, err)
		}
	}
}

// The first and the longest of the waits in nextOf.
const (
	shortWait = 50 * time.Millisecond
	longWait  = 2 * time.Second
)

// nextOf is it.Next that doesn't leave it at one call. The client asks the server
// for more at the start of a call only, and not if its last request is just being
// sent: the answer to that one can be quicker than the end of its sending. Then
// nobody asks, and the call waits until heartbeats are missed. It happens where
// little is fetched ahead. Waits that end are too short for heartbeats to be
// missed, so the last one has no end.
func nextOf(ctx context.Context, it jetstream.MessagesContext) (jetstream.Msg, error) {
	for wait := shortWait; wait < longWait; wait *= 2 {
		msg, err := nextWithin(ctx, wait, it)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return msg, err
		}
	}
	return it.Next(jetstream.NextContext(ctx))
}

func nextWithin(ctx context.Context, wait time.Duration, it jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return it.Next(jetstream.NextContext(ctx))
}

// Delivery is one arrival of a message. It is an [idem.Delivery], an
// [idem.Extender] and an [idem.Pauser]. All methods may be called from any
// goroutine.
//
// A verb that fails has not reached the server, which then redelivers when
// AckWait is over, unless MaxDeliver forbids. There are two ways for a verb to
// fail and still reach it later: a double ack whose answer is lost, and a ctx
// that ends while the client is blocked in a write. A verb that failed may be
// called again.
type Delivery struct {
	source *Source
	msg    recorder
	busy   chan struct{} // holds one while a call to the server is under way

	mu    sync.Mutex // protects asked
	asked time.Time  // when AckWait last began anew, as far as we know
}

// Msg returns the message. How it is settled natively is noted: see Settled.
func (d *Delivery) Msg() jetstream.Msg { return &d.msg }

// Identity returns the id, by default that of the Nats-Msg-Id header, with the
// names of the stream and the consumer as its destination. A message without
// that header is unidentified: it is never taken for a duplicate.
func (d *Delivery) Identity() (idem.Identity, error) {
	id, err := d.source.id(&d.msg)
	if err != nil {
		return idem.Identity{}, fmt.Errorf("idemnats: id of a message of %s: %w", d.source.destination, err)
	}
	return idem.IDAt(id, d.source.destination), nil
}

// Ack acknowledges the message. Nil means that the ack is written, or, with
// [WithDoubleAck], that the server has confirmed it.
func (d *Delivery) Ack(ctx context.Context) error {
	return d.settle(ctx, "ack", func(ctx context.Context) error {
		if d.source.doubleAck {
			return d.msg.DoubleAck(ctx)
		}
		return d.msg.Ack()
	})
}

// Requeue asks for redelivery: at once if the cause is nil, for then nothing has
// failed, else after a delay, see [WithRequeueDelay].
func (d *Delivery) Requeue(ctx context.Context, cause error) error {
	delay := time.Duration(0)
	if cause != nil {
		delay = d.RequeuePause()
	}
	return d.settle(ctx, "nak", func(context.Context) error { return d.msg.NakWithDelay(delay) })
}

// Reject ends the deliveries of the message. JetStream has no dead letters: an
// advisory with the cause as its reason tells whoever listens, and a stream with
// limits keeps the message.
func (d *Delivery) Reject(ctx context.Context, cause error) error {
	why := reason(cause)
	return d.settle(ctx, "term", func(context.Context) error { return d.msg.TermWithReason(why) })
}

// Settled returns what was called on the delivery or on its Msg, also when the
// call failed: what the caller wanted is known then, and the redelivery will be
// treated accordingly. A later call that succeeds has the last word.
func (d *Delivery) Settled() idem.Outcome { return d.msg.settled() }

// Extend begins AckWait anew (InProgress), if a third of it has passed since it
// last began, and returns after how long the next third will have.
func (d *Delivery) Extend(ctx context.Context) (next time.Duration, err error) {
	step := d.source.wait(&d.msg) / 3
	if step <= 0 || d.Settled() != idem.Unsettled {
		return 0, nil
	}
	if rest := step - d.sinceAsked(); rest > 0 {
		return rest, nil
	}
	err = d.call(ctx, "in progress", func(context.Context) error { return d.msg.InProgress() })
	switch {
	case errors.Is(err, jetstream.ErrMsgAlreadyAckd):
		return 0, nil
	case err == nil:
		d.askedNow()
	}
	return step, err
}

// RequeuePause is the delay of a failed message: a copy of a running one rests
// in this process as long as a failed one does in the server.
func (d *Delivery) RequeuePause() time.Duration { return d.source.delay(&d.msg) }

func (d *Delivery) sinceAsked() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.asked)
}

func (d *Delivery) askedNow() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = time.Now()
}

// settle calls the server unless the delivery is settled.
func (d *Delivery) settle(ctx context.Context, verb string, f func(context.Context) error) error {
	err := d.call(ctx, verb, f)
	if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		return nil
	}
	return err
}

// call runs f, one at a time, and no longer than ctx: the client's calls have no
// ctx, and block while a write to the server does. One that was left behind
// keeps the others out, so that nothing is settled twice.
func (d *Delivery) call(ctx context.Context, verb string, f func(context.Context) error) error {
	err := ctx.Err()
	if err == nil {
		err = d.await(ctx, f)
	}
	if err != nil {
		return fmt.Errorf("idemnats: %s of a message of %s: %w", verb, d.source.destination, err)
	}
	return nil
}

func (d *Delivery) await(ctx context.Context, f func(context.Context) error) error {
	select {
	case d.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-d.busy }()
		done <- d.msg.unlessSettled(ctx, f)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
