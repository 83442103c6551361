// Package mark carries, in a request's context, what the middleware has heard
// of the request's commits. Committed work must never be released: the next
// attempt would do it again.
package mark

import (
	"context"
	"sync"
)

// Mark is what is known about one request's commits. Its methods may be called
// from any number of goroutines; those of a nil Mark do nothing.
type Mark struct {
	outer *Mark // of middleware further out, on another store: it hears all, too

	mu        sync.Mutex
	sent      int  // commits on their way, outcome unknown
	committed bool // at least one is known to be there
	late      func()
}

type contextKey struct{}

// With returns ctx with m, a new mark, in it.
func With(ctx context.Context, m *Mark) context.Context {
	if outer := From(ctx); outer != m {
		m.outer = outer
	}
	return context.WithValue(ctx, contextKey{}, m)
}

// From returns the mark of the request that ctx belongs to, nil if there is none.
func From(ctx context.Context) *Mark {
	m, _ := ctx.Value(contextKey{}).(*Mark)
	return m
}

// Committing says that a commit is about to be sent. Until Committed or
// RolledBack is called for it, it counts as committed.
func (m *Mark) Committing() {
	if m == nil {
		return
	}
	m.outer.Committing()
	m.note(func() { m.sent++ })
}

// Committed says that work of this request is committed, whether Committing
// announced it or not.
func (m *Mark) Committed() {
	if m == nil {
		return
	}
	m.outer.Committed()
	m.note(func() {
		m.committed = true
		m.sent = max(0, m.sent-1)
	})
}

// RolledBack says that a commit announced by Committing is known to have
// failed. It is never called for one whose outcome isn't known.
func (m *Mark) RolledBack() {
	if m == nil {
		return
	}
	m.outer.RolledBack()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = max(0, m.sent-1)
}

// Close ends the marking and tells whether the request's work counts as
// committed. Where it doesn't, late is called, without a lock, for each mark
// that still comes: the claim has been released by then.
func (m *Mark) Close(late func()) (committed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	committed = m.committed || m.sent > 0
	if !committed {
		m.late = late
	}
	return committed
}

func (m *Mark) note(change func()) {
	m.mu.Lock()
	change()
	late := m.late
	m.mu.Unlock()
	if late != nil {
		late()
	}
}
