package idemtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// Guard is what [TestGuard] needs to know of a guard. Only Guard is required; what
// else is left out takes the checks that need it away.
type Guard struct {
	// Guard is the guard under test: new, and used by nobody else.
	Guard idem.IdempotencyGuard

	// Advance moves the guard's clock forward by exactly d. Where the guard takes
	// the time from package time, this is time.Sleep, and takes no time. Nil says
	// that the clock can't be moved: nothing that expires is checked.
	Advance func(d time.Duration)

	// Window is how long the guard remembers a settled id: for at least half of it
	// and at most all of it. 0: not checked, else at most a year.
	Window time.Duration

	// Lease is how long an id stays in flight that nobody settles: for at least
	// once and at most twice as long. 0: not checked, else at most a year.
	Lease time.Duration

	// MaxTracked is the most ids that the guard remembers as settled, and the most
	// that it holds in flight. The newest half it must keep. 0: not checked, else
	// at least 64; a check begins up to six times as many ids.
	MaxTracked int

	// MessageIdentity says whether the guard looks at the Destination.
	MessageIdentity idem.MessageIdentity
}

// minTracked leaves the checks that are not about the ceiling room to ignore it.
const minTracked = 64

// longest leaves the clock of a bubble, which begins in the year 2000, some way to
// go.
const longest = 365 * 24 * time.Hour

// ready checks what the caller has given.
func (g Guard) ready(t *testing.T) Guard {
	t.Helper()
	if p := g.problem(); p != "" {
		t.Fatal("idemtest: " + p)
	}
	return g
}

// problem says why g can't work, if it can't.
func (g Guard) problem() string {
	switch {
	case g.Guard == nil:
		return "a Guard needs its Guard"
	case g.Window < 0 || g.Lease < 0 || g.Window > longest || g.Lease > longest:
		return fmt.Sprintf("a Guard with Window %v and Lease %v, want 0 to %v", g.Window, g.Lease, longest)
	case g.MaxTracked != 0 && g.MaxTracked < minTracked:
		return fmt.Sprintf("a Guard with MaxTracked %d, want 0 or at least %d", g.MaxTracked, minTracked)
	}
	return ""
}
