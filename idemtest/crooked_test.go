package idemtest_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
)

// crooked is an adapter for a client whose deliveries are idemtest's, with a
// deadline, native calls and a connection that can be cut. With one of the bugs it
// is one of the deliberately wrong adapters; without, it is right.
type crooked struct {
	*idemtest.Delivery // the client's own, so to speak
	broker             *crookedBroker
	deadline           *time.Timer
	gone               atomic.Bool // it has been delivered again
	calls              atomic.Int64
	pretended          atomic.Uint32 // what Settled is to say instead, 0 if nothing
}

type crookedBroker struct {
	bug    string
	queue  *idemtest.Queue
	broken atomic.Bool // no delivery comes any more
	cut    atomic.Bool
	over   chan struct{} // closed when the check is over

	mu      sync.Mutex
	out     *crooked // what was delivered last
	returns int      // how often in a row it came by itself
	batch   []func() // what is to be done when the next one comes
}

// crookedDeadline is long enough to be none of the business of most checks.
const crookedDeadline = time.Minute

func newCrooked(bug string) func(t *testing.T) idemtest.Broker[*crooked] {
	return func(t *testing.T) idemtest.Broker[*crooked] {
		b := &crookedBroker{bug: bug, queue: idemtest.NewQueue(), over: make(chan struct{})}
		t.Cleanup(b.stop)
		return idemtest.Broker[*crooked]{
			Publish:     func(id string) { b.queue.Publish(idem.ID(id)) },
			Next:        b.next,
			Redeliver:   b.redeliver,
			DeadLetters: func() []string { return names(b.queue.DeadLetters()) },
			Cut: func() {
				b.cut.Store(true)
				b.queue.SetFault(b.dead)
			},
			Native: map[idem.Outcome]func(d *crooked){
				idem.Ack:     func(d *crooked) { d.native(idem.Ack) },
				idem.Requeue: func(d *crooked) { d.native(idem.Requeue) },
				idem.Reject:  func(d *crooked) { d.native(idem.Reject) },
			},
			Deadline: crookedDeadline,
		}
	}
}

func names(ids []idem.Identity) (names []string) {
	for _, id := range ids {
		names = append(names, id.ID)
	}
	return names
}

// dead is a connection that lets a verb block until its context ends.
func (b *crookedBroker) dead(ctx context.Context, _ idem.Outcome) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-b.over:
		return errors.New("the check is over")
	}
}

func (b *crookedBroker) has(bug string) bool { return b.bug == bug }

func (b *crookedBroker) next(ctx context.Context) (*crooked, error) {
	if b.broken.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	client, err := b.queue.Next(ctx)
	if err != nil {
		return nil, err
	}
	d := &crooked{Delivery: client, broker: b}
	if b.has("says Ack from the beginning") {
		d.pretended.Store(uint32(idem.Ack))
	}
	d.deadline = time.AfterFunc(crookedDeadline, func() { b.queue.Redeliver() })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out = d
	for _, f := range b.batch {
		f()
	}
	b.batch = nil
	if b.has("acks on delivery") {
		_ = client.Ack(ctx)
	}
	return d, nil
}

func (b *crookedBroker) redeliver() {
	b.cut.Store(false)
	b.queue.SetFault(nil)
	b.mu.Lock()
	if b.out != nil && b.out.Delivery.Settled() == idem.Unsettled {
		b.out.gone.Store(true)
		if b.returns++; b.returns > 1 && b.has("gives up after two redeliveries") {
			_ = b.out.Delivery.Ack(context.Background())
		}
	}
	b.mu.Unlock()
	b.queue.Redeliver()
}

