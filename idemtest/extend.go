package idemtest

import (
	"time"

	"github.com/idem-go/idem"
)

// extender takes a delivery that can be extended, or skips the check.
func (r *rig[D]) extender() (*message[D], idem.Extender) {
	r.t.Helper()
	m := r.send()
	e, ok := any(m.d).(idem.Extender)
	if !ok {
		r.t.Skipf("%T is no idem.Extender", m.d)
	}
	if r.b.Deadline == 0 {
		r.t.Skip("Broker.Deadline is 0")
	}
	return m, e
}

// extend holds a delivery for three deadlines, with Extend called as it asks for.
func (r *rig[D]) extend() {
	m, e := r.extender()
	for end := time.Now().Add(3 * r.b.Deadline); time.Now().Before(end); {
		next, err := e.Extend(r.t.Context())
		if err != nil {
			r.t.Fatalf("Extend: unexpected error: %v", err)
		}
		if next <= 0 || next >= r.b.Deadline {
			r.t.Fatalf("Extend is to be called again after %v, want more than 0 and less than the deadline of %v", next, r.b.Deadline)
		}
		r.quietFor(min(next, time.Until(end)), "its deadline was extended in time")
	}
	r.settled(m.d, idem.Unsettled, "after Extend")
	r.settle(m, idem.Ack)
	r.gone("it was acked after all the extending")
}

// extendAfterVerb has Extend come late, which must not undo the verb.
func (r *rig[D]) extendAfterVerb() {
	m, e := r.extender()
	r.settle(m, idem.Requeue)
	_, _ = e.Extend(r.t.Context())
	r.settled(m.d, idem.Requeue, "after Requeue and Extend")
	r.afterRequeue(m)
	e = any(m.d).(idem.Extender)
	r.settle(m, idem.Ack)
	_, _ = e.Extend(r.t.Context())
	r.alive()
	r.gone("it was acked before Extend was called once more")
}
