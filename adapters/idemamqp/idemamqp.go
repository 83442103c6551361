// Package idemamqp puts RabbitMQ deliveries before an [idem.Receiver], so that a
// redelivered message is not handled twice. It is for consumers of
// github.com/rabbitmq/amqp091-go that acknowledge each message.
//
// A [Source] knows what the messages of one queue have in common. It makes a
// [Delivery] of each, either in a loop of yours or, by [Source.Next], for
// Receiver.Consume.
package idemamqp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/idem-go/idem"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Receiver is the hook between a queue and a handler.
type Receiver = idem.Receiver[*Delivery]

// Source makes deliveries of one queue's messages, through any number of
// channels and connections, one after the other or at once. Make one with [New].
// Its methods may be called from any number of goroutines.
type Source struct {
	queue string
	id    func(*amqp.Delivery) (string, error)

	mu      sync.Mutex // protects watches
	watches map[*amqp.Channel]*watch
}

// Consume is Channel.Consume for the queue of the source: the same arguments,
// the same answer, and no deliveries that the adapter can't settle.
//
// An autoAck of true is an error that wraps [idem.ErrInvalidOption]: the broker
// forgets such a message when it sends it, so nothing is left to settle. So is a
// channel that the client would reopen by itself (amqp.Config.Recovery), where
// that shows, see [Source.Next].
func (s *Source) Consume(ch *amqp.Channel, consumer string, autoAck, exclusive, noLocal, noWait bool, args amqp.Table) (<-chan amqp.Delivery, error) {
	switch {
	case ch == nil:
		return nil, refuse("queue %q: the channel is nil", s.queue)
	case autoAck:
		return nil, refuse("queue %q: autoAck must be false, not true: the broker forgets what it sends, and nothing is left to settle", s.queue)
	case recovers(ch):
		return nil, refuse("queue %q: the connection's Config.Recovery must be nil, or its topology recovery disabled: a reopened channel counts its delivery tags from 1 again", s.queue)
	}
	w := s.watch(ch) // from before the first delivery
	deliveries, err := ch.Consume(s.queue, consumer, false, exclusive, noLocal, noWait, args)
	if err != nil {
		return nil, fmt.Errorf("idemamqp: consuming queue %q: %w", s.queue, err)
	}
	w.feeds(deliveries)
	return deliveries, nil
}

// Delivery makes a delivery of a message that was just received. The message is
// the delivery's from now on: settle it through the delivery only, or through
// its Msg.
func (s *Source) Delivery(msg amqp.Delivery) *Delivery {
	d := &Delivery{source: s, msg: msg}
	d.settler = settler{
		native: msg.Acknowledger,
		tag:    msg.DeliveryTag,
		watch:  s.watchOf(msg),
		busy:   make(chan struct{}, 1),
	}
	d.msg.Acknowledger = &d.settler
	return d
}

// Next is what feeds Receiver.Consume from the deliveries of [Source.Consume], or
// of Channel.Consume. It answers io.EOF when the deliveries are closed, which
// they are after Channel.Cancel and when channel or connection are closed, by
// whomever: Channel.NotifyClose tells why.
//
// Two ends are errors, for they say that something is wrong with the program:
// the broker has closed the channel over a delivery tag that it doesn't know
// (the consumer has autoAck, or a delivery was settled behind the adapter's
// back), and the client has reopened the channel by itself. A reopened channel
// counts its tags from 1 again, so that a late ack would take another message
// with it. Once it was closed the adapter sends nothing more on it; close it,
// and consume from a new one.
func (s *Source) Next(deliveries <-chan amqp.Delivery) func(context.Context) (*Delivery, error) {
	n := &next{source: s, deliveries: deliveries}
	return n.next
}

type next struct {
	source     *Source
	deliveries <-chan amqp.Delivery

	mu    sync.Mutex // protects watch
	watch *watch     // of the channel that the deliveries come from
}

func (n *next) next(ctx context.Context) (*Delivery, error) {
	for {
		msg, open, err := n.receive(ctx)
		switch {
		case err != nil:
			return nil, err
		case !open:
			return nil, n.end()
		}
		if d, err := n.take(msg); d != nil || err != nil {
			return d, err
		}
	}
}

// lookAfter is how long nothing comes until the channel is looked at.
const lookAfter = time.Second

// receive waits for a message. Now and then it looks whether the client has reopened
// the channel: if it doesn't consume again, nothing comes any more, and nothing ends.
func (n *next) receive(ctx context.Context) (msg amqp.Delivery, open bool, err error) {
	if msg, open, ok := n.ready(ctx); ok {
		return msg, open, nil
	}
	look := time.NewTicker(lookAfter)
	defer look.Stop()
	for {
		select {
		case msg, open := <-n.deliveries:
			return msg, open, nil
		case <-look.C:
			if err := n.reopened(n.watched()); err != nil {
				return msg, false, err
			}
		case <-ctx.Done():
			return msg, false, fmt.Errorf("idemamqp: next message of queue %q: %w", n.source.queue, ctx.Err())
		}
	}
}

