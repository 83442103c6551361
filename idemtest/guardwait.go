package idemtest

import (
	"context"
	"errors"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
)

// crowd is how many wait for one id.
const crowd = 16

func (r *guardRig) waitNotInFlight() {
	for _, v := range settleVerbs {
		id := r.id()
		r.settled(v, id)
		r.answered(r.waiters(r.t.Context(), id, 1), 1, "at once for an id after "+v.name)
	}
	r.answered(r.waiters(r.t.Context(), r.id(), 1), 1, "at once for an unknown id")
}

// waitHolds lets everything pass by a waiter that is none of its business.
func (r *guardRig) waitHolds() {
	id := r.id()
	defer r.Complete(r.begin(id))
	answers := r.waiters(r.t.Context(), id, crowd)
	for _, v := range settleVerbs {
		r.settled(v, r.ids(4)...)
	}
	r.pass(1500 * time.Millisecond) // longer than a guard may take to look again by itself
	synctest.Wait()
	if len(answers) > 0 {
		r.t.Fatalf("Wait has returned for %d of %d waiters while the id is in flight", len(answers), crowd)
	}
}

// pass lets d pass in the bubble, less where that would end a lease.
func (r *guardRig) pass(d time.Duration) {
	if r.spec.Lease > 0 {
		d = min(d, r.spec.Lease/2)
	}
	time.Sleep(d)
}

func (r *guardRig) waitWoken() {
	for _, v := range settleVerbs {
		id := r.id()
		c := r.begin(id)
		answers := r.waiters(r.t.Context(), id, crowd)
		if n := len(answers); n > 0 {
			r.t.Fatalf("Wait has returned for %d of %d waiters before %s", n, crowd, v.name)
		}
		v.call(r.IdempotencyGuard, c)
		r.answered(answers, crowd, "as soon as "+v.name+" has")
		r.found(id, v.leads, "after "+v.name+" and Wait")
	}
}

// waitContext ends each kind of context, before and while somebody waits.
func (r *guardRig) waitContext() {
	ended, end := context.WithCancel(r.t.Context())
	end()
	canceled, cancel := context.WithCancel(r.t.Context())
	timed, stop := context.WithTimeout(r.t.Context(), time.Millisecond)
	defer stop()

	id := r.id()
	c := r.begin(id)
	defer r.Complete(c) // frees those who should not be waiting any more
	r.refused(r.waiters(ended, id, 1), context.Canceled, "with a context that was done before")
	answers := r.waiters(canceled, id, crowd)
	cancel()
	r.refused(answers, context.Canceled, "with a context that was canceled")
	answers = r.waiters(timed, id, crowd)
	time.Sleep(time.Millisecond)
	r.refused(answers, context.DeadlineExceeded, "with a context whose deadline is over")

	r.found(id, idem.InFlight, "after waiters have given up")
	r.Complete(c)
	r.found(id, idem.Completed, "after Complete")
}

// refused takes all answers, which must be there and be want.
func (r *guardRig) refused(answers <-chan error, want error, when string) {
	r.t.Helper()
	synctest.Wait()
	if len(answers) != cap(answers) {
		r.t.Fatalf("Wait has returned for %d of %d waiters %s", len(answers), cap(answers), when)
	}
	for range cap(answers) {
		if err := <-answers; !errors.Is(err, want) {
			r.t.Fatalf("Wait %s returned %v, want %v", when, err, want)
		}
	}
}
