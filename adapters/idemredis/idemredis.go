// Package idemredis puts the entries of a Redis stream before an [idem.Receiver],
// so that one that is delivered again is not handled twice. It is for consumer
// groups read with github.com/redis/go-redis/v9, on Redis 6.2 or later.
//
// A [Source] is one consumer of a group. Its [Source.Next] feeds
// Receiver.Consume: it reads new entries, and claims those that were left pending
// for too long, its own and those of consumers that have died.
package idemredis

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/idem-go/idem"
	"github.com/redis/go-redis/v9"
)

// Receiver is the hook between a consumer group and a handler.
type Receiver = idem.Receiver[*Delivery]

// Consumer is a place in a consumer group. Stream and Group must exist: see
// XGroupCreateMkStream.
type Consumer struct {
	Stream string // the stream's key
	Group  string
	// Name must be one that no other consumer of the group has at the same time:
	// by it an entry shows who holds it.
	Name string
}

// Source makes deliveries of the entries that one consumer gets. Make one with
// [New]. Its methods may be called from any number of goroutines.
type Source struct {
	client       redis.UniversalClient
	place        Consumer
	destination  string
	id           ID
	minIdle      time.Duration
	requeueDelay time.Duration
	batch        int64
	dead         string        // the stream of the dead letters; empty: none
	slots        chan struct{} // holds one for each delivery that Next has handed out and nobody settled

	feed feed
}

// Delivery makes a delivery of an entry that this consumer was given by
// XREADGROUP, XAUTOCLAIM or XCLAIM, in a loop of your own. [Source.Next] does all
// of that; don't use both on one Source.
func (s *Source) Delivery(msg redis.XMessage) *Delivery {
	return s.deliver(fetched{msg: msg, count: msg.DeliveredCount, at: time.Now()})
}

func (s *Source) deliver(f fetched) *Delivery {
	return &Delivery{source: s, msg: f.msg, count: f.count, settler: newSettler(), asked: f.at}
}

// Delivery is one arrival of an entry. It is an [idem.Delivery], an
// [idem.Extender] and an [idem.Pauser]. All methods may be called from any
// goroutine.
//
// All copies of an entry share its one place among the pending, so that XACK
// settles all of them. A copy that comes while the entry is being handled is
// held, and not acked before that has succeeded.
//
// A verb that fails leaves the entry pending, and it is claimed once it has been
// idle for long enough. There is one way for a verb to fail and still succeed: an
// answer that comes after ctx has ended, or not at all. A verb that failed may be
// called again.
type Delivery struct {
	source  *Source
	msg     redis.XMessage
	count   int64 // deliveries when this one was made; 0 if not known
	settler settler
	release func() // gives the slot back; nil if it has none
	fed     bool   // by Next, which is to find it again

	mu    sync.Mutex // protects asked
	asked time.Time  // when the entry's idle time last began anew, as far as we know
}

// Message returns the entry. XACK called by hand is not seen by the adapter: call
// [Delivery.Ack].
func (d *Delivery) Message() redis.XMessage { return d.msg }

// Delivered returns how often the entry was delivered, this time included: for a
// handler that gives up at some time, since Redis never does. Deliveries that were
// given back without being begun don't count. It is 0, not known, for an entry
// handed to [Source.Delivery] that doesn't say.
func (d *Delivery) Delivered() int64 { return d.count }

// Identity returns the id that [ID] takes from the entry, with the names of stream
// and group as its destination. An entry without one is never taken for a
// duplicate.
func (d *Delivery) Identity() (idem.Identity, error) {
	id, err := d.source.id(d.msg)
	if err != nil {
		return idem.Identity{}, fmt.Errorf("idemredis: id of entry %s of %s: %w", d.msg.ID, d.source.destination, err)
	}
	return idem.IDAt(id, d.source.destination), nil
}

// Ack acknowledges the entry (XACK). Redis has confirmed it when it returns nil. It
// is no error if the entry is not pending any more: then someone else has settled
// it.
func (d *Delivery) Ack(ctx context.Context) error {
	return d.settle(ctx, "XACK", idem.Ack, d.xack)
}

