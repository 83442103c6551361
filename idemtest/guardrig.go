package idemtest

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
)

// guardRig is a guard under test, with the steps the checks are made of.
type guardRig struct {
	idem.IdempotencyGuard

	t    *testing.T
	spec Guard
	make func(t *testing.T) Guard
}

func newGuardRig(t *testing.T, guard func(t *testing.T) Guard) *guardRig {
	t.Helper()
	spec := guard(t).ready(t)
	return &guardRig{IdempotencyGuard: spec.Guard, t: t, spec: spec, make: guard}
}

// id makes an identity that nobody has seen.
func (r *guardRig) id() idem.Identity { return idem.IDAt(rand.Text(), "queue") }

func (r *guardRig) ids(n int) []idem.Identity {
	ids := make([]idem.Identity, n)
	for i := range ids {
		ids[i] = r.id()
	}
	return ids
}

// begin claims an id that must be unknown.
func (r *guardRig) begin(id idem.Identity) idem.Claim {
	r.t.Helper()
	c, s := r.TryBegin(id)
	if s != idem.Begun {
		r.t.Fatalf("TryBegin of %s is %v, want %v", brief(id), s, idem.Begun)
	}
	return c
}

// settled begins and settles each id.
func (r *guardRig) settled(v settleVerb, ids ...idem.Identity) {
	r.t.Helper()
	for _, id := range ids {
		v.call(r.IdempotencyGuard, r.begin(id))
	}
}

// look is TryBegin that leaves the guard as it was.
func (r *guardRig) look(id idem.Identity) idem.State {
	r.t.Helper()
	c, s := r.TryBegin(id)
	switch s {
	case idem.Begun:
		r.Release(c)
	case idem.InFlight, idem.Completed, idem.Rejected:
		if c != (idem.Claim{}) {
			r.t.Fatalf("TryBegin of %s is %v with the claim %+v, want the zero Claim", brief(id), s, c)
		}
	default:
		r.t.Fatalf("TryBegin of %s is %v, which is none of the four states", brief(id), s)
	}
	return s
}

// found fails if the guard doesn't answer want.
func (r *guardRig) found(id idem.Identity, want idem.State, when string) {
	r.t.Helper()
	if s := r.look(id); s != want {
		r.t.Fatalf("TryBegin of %s is %v, want %v %s", brief(id), s, want, when)
	}
}

// count says of how many ids the guard answers s.
func (r *guardRig) count(s idem.State, ids []idem.Identity) (n int) {
	r.t.Helper()
	for _, id := range ids {
		if r.look(id) == s {
			n++
		}
	}
	return n
}

// brief is an id for a message, without a megabyte of it.
func brief(id idem.Identity) string {
	const most = 40
	text := idem.Identity{ID: id.ID[:min(len(id.ID), most)], Destination: id.Destination[:min(len(id.Destination), most)]}
	return "(" + quote(text.ID, len(id.ID)) + ", " + quote(text.Destination, len(id.Destination)) + ")"
}

// waiters start Wait for id n times, and return where the answers come. They all
// wait when it returns, or have answered.
func (r *guardRig) waiters(ctx context.Context, id idem.Identity, n int) <-chan error {
	answers := make(chan error, n)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { answers <- r.Wait(ctx, id) })
	}
	// A bubble must not end before its goroutines, however a check fails. The
	// test's context is done by then.
	r.t.Cleanup(func() { within(time.Minute, wg.Wait) })
	synctest.Wait()
	return answers
}

// answered takes n answers, without any time passing, and fails for every one that
// is missing or not nil.
func (r *guardRig) answered(answers <-chan error, n int, when string) {
	r.t.Helper()
	synctest.Wait()
	if got := len(answers); got != n {
		r.t.Fatalf("Wait has returned for %d of %d waiters %s", got, n, when)
	}
	for range n {
		if err := <-answers; err != nil {
			r.t.Fatalf("Wait %s: unexpected error: %v", when, err)
		}
	}
}

// needs skips the check if what it needs was left out.
func (r *guardRig) needs(ok bool, field string) {
	r.t.Helper()
	if !ok {
		r.t.Skip("Guard." + field + " was left out")
	}
}
