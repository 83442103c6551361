package idemtest

import "github.com/idem-go/idem"

// flood is how many times MaxTracked ids arrive where too many are to.
const flood = 3

// room returns MaxTracked and the half of it that is always kept.
func (r *guardRig) room() (most, half int) {
	r.t.Helper()
	r.needs(r.spec.MaxTracked > 0, "MaxTracked")
	return r.spec.MaxTracked, r.spec.MaxTracked / 2
}

func (r *guardRig) ceiling() {
	most, _ := r.room()
	ids := r.ids(flood * most)
	r.settled(complete, ids...)
	if n := r.count(idem.Completed, ids); n > most {
		r.t.Fatalf("%d of %d completed ids are remembered, want at most %d", n, len(ids), most)
	}
}

// newestHalf floods the guard and looks at any moment whether the newest are there.
func (r *guardRig) newestHalf() {
	most, half := r.room()
	ids := r.ids(flood * most)
	for i, id := range ids {
		r.settled(settleVerbs[i%2], id)
		if oldest := i - half + 1; oldest >= 0 {
			r.found(ids[oldest], settleVerbs[oldest%2].leads, "because it is among the newest half of MaxTracked")
		}
	}
	newest := ids[len(ids)-half:]
	if r.spec.Advance != nil && r.spec.Window > 0 {
		r.spec.Advance(r.spec.Window/2 + r.spec.Window%2 - 1)
	}
	if n := r.count(idem.Completed, newest) + r.count(idem.Rejected, newest); n != half {
		r.t.Fatalf("%d of the newest %d ids are remembered until half the window is over, want all", n, half)
	}
}

func (r *guardRig) inFlightCeiling() {
	most, _ := r.room()
	ids := r.ids(flood * most)
	for _, id := range ids {
		r.begin(id) // the newest is never refused
		r.found(id, idem.InFlight, "however many are")
	}
	// From the newest on, as a look at an id that has lapsed may push out another.
	n := 0
	for i := range ids {
		if r.look(ids[len(ids)-1-i]) == idem.InFlight {
			n++
		}
	}
	if n > most {
		r.t.Fatalf("%d of %d ids are in flight, want at most %d", n, len(ids), most)
	}
}

// inFlightHalf: below that, nothing lapses before its lease.
func (r *guardRig) inFlightHalf() {
	_, half := r.room()
	ids := r.ids(half)
	claims := make([]idem.Claim, half)
	for i, id := range ids {
		claims[i] = r.begin(id)
	}
	if n := r.count(idem.InFlight, ids); n != half {
		r.t.Fatalf("%d of %d ids are in flight, want all: they are no more than half of MaxTracked", n, half)
	}
	for i, id := range ids {
		r.Complete(claims[i])
		r.found(id, idem.Completed, "after Complete")
	}
}

// budgetsApart: a flood of one kind leaves the other alone.
func (r *guardRig) budgetsApart() {
	most, half := r.room()
	done := r.ids(half)
	r.settled(complete, done...)
	for range flood * most {
		r.begin(r.id())
	}
	if n := r.count(idem.Completed, done); n != half {
		r.t.Fatalf("%d of %d completed ids are remembered after a flood of ids in flight, want all", n, half)
	}

	other := newGuardRig(r.t, r.make)
	running := other.ids(half - 1) // one place is for the flood
	for _, id := range running {
		other.begin(id)
	}
	other.settled(complete, other.ids(flood*most)...)
	if n := other.count(idem.InFlight, running); n != len(running) {
		r.t.Fatalf("%d of %d ids are in flight after a flood of completed ids, want all", n, len(running))
	}
}

// repeatsTakeNoRoom does all that leaves nothing behind, over and over.
func (r *guardRig) repeatsTakeNoRoom() {
	most, half := r.room()
	done, running := r.ids(half), r.ids(half-1)
	for _, id := range running {
		r.begin(id)
	}
	r.settled(complete, done[1:]...)
	last := r.begin(done[0])
	r.Complete(last)
	again := r.id()
	for range flood * most {
		r.Complete(last)
		r.look(done[0])
		r.look(running[0])
		r.look(again)
		r.TryBegin(idem.ID(""))
	}
	if n := r.count(idem.Completed, done); n != half {
		r.t.Fatalf("%d of %d completed ids are remembered after nothing but duplicates and repeated calls, want all", n, half)
	}
	if n := r.count(idem.InFlight, running); n != len(running) {
		r.t.Fatalf("%d of %d ids are in flight after nothing but duplicates and releases, want all", n, len(running))
	}
}
