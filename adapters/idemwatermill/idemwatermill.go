// Package idemwatermill puts an idempotency guard before the handlers of a
// Watermill router (github.com/ThreeDotsLabs/watermill), so that a message that
// comes twice is not handled twice. It takes the place of Watermill's
// Deduplicator, which takes a message for seen before it is handled.
//
// [New] makes a middleware. It belongs outside Retry and inside PoisonQueue, and
// the middleware that is added first is the outermost:
//
//	router.AddMiddleware(poisonQueue, dedup, retry.Middleware)
//
// A handler that has returned is not done: the router publishes its outputs after
// that, behind all middlewares, and only then acks the message, or nacks it where
// publishing failed. So the middleware waits for the ack: then the message is
// completed. After a nack it is released, and runs again.
//
// A middleware is neither an [idem.Receiver] nor does it make an [idem.Delivery]:
// the router settles the messages, and is told by what the handler returns.
package idemwatermill

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/idem-go/idem"
)

// dedup is the state of a middleware: one for all handlers it is put before.
type dedup struct {
	guard    idem.IdempotencyGuard
	off      bool
	id       func(*message.Message) (string, error)
	classify func(error) idem.Outcome
	inFlight idem.InFlightPolicy

	holdTimeout   time.Duration
	requeuePause  time.Duration
	settleTimeout time.Duration
	logger        *slog.Logger // nil: the default one, whatever that is by then

	flights flights
}

// middleware is the message.HandlerMiddleware.
func (m *dedup) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		id, err := m.identity(msg)
		if err != nil {
			return nil, err
		}
		failed := true
		defer func() {
			if failed && !m.off { // also where it panics
				countFailure(msg)
			}
		}()
		outputs, err := newTurn(m, msg, id).take(h)
		failed = err != nil
		return outputs, err
	}
}

// identity names the message. Nobody asks for it where the guard is off.
func (m *dedup) identity(msg *message.Message) (idem.Identity, error) {
	if m.off {
		return idem.Identity{}, nil
	}
	ctx := msg.Context()
	topic, handler := message.SubscribeTopicFromCtx(ctx), message.HandlerNameFromCtx(ctx)
	id, err := m.id(msg)
	if err != nil {
		return idem.Identity{}, fmt.Errorf("idemwatermill: id of a message of topic %q for handler %q: %w", topic, handler, err)
	}
	return idem.IDAt(withTrip(id, trip(msg.Metadata)), destination(topic, handler)), nil
}

// destination tells apart the handlers of one topic, which all get each message,
// and the topics. A NUL is in no broker's names, so no two pairs make one text.
func destination(topic, handler string) string {
	if topic == "" && handler == "" {
		return "" // not in a router
	}
	return topic + "\x00" + handler
}

// failuresKey is where a message carries how often it has failed here. PoisonQueue
// publishes the message as it is, so this comes back with it.
const failuresKey = "idem_failures"

func countFailure(msg *message.Message) {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	n, _ := strconv.Atoi(msg.Metadata.Get(failuresKey)) // what isn't a number is none
	msg.Metadata.Set(failuresKey, strconv.Itoa(n+1))
}

// trip tells what went to the poison queue, and what comes back from there, from
// what was there before: by Watermill's Requeuer, which counts, or by hand, which
// leaves the poison queue's mark and the count of failures. It is "" on the first
// trip. Without the mark failures don't count: Retry outside of this middleware
// hands in the same message again.
func trip(meta message.Metadata) string {
	retries, failures := meta.Get(requeuer.RetriesKey), meta.Get(failuresKey)
	_, poisoned := meta[middleware.ReasonForPoisonedKey]
	switch {
	case !poisoned:
		return retries
	case failures == "":
		return cmp.Or(retries, "poisoned")
	default:
		return retries + "/" + failures
	}
}

// log tells of a message. It is not on the way of one that is just handled.
func (m *dedup) log(ctx context.Context, level slog.Level, text string, id idem.Identity, attrs ...slog.Attr) {
	logger := m.logger
	if logger == nil {
		logger = slog.Default()
	}
	if !logger.Enabled(ctx, level) {
		return
	}
	attrs = append(attrs, slog.String("id", id.ID),
		slog.String("topic", message.SubscribeTopicFromCtx(ctx)), slog.String("handler", message.HandlerNameFromCtx(ctx)))
	logger.LogAttrs(ctx, level, text, attrs...)
}
