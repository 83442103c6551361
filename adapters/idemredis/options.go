package idemredis

import (
	"fmt"
	"math"
	"time"

	"github.com/idem-go/idem"
	"github.com/redis/go-redis/v9"
)

// ID names the message that an entry carries. It must give the same name each time
// the entry comes, and to no other message. An empty name says that it has none:
// the entry is never taken for a duplicate. An error fails the delivery as the
// handler's own would.
type ID func(redis.XMessage) (string, error)

// FieldID takes the id from the field of that name, as the publisher sets it. An
// entry without that field has no id.
func FieldID(name string) ID {
	return func(msg redis.XMessage) (string, error) {
		id, _ := msg.Values[name].(string)
		return id, nil
	}
}

// EntryID takes the key of the stream and the entry's own id. It tells redeliveries,
// but not what was added twice.
//
// The ids that Redis gives hold the time. They repeat only where the publisher gives
// them himself, or where a stream is made anew after the server's clock was set back.
func EntryID(stream string) ID {
	return func(msg redis.XMessage) (string, error) { return stream + "@" + msg.ID, nil }
}

// Option changes one thing about a [Source].
type Option interface{ apply(s *Source) error }

type option func(s *Source) error

func (o option) apply(s *Source) error { return o(s) }

// The defaults of a Source.
const (
	defaultMinIdle      = 30 * time.Second
	defaultRequeueDelay = time.Second
	defaultMaxUnsettled = 1000
)

// New makes the source of what one consumer of a group gets, whose messages are
// named by id: [FieldID], [EntryID] or a function of yours. There is no default,
// since entries have no field for it.
//
// A nil client or id, an empty name and an option out of range are errors that wrap
// [idem.ErrInvalidOption]. Redis is not asked: a group that doesn't exist is an
// error of [Source.Next].
func New(client redis.UniversalClient, consumer Consumer, id ID, opts ...Option) (*Source, error) {
	switch {
	case client == nil:
		return nil, refuse("the client is nil")
	case consumer.Stream == "" || consumer.Group == "" || consumer.Name == "":
		return nil, refuse("a name is empty: %+v", consumer)
	case id == nil:
		return nil, refuse("the id function is nil")
	}
	s := &Source{
		client: client, place: consumer, destination: consumer.Stream + "/" + consumer.Group, id: id,
		minIdle: defaultMinIdle, requeueDelay: -1, batch: 1,
		slots: make(chan struct{}, defaultMaxUnsettled), feed: newFeed(),
	}
	for i, opt := range opts {
		if opt == nil {
			return nil, refuse("option %d of %d is nil", i+1, len(opts))
		}
		if err := opt.apply(s); err != nil {
			return nil, err
		}
	}
	if err := s.settleDelay(); err != nil {
		return nil, err
	}
	return s, nil
}

// settleDelay sees to the one option that depends on another.
func (s *Source) settleDelay() error {
	switch {
	case s.requeueDelay < 0:
		s.requeueDelay = min(defaultRequeueDelay, s.minIdle)
	case s.requeueDelay > s.minIdle:
		return refuse("WithRequeueDelay must be at most the idle time of WithMinIdle, %v, not %v", s.minIdle, s.requeueDelay)
	}
	return nil
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: idemredis: %s", idem.ErrInvalidOption, fmt.Sprintf(format, args...))
}

// WithMinIdle sets after how long an entry that is pending, and whose consumer gives
// no sign of life, is claimed; fractions of a millisecond don't count. The default
// is 30 seconds, the least a millisecond. It is looked for twice in that time, and
// every five seconds at least. All consumers of a group should have the same.
func WithMinIdle(d time.Duration) Option {
	return option(func(s *Source) error {
		if d < time.Millisecond {
			return refuse("WithMinIdle must be at least 1ms, not %v", d)
		}
		s.minIdle = d.Truncate(time.Millisecond)
		return nil
	})
}

// WithRequeueDelay sets how long an entry rests after its handler has failed; 0 is
// not at all. The default is a second. A negative delay, and one that is longer than
// the idle time of [WithMinIdle], is an error that wraps [idem.ErrInvalidOption].
func WithRequeueDelay(d time.Duration) Option {
	return option(func(s *Source) error {
		if d < 0 {
			return refuse("WithRequeueDelay must be at least 0, not %v", d)
		}
		s.requeueDelay = d
		return nil
	})
}

// WithBatch sets how many entries are fetched at once; the default is 1. More save
// round trips. What waits too long for a worker is claimed by another consumer:
// fetch no more than there are workers.
func WithBatch(n int) Option {
	return option(func(s *Source) error {
		if n < 1 || n > math.MaxInt32 {
			return refuse("WithBatch must be between 1 and %d, not %d", math.MaxInt32, n)
		}
		s.batch = int64(n)
		return nil
	})
}

// WithMaxUnsettled sets at how many unsettled deliveries [Source.Next] waits, since
// Redis hands out without limit; the default is 1000. Held copies count.
func WithMaxUnsettled(n int) Option {
	return option(func(s *Source) error {
		if n < 1 {
			return refuse("WithMaxUnsettled must be at least 1, not %d", n)
		}
		s.slots = make(chan struct{}, n)
		return nil
	})
}

// WithDeadLetters has rejected entries copied to the stream with this key, in the
// same step as they are acknowledged. A copy has the entry's own fields, and in
// addition dead-stream, dead-group, dead-entry (its id) and dead-reason (the error).
// Of more than 3,500 fields, which is too many for a script to hand on one by one,
// there is dead-fields in their place: all of them as one list, name and value in
// turn, packed by Redis's cmsgpack. Nobody trims that stream.
//
// In a cluster both keys must be in the same slot: give them a hash tag. If they
// aren't, or if the key holds something else than a stream, each Reject fails, and
// the entry comes again.
func WithDeadLetters(stream string) Option {
	return option(func(s *Source) error {
		switch stream {
		case "":
			return refuse("WithDeadLetters must be given a key, not an empty one")
		case s.place.Stream:
			return refuse("WithDeadLetters must be given another stream than %q", stream)
		}
		s.dead = stream
		return nil
	})
}
