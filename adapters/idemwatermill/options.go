package idemwatermill

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/idem-go/idem"
)

// The defaults of the options.
const (
	defaultHoldTimeout   = time.Minute
	defaultRequeuePause  = time.Second
	defaultSettleTimeout = 30 * time.Second // a router's CloseTimeout
)

// Option changes one thing about a middleware.
type Option interface{ apply(m *dedup) error }

type option func(m *dedup) error

func (o option) apply(m *dedup) error { return o(m) }

// New makes a middleware that asks guard about every message. Make one for each
// guard, and add it to a router or to any number of handlers: the names of topic
// and handler are the destination of an identity, so that two handlers of one
// topic both get each message. It may be used from any number of goroutines, and
// in a router that is built anew.
//
// One of [WithMetadataID], [WithUUID] and [WithID] must say what names a message:
// there is no default, because there is none that suppresses something and can
// lose nothing. Without it, and with any option out of range, the error wraps
// [idem.ErrInvalidOption]. A nil guard is off: every message runs.
//
// What becomes of a message:
//
//   - The handler returns nil: the claim stays until the router has published
//     the outputs. Acked, the message is completed; nacked, it runs again.
//   - It returns an error, or panics: the message may run again, at once. An error
//     that means [idem.Reject] (see [WithClassify]) is kept until the message is
//     acked, because somebody outside has taken it, such as PoisonQueue: then it
//     is rejected. Nacked, it runs again.
//   - It acks or nacks the message itself: that counts.
//   - A copy of a completed message is acked, without outputs.
//   - A copy of a rejected one fails with [idem.ErrRejected], as idem.Reject: the
//     poison queue gets it again.
//   - A copy of a running one is treated as [WithInFlight] says.
//
// What is given back is nacked by the middleware itself, which then returns no
// error: an error would put a copy of a running message into the poison queue.
func New(guard idem.IdempotencyGuard, opts ...Option) (message.HandlerMiddleware, error) {
	m := &dedup{
		guard:         guard,
		classify:      idem.DefaultClassify,
		holdTimeout:   defaultHoldTimeout,
		requeuePause:  defaultRequeuePause,
		settleTimeout: defaultSettleTimeout,
	}
	for i, opt := range opts {
		if opt == nil {
			return nil, refuse("option %d of %d is nil", i+1, len(opts))
		}
		if err := opt.apply(m); err != nil {
			return nil, err
		}
	}
	if m.id == nil {
		return nil, refuse("nothing names the messages: one of WithMetadataID, WithUUID and WithID must be given")
	}
	if g, ok := guard.(*idem.Generational); guard == nil || (ok && g == nil) {
		m.guard, m.off = (*idem.Generational)(nil), true
	}
	return m.middleware, nil
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: idemwatermill: %s", idem.ErrInvalidOption, fmt.Sprintf(format, args...))
}

// WithMetadataID takes the id from a field of the metadata, which the publisher
// must set. A message without it is unidentified: it always runs. The field must
// not be empty.
//
// Who copies the metadata of a message to several new ones (Message.Copy does)
// must give them ids of their own: equal ids on one topic are one message.
func WithMetadataID(field string) Option {
	return option(func(m *dedup) error {
		if field == "" {
			return refuse("WithMetadataID must be given a field, not an empty one")
		}
		m.id = func(msg *message.Message) (string, error) { return msg.Metadata.Get(field), nil }
		return nil
	})
}

// WithUUID takes the message's UUID for its id. Take it only if every publisher
// gives each message one of its own, as watermill.NewUUID makes them, and the
// Pub/Sub carries it: to Watermill it is for debugging, and may be empty or the
// same twice. Of two messages with one UUID on one topic the second is lost.
func WithUUID() Option {
	return WithID(func(msg *message.Message) (string, error) { return msg.UUID, nil })
}

