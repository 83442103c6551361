package idemtest

import (
	"testing"
	"testing/synctest"

	"github.com/idem-go/idem"
)

// TestGuard checks that a guard keeps the promises of [idem.IdempotencyGuard], and
// those of [idem.Generational] about time and number, as far as what guard returns
// says that it makes them. guard is called at least once for each check, for a new
// guard; what must be cleaned up it hands to t.Cleanup.
//
// Each check is a subtest, named after the promise that it checks, and runs in a
// bubble of package testing/synctest, as does guard: no time passes but by Advance,
// t.Run and t.Parallel can't be called, and a guard's goroutines must have ended when
// the cleanup is over. Run it with -race.
func TestGuard(t *testing.T, guard func(t *testing.T) Guard) {
	checks := []struct {
		name string
		run  func(r *guardRig)
	}{
		{"States", (*guardRig).states},
		{"SettledOnce", (*guardRig).settledOnce},
		{"StaleClaim", (*guardRig).staleClaim},
		{"ZeroClaim", (*guardRig).zeroClaim},
		{"ForeignClaim", (*guardRig).foreignClaim},
		{"Unidentified", (*guardRig).unidentified},

		{"Exactness", (*guardRig).exactness},
		{"LongIDs", (*guardRig).longIDs},
		{"Destinations", (*guardRig).destinations},
		{"ReusedMemory", (*guardRig).reusedMemory},
		{"KeepsNothing", (*guardRig).keepsNothing},

		{"WaitNotInFlight", (*guardRig).waitNotInFlight},
		{"WaitHolds", (*guardRig).waitHolds},
		{"WaitWoken", (*guardRig).waitWoken},
		{"WaitContext", (*guardRig).waitContext},

		{"OneWinner", (*guardRig).oneWinner},
		{"NoGap", (*guardRig).noGap},
		{"Visible", (*guardRig).visible},
		{"Hammer", (*guardRig).hammer},

		{"RetentionAtLeastHalf", (*guardRig).retentionAtLeastHalf},
		{"RetentionAtMostWindow", (*guardRig).retentionAtMostWindow},
		{"RetentionNotProlonged", (*guardRig).retentionNotProlonged},
		{"Ceiling", (*guardRig).ceiling},
		{"NewestHalf", (*guardRig).newestHalf},
		{"InFlightCeiling", (*guardRig).inFlightCeiling},
		{"InFlightHalf", (*guardRig).inFlightHalf},
		{"BudgetsApart", (*guardRig).budgetsApart},
		{"RepeatsTakeNoRoom", (*guardRig).repeatsTakeNoRoom},

		{"LeaseHolds", (*guardRig).leaseHolds},
		{"LeaseLapses", (*guardRig).leaseLapses},
		{"WaitLapse", (*guardRig).waitLapse},
		{"LateRelease", (*guardRig).lateRelease},
		{"LateReject", (*guardRig).lateReject},
		{"LateComplete", (*guardRig).lateComplete},
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.run(newGuardRig(t, guard)) })
		})
	}
}

// settleVerb is one of the verbs that settle a claim.
type settleVerb struct {
	name  string
	call  func(g idem.IdempotencyGuard, c idem.Claim)
	leads idem.State // what TryBegin finds afterwards
}

var (
	complete = settleVerb{"Complete", idem.IdempotencyGuard.Complete, idem.Completed}
	reject   = settleVerb{"Reject", idem.IdempotencyGuard.Reject, idem.Rejected}
	release  = settleVerb{"Release", idem.IdempotencyGuard.Release, idem.Begun}

	settleVerbs = []settleVerb{complete, reject, release}
)

func (r *guardRig) states() {
	for _, v := range settleVerbs {
		id := r.id()
		c := r.begin(id)
		if c.Token() == 0 || c.Identity() != id {
			r.t.Fatalf("the claim of %v is of %v, with token %d, want its own identity and a token", id, c.Identity(), c.Token())
		}
		r.found(id, idem.InFlight, "after TryBegin")
		v.call(r.IdempotencyGuard, c)
		r.found(id, v.leads, "after "+v.name)
		r.found(id, v.leads, "after "+v.name+", looked up twice")
	}
	id := r.id()
	c := r.begin(id)
	r.Release(c)
	if r.begin(id) == c {
		r.t.Fatal("the claim is the same after Release, want a new one")
	}
}

// settledOnce calls each pair of verbs on one claim, as a deferred Release and a
// repeated call do. The first counts.
func (r *guardRig) settledOnce() {
	for _, first := range settleVerbs {
		for _, second := range settleVerbs {
			id := r.id()
			c := r.begin(id)
			first.call(r.IdempotencyGuard, c)
			second.call(r.IdempotencyGuard, c)
			r.found(id, first.leads, "after "+first.name+" and then "+second.name)
		}
	}
}

// staleClaim calls verbs on a released claim of an id that is somebody else's by
// now.
func (r *guardRig) staleClaim() {
	for _, v := range settleVerbs {
		id := r.id()
		stale := r.begin(id)
		r.Release(stale)
		c := r.begin(id)
		v.call(r.IdempotencyGuard, stale)
		r.found(id, idem.InFlight, "after "+v.name+" of a claim that was released before the id was begun again")
		r.Complete(c)
		v.call(r.IdempotencyGuard, stale)
		r.found(id, idem.Completed, "after "+v.name+" of a claim that was released before another was completed")
	}
}

func (r *guardRig) zeroClaim() {
	id := r.id()
	c := r.begin(id)
	for _, v := range settleVerbs {
		for _, zero := range []idem.Claim{{}, idem.NewClaim(id, 0)} {
			v.call(r.IdempotencyGuard, zero)
			r.found(id, idem.InFlight, "after "+v.name+" of a claim without a token")
		}
	}
	r.Complete(c)
	r.found(id, idem.Completed, "after Complete")
}

// foreignClaim calls verbs on claims of the same id that this guard has not given.
func (r *guardRig) foreignClaim() {
	id := r.id()
	c := r.begin(id)
	other := newGuardRig(r.t, r.make)
	foreign := []idem.Claim{
		other.begin(id),
		idem.NewClaim(id, c.Token()+1),
	}
	for _, v := range settleVerbs {
		for _, f := range foreign {
			v.call(r.IdempotencyGuard, f)
			r.found(id, idem.InFlight, "after "+v.name+" of a claim that another guard has given")
		}
	}
	r.Complete(c)
	r.found(id, idem.Completed, "after Complete")
	other.found(id, idem.InFlight, "in a guard of its own")
}

func (r *guardRig) unidentified() {
	for _, id := range []idem.Identity{idem.ID(""), idem.IDAt("", "queue")} {
		for range 3 {
			c, s := r.TryBegin(id)
			if s != idem.Begun || c != (idem.Claim{}) {
				r.t.Fatalf("TryBegin of %+v is %v with %+v, want %v with the zero Claim: without an ID nothing is a duplicate", id, s, c, idem.Begun)
			}
			if err := r.Wait(r.t.Context(), id); err != nil {
				r.t.Fatalf("Wait for %+v: unexpected error: %v", id, err)
			}
			r.Complete(c)
		}
	}
}
