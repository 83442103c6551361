package idemtest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// rig is a broker under test, with the steps the checks are made of.
type rig[D idem.Delivery] struct {
	t *testing.T
	b Broker[D]
}

func newRig[D idem.Delivery](t *testing.T, broker func(t *testing.T) Broker[D]) *rig[D] {
	t.Helper()
	return &rig[D]{t: t, b: broker(t).ready(t)}
}

// message is one published message, and the delivery of it that came last.
type message[D idem.Delivery] struct {
	id   string // as published
	name idem.Identity
	d    D
}

// errHandler is the cause of the verbs: a handler that failed.
var errHandler = errors.New("idemtest: the handler failed")

// send publishes a message and takes its delivery.
func (r *rig[D]) send() *message[D] {
	r.t.Helper()
	m := &message[D]{id: rand.Text()}
	r.b.Publish(m.id)
	m.d = r.next("a message that was published")
	m.name = r.identity(m.d)
	return m
}

// next takes the delivery that must come.
func (r *rig[D]) next(what string) D {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), r.b.Patience)
	defer cancel()
	d, err := r.b.Next(ctx)
	if err != nil {
		r.t.Fatalf("%s did not come within %v: %v", what, r.b.Patience, err)
	}
	return d
}

// identity asks d, which must answer.
func (r *rig[D]) identity(d D) idem.Identity {
	r.t.Helper()
	id, err := d.Identity()
	if err != nil {
		r.t.Fatalf("Identity: unexpected error: %v", err)
	}
	return id
}

// quiet fails if anything is delivered within a while.
func (r *rig[D]) quiet(why string) {
	r.t.Helper()
	r.quietFor(r.b.Quiet, why)
}

func (r *rig[D]) quietFor(while time.Duration, why string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), while)
	defer cancel()
	if d, err := r.b.Next(ctx); err == nil {
		r.t.Fatalf("a delivery of %v came, although %s", r.identity(d), why)
	}
}

// redeliver has everything come again that is not settled.
func (r *rig[D]) redeliver() {
	if r.b.Redeliver != nil {
		r.b.Redeliver()
	}
}

// gone fails if m, which the broker was told to forget, comes again.
func (r *rig[D]) gone(why string) {
	r.t.Helper()
	r.redeliver()
	r.quiet(why)
}

// again waits for m to come once more, and checks that it is m.
func (r *rig[D]) again(m *message[D], why string) {
	r.t.Helper()
	m.d = r.next("the message, " + why + ",")
	if got := r.identity(m.d); got != m.name {
		r.t.Fatalf("a delivery came of %v, want %v again, %s", got, m.name, why)
	}
	if o := m.d.Settled(); o != idem.Unsettled {
		r.t.Fatalf("a redelivery is %v already, want %v: it is an arrival of its own", o, idem.Unsettled)
	}
}

// afterRequeue waits for m, which was given back.
func (r *rig[D]) afterRequeue(m *message[D]) {
	r.t.Helper()
	if r.b.NoRequeue {
		r.redeliver()
	}
	r.again(m, "given back with Requeue")
}

// call calls one of the verbs, which must return, and returns its error.
func (r *rig[D]) call(ctx context.Context, d D, o idem.Outcome) error {
	r.t.Helper()
	return r.callWith(ctx, d, o, errHandler)
}

func (r *rig[D]) callWith(ctx context.Context, d D, o idem.Outcome, cause error) error {
	r.t.Helper()
	done := make(chan error, 1)
	go func() { done <- verb(ctx, d, o, cause) }()
	timer := time.NewTimer(r.b.Patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		r.t.Fatalf("%v has not returned after %v", o, r.b.Patience)
		return nil
	}
}

func verb(ctx context.Context, d idem.Delivery, o idem.Outcome, cause error) error {
	switch o {
	case idem.Ack:
		return d.Ack(ctx)
	case idem.Requeue:
		return d.Requeue(ctx, cause)
	default:
		return d.Reject(ctx, cause)
	}
}

// settle calls a verb that must succeed, and show in Settled.
func (r *rig[D]) settle(m *message[D], o idem.Outcome) {
	r.t.Helper()
	if err := r.call(r.t.Context(), m.d, o); err != nil {
		r.t.Fatalf("%v: unexpected error: %v", o, err)
	}
	r.settled(m.d, o, "after "+o.String())
}

// settled fails if Settled doesn't answer want.
func (r *rig[D]) settled(d D, want idem.Outcome, when string) {
	r.t.Helper()
	if got := d.Settled(); got != want {
		r.t.Fatalf("Settled is %v %s, want %v", got, when, want)
	}
}

// dead fails if m was not dead-lettered, or more than once. It waits for it: a
// broker may do it later.
func (r *rig[D]) dead(ids ...string) {
	r.t.Helper()
	if r.b.DeadLetters == nil {
		return
	}
	want := slices.Sorted(slices.Values(ids))
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(r.b.Patience); ; <-ticker.C {
		got := slices.Sorted(slices.Values(r.b.DeadLetters()))
		if slices.Equal(got, want) {
			return
		}
		if len(got) > len(want) || time.Now().After(end) {
			r.t.Fatalf("dead letters are %q, want %q", got, want)
		}
	}
}
