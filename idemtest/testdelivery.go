package idemtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// TestDelivery checks that deliveries keep the promises of [idem.Delivery], on a
// broker that broker makes: one for each check, clean and alone. What must be
// cleaned up it hands to t.Cleanup.
//
// Each check is a subtest, named after the promise that it checks. Those that the
// broker can't show are skipped, with the field of [Broker] that they lack. A
// delivery that is an [idem.Extender] is checked as one. Run it with -race.
func TestDelivery[D idem.Delivery](t *testing.T, broker func(t *testing.T) Broker[D]) {
	testDelivery(t, broker, func(t *testing.T, check func(t *testing.T)) { check(t) })
}

// testDelivery has run run each check: the tests of this package do it in a bubble.
func testDelivery[D idem.Delivery](t *testing.T, broker func(t *testing.T) Broker[D], run func(t *testing.T, check func(t *testing.T))) {
	checks := []struct {
		name string
		run  func(r *rig[D])
	}{
		{"IdentityStays", (*rig[D]).identityStays},
		{"IdentitiesDiffer", (*rig[D]).identitiesDiffer},
		{"UnsettledComesAgain", (*rig[D]).unsettledComesAgain},
		{"AckIsFinal", (*rig[D]).ackIsFinal},
		{"RequeueComesAgain", (*rig[D]).requeueComesAgain},
		{"RejectIsFinal", (*rig[D]).rejectIsFinal},
		{"SecondVerbAfterAck", (*rig[D]).secondVerbAfterAck},
		{"SecondVerbAfterRequeue", (*rig[D]).secondVerbAfterRequeue},
		{"SecondVerbAfterReject", (*rig[D]).secondVerbAfterReject},
		{"ConcurrentVerbs", (*rig[D]).concurrentVerbs},
		{"StaleDelivery", (*rig[D]).staleDelivery},
		{"NativeAck", (*rig[D]).nativeAck},
		{"NativeRequeue", (*rig[D]).nativeRequeue},
		{"NativeReject", (*rig[D]).nativeReject},
		{"DoneContextAck", (*rig[D]).doneContextAck},
		{"DoneContextRequeue", (*rig[D]).doneContextRequeue},
		{"DoneContextReject", (*rig[D]).doneContextReject},
		{"FailedAck", (*rig[D]).failedAck},
		{"FailedRequeue", (*rig[D]).failedRequeue},
		{"FailedReject", (*rig[D]).failedReject},
		{"Extend", (*rig[D]).extend},
		{"ExtendAfterVerb", (*rig[D]).extendAfterVerb},
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(t *testing.T) { c.run(newRig(t, broker)) })
		})
	}
}

// The three verbs, as outcomes.
var verbs = []idem.Outcome{idem.Ack, idem.Requeue, idem.Reject}

func (r *rig[D]) identityStays() {
	m := r.send()
	if m.name.ID == "" {
		r.t.Fatalf("the identity %+v has no ID: such a message is never deduplicated", m.name)
	}
	if got := r.identity(m.d); got != m.name {
		r.t.Fatalf("Identity of one delivery is %v, then %v", m.name, got)
	}
	r.redeliver()
	r.again(m, "unsettled")
	r.settle(m, idem.Requeue)
	if got := r.identity(m.d); got != m.name {
		r.t.Fatalf("Identity of one delivery is %v, and %v after Requeue", m.name, got)
	}
	r.afterRequeue(m)
	r.settle(m, idem.Ack)
}

func (r *rig[D]) identitiesDiffer() {
	seen := make(map[idem.Identity]bool)
	for range 3 {
		m := r.send()
		if seen[m.name] {
			r.t.Fatalf("two messages have the identity %v: the second would never run", m.name)
		}
		seen[m.name] = true
		r.settle(m, idem.Ack)
	}
}

func (r *rig[D]) unsettledComesAgain() {
	m := r.send()
	for range 2 {
		r.settled(m.d, idem.Unsettled, "before any verb")
		r.redeliver()
		r.again(m, "unsettled")
	}
	r.settle(m, idem.Ack)
}

