package idemhttp

import (
	"bytes"
	"container/heap"
	"fmt"
	"time"
)

// claimBytes is what a claim takes besides its answer: map, heap and record.
const claimBytes = 256

func (r *Response) clone() *Response {
	return &Response{Status: r.Status, Header: r.Header.Clone(), Body: bytes.Clone(r.Body)}
}

func (r *Response) headerSize() (n int64) {
	for name, values := range r.Header {
		n += int64(len(name)) + 48
		for _, v := range values {
			n += int64(len(v)) + 16
		}
	}
	return n
}

// memory is what r, which may be nil, takes while it is held: of its body all that
// was made for it.
func (r *Response) memory() int64 {
	if r == nil {
		return 0
	}
	return int64(cap(r.Body)) + r.headerSize()
}

func (c *memoryClaim) size() int64 {
	n := int64(claimBytes + len(c.Sum.Version))
	if c.Response == nil {
		return n
	}
	return n + int64(len(c.Response.Body)) + c.Response.headerSize()
}

// get returns the claim unless it has expired.
func (m *MemoryStore) get(id ID, now time.Time) *memoryClaim {
	if c := m.claims[id]; c != nil && now.Before(c.expires) {
		return c
	}
	return nil
}

// put makes room for c and inserts it, in the place of an expired one.
func (m *MemoryStore) put(c *memoryClaim, now time.Time) (bool, error) {
	if old := m.claims[c.ID]; old != nil {
		m.remove(old)
	}
	c.bytes = c.size()
	if !m.makeRoom(c.bytes, now) {
		return false, fmt.Errorf("%w: %d claims of at most %d, %d bytes of at most %d, and %d more to come",
			ErrStoreFull, len(m.claims), m.maxClaims, m.bytes, m.maxBytes, c.bytes)
	}
	m.insert(c)
	return true, nil
}

// makeRoom drops what may be dropped until size more bytes fit: running claims
// only when they have expired. It drops no answer for what doesn't fit anyway.
func (m *MemoryStore) makeRoom(size int64, now time.Time) bool {
	full := func() bool { return len(m.claims) >= m.maxClaims || m.bytes+size > m.maxBytes }
	for full() && m.running.expired(now) {
		m.remove(m.running[0])
	}
	if len(m.running) >= m.maxClaims || m.held+size > m.maxBytes {
		return false
	}
	for full() {
		m.remove(m.settled[0])
	}
	return true
}

// dropExpired drops at most limit claims, and tells how many.
func (m *MemoryStore) dropExpired(now time.Time, limit int) (n int64) {
	for _, h := range []*expiryHeap{&m.running, &m.settled} {
		for n < int64(limit) && h.expired(now) {
			m.remove((*h)[0])
			n++
		}
	}
	return n
}

func (m *MemoryStore) heapOf(c *memoryClaim) *expiryHeap {
	if c.State == Running {
		return &m.running
	}
	return &m.settled
}

func (m *MemoryStore) insert(c *memoryClaim) {
	m.claims[c.ID] = c
	heap.Push(m.heapOf(c), c)
	m.count(c, +1)
}

func (m *MemoryStore) remove(c *memoryClaim) {
	delete(m.claims, c.ID)
	heap.Remove(m.heapOf(c), c.place)
	m.count(c, -1)
}

func (m *MemoryStore) count(c *memoryClaim, sign int64) {
	m.bytes += sign * c.bytes
	if c.State == Running {
		m.held += sign * c.bytes
	}
}

// expiryHeap has the first to expire on top.
type expiryHeap []*memoryClaim

func (h expiryHeap) expired(now time.Time) bool { return len(h) > 0 && !now.Before(h[0].expires) }

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expires.Before(h[j].expires) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *expiryHeap) Push(x any) {
	c := x.(*memoryClaim)
	c.place = len(*h)
	*h = append(*h, c)
}

// Pop implements heap.Interface.
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return c
}
