package idemtest

import (
	"context"
	"io"
	"slices"
	"sync"

	"github.com/idem-go/idem"
)

// Queue is a broker in memory, for tests of handlers and receivers: what is given
// back comes again, what is rejected goes to its dead letters. Its Next feeds
// [idem.Receiver.Consume]. A zero Queue is empty and ready.
//
// All methods may be called from any number of goroutines.
type Queue struct {
	mu     sync.Mutex // protects all below and what of a Delivery says so
	ready  []*letter
	out    []*Delivery // delivered and not settled, in this order
	acked  []idem.Identity
	dead   []idem.Identity
	fault  func(ctx context.Context, verb idem.Outcome) error
	closed bool
	change chan struct{} // closed when Next should look again; nil if nobody waits
}

// letter is one message on its way.
type letter struct {
	id      idem.Identity
	attempt int
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return new(Queue) }

// Publish adds one message for each id, at the end. Equal ids are copies of one
// message, as a retrying publisher makes them. An id with an empty ID is a
// message without an identity.
func (q *Queue) Publish(ids ...idem.Identity) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range ids {
		q.ready = append(q.ready, &letter{id: id})
	}
	q.changed()
}

// Close says that nothing more will be published. Next returns io.EOF from when
// every message is acked or rejected; until then it goes on.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed()
}

// Next returns the next delivery. It waits for one, until ctx is done, whose
// error it then returns. It returns io.EOF when the queue is closed and done.
func (q *Queue) Next(ctx context.Context) (*Delivery, error) {
	for {
		d, change, err := q.take()
		if d != nil || err != nil {
			return d, err
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take returns a delivery, an error, or what to wait for.
func (q *Queue) take() (*Delivery, <-chan struct{}, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ready) == 0 {
		if q.closed && len(q.out) == 0 {
			return nil, nil, io.EOF
		}
		if q.change == nil {
			q.change = make(chan struct{})
		}
		return nil, q.change, nil
	}
	l := q.ready[0]
	q.ready = slices.Delete(q.ready, 0, 1)
	l.attempt++
	d := &Delivery{queue: q, letter: l, attempt: l.attempt, turn: make(chan struct{}, 1)}
	q.out = append(q.out, d)
	return d, nil, nil
}

// Redeliver puts every message that was delivered and is not settled back to the
// front, as a broker does when a connection is cut, and returns their number. The
// deliveries there were stay Unsettled; a verb on one of them returns
// [ErrDeliveryGone] from now on.
func (q *Queue) Redeliver() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.out)
	back := make([]*letter, 0, n+len(q.ready))
	for _, d := range q.out {
		back = append(back, d.letter)
	}
	q.ready, q.out = append(back, q.ready...), nil
	q.changed()
	return n
}

// SetFault has every verb that would settle a delivery call f before it does. When
// f returns an error, the verb returns that and settles nothing. f may block, as a
// dead connection does: until ctx is done, then. A nil f mends it.
func (q *Queue) SetFault(f func(ctx context.Context, verb idem.Outcome) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fault = f
}

// Acked returns the identities of the messages acked so far, in that order.
func (q *Queue) Acked() []idem.Identity { return q.copyOf(&q.acked) }

// DeadLetters returns the identities of the messages rejected so far, in that
// order.
func (q *Queue) DeadLetters() []idem.Identity { return q.copyOf(&q.dead) }

func (q *Queue) copyOf(ids *[]idem.Identity) []idem.Identity {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(*ids)
}

// Unsettled returns how many messages are not acked or rejected: those that wait
// and those that are delivered.
func (q *Queue) Unsettled() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready) + len(q.out)
}

// changed wakes Next. The lock is held.
func (q *Queue) changed() {
	if q.change != nil {
		close(q.change)
		q.change = nil
	}
}

// settle does at the broker what verb says, unless d is not out any more. The
// lock is held.
func (q *Queue) settle(d *Delivery, verb idem.Outcome) error {
	i := slices.Index(q.out, d)
	if i < 0 {
		return ErrDeliveryGone
	}
	q.out = slices.Delete(q.out, i, i+1)
	switch verb {
	case idem.Ack:
		q.acked = append(q.acked, d.letter.id)
	case idem.Reject:
		q.dead = append(q.dead, d.letter.id)
	default:
		q.ready = append(q.ready, d.letter)
	}
	q.changed()
	return nil
}
