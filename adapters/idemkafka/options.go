package idemkafka

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/idem-go/idem"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ID names the message that a record carries. It must give the same name each
// time the record comes, and to no other message. An empty name says that it has
// none: the record is never taken for a duplicate. An error fails the delivery as
// the handler's own would.
type ID func(*kgo.Record) (string, error)

// HeaderID takes the id from the last header with that key, as a producer sets it:
// "ce_id" for CloudEvents. Keys are compared byte for byte.
func HeaderID(key string) ID {
	return func(r *kgo.Record) (string, error) {
		for i := len(r.Headers) - 1; i >= 0; i-- {
			if r.Headers[i].Key == key {
				return string(r.Headers[i].Value), nil
			}
		}
		return "", nil
	}
}

// OffsetID takes the record's place as its id: topic, partition and offset. It
// tells redeliveries, but not what was produced twice.
//
// A topic that is deleted and created again repeats them. Its first records are
// then taken for copies of the old ones, and dropped, as far as the guard
// remembers those: up to a whole window. Don't create topics anew under the same
// name with OffsetID, or let the window pass before, or use a new guard.
func OffsetID() ID {
	return func(r *kgo.Record) (string, error) {
		// Neither sign is allowed in the name of a topic.
		return r.Topic + "/" + strconv.Itoa(int(r.Partition)) + "@" + strconv.FormatInt(r.Offset, 10), nil
	}
}

// Option changes one thing about a [Source].
type Option interface{ apply(s *Source) error }

type option func(s *Source) error

func (o option) apply(s *Source) error { return o(s) }

type partitionsFunc = func(context.Context, *kgo.Client, map[string][]int32)

// defaultRest keeps a verb that fails at once from being tried without pause.
const defaultRest = time.Second

// New makes a source whose records are named by id: [HeaderID], [OffsetID] or a
// function of yours. There is no default, since a record has no natural id: its
// key tells the entity, which has many. A nil id or option is an error that wraps
// [idem.ErrInvalidOption].
func New(id ID, opts ...Option) (*Source, error) {
	if id == nil {
		return nil, refuse("the id function is nil")
	}
	s := &Source{
		id:         id,
		rest:       defaultRest,
		feeding:    make(chan struct{}, 1),
		committing: make(chan struct{}, 1),
		partitions: make(map[place]*partition),
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
	return fmt.Errorf("%w: idemkafka: %s", idem.ErrInvalidOption, fmt.Sprintf(format, args...))
}

// WithRetry has a record whose handler has failed go to retry instead of stopping
// its partition: to a retry topic, say, with what is needed to come back in time.
// When it returns nil the record is settled, the partition goes on behind it, and
// order is given up for that record. An error gives the record back: it comes
// again after a second.
//
// The cause is the handler's error. The context ends when the receiver's
// SettleTimeout is over; a function that is still running then is left behind, and
// the record comes again all the same.
func WithRetry(retry func(ctx context.Context, r *kgo.Record, cause error) error) Option {
	return option(func(s *Source) error {
		if retry == nil {
			return refuse("WithRetry must be given a function, not nil")
		}
		s.retry = retry
		return nil
	})
}

// WithDeadLetter has a rejected record go to deadLetter: to a topic for those.
// When it returns nil the record is settled. An error gives it back, and context
// and cause are as for [WithRetry].
//
// Without it nothing may be rejected, since the record would be gone: Reject
// stops the partition at the record, and returns an error that wraps
// [ErrNoDeadLetter]. A function that returns nil and does nothing drops them.
func WithDeadLetter(deadLetter func(ctx context.Context, r *kgo.Record, cause error) error) Option {
	return option(func(s *Source) error {
		if deadLetter == nil {
			return refuse("WithDeadLetter must be given a function, not nil")
		}
		s.deadLetter = deadLetter
		return nil
	})
}

// WithOnStop has onStop told whenever a partition stops, from the goroutine of
// the verb that stopped it. It may call [Source.Resume], also later, for instance
// from a timer. A stop is logged at Warn with and without it.
func WithOnStop(onStop func(Stop)) Option {
	return option(func(s *Source) error {
		if onStop == nil {
			return refuse("WithOnStop must be given a function, not nil")
		}
		s.onStop = onStop
		return nil
	})
}

// WithCommitInterval has Ack commit no more often than every d. In between it
// only notes that the record is settled, and returns nil. What is noted is
// committed with the next Ack after d, by Next when it waits for records, when
// partitions are revoked, when the client is closed, and by [Source.Commit].
// When the process dies before, those records come again, to a guard that has not
// seen them.
//
// Without it each Ack waits for its commit. Those that wait at the same time share
// one request. A d that is not greater than 0 is an error that wraps
// [idem.ErrInvalidOption].
func WithCommitInterval(d time.Duration) Option {
	return option(func(s *Source) error {
		if d <= 0 {
			return refuse("WithCommitInterval must be greater than 0, not %v", d)
		}
		s.interval = d
		return nil
	})
}

// WithRevokeWait has a rebalance wait up to d for the records of revoked partitions
// whose handlers are running, so that the next owner doesn't begin with a copy of
// them: one in another process knows nothing of them. The whole group waits with
// it; keep d well below the client's RebalanceTimeout (a minute by default). While
// it waits, records of other partitions may be late.
//
// The default, 0, doesn't wait. A negative d is an error that wraps
// [idem.ErrInvalidOption].
func WithRevokeWait(d time.Duration) Option {
	return option(func(s *Source) error {
		if d < 0 {
			return refuse("WithRevokeWait must be at least 0, not %v", d)
		}
		s.revokeWait = d
		return nil
	})
}

// WithOnAssigned is kgo.OnPartitionsAssigned for a client with the source's Opts.
func WithOnAssigned(f func(context.Context, *kgo.Client, map[string][]int32)) Option {
	return callback("WithOnAssigned", f, func(s *Source) *partitionsFunc { return &s.onAssigned })
}

// WithOnRevoked is kgo.OnPartitionsRevoked for a client with the source's Opts.
// What is settled has been committed when it is called.
func WithOnRevoked(f func(context.Context, *kgo.Client, map[string][]int32)) Option {
	return callback("WithOnRevoked", f, func(s *Source) *partitionsFunc { return &s.onRevoked })
}

// WithOnLost is kgo.OnPartitionsLost for a client with the source's Opts.
func WithOnLost(f func(context.Context, *kgo.Client, map[string][]int32)) Option {
	return callback("WithOnLost", f, func(s *Source) *partitionsFunc { return &s.onLost })
}

func callback(name string, f partitionsFunc, field func(*Source) *partitionsFunc) Option {
	return option(func(s *Source) error {
		if f == nil {
			return refuse("%s must be given a function, not nil", name)
		}
		*field(s) = f
		return nil
	})
}

// WithLogger sets who is told of stopped partitions and other trouble, at Warn.
// Nil is slog.Default(), which is the default.
func WithLogger(logger *slog.Logger) Option {
	return option(func(s *Source) error {
		s.logger = logger
		return nil
	})
}