func (d *Delivery) xack(ctx context.Context) error {
	p := d.source.place
	return d.source.client.XAck(ctx, p.Stream, p.Group, d.msg.ID).Err()
}

// Requeue gives the entry back. It stays pending, so that it can't get lost, and
// its idle time is set so that any consumer of the group can claim it: at once if
// the cause is nil, for then nothing has failed, and this delivery isn't counted;
// else after a delay, see [WithRequeueDelay]. This Source does so then, others when
// they next look. It changes nothing if another delivery of the entry has been made
// meanwhile.
func (d *Delivery) Requeue(ctx context.Context, cause error) error {
	return d.settle(ctx, "giving back", idem.Requeue, func(ctx context.Context) error {
		delay, uncounted := time.Duration(0), 1
		if cause != nil {
			delay, uncounted = d.source.requeueDelay, 0
		}
		return d.source.giveBack(ctx, d, delay, uncounted)
	})
}

// Reject ends the deliveries of the entry. With [WithDeadLetters] it is copied to
// the dead letters and acknowledged in one step; else it is acknowledged, and all
// that is left of it is its place in the stream.
//
// It is an error if another consumer has claimed the entry meanwhile, and is
// handling it.
func (d *Delivery) Reject(ctx context.Context, cause error) error {
	if d.source.dead == "" {
		return d.settle(ctx, "XACK", idem.Reject, func(ctx context.Context) error { return d.source.end(ctx, d) })
	}
	return d.settle(ctx, "dead-lettering", idem.Reject, func(ctx context.Context) error {
		return d.source.bury(ctx, d, cause)
	})
}

// Settled returns which verb was called on the delivery, also when the call
// failed: what the caller wanted is known then, and the redelivery will be treated
// accordingly. A later call that succeeds has the last word.
func (d *Delivery) Settled() idem.Outcome { return d.settler.settled() }

// Extend begins the entry's idle time anew (XCLAIM with JUSTID), if a third of what
// [WithMinIdle] sets has passed, and returns after how long the next third will
// have. When another consumer has claimed the entry it ends the calls, with an
// error that says so.
func (d *Delivery) Extend(ctx context.Context) (next time.Duration, err error) {
	step := d.source.minIdle / 3
	if d.Settled() != idem.Unsettled {
		return 0, nil
	}
	if rest := step - d.sinceAsked(); rest > 0 {
		return rest, nil
	}
	err = d.settler.call(ctx, d.renewUnsettled)
	switch {
	case d.Settled() != idem.Unsettled:
		return 0, nil
	case err == nil:
		return step, nil
	case isGone(err):
		step = 0
	}
	return step, d.failed("XCLAIM", err)
}

// RequeuePause is the delay of a failed entry: a copy of a running one rests in this
// process as long as a failed one does in Redis.
func (d *Delivery) RequeuePause() time.Duration { return d.source.requeueDelay }

// renewUnsettled is for calls beside a verb: one that has given the entry back would
// be undone.
func (d *Delivery) renewUnsettled(ctx context.Context) error {
	if d.Settled() != idem.Unsettled {
		return nil
	}
	return d.renew(ctx)
}

func (d *Delivery) renew(ctx context.Context) error {
	asked := time.Now()
	err := d.source.renew(ctx, d)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.asked = asked
	}
	return err
}

func (d *Delivery) sinceAsked() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.asked)
}

// settle also gives the slot back, however the verb ends: nobody is going to
// handle this delivery any more.
func (d *Delivery) settle(ctx context.Context, verb string, o idem.Outcome, f func(context.Context) error) error {
	if d.release != nil {
		defer d.release()
	}
	if err := d.settler.settle(ctx, o, f); err != nil {
		return d.failed(verb, err)
	}
	return nil
}

func (d *Delivery) failed(verb string, err error) error {
	return fmt.Errorf("idemredis: %s of entry %s of %s: %w", verb, d.msg.ID, d.source.destination, err)
}
