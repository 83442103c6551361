package idemwatermill

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/idem-go/idem"
)

// longestWatch is for a message whose context never ends: nobody may ever settle
// it, if some middleware has put it in the place of the router's. By then a guard's
// default lease is over, too.
const longestWatch = time.Hour

// flight is a message that a handler is done with and the router isn't.
type flight struct {
	claim  idem.Claim
	msg    *message.Message // only to be compared
	acked  <-chan struct{}
	nacked <-chan struct{}
	onAck  idem.Outcome // what an ack means: Ack, or Reject where the handler said so
	once   sync.Once    // the claim is settled
}

// watch settles the claim of t when the router settles the message.
func (m *dedup) watch(t *turn, onAck idem.Outcome) {
	f := &flight{claim: t.claim, msg: t.msg, acked: t.acked, nacked: t.nacked, onAck: onAck}
	m.flights.add(t.id.ID, f)
	ctx, sub := t.ctx, t.sub
	id := t.id
	go func() {
		defer m.flights.remove(id.ID, f)
		defer m.survive(ctx, id)
		m.await(ctx, sub, f)
		f.settle(m.guard)
	}()
}

// survive keeps a panic of the guard's clock from ending the process: nobody else
// could recover it here.
func (m *dedup) survive(ctx context.Context, id idem.Identity) {
	if v := recover(); v != nil {
		m.log(ctx, slog.LevelError, "idem: settling a claim panicked, the message may run again", id, slog.Any("panic", v))
	}
}

// await returns when the message is settled, or when nobody will settle it. The
// end of its context alone doesn't say that: it ends with the subscription, and
// the router still publishes outputs; and it ends with the ack.
func (m *dedup) await(ctx, sub context.Context, f *flight) {
	over, closed := ctx.Done(), (<-chan struct{})(nil)
	if sub != nil {
		closed = sub.Done()
	}
	if over == nil && closed == nil {
		f.wait(longestWatch)
		return
	}
	select {
	case <-f.acked:
	case <-f.nacked:
	case <-over:
		f.wait(m.settleTimeout)
	case <-closed:
		f.wait(m.settleTimeout)
	}
}

// wait returns when the message is settled, or after d.
func (f *flight) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-f.acked:
	case <-f.nacked:
	case <-timer.C:
	}
}

// settle settles the claim, once, by what has become of the message. Who finds it
// done, or being done, may rely on it.
func (f *flight) settle(guard idem.IdempotencyGuard) {
	f.once.Do(func() {
		defer guard.Release(f.claim) // changes nothing, unless the clock panics
		o := settledBy(f.acked, f.nacked)
		if o == idem.Ack {
			o = f.onAck
		}
		conclude(guard, f.claim, o)
	})
}

// flights are those of a middleware, by id. The destination is left out: a guard
// may look at the id alone.
type flights struct {
	mu   sync.Mutex // protects byID
	byID map[string][]*flight
}

func (s *flights) add(id string, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = make(map[string][]*flight)
	}
	s.byID[id] = append(s.byID[id], f)
}

func (s *flights) remove(id string, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := slices.DeleteFunc(s.byID[id], func(other *flight) bool { return other == f })
	if len(rest) == 0 {
		delete(s.byID, id)
		return
	}
	s.byID[id] = rest
}

// of returns a copy of those with an id.
func (s *flights) of(id string) []*flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.byID[id])
}

// catchUp settles the claims of messages with an id that the router has settled,
// so that the guard knows before it is asked. A nacked message can be back before
// the goroutine that waits for the nack has run: it would meet itself in flight,
// and be acked as its own copy where that is the policy.
//
// It also gives up the claim of msg itself, which somebody outside hands in once
// more, as Retry does: it would wait for itself.
func (s *flights) catchUp(guard idem.IdempotencyGuard, id string, msg *message.Message) {
	for _, f := range s.of(id) {
		if f.msg == msg || settledBy(f.acked, f.nacked) != idem.Unsettled {
			f.settle(guard)
		}
	}
}
