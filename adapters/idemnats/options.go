package idemnats

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/idem-go/idem"
	"github.com/nats-io/nats.go/jetstream"
)

// defaultRequeueDelay is for consumers without steps of their own.
const defaultRequeueDelay = time.Second

// Option changes one thing about a [Source].
type Option interface {
	apply(s *Source, info *jetstream.ConsumerInfo) error
}

type option func(s *Source, info *jetstream.ConsumerInfo) error

func (o option) apply(s *Source, info *jetstream.ConsumerInfo) error { return o(s, info) }

// New makes the source of a consumer's messages, of its CachedInfo. An info that
// is nil, or of a consumer that does not acknowledge each message
// (jetstream.AckExplicitPolicy), is an error that wraps [idem.ErrInvalidOption]:
// an ack for all earlier messages would take the unfinished ones with it.
//
// The info is read here only. Make a new source when the consumer's AckWait or
// BackOff has changed.
func New(info *jetstream.ConsumerInfo, opts ...Option) (*Source, error) {
	if info == nil {
		return nil, refuse("the consumer info is nil")
	}
	if info.Config.AckPolicy != jetstream.AckExplicitPolicy {
		return nil, refuse("consumer %q acks with policy %v, must be %v", info.Name, info.Config.AckPolicy, jetstream.AckExplicitPolicy)
	}
	s := &Source{
		destination:  info.Stream + "/" + info.Name,
		ackWait:      info.Config.AckWait,
		backOff:      info.Config.BackOff,
		id:           headerID,
		requeueDelay: -1,
	}
	for i, opt := range opts {
		if opt == nil {
			return nil, refuse("option %d of %d is nil", i+1, len(opts))
		}
		if err := opt.apply(s, info); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: idemnats: %s", idem.ErrInvalidOption, fmt.Sprintf(format, args...))
}

// WithID takes the id from id instead of the Nats-Msg-Id header. An empty id
// says that the message has none; an error fails the delivery as the handler's
// own would. It must not settle the message.
func WithID(id func(jetstream.Msg) (string, error)) Option {
	return option(func(s *Source, _ *jetstream.ConsumerInfo) error {
		if id == nil {
			return refuse("WithID must be given a function, not nil")
		}
		s.id = id
		return nil
	})
}

// WithStreamSequence takes the message's place in its stream as the id, for
// publishers that give none. It tells redeliveries, but not what was published
// twice. The info (jetstream.Stream's CachedInfo) tells the stream from one of
// the same name that was there before: both count from 1.
func WithStreamSequence(stream *jetstream.StreamInfo) Option {
	return option(func(s *Source, info *jetstream.ConsumerInfo) error {
		switch {
		case stream == nil:
			return refuse("WithStreamSequence must be given a stream info, not nil")
		case stream.Config.Name != info.Stream:
			return refuse("WithStreamSequence got the info of stream %q, must be %q", stream.Config.Name, info.Stream)
		case stream.Created.IsZero():
			return refuse("WithStreamSequence got an info of stream %q without its time of creation", info.Stream)
		}
		s.id = sequenceID(info.Stream, stream.Created)
		return nil
	})
}

// WithDoubleAck makes Ack wait until the server confirms it. It costs a round
// trip a message. Without it, an ack that was on its way when the connection
// broke is lost, and the guard drops the redelivery that follows.
func WithDoubleAck() Option {
	return option(func(s *Source, _ *jetstream.ConsumerInfo) error {
		s.doubleAck = true
		return nil
	})
}

// WithRequeueDelay sets how long a message rests after its handler has failed;
// 0 is not at all. By default it is the consumer's BackOff step for that
// delivery, or a second if it has none. A negative delay is an error that wraps
// [idem.ErrInvalidOption].
func WithRequeueDelay(d time.Duration) Option {
	return option(func(s *Source, _ *jetstream.ConsumerInfo) error {
		if d < 0 {
			return refuse("WithRequeueDelay must be at least 0, not %v", d)
		}
		s.requeueDelay = d
		return nil
	})
}

func headerID(msg jetstream.Msg) (string, error) {
	return msg.Headers().Get(jetstream.MsgIDHeader), nil
}

func sequenceID(stream string, created time.Time) func(jetstream.Msg) (string, error) {
	prefix := stream + "@" + strconv.FormatInt(created.UnixNano(), 10) + "#"
	return func(msg jetstream.Msg) (string, error) {
		meta, err := msg.Metadata()
		switch {
		case err != nil:
			return "", err
		case meta.Stream != stream:
			return "", errors.New("it is of stream " + strconv.Quote(meta.Stream))
		}
		return prefix + strconv.FormatUint(meta.Sequence.Stream, 10), nil
	}
}

// wait is after how long the server redelivers the message.
func (s *Source) wait(msg jetstream.Msg) time.Duration {
	if len(s.backOff) > 0 {
		return s.step(msg)
	}
	return s.ackWait
}

// delay is how long the message is to rest once its handler has failed.
func (s *Source) delay(msg jetstream.Msg) time.Duration {
	switch {
	case s.requeueDelay >= 0:
		return s.requeueDelay
	case len(s.backOff) > 0:
		return s.step(msg)
	default:
		return defaultRequeueDelay
	}
}

// step is the BackOff of this delivery: the last one counts for all later ones.
func (s *Source) step(msg jetstream.Msg) time.Duration {
	meta, err := msg.Metadata()
	if err != nil || meta.NumDelivered == 0 {
		return s.backOff[0]
	}
	return s.backOff[min(meta.NumDelivered, uint64(len(s.backOff)))-1]
}

// maxReason keeps an advisory readable, and below any server's payload limit.
const maxReason = 512

func reason(cause error) string {
	if cause == nil {
		return ""
	}
	text := cause.Error()
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	return text
}
