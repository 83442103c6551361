package idem_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/idem-go/idem"
)

// modelBroker delivers at least once: it hands out copies, takes back what is
// requeued or whose settling gets lost, and forgets what is acked or rejected.
type modelBroker struct {
	t     *testing.T
	diary *hookDiary

	mu        sync.Mutex // protects what follows
	rng       *rand.Rand
	queue     []string
	unsettled int
	handed    int
}

func newModelBroker(t *testing.T, seed uint64, ids int) *modelBroker {
	b := &modelBroker{t: t, diary: &hookDiary{}, rng: rand.New(rand.NewPCG(seed, 1))}
	for n := range ids {
		for range 1 + b.rng.IntN(3) { // a publisher that retries
			b.queue = append(b.queue, fmt.Sprint("m", n))
		}
	}
	b.rng.Shuffle(len(b.queue), func(i, j int) { b.queue[i], b.queue[j] = b.queue[j], b.queue[i] })
	return b
}

func (b *modelBroker) number(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rng.IntN(n)
}

func (b *modelBroker) send(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, id)
}

// next hands out the next copy, and ends when everything is settled.
func (b *modelBroker) next(ctx context.Context) (*fakeDelivery, error) {
	for ctx.Err() == nil {
		switch d, done := b.take(); {
		case d != nil:
			return d, nil
		case done:
			return nil, io.EOF
		}
		time.Sleep(10 * time.Millisecond) // the bubble's clock
	}
	return nil, ctx.Err()
}

func (b *modelBroker) take() (d *fakeDelivery, done bool) {
	const prefetch = 50
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.handed > 5000 {
		assert.Fail(b.t, "a message comes back for ever")
		return nil, true
	}
	if len(b.queue) == 0 || b.unsettled == prefetch {
		return nil, len(b.queue) == 0 && b.unsettled == 0
	}
	id := b.queue[0]
	b.queue = b.queue[1:]
	b.unsettled++
	b.handed++
	if b.rng.IntN(10) == 0 { // it thinks that this one takes too long
		b.queue = append(b.queue, id)
	}
	d = &fakeDelivery{id: idem.ID(id), diary: b.diary}
	d.onVerb = func(_ context.Context, o idem.Outcome) error { return b.settle(d, o) }
	return d, false
}

// settle loses one verb in five.
func (b *modelBroker) settle(d *fakeDelivery, o idem.Outcome) error {
	assert.Len(b.t, d.calls(), 1, "settled once")
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unsettled--
	lost := b.rng.IntN(5) == 0
	if lost || o == idem.Requeue {
		b.queue = append(b.queue, d.id.ID)
	}
	if lost {
		return errBroker
	}
	return nil
}

// modelHandler fails in every way there is, and notes what it handles.
type modelHandler struct {
	b *modelBroker

	mu       sync.Mutex // protects what follows
	running  map[string]bool
	handled  map[string]int
	rejected map[string]int
}

// poisonous messages are never handled.
func poisonous(id string) bool { return id[len(id)-1] == '7' }

func (m *modelHandler) enter(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	assert.False(m.b.t, m.running[id], "%s runs twice at once", id)
	assert.Zero(m.b.t, m.handled[id], "%s runs again", id)
	m.running[id] = true
}

func (m *modelHandler) leave(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.running, id)
}

func (m *modelHandler) count(counts map[string]int, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts[id]++
}

func (m *modelHandler) handle(_ context.Context, d *fakeDelivery) error {
	id := d.id.ID
	m.enter(id)
	defer m.leave(id)
	time.Sleep(time.Duration(m.b.number(2000)) * time.Millisecond)
	switch n := m.b.number(100); {
	case n < 20:
		return errHandler
	case n < 23:
		panic("out of tea")
	case n < 26:
		runtime.Goexit()
	case n < 31:
		m.b.send(id) // for later, under the same id
		return idem.WithOutcome(nil, idem.Postpone)
	case poisonous(id):
		m.count(m.rejected, id)
		return idem.WithOutcome(errHandler, idem.Reject)
	}
	m.count(m.handled, id)
	return nil
}

// Handlers that fail, panic and vanish, lost acks, copies, poison, and a
// receiver that is rebuilt after each panic: whatever comes, each message is
// handled once, or is poison and dead-lettered.
func TestEachMessageEndsHandledExactlyOnce(t *testing.T) {
	var seen modelTotals
	for seed := range 12 {
		policy := []idem.InFlightPolicy{idem.HoldInFlight, idem.RequeueInFlight}[seed%2]
		t.Run(fmt.Sprintf("seed %d, %v, %d workers", seed, policy, seed+1), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { runModel(t, uint64(seed), policy, seed+1, &seen) })
		})
	}
	assert.Positive(t, seen.panics)
	assert.Positive(t, seen.inFlight)
	assert.Positive(t, seen.completed)
	assert.Positive(t, seen.rejected)
}

// modelTotals say that the runs had in them what they are to show.
type modelTotals struct {
	panics                        int
	inFlight, completed, rejected uint64 // duplicates
}

func runModel(t *testing.T, seed uint64, policy idem.InFlightPolicy, workers int, seen *modelTotals) {
	const ids = 60
	b := newModelBroker(t, seed, ids)
	m := &modelHandler{b: b, running: map[string]bool{}, handled: map[string]int{}, rejected: map[string]int{}}
	guard := hookGuard(t, idem.WithWindow(24*time.Hour))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // an ordinary run takes minutes
	defer cancel()
	for {
		r := &idem.Receiver[*fakeDelivery]{
			Guard: guard, OnInFlight: policy, Handle: m.handle, Logger: slog.New(slog.DiscardHandler),
		}
		how := depart(func() error { return r.Consume(ctx, workers, b.next) })
		if how == (departure{}) {
			break
		}
		if !assert.Equal(t, departure{panicked: "out of tea"}, how) {
			return
		}
		seen.panics++
	}
	for n := range ids {
		id := fmt.Sprint("m", n)
		if poisonous(id) {
			assert.Zero(t, m.handled[id], id)
			assert.Positive(t, m.rejected[id], id)
		} else {
			assert.Equal(t, 1, m.handled[id], id)
		}
	}
	s := guard.Stats()
	assert.Equal(t, uint64(len(m.handled)), s.Completed)
	assert.Equal(t, uint64(len(m.rejected)), s.Rejected)
	assert.Zero(t, s.InFlight)
	assert.Zero(t, s.LeasesExpired)
	seen.inFlight += s.DuplicatesInFlight
	seen.completed += s.DuplicatesCompleted
	seen.rejected += s.DuplicatesRejected
}
