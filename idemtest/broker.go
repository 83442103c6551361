package idemtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

// Broker is what [TestDelivery] needs of a broker: a queue (topic, stream) that
// is empty at first and that nobody else uses, and one consumer of it whose
// deliveries are of type D.
//
// Publish and Next are required. What is left out says that the broker can't do
// it, and takes the checks that need it away. All functions are called on the
// goroutine of the check, one at a time, so they may use t.Fatal.
type Broker[D idem.Delivery] struct {
	// Publish sends one message. The id is unique, also among the checks of one
	// run. It is the publisher's name for the message: what the adapter takes the
	// identity from, where it takes it from something the publisher sets.
	Publish func(id string)

	// Next returns the next delivery as soon as there is one, or an error once ctx
	// is done. A call that ends with an error must not swallow a delivery.
	Next func(ctx context.Context) (D, error)

	// Redeliver makes the broker deliver again whatever was delivered and is not
	// settled, as a cut connection or a rebuilt consumer does, and mends what Cut
	// has broken. When it has returned, that comes within Quiet. Nil says that it
	// comes by itself within Quiet, because a deadline of the broker runs out.
	Redeliver func()

	// DeadLetters returns the ids, as given to Publish, of all messages the broker
	// has dead-lettered so far. Nil says that it has no dead letters: a rejected
	// message is gone.
	DeadLetters func() []string

	// Cut makes the broker unreachable for the delivery last returned by Next, so
	// that a verb fails or blocks until Redeliver mends it. Nil says that this
	// can't be done.
	Cut func()

	// Native settles d with the client's own call, as a handler might that knows
	// the client. It may hold any of idem.Ack, idem.Requeue and idem.Reject.
	Native map[idem.Outcome]func(d D)

	// NoRequeue says that the broker has no verb to give a message back: after
	// Requeue it comes again only by Redeliver (Kafka, Redis streams).
	NoRequeue bool

	// Deadline is after how long the broker redelivers what is neither settled nor
	// extended. It is needed where D is an [idem.Extender]; keep it short, the
	// check takes four times as long. 0 says that there is none.
	Deadline time.Duration

	// Quiet is how long nothing must come until the suite believes that nothing
	// will. 0 is 250 milliseconds. Most checks take this long, some three times.
	Quiet time.Duration

	// Patience is how long the suite waits for what must come, and for a verb to
	// return. 0 is 10 seconds.
	Patience time.Duration
}

// The defaults of a Broker.
const (
	defaultQuiet    = 250 * time.Millisecond
	defaultPatience = 10 * time.Second
)

// ready checks what the caller has given and puts in the defaults.
func (b Broker[D]) ready(t *testing.T) Broker[D] {
	t.Helper()
	if p := b.problem(); p != "" {
		t.Fatal("idemtest: " + p)
	}
	if b.Quiet == 0 {
		b.Quiet = defaultQuiet
	}
	if b.Patience == 0 {
		b.Patience = defaultPatience
	}
	return b
}

// problem says why b can't work, if it can't.
func (b Broker[D]) problem() string {
	if b.Publish == nil || b.Next == nil {
		return "a Broker needs Publish and Next"
	}
	if b.Quiet < 0 || b.Patience < 0 || b.Deadline < 0 {
		return fmt.Sprintf("a Broker with a negative duration: Quiet %v, Patience %v, Deadline %v", b.Quiet, b.Patience, b.Deadline)
	}
	for o := range b.Native {
		if o != idem.Ack && o != idem.Requeue && o != idem.Reject {
			return fmt.Sprintf("a Broker with a Native call for %v: it can be for Ack, Requeue and Reject", o)
		}
	}
	return ""
}