func (r *rig[D]) ackIsFinal() {
	m := r.send()
	r.settle(m, idem.Ack)
	r.gone("it was acked")
	r.dead()
}

func (r *rig[D]) requeueComesAgain() {
	m := r.send()
	for _, cause := range []error{nil, errHandler} {
		if err := r.callWith(r.t.Context(), m.d, idem.Requeue, cause); err != nil {
			r.t.Fatalf("Requeue(%v): unexpected error: %v", cause, err)
		}
		r.settled(m.d, idem.Requeue, "after Requeue")
		r.afterRequeue(m)
	}
	r.settle(m, idem.Ack)
	r.gone("it was given back twice, came twice, and was acked then")
	r.dead()
}

func (r *rig[D]) rejectIsFinal() {
	m := r.send()
	r.settle(m, idem.Reject)
	r.gone("it was rejected")
	r.dead(m.id)
}

// nothingMore calls every verb on a settled delivery, which must do nothing.
func (r *rig[D]) nothingMore(d D, first idem.Outcome) {
	r.t.Helper()
	for _, second := range verbs {
		if err := r.call(r.t.Context(), d, second); err != nil {
			r.t.Fatalf("%v after %v: unexpected error: %v", second, first, err)
		}
		r.settled(d, first, "after "+first.String()+" and then "+second.String())
	}
}

// alive fails if the consumer has stopped: some brokers close the channel on
// which a delivery was settled twice.
func (r *rig[D]) alive() {
	r.t.Helper()
	r.settle(r.send(), idem.Ack)
}

func (r *rig[D]) secondVerbAfterAck() {
	m := r.send()
	r.settle(m, idem.Ack)
	r.nothingMore(m.d, idem.Ack)
	r.alive()
	r.gone("it was acked before it was given back")
	r.dead()
}

// The second verbs come when the message is back already: they must not settle
// the new delivery either.
func (r *rig[D]) secondVerbAfterRequeue() {
	m := r.send()
	r.settle(m, idem.Requeue)
	old := m.d
	r.afterRequeue(m)
	r.nothingMore(old, idem.Requeue)
	r.settled(m.d, idem.Unsettled, "after verbs on an earlier delivery, settled by then")
	r.redeliver()
	r.again(m, "unsettled")
	r.settle(m, idem.Ack)
	r.alive()
	r.gone("it was acked in the end")
	r.dead()
}

func (r *rig[D]) secondVerbAfterReject() {
	m := r.send()
	r.settle(m, idem.Reject)
	r.nothingMore(m.d, idem.Reject)
	r.alive()
	r.gone("it was rejected before it was given back")
	r.dead(m.id)
}

func (r *rig[D]) concurrentVerbs() {
	var rejected []string
	for range 10 {
		m := r.send()
		r.race(m.d)
		switch o := m.d.Settled(); o {
		case idem.Ack:
		case idem.Requeue:
			r.afterRequeue(m)
			r.settle(m, idem.Ack)
		case idem.Reject:
			rejected = append(rejected, m.id)
		default:
			r.t.Fatalf("Settled is %v after concurrent verbs, want one of them", o)
		}
	}
	r.alive()
	r.gone("each was settled, and taken again when it was given back")
	r.dead(rejected...)
}

// race calls each verb on d from several goroutines.
func (r *rig[D]) race(d D) {
	r.t.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 3 {
		for _, o := range verbs {
			wg.Go(func() {
				<-start
				if err := verb(r.t.Context(), d, o, errHandler); err != nil {
					r.t.Errorf("%v among concurrent verbs: unexpected error: %v", o, err)
				}
				if got := d.Settled(); got == idem.Unsettled {
					r.t.Errorf("Settled is %v after %v has returned", got, o)
				}
			})
		}
	}
	close(start)
	if !within(r.b.Patience, wg.Wait) {
		r.t.Fatalf("concurrent verbs have not returned after %v", r.b.Patience)
	}
}

