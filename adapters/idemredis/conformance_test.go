package idemredis

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/idem-go/idem/idemtest"
	"github.com/stretchr/testify/require"
)

const conformanceIdle = 300 * time.Millisecond

func TestConformance(t *testing.T) {
	t.Parallel()
	idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*Delivery] { return newBench(t).broker() })
}

func TestConformanceWithBatches(t *testing.T) {
	t.Parallel()
	idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*Delivery] { return newBench(t, WithBatch(8)).broker() })
}

// bench is a rig with one consumer, whose client can be cut. One that was cut is
// replaced by another consumer: the old one's entries are claimed.
type bench struct {
	*rig
	opts   []Option
	line   *line
	source *Source
	names  int
}

func newBench(t *testing.T, opts ...Option) *bench {
	b := &bench{rig: newRig(t), opts: append([]Option{WithMinIdle(conformanceIdle), WithRequeueDelay(quick)}, opts...)}
	b.build()
	return b
}

func (b *bench) build() {
	b.names++
	b.line = dial(b.t)
	b.source = b.sourceAs(fmt.Sprint("worker-", b.names), b.line, b.opts...)
}

func (b *bench) broker() idemtest.Broker[*Delivery] {
	return idemtest.Broker[*Delivery]{
		Publish: func(id string) { b.publish(id) },
		Next:    func(ctx context.Context) (*Delivery, error) { return b.source.Next(ctx) },
		Redeliver: func() {
			if b.line.cutOff.Load() {
				require.NoError(b.t, b.line.Close())
				b.build()
			}
			b.age()
		},
		DeadLetters: b.deadLetters,
		Cut:         func() { b.line.cut() },
		Deadline:    conformanceIdle,
		Quiet:       350 * time.Millisecond, // the entries are claimed after half of the idle time
	}
}
