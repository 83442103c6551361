package pgtest

import (
	"sync"
	"testing"
)

// Holder keeps what is started once for many tests, and ends it when they are
// over.
type Holder struct {
	mu    sync.Mutex
	after []func()
}

// NewHolder returns an empty holder, for TestMain.
func NewHolder() *Holder { return &Holder{} }

// As is t, but for its cleanups: they run at Close.
func (h *Holder) As(t testing.TB) testing.TB { return &held{TB: t, holder: h} }

// Close runs the cleanups, the latest first.
func (h *Holder) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.after) - 1; i >= 0; i-- {
		h.after[i]()
	}
	h.after = nil
}

type held struct {
	testing.TB
	holder *Holder
}

func (t *held) Cleanup(f func()) {
	t.holder.mu.Lock()
	defer t.holder.mu.Unlock()
	t.holder.after = append(t.holder.after, f)
}

// Failed is asked for in cleanups, when the test is long over.
func (t *held) Failed() bool { return false }