// WithID takes the id from a function. It must give each copy of a message the
// same id, and no other message: no hash of the payload. An empty id says that
// the message has none, and always runs. An error fails the message as the
// handler's own would, and it isn't run. The function must not be nil, and must
// neither ack nor nack the message.
//
// Whatever names the message, ";trip=" is added to what was in a poison queue, with
// the Requeuer's count if there is one, and with how often it has failed: it runs
// there, and each time that it comes back. For this the middleware keeps a count in
// the metadata of what it returns with an error, as idem_failures. Who moves a
// message by hand must keep its metadata.
func WithID(id func(*message.Message) (string, error)) Option {
	return option(func(m *dedup) error {
		if id == nil {
			return refuse("WithID must be given a function, not nil")
		}
		m.id = id
		return nil
	})
}

// WithClassify says what a handler's error means: what it must not be told of is
// a nil one, which is always Ack. The default is [idem.DefaultClassify].
//
// Ack and Postpone are returned to the router as success, with what the handler
// returned as outputs; an error is logged then. Anything unknown is Requeue. The
// function must not be nil.
func WithClassify(classify func(error) idem.Outcome) Option {
	return option(func(m *dedup) error {
		if classify == nil {
			return refuse("WithClassify must be given a function, not nil")
		}
		m.classify = classify
		return nil
	})
}

// WithInFlight says what becomes of a copy of a message whose claim is not settled
// yet. The default is [idem.HoldInFlight]: neither run nor settled until the
// running one is, or until the message's context is done (which the router's
// Close sees to), or [WithHoldTimeout] is over; then it is nacked.
// [idem.RequeueInFlight] nacks it after [WithRequeuePause].
// [idem.AckInFlight] acks it; if the running one then fails and was the last live
// copy, the message is lost.
func WithInFlight(policy idem.InFlightPolicy) Option {
	return option(func(m *dedup) error {
		if policy > idem.AckInFlight {
			return refuse("WithInFlight(%v): must be HoldInFlight, RequeueInFlight or AckInFlight", policy)
		}
		m.inFlight = policy
		return nil
	})
}

// WithHoldTimeout sets how long a copy is held before it is nacked. The default is
// a minute. Keep it below the broker's own deadline for an ack. It must be greater
// than 0.
func WithHoldTimeout(d time.Duration) Option {
	return option(func(m *dedup) error {
		if d <= 0 {
			return refuse("WithHoldTimeout must be greater than 0, not %v", d)
		}
		m.holdTimeout = d
		return nil
	})
}

// WithRequeuePause sets how long a copy rests before [idem.RequeueInFlight] nacks
// it. The default is a second; 0 is for a Pub/Sub that redelivers after a delay of
// its own. It must be at least 0.
func WithRequeuePause(d time.Duration) Option {
	return option(func(m *dedup) error {
		if d < 0 {
			return refuse("WithRequeuePause must be at least 0, not %v", d)
		}
		m.requeuePause = d
		return nil
	})
}

// WithSettleTimeout sets how long an ack or nack may still come after the message's
// context is done: a router that closes goes on publishing outputs. Then the
// message is released. The default is 30 seconds, which is the default of the
// router's CloseTimeout too; it should not be less than that. It must be greater
// than 0.
func WithSettleTimeout(d time.Duration) Option {
	return option(func(m *dedup) error {
		if d <= 0 {
			return refuse("WithSettleTimeout must be greater than 0, not %v", d)
		}
		m.settleTimeout = d
		return nil
	})
}

// WithLogger sets who is told of suppressed copies (Debug) and of trouble (Warn).
// The default is slog.Default(). It must not be nil.
func WithLogger(logger *slog.Logger) Option {
	return option(func(m *dedup) error {
		if logger == nil {
			return refuse("WithLogger must be given a logger, not nil")
		}
		m.logger = logger
		return nil
	})
}

const tripMark = ";trip="

// withTrip tells the trips of a message apart. An id that happens to hold the
// mark gets it on its first trip too: no two pairs make the same text.
func withTrip(id, trip string) string {
	if id == "" || (trip == "" && !strings.Contains(id, tripMark)) {
		return id
	}
	return id + tripMark + trip
}
