package idem

import (
	"context"
	"time"
)

// Outcome is what becomes of a delivery. The zero value settles nothing.
type Outcome uint8

const (
	// Unsettled: nothing has been called on the delivery. As the outcome of a
	// handler it is a mistake, treated as Requeue and logged.
	Unsettled Outcome = iota
	// Ack: handled, the broker may forget the message.
	Ack
	// Requeue: not done, the broker is to deliver the message again.
	Requeue
	// Reject: never to be delivered again; dead-lettered where the broker does that.
	Reject
	// Postpone: acked, but not done: the handler has arranged for the message to
	// come later under the same id.
	Postpone
)

// String returns the name of the constant, or "Outcome(n)" for a value that has
// none.
func (o Outcome) String() string {
	return enumName("Outcome", uint8(o), "Unsettled", "Ack", "Requeue", "Reject", "Postpone")
}

// Delivery is one arrival of a message, as an adapter wraps it.
//
// A verb settles this very delivery, at most once: on a settled one it does
// nothing and returns nil. It honours ctx, also where the broker's client
// doesn't. An error from a verb means that the broker will deliver the message
// again; an adapter that can't promise that gives the delivery back by itself.
// With a ctx that is done already a verb may still settle, and then returns nil.
//
// The verbs and Settled may be called from any goroutine. The idemtest package
// tests an implementation against these promises.
type Delivery interface {
	// Identity names the message. An error is treated as a handler's would be.
	Identity() (Identity, error)
	// Ack tells the broker that the message is handled.
	Ack(ctx context.Context) error
	// Requeue gives the message back. The cause says why the handler failed; nil
	// says that it was never begun, and that nothing failed.
	Requeue(ctx context.Context, cause error) error
	// Reject gives the message up: to the dead letters, where the broker has them.
	Reject(ctx context.Context, cause error) error
	// Settled returns what was called on the delivery, by whoever, native calls
	// of the client included; Unsettled if nothing was. Of a call that failed it
	// may tell what was wanted, or Unsettled.
	Settled() Outcome
}

// Extender is a [Delivery] whose broker redelivers after a time. A [Receiver]
// calls Extend while it holds the delivery, while that waits for a worker, and while
// the handler runs.
type Extender interface {
	// Extend asks the broker for more time, if it is time to ask, and says after
	// how long to call again, with or without an error. A next of 0 or less ends
	// the calls.
	Extend(ctx context.Context) (next time.Duration, err error)
}

// Pauser is a [Delivery] that knows how long a copy should rest before
// [RequeueInFlight] gives it back. Without it the pause is a second.
type Pauser interface {
	// RequeuePause returns the pause; 0 or less is none, for a broker that delays
	// the redelivery itself.
	RequeuePause() time.Duration
}
