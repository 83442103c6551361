package idemtest_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
)

// logBroker is a broker of the other kind: a log with one committed position, which
// settles all before it, and no way to give a single record back.
type logBroker struct {
	mu        sync.Mutex
	records   []string
	position  int // of the consumer
	committed int
	settled   map[int]bool
	dead      []string
}

func newLog(*testing.T) idemtest.Broker[*record] {
	b := &logBroker{settled: map[int]bool{}}
	return idemtest.Broker[*record]{
		Publish:     func(id string) { b.records = append(b.records, id) },
		Next:        b.next,
		Redeliver:   b.rejoin,
		DeadLetters: func() []string { return b.dead },
		NoRequeue:   true,
	}
}

func (b *logBroker) next(ctx context.Context) (*record, error) {
	if b.position == len(b.records) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	b.position++
	return &record{log: b, offset: b.position - 1}, nil
}

func (b *logBroker) rejoin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.position, b.settled = b.committed, map[int]bool{}
}

// record has a position for its identity, as many do.
type record struct {
	log     *logBroker
	offset  int
	outcome idem.Outcome // protected by the log's lock
}

func (r *record) Identity() (idem.Identity, error) {
	return idem.IDAt(string(rune('0'+r.offset)), "log/0"), nil
}

func (r *record) Settled() idem.Outcome {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	return r.outcome
}

func (r *record) Ack(ctx context.Context) error              { return r.settle(ctx, idem.Ack) }
func (r *record) Requeue(ctx context.Context, _ error) error { return r.settle(ctx, idem.Requeue) }
func (r *record) Reject(ctx context.Context, _ error) error  { return r.settle(ctx, idem.Reject) }

func (r *record) settle(ctx context.Context, o idem.Outcome) error {
	b := r.log
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.outcome != idem.Unsettled {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r.outcome = o
	if o == idem.Requeue {
		return nil
	}
	if o == idem.Reject && !slices.Contains(b.dead, b.records[r.offset]) {
		b.dead = append(b.dead, b.records[r.offset])
	}
	for b.settled[r.offset] = true; b.settled[b.committed]; b.committed++ {
	}
	return nil
}

func TestLog(t *testing.T) { idemtest.DeliveryInBubble(t, newLog) }

// TestDeadlineAlone is a broker that can do nothing but deliver again when a
// deadline has run out.
func TestDeadlineAlone(t *testing.T) {
	idemtest.DeliveryInBubble(t, func(t *testing.T) idemtest.Broker[*crooked] {
		b := newCrooked("")(t)
		return idemtest.Broker[*crooked]{
			Publish:  b.Publish,
			Next:     b.Next,
			Deadline: crookedDeadline,
			Quiet:    2 * crookedDeadline,
			Patience: 3 * crookedDeadline,
		}
	})
}

// TestBareGuard is a guard of which nothing is known.
func TestBareGuard(t *testing.T) {
	idemtest.TestGuard(t, func(t *testing.T) idemtest.Guard {
		g, err := idem.NewGenerational(idem.WithWindow(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		return idemtest.Guard{Guard: g}
	})
}
