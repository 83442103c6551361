package idemamqp

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/idem-go/idem"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Option changes one thing about a [Source].
type Option interface{ apply(s *Source) error }

type option func(s *Source) error

func (o option) apply(s *Source) error { return o(s) }

// New makes the source of a queue's messages. An empty name is an error that
// wraps [idem.ErrInvalidOption]: of a queue that the broker names, the name is in
// what QueueDeclare returns.
func New(queue string, opts ...Option) (*Source, error) {
	if queue == "" {
		return nil, refuse("the queue's name is empty")
	}
	s := &Source{queue: queue, id: messageID, watches: make(map[*amqp.Channel]*watch)}
	for i, opt := range opts {
		if opt == nil {
			return nil, refuse("queue %q: option %d of %d is nil", queue, i+1, len(opts))
		}
		if err := opt.apply(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: idemamqp: %s", idem.ErrInvalidOption, fmt.Sprintf(format, args...))
}

// WithID takes the id from id instead of MessageId. It must be the same for each
// redelivery and nothing else: not the delivery tag, not a hash of the body. An
// empty id says that the message has none; an error fails the delivery as the
// handler's own would. It must not settle the message. How often the message was
// dead-lettered is added as it is to a MessageId.
func WithID(id func(*amqp.Delivery) (string, error)) Option {
	return option(func(s *Source) error {
		if id == nil {
			return refuse("queue %q: WithID must be given a function, not nil", s.queue)
		}
		s.id = id
		return nil
	})
}

func messageID(msg *amqp.Delivery) (string, error) { return msg.MessageId, nil }

const tripMark = ";trip="

// withTrip tells the trips of a message apart. An id that happens to hold the
// mark gets it on its first trip too: no two pairs make the same text.
func withTrip(id, trip string) string {
	if id == "" || (trip == "" && !strings.Contains(id, tripMark)) {
		return id
	}
	return id + tripMark + trip
}

// trip is how often the broker has dead-lettered the message, the sum over queues
// and reasons, and the second of the last time: for a message that was published
// anew the broker counts from 1 again, from RabbitMQ 4.0 on also if it brings its
// headers along. What is no count, since anyone can write headers, is none.
func trip(headers amqp.Table) string {
	var sum uint64
	var last time.Time
	list, _ := headers["x-death"].([]any)
	for _, entry := range list {
		death, _ := entry.(amqp.Table)
		sum += count(death["count"])
		if at, ok := death["time"].(time.Time); ok && at.After(last) {
			last = at
		}
	}
	switch {
	case sum == 0:
		return ""
	case last.IsZero():
		return strconv.FormatUint(sum, 10)
	default:
		return fmt.Sprintf("%d@%d", sum, last.Unix())
	}
}

// count reads the integers that the client decodes. RabbitMQ writes an int64; a
// program that copies headers may not.
func count(v any) uint64 {
	var n int64
	switch v := v.(type) {
	case int64:
		n = v
	case int32:
		n = int64(v)
	case int16:
		n = int64(v)
	case int8:
		n = int64(v)
	case uint32:
		n = int64(v)
	case uint16:
		n = int64(v)
	case uint8:
		n = int64(v)
	}
	return uint64(max(n, 0))
}
