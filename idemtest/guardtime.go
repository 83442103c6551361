package idemtest

import (
	"time"

	"github.com/idem-go/idem"
)

// phases is how many moments of a guard's inner periods an id is tried at: what
// rotates on a schedule treats the first and the last of a period differently.
const phases = 8

// eachPhase runs f at moments spread over a window or a lease, each after the guard
// has forgotten everything and some other id has opened a new period.
func (r *guardRig) eachPhase(period time.Duration, f func(busy bool)) {
	for i := range 2 * phases {
		r.settled(complete, r.id())
		r.spec.Advance(period / phases * time.Duration(i/2))
		f(i%2 == 1)
		r.spec.Advance(2*period + 1)
	}
}

// spend lets d pass: at once, or with other ids coming by.
func (r *guardRig) spend(d time.Duration, busy bool) {
	const steps = 5
	if busy {
		for range steps {
			r.spec.Advance(d / steps)
			r.settled(complete, r.id())
		}
		d -= d / steps * steps
	}
	r.spec.Advance(d)
}

func (r *guardRig) needsWindow() {
	r.t.Helper()
	r.needs(r.spec.Advance != nil, "Advance")
	r.needs(r.spec.Window > 0, "Window")
}

func (r *guardRig) retentionAtLeastHalf() {
	r.needsWindow()
	half := r.spec.Window/2 + r.spec.Window%2
	r.eachPhase(r.spec.Window, func(busy bool) {
		done, dead := r.id(), r.id()
		r.settled(complete, done)
		r.settled(reject, dead)
		r.spend(half-1, busy)
		r.found(done, idem.Completed, "until half the window is over")
		r.found(dead, idem.Rejected, "until half the window is over")
	})
}

func (r *guardRig) retentionAtMostWindow() {
	r.needsWindow()
	r.eachPhase(r.spec.Window, func(busy bool) {
		done, dead := r.id(), r.id()
		r.settled(complete, done)
		r.settled(reject, dead)
		r.spend(r.spec.Window+1, busy)
		r.found(done, idem.Begun, "when the window is over")
		r.found(dead, idem.Begun, "when the window is over")
	})
}

// retentionNotProlonged looks an id up, and repeats its verbs, all the time.
func (r *guardRig) retentionNotProlonged() {
	r.needsWindow()
	r.eachPhase(r.spec.Window, func(busy bool) {
		id := r.id()
		c := r.begin(id)
		r.Complete(c)
		const looks = 8
		for range looks {
			r.spend(r.spec.Window/looks, busy)
			// No more than a look: where it is forgotten by now, it must stay so.
			if c, s := r.TryBegin(id); s == idem.Begun {
				r.Release(c)
			}
			for _, v := range settleVerbs {
				v.call(r.IdempotencyGuard, c)
			}
		}
		r.spend(r.spec.Window%looks+1, busy)
		r.found(id, idem.Begun, "when the window is over, for all that it was looked up and settled again meanwhile")
	})
}

func (r *guardRig) needsLease() {
	r.t.Helper()
	r.needs(r.spec.Advance != nil, "Advance")
	r.needs(r.spec.Lease > 0, "Lease")
}

func (r *guardRig) leaseHolds() {
	r.needsLease()
	r.eachPhase(r.spec.Lease, func(busy bool) {
		id := r.id()
		c := r.begin(id)
		r.spend(r.spec.Lease-1, busy)
		r.found(id, idem.InFlight, "until the lease is over")
		r.Complete(c)
		r.found(id, idem.Completed, "after Complete just before the lease is over")
	})
}

func (r *guardRig) leaseLapses() {
	r.needsLease()
	r.eachPhase(r.spec.Lease, func(busy bool) {
		id := r.id()
		r.begin(id)
		r.spend(2*r.spec.Lease+1, busy)
		r.found(id, idem.Begun, "when twice the lease is over")
	})
}

// lapsed returns the claim of an id whose lease has run out.
func (r *guardRig) lapsed(id idem.Identity) idem.Claim {
	r.t.Helper()
	c := r.begin(id)
	r.spec.Advance(2*r.spec.Lease + 1)
	return c
}

// waitLapse: nobody settles, and so nobody wakes the waiters when the lease is over.
func (r *guardRig) waitLapse() {
	r.needsLease()
	id := r.id()
	r.begin(id)
	answers := r.waiters(r.t.Context(), id, crowd)
	r.spec.Advance(2*r.spec.Lease + 1)
	time.Sleep(time.Second + 1) // in the bubble: for a guard that looks once a second
	r.answered(answers, crowd, "within a second of the end of twice the lease")
}

func (r *guardRig) lateRelease() { r.late(release) }
func (r *guardRig) lateReject()  { r.late(reject) }

// late calls a verb that must change nothing when the lease has run out.
func (r *guardRig) late(v settleVerb) {
	r.needsLease()
	id := r.id()
	late := r.lapsed(id)
	v.call(r.IdempotencyGuard, late)
	r.found(id, idem.Begun, "after a late "+v.name)

	id = r.id()
	late = r.lapsed(id)
	c := r.begin(id)
	v.call(r.IdempotencyGuard, late)
	r.found(id, idem.InFlight, "after a late "+v.name+" of an id that is in flight again")
	r.Complete(c)
	v.call(r.IdempotencyGuard, late)
	r.found(id, idem.Completed, "after a late "+v.name+" of an id that another has completed")
}

// lateComplete: the work is done, whoever owns the id by now.
func (r *guardRig) lateComplete() {
	r.needsLease()
	id := r.id()
	late := r.lapsed(id)
	r.Complete(late)
	r.found(id, idem.Completed, "after a late Complete")

	for _, v := range settleVerbs {
		id = r.id()
		late = r.lapsed(id)
		c := r.begin(id)
		answers := r.waiters(r.t.Context(), id, 1)
		r.Complete(late)
		r.answered(answers, 1, "as soon as a late Complete has")
		r.found(id, idem.Completed, "after a late Complete of an id that is in flight again")
		v.call(r.IdempotencyGuard, c)
		r.found(id, idem.Completed, "after a late Complete and another owner's "+v.name)
	}

	id = r.id()
	late = r.lapsed(id)
	r.settled(reject, id)
	r.Complete(late)
	r.found(id, idem.Completed, "after a late Complete of an id that another has rejected")
}