// within says whether f returns in time.
func within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// staleDelivery settles a delivery whose message has come again meanwhile. What
// that does is the broker's affair; that the consumer goes on is not.
func (r *rig[D]) staleDelivery() {
	m := r.send()
	old := m.d
	r.redeliver()
	r.again(m, "unsettled")
	_ = r.call(r.t.Context(), old, idem.Ack)
	_ = r.call(r.t.Context(), m.d, idem.Ack)
	r.alive()
	r.gone("both its deliveries were acked")
}

func (r *rig[D]) nativeAck()     { r.native(idem.Ack) }
func (r *rig[D]) nativeRequeue() { r.native(idem.Requeue) }
func (r *rig[D]) nativeReject()  { r.native(idem.Reject) }

// native settles with the client's own call; the verbs must do nothing then.
func (r *rig[D]) native(o idem.Outcome) {
	call := r.b.Native[o]
	if call == nil {
		r.t.Skipf("Broker.Native has no %v", o)
	}
	m := r.send()
	call(m.d)
	r.settled(m.d, o, "after the client's own call")
	old := m.d
	if o == idem.Requeue {
		r.afterRequeue(m)
	}
	r.nothingMore(old, o)
	if o == idem.Requeue {
		r.redeliver()
		r.again(m, "given back with the client's own call, and unsettled since")
		r.settle(m, idem.Ack)
	}
	r.alive()
	r.gone("it was settled with the client's own call")
	if o == idem.Reject {
		r.dead(m.id)
	} else {
		r.dead()
	}
}

func (r *rig[D]) doneContextAck()     { r.doneContext(idem.Ack) }
func (r *rig[D]) doneContextRequeue() { r.doneContext(idem.Requeue) }
func (r *rig[D]) doneContextReject()  { r.doneContext(idem.Reject) }

// doneContext calls a verb that has no time left. It may do it all the same or
// return an error, but not lose the message.
func (r *rig[D]) doneContext(o idem.Outcome) {
	ctx, cancel := context.WithCancel(r.t.Context())
	cancel()
	m := r.send()
	r.follow(m, o, r.call(ctx, m.d, o), "on a context that is done")
	r.alive()
}

// follow checks what became of m after a verb that might have failed.
func (r *rig[D]) follow(m *message[D], o idem.Outcome, err error, when string) {
	r.t.Helper()
	switch {
	case err != nil:
		r.redeliver()
		r.again(m, o.String()+" failed "+when)
		r.settle(m, idem.Ack)
		r.gone("it was acked in the end")
		r.dead()
	case o == idem.Requeue:
		r.afterRequeue(m)
		r.settle(m, idem.Ack)
	case o == idem.Reject:
		r.gone("Reject returned nil " + when)
		r.dead(m.id)
	default:
		r.gone("Ack returned nil " + when)
		r.dead()
	}
}

func (r *rig[D]) failedAck()     { r.failed(idem.Ack) }
func (r *rig[D]) failedRequeue() { r.failed(idem.Requeue) }
func (r *rig[D]) failedReject()  { r.failed(idem.Reject) }

// cutTimeout is what a verb gets on a dead connection.
const cutTimeout = 50 * time.Millisecond

// failed calls a verb while the broker can't be reached. It must return when its
// context ends, and an error must mean that the message comes again. A nil may
// mean anything: many clients only write, and never hear.
func (r *rig[D]) failed(o idem.Outcome) {
	if r.b.Cut == nil {
		r.t.Skip("Broker.Cut is nil")
	}
	m := r.send()
	r.b.Cut()
	ctx, cancel := context.WithTimeout(r.t.Context(), cutTimeout)
	defer cancel()
	err := r.call(ctx, m.d, o)
	r.redeliver()
	if err != nil || o == idem.Requeue {
		r.again(m, o.String()+" failed on a cut connection")
		r.settle(m, idem.Ack)
		r.gone("it was acked in the end")
		r.dead()
		r.alive()
	}
}
