package idemnats

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

const conformanceAckWait = 300 * time.Millisecond

func TestConformance(t *testing.T) {
	t.Parallel()
	idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*Delivery] { return newBench(t).broker() })
}

func TestConformanceWithDoubleAck(t *testing.T) {
	t.Parallel()
	idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*Delivery] { return newBench(t, WithDoubleAck()).broker() })
}

// bench is a rig whose consumer has a connection of its own, which can be cut.
type bench struct {
	*rig
	t          *testing.T
	opts       []Option
	advisories *nats.Subscription
	dead       []string

	cut  *nats.Conn
	next func(context.Context) (*Delivery, error)
}

func newBench(t *testing.T, opts ...Option) *bench {
	b := &bench{rig: newRig(t, conformanceAckWait), t: t, opts: opts}
	b.advisories = b.terminated()
	b.reconnect()
	return b
}

func (b *bench) broker() idemtest.Broker[*Delivery] {
	return idemtest.Broker[*Delivery]{
		Publish:     b.publish,
		Next:        func(ctx context.Context) (*Delivery, error) { return b.next(ctx) },
		Redeliver:   b.reconnect,
		DeadLetters: b.deadLetters,
		Cut:         func() { b.cut.Close() },
		Native: map[idem.Outcome]func(*Delivery){
			idem.Ack:     func(d *Delivery) { require.NoError(b.t, d.Msg().Ack()) },
			idem.Requeue: func(d *Delivery) { require.NoError(b.t, d.Msg().Nak()) },
			idem.Reject:  func(d *Delivery) { require.NoError(b.t, d.Msg().Term()) },
		},
		Deadline: conformanceAckWait,
		Quiet:    2 * conformanceAckWait,
	}
}

// reconnect builds the consumer's side anew. What the old one has taken and not
// settled comes again by AckWait.
func (b *bench) reconnect() {
	b.t.Helper()
	if b.cut != nil {
		b.cut.Close()
	}
	nc, js := connect(b.t)
	consumer, err := js.Consumer(b.t.Context(), b.stream.CachedInfo().Config.Name, "worker")
	require.NoError(b.t, err)
	it, err := consumer.Messages(jetstream.PullMaxMessages(1))
	require.NoError(b.t, err)
	b.t.Cleanup(it.Stop)
	b.cut, b.next = nc, b.source(b.opts...).Next(it)
}

// deadLetters looks up what the broker reports as terminated.
func (b *bench) deadLetters() []string {
	b.t.Helper()
	for {
		msg, err := b.advisories.NextMsg(10 * time.Millisecond)
		if err != nil {
			require.ErrorIs(b.t, err, nats.ErrTimeout)
			return b.dead
		}
		var got advisory
		require.NoError(b.t, json.Unmarshal(msg.Data, &got))
		raw, err := b.stream.GetMsg(b.t.Context(), got.StreamSeq)
		require.NoError(b.t, err)
		b.dead = append(b.dead, raw.Header.Get(jetstream.MsgIDHeader))
	}
}
