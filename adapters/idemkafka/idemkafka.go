// Package idemkafka puts Kafka records before an [idem.Receiver], so that a
// record that comes twice is not handled twice. It is for consumer groups of
// github.com/twmb/franz-go.
//
// Kafka has no verb for a single record. There is one committed offset a
// partition, and it says that everything before it is done. So a [Source] hands
// out one record of a partition at a time, in their order, and partitions side
// by side: it commits behind a record that is settled, and nothing that isn't
// settled ever lies before a commit. It is the order that Kafka's users build on,
// and what is held or fails stops its own partition only. More workers than
// partitions find nothing to do.
//
// There is no requeue. A record whose handler fails stops its partition there
// and then, see [Stop], or goes to a function of the caller's, see [WithRetry].
package idemkafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/idem-go/idem"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Receiver is the hook between a consumer group and a handler.
type Receiver = idem.Receiver[*Delivery]

// ErrLost is wrapped by the verbs of a delivery whose partition has gone to
// another member of the group, or has come back since. They have done nothing:
// whoever has the partition now gets the record again.
var ErrLost = errors.New("idemkafka: the partition was given up since")

// Source makes deliveries of the records that one client consumes. Make one with
// [New], and a client with its [Source.Opts]. Its methods may be called from any
// number of goroutines.
type Source struct {
	id         ID
	retry      func(context.Context, *kgo.Record, error) error
	deadLetter func(context.Context, *kgo.Record, error) error
	onStop     func(Stop)
	onAssigned partitionsFunc
	onRevoked  partitionsFunc
	onLost     partitionsFunc
	interval   time.Duration // between commits; 0: each Ack waits for its own
	revokeWait time.Duration
	rest       time.Duration // of a record whose verb has failed
	logger     *slog.Logger  // nil: slog.Default()

	feeding    chan struct{} // holds one while next is under way
	committing chan struct{} // holds one while a commit is under way

	mu         sync.Mutex // protects what follows
	client     *kgo.Client
	group      string
	misuse     error // of the client that Opts were given to
	partitions map[place]*partition
	ready      []*partition       // they have a record to hand out; longest first
	wake       context.CancelFunc // ends the poll that is under way; nil: none is
	noted      bool               // something may be settled and not committed
	lastCommit time.Time
}

// Opts are the options that the source's client needs. Give them last: of two
// callbacks for the same event the client takes the later one, and the source
// must hear when partitions come and go. What you want to do then yourself, hand
// to [WithOnAssigned], [WithOnRevoked] and [WithOnLost].
//
//	client, err := kgo.NewClient(append(yours, source.Opts()...)...)
//
// They disable the client's own commits, which know nothing of what is settled.
// They block rebalances while the source takes over what was polled, which is for
// moments; a rebalance never waits for a handler, unless [WithRevokeWait] says so.
//
// A source is for one client. Make both anew when the client is to be rebuilt; the
// guard stays.
func (s *Source) Opts() []kgo.Opt {
	return []kgo.Opt{
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(s.assigned),
		kgo.OnPartitionsRevoked(s.revoked),
		kgo.OnPartitionsLost(s.lost),
		kgo.WithHooks(binder{s}),
	}
}

// Next is what feeds Receiver.Consume, of the receiver that it is given. Client
// and receiver are looked at in the first call: a receiver with RequeueInFlight
// is refused with an error that wraps [idem.ErrInvalidOption], since there is
// nowhere to give a copy back to, and so is a client that wasn't made with
// [Source.Opts] for a consumer group.
//
// It answers io.EOF when the client is closed, so Consume returns nil then. But
// close the client after Consume has returned: it commits the last offsets.
// Trouble that the client overcomes by itself is logged at Warn, such as a lost
// group session; what lasts is an error of Next: missing rights, or a topic that
// was deleted and made anew, which a client doesn't follow. Make the client anew
// then.
//
// Calling Next resumes the partitions that were stopped.
func (s *Source) Next(r *Receiver) func(context.Context) (*Delivery, error) {
	if err := fit(r); err != nil {
		return func(context.Context) (*Delivery, error) { return nil, err }
	}
	s.resumeAll()
	return s.next
}

// fit refuses a receiver that this adapter can't serve.
func fit(r *Receiver) error {
	switch {
	case r == nil:
		return refuse("the receiver is nil")
	case r.OnInFlight == idem.RequeueInFlight:
		return refuse("the receiver's OnInFlight must be HoldInFlight or AckInFlight, not %v: Kafka has no requeue", r.OnInFlight)
	}
	return nil
}

func (s *Source) next(ctx context.Context) (*Delivery, error) {
	client, err := s.bound()
	if err != nil {
		return nil, err
	}
	select {
	case s.feeding <- struct{}{}:
		defer func() { <-s.feeding }()
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		if d := s.take(); d != nil {
			return d, nil
		}
		if err := s.poll(ctx, client); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("idemkafka: next record of group %q: %w", s.group, ctx.Err())
}

// pollMax is how many records are taken over from the client at once.
const pollMax = 256

// poll takes over what the client has, or waits until it has something or until
// a partition is ready.
func (s *Source) poll(ctx context.Context, client *kgo.Client) error {
	wait, due := s.untilCommit()
	if due {
		s.commitIdle(ctx)
		return nil // there may be more by now, or it may have failed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if wait > 0 {
		defer time.AfterFunc(wait, cancel).Stop()
	}
	if !s.sleep(cancel) {
		return nil
	}
	defer s.awake()
	// A rebalance can't come between the poll and the end of takeOver: so no
	// record of an earlier assignment is taken for one of a later.
	fetches := client.PollRecords(ctx, pollMax)
	defer client.AllowRebalance()
	return s.takeOver(client, fetches)
}

// takeOver queues what was polled.
func (s *Source) takeOver(client *kgo.Client, fetches kgo.Fetches) error {
	var unknown error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) > 0 && !s.enqueue(client, place{p.Topic, p.Partition}, p.Records) {
			unknown = fmt.Errorf("idemkafka: a record of %s/%d came, which was never assigned: give the client the source's Opts last",
				p.Topic, p.Partition)
		}
	})
	if unknown != nil {
		return unknown
	}
	return s.trouble(fetches)
}

// trouble is the first error among the fetches that lasts. The others are logged.
func (s *Source) trouble(fetches kgo.Fetches) (lasting error) {
	fetches.EachError(func(topic string, partition int32, err error) {
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
			// The poll's own end.
		case errors.Is(err, kgo.ErrClientClosed):
			lasting = io.EOF
		case passes(err):
			s.log().Warn("idemkafka: consuming is disturbed", slog.String("topic", topic), slog.Int("partition", int(partition)), slog.Any("error", err))
		case lasting == nil:
			lasting = fmt.Errorf("idemkafka: consuming %s/%d: %w", topic, partition, err)
		}
	})
	return lasting
}

func (s *Source) log() *slog.Logger {
	if s.logger == nil {
		return slog.Default()
	}
	return s.logger
}
