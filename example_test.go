package idem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/idem-go/idem"
)

// message is a delivery of a broker's client, which the examples make do with.
// Real ones come wrapped, by the packages under adapters.
type message struct {
	id      string
	body    string
	settled idem.Outcome
}

func (m *message) MessageId() string { return m.id }

func (m *message) Identity() (idem.Identity, error)      { return idem.ID(m.id), nil }
func (m *message) Ack(context.Context) error             { return m.settle(idem.Ack) }
func (m *message) Requeue(context.Context, error) error  { return m.settle(idem.Requeue) }
func (m *message) Reject(context.Context, error) error   { return m.settle(idem.Reject) }
func (m *message) Settled() idem.Outcome                 { return m.settled }
func (m *message) settle(o idem.Outcome) error           { m.settled = o; fmt.Println(o); return nil }
func (m *message) Nack() error                           { return m.settle(idem.Requeue) }
func (m *message) AckNow() error                         { return m.settle(idem.Ack) }
func (m *message) RejectNow() error                      { return m.settle(idem.Reject) }
func charge(_ context.Context, body string) (err error)  { fmt.Println("charging", body); return nil }
func handle(ctx context.Context, m *message) (err error) { return charge(ctx, m.body) }

// The hook by hand reads like a transaction.
func Example() {
	guard, err := idem.NewGenerational(idem.WithWindow(10 * time.Minute))
	if err != nil {
		log.Fatal(err)
	}

	receive := func(ctx context.Context, m *message) error {
		claim, state, err := idem.Begin(ctx, guard, idem.ID(m.MessageId()))
		switch {
		case err != nil: // ctx ended while another copy was running
			return m.Nack()
		case state == idem.Completed:
			return m.AckNow()
		case state == idem.Rejected:
			return m.RejectNow()
		}
		defer guard.Release(claim) // changes nothing once settled

		if err := handle(ctx, m); err != nil {
			guard.Release(claim) // before the nack: the copy can come back at once
			return m.Nack()
		}
		guard.Complete(claim) // before the ack: the work is done, whatever becomes of the ack
		return m.AckNow()
	}

	ctx := context.Background()
	_ = receive(ctx, &message{id: "evt_1", body: "5 €"})
	_ = receive(ctx, &message{id: "evt_1", body: "5 €"}) // the broker redelivers
	// Output:
	// charging 5 €
	// Ack
	// Ack
}

// A Receiver does the same, and holds, extends, logs and drains besides.
func ExampleReceiver() {
	guard, err := idem.NewGenerational()
	if err != nil {
		log.Fatal(err)
	}
	receiver := &idem.Receiver[*message]{
		Guard: guard,
		Handle: func(ctx context.Context, m *message) error {
			return charge(ctx, m.body) // nil: acked. An error: given back.
		},
	}

	ctx := context.Background()
	_ = receiver.Receive(ctx, &message{id: "evt_1", body: "5 €"})
	_ = receiver.Receive(ctx, &message{id: "evt_1", body: "5 €"})
	// Output:
	// charging 5 €
	// Ack
	// Ack
}

// Consume runs a pool of handlers, fed by the broker's client.
func ExampleReceiver_Consume() {
	guard, err := idem.NewGenerational()
	if err != nil {
		log.Fatal(err)
	}
	receiver := &idem.Receiver[*message]{Guard: guard, Handle: handle}

	queue := []*message{{id: "evt_1", body: "5 €"}, {id: "evt_1", body: "5 €"}}
	next := func(context.Context) (*message, error) {
		if len(queue) == 0 {
			return nil, io.EOF
		}
		m := queue[0]
		queue = queue[1:]
		return m, nil
	}
	fmt.Println(receiver.Consume(context.Background(), 1, next))
	// Output:
	// charging 5 €
	// Ack
	// Ack
	// <nil>
}

// A handler says what is to become of its message with WithOutcome.
func ExampleWithOutcome() {
	receiver := &idem.Receiver[*message]{
		Handle: func(context.Context, *message) error {
			return idem.WithOutcome(errors.New("no such account"), idem.Reject)
		},
	}
	fmt.Println(receiver.Receive(context.Background(), &message{id: "evt_1"}))
	// Output:
	// Reject
	// no such account
}

// Do is for code that settles nothing itself.
func ExampleDo() {
	guard, err := idem.NewGenerational()
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		ran, err := idem.Do(context.Background(), guard, idem.IDAt("17", "orders"), func(ctx context.Context) error {
			return charge(ctx, "5 €")
		})
		fmt.Println(ran, err)
	}
	// Output:
	// charging 5 €
	// true <nil>
	// false <nil>
}

// The guard belongs to the endpoint: a receiver that is rebuilt finds it again.
func ExampleEndpoints() {
	endpoints, err := idem.NewEndpoints(idem.WithWindow(10 * time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	payments := idem.Endpoint{Name: "payments"}
	before, err := endpoints.Guard(payments, idem.WithMaxTracked(500_000))
	if err != nil {
		log.Fatal(err)
	}
	after, err := endpoints.Guard(payments)
	fmt.Println(before == after, err)
	// Output:
	// true <nil>
}