// ready is receive without waiting.
func (n *next) ready(ctx context.Context) (msg amqp.Delivery, open, ok bool) {
	if ctx.Err() != nil {
		return msg, false, false
	}
	select {
	case msg, open = <-n.deliveries:
		return msg, open, true
	default:
		return msg, false, false
	}
}

// watched is the watch of the channel, nil if that isn't known: nothing has come, and
// it was not the source that consumed.
func (n *next) watched() *watch {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watch == nil {
		n.watch = n.source.watchFeeding(n.deliveries)
	}
	return n.watch
}

func (n *next) reopened(w *watch) error {
	if err := w.err(); err != nil && !w.channel.IsClosed() {
		return fmt.Errorf("idemamqp: queue %q: the client has reopened the channel by itself, which the adapter can't follow: %w", n.source.queue, err)
	}
	return nil
}

// take returns neither delivery nor error for what the client had buffered when
// the channel was closed: the broker delivers that again.
func (n *next) take(msg amqp.Delivery) (*Delivery, error) {
	d := n.source.Delivery(msg)
	w := d.settler.watch
	n.mu.Lock()
	n.watch = w
	n.mu.Unlock()
	if w.err() == nil {
		return d, nil
	}
	return nil, n.reopened(w)
}

func (n *next) end() error {
	w := n.watched()
	w.feedsNoMore(n.deliveries)
	if err := w.err(); err != nil && unknownTag(err) {
		return fmt.Errorf("idemamqp: queue %q: its consumer has autoAck, or a delivery was settled behind the adapter's back: %w", n.source.queue, err)
	}
	return io.EOF
}

func unknownTag(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "unknown delivery tag")
}

// Delivery is one arrival of a message. It is an [idem.Delivery]. All methods may
// be called from any goroutine.
//
// A verb that fails has not reached the broker, which delivers again as soon as
// it misses the channel. There is one way for a verb to fail and still reach it
// later: a ctx that ends while the client is blocked in a write. Until that write
// has ended, no other verb is sent. A verb that failed may be called again.
//
// A nil error says that the verb was written, not that it arrived: the broker
// confirms none. What was on its way when the connection broke comes again.
type Delivery struct {
	source  *Source
	msg     amqp.Delivery
	settler settler
}

// Msg returns the message. Its own Ack, Nack and Reject may be called: they are
// noted, see Settled, and do nothing on a settled delivery. They refuse
// multiple=true, which would settle deliveries whose handlers are still running.
func (d *Delivery) Msg() *amqp.Delivery { return &d.msg }

// Identity returns the id, by default the message's MessageId, with the name of
// the queue as its destination. A message without one is unidentified: it is
// never taken for a duplicate. The delivery tag counts for nothing: it begins
// anew with each channel.
//
// To a message that the broker has dead-lettered before, ";trip=" is added, how often
// that was, and in which second the last time (the counts and times of its x-death
// header). So a redelivery keeps its identity, while a message that returns from a
// wait queue, or that is moved back from the dead letters, is on a new trip, and
// runs.
//
// Of a message that the handler itself publishes anew for each return, instead of
// having it dead-lettered, every return looks like the first but for the second.
// Where it may return within one, answer [idem.Postpone], which remembers nothing.
func (d *Delivery) Identity() (idem.Identity, error) {
	id, err := d.source.id(&d.msg)
	if err != nil {
		return idem.Identity{}, fmt.Errorf("idemamqp: id of a message of queue %q: %w", d.source.queue, err)
	}
	return idem.IDAt(withTrip(id, trip(d.msg.Headers)), d.source.queue), nil
}

// Ack acknowledges the message (basic.ack).
func (d *Delivery) Ack(ctx context.Context) error {
	return d.settle(ctx, "ack", idem.Ack, d.settler.ack)
}

// Requeue gives the message back, and the broker delivers it again at once. With
// a cause that is basic.reject, which counts against a quorum queue's delivery
// limit; without one nothing has failed, and it is basic.nack, which from
// RabbitMQ 4.3 on doesn't.
func (d *Delivery) Requeue(ctx context.Context, cause error) error {
	if cause == nil {
		return d.settle(ctx, "nack", idem.Requeue, d.settler.giveBack)
	}
	return d.settle(ctx, "reject to requeue", idem.Requeue, d.settler.fail)
}

// Reject has the message dead-lettered, if the queue has a dead-letter exchange;
// else it is dropped. The cause is not told to the broker.
func (d *Delivery) Reject(ctx context.Context, _ error) error {
	return d.settle(ctx, "reject", idem.Reject, d.settler.reject)
}

// Settled returns what was called on the delivery or on its Msg, also when the
// call failed: what the caller wanted is known then, and the redelivery will be
// treated accordingly. A later call that succeeds has the last word.
func (d *Delivery) Settled() idem.Outcome { return d.settler.settled() }

func (d *Delivery) settle(ctx context.Context, verb string, o idem.Outcome, call func() error) error {
	if err := d.settler.await(ctx, o, call); err != nil {
		return fmt.Errorf("idemamqp: %s of a message of queue %q: %w", verb, d.source.queue, err)
	}
	return nil
}
