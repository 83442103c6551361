package idemhttp

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"
)

// Clock tells the time. github.com/idem-go/idem has the same interface.
type Clock interface{ Now() time.Time }

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

// ErrStoreFull is wrapped by the errors of a [MemoryStore] that has no room.
var ErrStoreFull = errors.New("idemhttp: memory store is full")

// The defaults of a memory store.
const (
	DefaultMaxClaims = 100_000
	DefaultMaxBytes  = 64 << 20
)

// MemoryStore keeps claims in this process: a restart forgets them, and another
// node never knew them. It is for tests, for development, and for services of
// one process where that is enough.
//
// It is bounded twice, by claims and by bytes. Where there is no room, settled
// claims go, the first to expire first: their requests are then unknown again
// before their time. A claim that is running is never dropped. Is everything
// running, a new claim is an error, which answers 503.
type MemoryStore struct {
	clock     Clock
	maxClaims int
	maxBytes  int64

	mu      sync.Mutex // protects all below
	claims  map[ID]*memoryClaim
	running expiryHeap
	settled expiryHeap
	bytes   int64 // of all
	held    int64 // of those running
}

var _ Store = (*MemoryStore)(nil)

type memoryClaim struct {
	Record
	expires time.Time
	bytes   int64
	place   int // in its heap
}

// MemoryOption sets one property of a memory store.
type MemoryOption func(*MemoryStore)

// WithMaxClaims sets the most claims that are kept. Default 100,000. It panics
// if n is less than 1.
func WithMaxClaims(n int) MemoryOption {
	if n < 1 {
		panic(fmt.Sprintf("idemhttp: WithMaxClaims(%d): must be at least 1", n))
	}
	return func(m *MemoryStore) { m.maxClaims = n }
}

// WithMaxBytes sets the most bytes that claims and their answers may take, as
// far as they can be counted. Default 64 MiB. It panics if n is less than 1.
func WithMaxBytes(n int64) MemoryOption {
	if n < 1 {
		panic(fmt.Sprintf("idemhttp: WithMaxBytes(%d): must be at least 1", n))
	}
	return func(m *MemoryStore) { m.maxBytes = n }
}

// WithClock sets the clock that expiry is judged by. Default is the standard
// one. It panics if c is nil.
func WithClock(c Clock) MemoryOption {
	if v := reflect.ValueOf(c); c == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		panic(fmt.Sprintf("idemhttp: WithClock(%T(nil)): the clock must not be nil", c))
	}
	return func(m *MemoryStore) { m.clock = c }
}

// NewMemoryStore returns an empty store. It panics if an option is nil.
func NewMemoryStore(opts ...MemoryOption) *MemoryStore {
	m := &MemoryStore{
		clock:     systemClock{},
		maxClaims: DefaultMaxClaims,
		maxBytes:  DefaultMaxBytes,
		claims:    make(map[ID]*memoryClaim),
	}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("idemhttp: NewMemoryStore: option %d of %d is nil", i+1, len(opts)))
		}
		opt(m)
	}
	return m
}

// Claim implements [Store].
func (m *MemoryStore) Claim(ctx context.Context, c Claim, ttl time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	now := m.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropExpired(now, 2) // more than comes in: what has expired goes without a Reap
	if m.get(c.ID, now) != nil {
		return false, nil
	}
	return m.put(&memoryClaim{Record: Record{Claim: c}, expires: now.Add(ttl)}, now)
}

// Answer implements [Store].
func (m *MemoryStore) Answer(ctx context.Context, c Claim, resp *Response, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rec := Record{Claim: c, State: Unanswered}
	if resp != nil {
		rec.State, rec.Response = Answered, resp.clone() // the copying is done before the lock
	}
	now := m.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.get(c.ID, now)
	if old != nil && old.Token != c.Token {
		return ErrNotHolder
	}
	if old != nil {
		rec.Sum = old.Sum
		m.remove(old)
	}
	ok, err := m.put(&memoryClaim{Record: rec, expires: now.Add(ttl)}, now)
	if !ok && old != nil { // no room for the answer: the claim must stay
		m.insert(old)
	}
	return err
}

// Release implements [Store].
func (m *MemoryStore) Release(ctx context.Context, id ID, token Token) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.claims[id]; c != nil && c.Token == token && c.State == Running {
		m.remove(c)
	}
	return nil
}

// Lookup implements [Store].
func (m *MemoryStore) Lookup(ctx context.Context, id ID) (Record, bool, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, false, err
	}
	now := m.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.get(id, now); c != nil {
		return c.Record, true, nil
	}
	return Record{}, false, nil
}

// Forget implements [Store].
func (m *MemoryStore) Forget(ctx context.Context, id ID) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	now := m.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(id, now)
	if c == nil || c.State == Running {
		return false, nil
	}
	m.remove(c)
	return true, nil
}

// Reap implements [Store]. It needn't be called: every new claim drops some of
// what has expired.
func (m *MemoryStore) Reap(ctx context.Context) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	now := m.clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dropExpired(now, len(m.claims)), nil
}

// MemoryStats says what a memory store holds, expired claims included until they
// are dropped.
type MemoryStats struct {
	Running int   // claims that nobody has answered yet
	Settled int   // claims with an answer, or done without one
	Bytes   int64 // what both take, as far as it can be counted
}

// Stats returns what the store holds right now.
func (m *MemoryStore) Stats() MemoryStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return MemoryStats{Running: len(m.running), Settled: len(m.settled), Bytes: m.bytes}
}
