package idemkafka

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem/idemtest"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*Delivery] { return newBench(t).broker() })
}

// Its acks are noted, and committed when the client is closed.
func TestConformanceWithCommitInterval(t *testing.T) {
	t.Parallel()
	idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*Delivery] {
		return newBench(t, WithCommitInterval(time.Hour)).broker()
	})
}

const deadTopic = "orders-dead"

// bench is a rig with one member, and a topic for its dead letters.
type bench struct {
	*rig
	t    *testing.T
	opts []Option
	cut  atomic.Bool // the broker answers no commit and takes no record
	*member
}

func newBench(t *testing.T, opts ...Option) *bench {
	b := &bench{rig: newRig(t, 1), t: t}
	require.NoError(t, b.cluster.CreateTopic(deadTopic, 1, nil))
	// Else a record that was sent when the context ended is tried on, and is there
	// after all when the broker is back.
	producer := b.newClient(kgo.AllowIdempotentProduceCancellation())
	b.opts = append(opts, WithDeadLetter(func(ctx context.Context, record *kgo.Record, _ error) error {
		return producer.ProduceSync(ctx, &kgo.Record{Topic: deadTopic, Headers: record.Headers}).FirstErr()
	}))
	for _, key := range []kmsg.Key{kmsg.OffsetCommit, kmsg.Produce} {
		b.cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			b.cluster.KeepControl()
			if b.cut.Load() {
				return nil, errors.New("the connection is cut"), true
			}
			return nil, nil, false
		})
	}
	b.rejoin()
	return b
}

func (b *bench) broker() idemtest.Broker[*Delivery] {
	return idemtest.Broker[*Delivery]{
		Publish:     func(id string) { b.produce(0, id) },
		Next:        func(ctx context.Context) (*Delivery, error) { return b.source.Next(b.receiver(nothing))(ctx) },
		Redeliver:   b.rejoin,
		DeadLetters: b.deadLetters,
		Cut:         func() { b.cut.Store(true) },
		NoRequeue:   true,
		Quiet:       500 * time.Millisecond,
	}
}

// rejoin builds client and source anew. Nothing comes again by itself meanwhile.
func (b *bench) rejoin() {
	b.t.Helper()
	b.cut.Store(false)
	if b.member != nil {
		b.leave()
	}
	b.member = b.join(b.opts...)
	b.source.rest = time.Hour
	b.eventually(func() bool { return b.has() == 1 })
}

// deadLetters reads the topic of dead letters from its beginning.
func (b *bench) deadLetters() (ids []string) {
	b.t.Helper()
	end := b.cluster.PartitionInfo(deadTopic, 0).HighWatermark
	client := b.newClient(kgo.ConsumeTopics(deadTopic), kgo.FetchMaxWait(10*time.Millisecond))
	defer client.Close()
	for int64(len(ids)) < end {
		for _, record := range client.PollFetches(b.t.Context()).Records() {
			id, _ := HeaderID("id")(record)
			ids = append(ids, id)
		}
	}
	return ids
}