func (b *crookedBroker) stop() {
	close(b.over)
	b.queue.SetFault(nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.out != nil {
		b.out.deadline.Stop()
	}
}

func (d *crooked) Identity() (idem.Identity, error) {
	id, err := d.Delivery.Identity()
	switch d.broker.bug {
	case "each delivery has its own identity":
		id.ID += string(rune('0' + d.Attempt()))
	case "each call has its own identity":
		id.ID += string(rune('0' + d.calls.Add(1)))
	case "the identity goes when it is settled":
		if d.Settled() != idem.Unsettled {
			return idem.Identity{}, nil
		}
	case "the id is the destination":
		return idem.IDAt("", id.ID), nil
	case "all have one identity":
		id.ID = "0"
	}
	return id, err
}

func (d *crooked) Settled() idem.Outcome {
	if o := d.pretended.Load(); o != 0 {
		return idem.Outcome(o)
	}
	return d.Delivery.Settled()
}

// native is the client's own call. Where a bug has the adapter not see it, it did
// not go through what the adapter looks at.
func (d *crooked) native(o idem.Outcome) {
	_ = d.client(context.Background(), o, nil)
	d.deadline.Stop()
	if d.broker.has("a native " + o.String() + " is not seen") {
		d.pretended.Store(uint32(idem.Postpone)) // anything else
	}
}

func (d *crooked) client(ctx context.Context, o idem.Outcome, cause error) error {
	switch o {
	case idem.Ack:
		return d.Delivery.Ack(ctx)
	case idem.Requeue:
		return d.Delivery.Requeue(ctx, cause)
	default:
		return d.Delivery.Reject(ctx, cause)
	}
}

func (d *crooked) Ack(ctx context.Context) error { return d.verb(ctx, idem.Ack, nil) }
func (d *crooked) Requeue(ctx context.Context, cause error) error {
	return d.verb(ctx, idem.Requeue, cause)
}
func (d *crooked) Reject(ctx context.Context, cause error) error {
	return d.verb(ctx, idem.Reject, cause)
}

// revive has the message come once more.
func (d *crooked) revive() {
	id, _ := d.Delivery.Identity()
	d.broker.queue.Publish(id)
}

// lose has the broker forget the message.
func (d *crooked) lose() { _ = d.Delivery.Ack(context.Background()) }

func (d *crooked) verb(ctx context.Context, o idem.Outcome, cause error) error {
	if first := d.Settled(); first != idem.Unsettled {
		return d.second(first, o)
	}
	switch {
	case d.gone.Load():
		if err, over := d.stale(); over {
			return err
		}
	case ctx.Err() != nil:
		if err, over := d.inVain(ctx, o); over {
			return err
		}
	}
	if err, over := d.first(ctx, o, cause); over {
		return err
	}
	err := d.client(ctx, o, cause)
	if err == nil {
		d.deadline.Stop()
		d.after(o)
	} else if d.broker.cut.Load() && d.broker.has("a failed "+o.String()+" loses") {
		d.broker.queue.SetFault(nil)
		d.lose()
	}
	return err
}

// first has the bugs of the first verb. It may do all of it.
func (d *crooked) first(ctx context.Context, o idem.Outcome, cause error) (err error, over bool) {
	b := d.broker
	switch {
	case b.has("checks, then settles"):
		n := d.calls.Add(1)
		runtime.Gosched()
		err := d.client(ctx, o, cause)
		if n > 1 && err == nil {
			d.revive() // what was done is done twice
		}
		return err, true
	case b.has("settles in the background"):
		if d.calls.Add(1) > 1 {
			return nil, true
		}
		for range 1000 {
			runtime.Gosched()
		}
	case o == idem.Ack && b.has("Ack does nothing"):
		d.pretended.Store(uint32(o))
		return nil, true
	case o == idem.Ack && b.has("Ack dead-letters"):
		d.pretended.Store(uint32(o))
		return d.Delivery.Reject(ctx, nil), true
	case o == idem.Ack && b.has("acks are sent with the next delivery"):
		d.pretended.Store(uint32(o))
		b.mu.Lock()
		defer b.mu.Unlock()
		b.batch = append(b.batch, d.lose)
		return nil, true
	case o == idem.Requeue && b.has("Requeue acks"), o == idem.Requeue && cause == nil && b.has("Requeue without a cause acks"):
		d.pretended.Store(uint32(o))
		return d.Delivery.Ack(ctx), true
	case o == idem.Reject && b.has("Reject gives back"):
		d.pretended.Store(uint32(o))
		return d.Delivery.Requeue(ctx, cause), true
	case o == idem.Reject && b.has("Reject acks"):
		d.pretended.Store(uint32(o))
		return d.Delivery.Ack(ctx), true
	case b.has("ignores its context while the connection is cut"):
		ctx = context.WithoutCancel(ctx)
		return d.client(ctx, o, cause), true
	}
	return nil, false
}

func (d *crooked) after(o idem.Outcome) {
	switch {
	case o == idem.Requeue && d.broker.has("Requeue makes two copies"):
		d.revive()
	case o == idem.Reject && d.broker.has("Reject dead-letters twice"):
		id, _ := d.Delivery.Identity()
		d.broker.queue.Publish(id)
		copied, _ := d.broker.queue.Next(context.Background())
		_ = copied.Reject(context.Background(), nil)
	}
}

var errSecond = errors.New("settled already")

// second is a verb on a settled delivery.
func (d *crooked) second(first, o idem.Outcome) error {
	b := d.broker
	switch {
	case b.has("a second verb is an error"):
		return errSecond
	case b.has("a second verb ends the consumer"):
		b.broken.Store(true)
	case b.has("Settled tells the last verb"):
		d.pretended.Store(uint32(o))
	case first == idem.Ack && o == idem.Requeue && b.has("Requeue after Ack gives back"),
		first == idem.Reject && o == idem.Requeue && b.has("Requeue after Reject gives back"):
		d.revive()
	case first == idem.Requeue && o == idem.Ack && b.has("an earlier delivery settles a later"):
		b.mu.Lock()
		defer b.mu.Unlock()
		b.out.lose()
	}
	return nil
}

// stale is a verb on a delivery whose message has come again.
func (d *crooked) stale() (err error, over bool) {
	switch d.broker.bug {
	case "a stale verb never returns":
		<-d.broker.over
	case "a stale verb ends the consumer":
		d.broker.broken.Store(true)
	case "a stale verb makes a copy":
		d.revive()
	default:
		return nil, false
	}
	return nil, true
}

// inVain is a verb whose context is done.
func (d *crooked) inVain(ctx context.Context, o idem.Outcome) (err error, over bool) {
	switch d.broker.bug {
	case o.String() + " in vain loses":
		d.lose()
		return ctx.Err(), true
	case o.String() + " in vain says nil":
		return nil, true
	case o.String() + " in vain never returns":
		<-d.broker.over
	}
	return nil, false
}

// Extend renews the deadline, and asks to be called again after a third of it.
func (d *crooked) Extend(ctx context.Context) (next time.Duration, err error) {
	next = crookedDeadline / 3
	if d.Settled() != idem.Unsettled {
		d.extendLate()
		return 0, nil
	}
	switch d.broker.bug {
	case "Extend does nothing":
		return next, nil
	case "Extend fails":
		return next, errors.New("no more time")
	case "Extend comes too late":
		next = crookedDeadline
	case "Extend ends at once":
		next = 0
	case "Extend settles":
		defer d.lose()
	}
	d.deadline.Reset(crookedDeadline)
	return next, nil
}

func (d *crooked) extendLate() {
	switch {
	case d.Settled() == idem.Ack && d.broker.has("Extend after Ack revives"):
		d.revive()
	case d.Settled() == idem.Requeue && d.broker.has("Extend after Requeue takes it back"):
		taken, err := d.broker.queue.Next(context.Background())
		if err == nil {
			_ = taken.Ack(context.Background())
		}
	case d.broker.has("Extend unsettles"):
		d.pretended.Store(uint32(idem.Postpone))
	}
}
