package idemsqs

import (
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/idem-go/idem"
)

// Option changes one thing about a [Source].
type Option interface{ apply(s *Source) error }

type option func(s *Source) error

func (o option) apply(s *Source) error { return o(s) }

// The defaults of a Source.
const (
	defaultVisibility   = 30 * time.Second
	defaultRequeueDelay = time.Second
	defaultMaxUnsettled = 1000
	defaultWait         = 20 * time.Second // the longest that SQS allows
)

// New makes the source of a queue's messages. A nil client, an empty URL and an option
// out of range are errors that wrap [idem.ErrInvalidOption]. SQS is not asked: a queue
// that doesn't exist is an error of [Source.Next].
func New(client Client, queueURL string, opts ...Option) (*Source, error) {
	switch {
	case client == nil:
		return nil, refuse("the client is nil")
	case queueURL == "":
		return nil, refuse("the queue's URL is empty")
	}
	s := &Source{
		client: client, queue: queueURL, id: messageID,
		visibility: defaultVisibility, requeueDelay: defaultRequeueDelay, wait: defaultWait, batch: 1,
		slots: make(chan struct{}, defaultMaxUnsettled), feed: feed{turn: make(chan struct{}, 1)},
	}
	for i, opt := range opts {
		if opt == nil {
			return nil, refuse("option %d of %d is nil", i+1, len(opts))
		}
		if err := opt.apply(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: idemsqs: %s", idem.ErrInvalidOption, fmt.Sprintf(format, args...))
}

// WithID takes the id from id instead of the MessageId. It must be the same for each
// redelivery and nothing else: not the receipt handle, not a hash of the body. An empty
// id says that the message has none; an error fails the delivery as the handler's own
// would.
func WithID(id func(types.Message) (string, error)) Option {
	return option(func(s *Source) error {
		if id == nil {
			return refuse("WithID must be given a function, not nil")
		}
		s.id = id
		return nil
	})
}

// WithDeduplicationID takes the MessageDeduplicationId of a FIFO queue's message, with
// its MessageGroupId, as the id. It tells redeliveries and also what was sent twice,
// longer than SQS does, which is 5 minutes.
//
// Don't use it with content-based deduplication: there the id is a hash of the body,
// and two messages with equal bodies would be one. Other queues are refused.
func WithDeduplicationID() Option {
	return option(func(s *Source) error {
		if !isFIFO(s.queue) {
			return refuse("WithDeduplicationID is for FIFO queues, not %q", s.queue)
		}
		s.id = deduplicationID
		return nil
	})
}

// WithVisibilityTimeout sets for how long a message is invisible after it was received,
// and after each sign of life. It counts in place of the queue's own. The default is 30
// seconds; it must be whole seconds, between 1 second and 12 hours.
func WithVisibilityTimeout(d time.Duration) Option {
	return option(func(s *Source) error {
		if d < time.Second || d > longest || d%time.Second != 0 {
			return refuse("WithVisibilityTimeout must be whole seconds between 1s and %v, not %v", longest, d)
		}
		s.visibility = d
		return nil
	})
}

// WithRequeueDelay sets how long a message rests after its handler has failed; 0 is not
// at all. The default is a second; it must be whole seconds, no more than 12 hours less
// the time that the handler takes.
func WithRequeueDelay(d time.Duration) Option {
	return option(func(s *Source) error {
		if d < 0 || d > longest || d%time.Second != 0 {
			return refuse("WithRequeueDelay must be whole seconds between 0s and %v, not %v", longest, d)
		}
		s.requeueDelay = d
		return nil
	})
}

// WithBatch sets how many messages are received at once, 1 to 10; the default is 1.
// More save requests. What waits too long for a worker comes again: receive no more
// than there are workers.
//
// For a FIFO queue it must be 1. SQS keeps back the messages of a group while an
// earlier one is being handled, except for those that come with it: their order would
// be lost.
func WithBatch(n int) Option {
	return option(func(s *Source) error {
		switch {
		case n < 1 || n > 10:
			return refuse("WithBatch must be between 1 and 10, not %d", n)
		case n > 1 && isFIFO(s.queue):
			return refuse("WithBatch must be 1 for a FIFO queue, not %d: the order within a group would be lost", n)
		}
		s.batch = int32(n)
		return nil
	})
}

// WithWait sets for how long a request waits for messages, and so for how long
// [Source.GiveBack] may have to. The default is 20 seconds; it must be whole seconds,
// between 1 second and 20. Shorter waits cost requests.
func WithWait(d time.Duration) Option {
	return option(func(s *Source) error {
		if d < time.Second || d > defaultWait || d%time.Second != 0 {
			return refuse("WithWait must be whole seconds between 1s and %v, not %v", defaultWait, d)
		}
		s.wait = d
		return nil
	})
}

// WithMaxUnsettled sets at how many unsettled deliveries [Source.Next] waits; the
// default is 1000. SQS would hand out 120,000. Held copies count.
func WithMaxUnsettled(n int) Option {
	return option(func(s *Source) error {
		if n < 1 {
			return refuse("WithMaxUnsettled must be at least 1, not %d", n)
		}
		s.slots = make(chan struct{}, n)
		return nil
	})
}

// WithDeadLetterQueue has rejected messages copied to the queue with this URL, and
// deleted. The copy has the body, the attributes and the group of the message, and a
// MessageId of its own. Nothing tells why it was rejected: log that in the handler.
//
// It must be of the same kind, standard or FIFO, as the source's queue.
func WithDeadLetterQueue(queueURL string) Option {
	return option(func(s *Source) error {
		switch {
		case queueURL == "":
			return refuse("WithDeadLetterQueue must be given a URL, not an empty one")
		case queueURL == s.queue:
			return refuse("WithDeadLetterQueue must be given another queue than %q", queueURL)
		case isFIFO(queueURL) != isFIFO(s.queue):
			return refuse("WithDeadLetterQueue got %q, must be of the same kind, standard or FIFO, as %q", queueURL, s.queue)
		}
		s.dead = queueURL
		return nil
	})
}

func messageID(msg types.Message) (string, error) { return aws.ToString(msg.MessageId), nil }

var errNoDeduplicationID = errors.New("it has no MessageDeduplicationId: was that attribute asked for?")

// deduplicationID puts between the two parts what neither of them may hold.
func deduplicationID(msg types.Message) (string, error) {
	id := msg.Attributes[string(types.MessageSystemAttributeNameMessageDeduplicationId)]
	if id == "" {
		return "", errNoDeduplicationID
	}
	return msg.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)] + " " + id, nil
}
