package idemtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
)

// A guard that takes the time from package time.
func ExampleTestGuard() {
	const window, most = 10 * time.Minute, 1000

	// In a _test.go file: func TestMyGuard(t *testing.T).
	test := func(t *testing.T) {
		idemtest.TestGuard(t, func(t *testing.T) idemtest.Guard {
			g, err := idem.NewGenerational(idem.WithWindow(window), idem.WithMaxTracked(most))
			if err != nil {
				t.Fatal(err)
			}
			return idemtest.Guard{
				Guard:      g,
				Advance:    time.Sleep,
				Window:     window,
				Lease:      time.Hour,
				MaxTracked: most,
			}
		})
	}
	fmt.Println("passes:", passes(test))
	// Output:
	// passes: true
}

// A broker with dead letters, whose unsettled messages come again when the
// connection is made anew.
func ExampleTestDelivery() {
	// In a _test.go file: func TestMyDelivery(t *testing.T).
	test := func(t *testing.T) {
		idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*idemtest.Delivery] {
			queue := idemtest.NewQueue() // connect, declare a queue, t.Cleanup what is opened
			return idemtest.Broker[*idemtest.Delivery]{
				Publish:   func(id string) { queue.Publish(idem.ID(id)) },
				Next:      queue.Next,
				Redeliver: func() { queue.Redeliver() },
				DeadLetters: func() (ids []string) {
					for _, id := range queue.DeadLetters() {
						ids = append(ids, id.ID)
					}
					return ids
				},
				Quiet: time.Millisecond, // this one is in memory
			}
		})
	}
	fmt.Println("passes:", passes(test))
	// Output:
	// passes: true
}

// A handler and its receiver, tested with one delivery.
func ExampleNewDelivery() {
	guard, err := idem.NewGenerational()
	if err != nil {
		panic(err)
	}
	receiver := &idem.Receiver[*idemtest.Delivery]{
		Guard: guard,
		Handle: func(context.Context, *idemtest.Delivery) error {
			return idem.WithOutcome(errors.New("not JSON"), idem.Reject)
		},
	}
	d := idemtest.NewDelivery(idem.ID("order-1"))
	err = receiver.Receive(context.Background(), d)

	fmt.Println(err)
	fmt.Println(d.Settled(), d.Calls())
	fmt.Println(d.Queue().DeadLetters())
	// Output:
	// not JSON
	// Reject [Reject(not JSON)]
	// [{order-1 }]
}

// A consumer, tested with redeliveries and a copy.
func ExampleQueue() {
	guard, err := idem.NewGenerational()
	if err != nil {
		panic(err)
	}
	queue := idemtest.NewQueue()
	queue.Publish(idem.ID("a"), idem.ID("b"), idem.ID("a")) // a was published twice
	queue.Close()

	receiver := &idem.Receiver[*idemtest.Delivery]{
		Guard: guard,
		Handle: func(_ context.Context, d *idemtest.Delivery) error {
			id, err := d.Identity()
			fmt.Printf("%s, attempt %d\n", id.ID, d.Attempt())
			if id.ID == "b" && d.Attempt() == 1 {
				return errors.New("out of stock") // comes again
			}
			return err
		},
	}
	err = receiver.Consume(context.Background(), 1, queue.Next)

	fmt.Println(err, len(queue.Acked()), "acked")
	// Unordered output:
	// a, attempt 1
	// b, attempt 1
	// b, attempt 2
	// <nil> 3 acked
}
