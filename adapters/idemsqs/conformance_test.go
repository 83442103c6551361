package idemsqs

import (
	"context"
	"testing"
	"time"

	"github.com/idem-go/idem/idemtest"
)

func TestConformance(t *testing.T) {
	for name, row := range map[string]struct {
		kind string
		opts []Option
	}{
		"standard":         {},
		"standard, batch":  {"", []Option{WithBatch(10)}},
		"FIFO":             {".fifo", nil},
		"FIFO, by dedupid": {".fifo", []Option{WithDeduplicationID()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*Delivery] { return newBench(t, row.kind, row.opts).broker() })
		})
	}
}

// bench is a rig with one consumer, whose client can be cut.
type bench struct {
	*rig
	opts   []Option
	wire   *wire
	source *Source
}

func newBench(t *testing.T, kind string, opts []Option) *bench {
	b := &bench{rig: newRigOf(t, kind, nil), opts: append([]Option{WithVisibilityTimeout(time.Second)}, opts...)}
	b.build()
	return b
}

func (b *bench) build() {
	b.wire = b.client()
	b.source = b.sourceOn(b.wire, b.opts...)
}

func (b *bench) broker() idemtest.Broker[*Delivery] {
	return idemtest.Broker[*Delivery]{
		Publish: func(id string) { b.publish(id) },
		Next:    func(ctx context.Context) (*Delivery, error) { return b.source.Next(ctx) },
		Redeliver: func() {
			if b.wire.dead.Load() {
				giveUp(b.source)
				b.build()
			}
			b.expire()
		},
		DeadLetters: b.deadLetters,
		Cut:         func() { b.wire.cut() },
		Deadline:    time.Second,
	}
}
