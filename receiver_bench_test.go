package idem_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/idem-go/idem"
)

// quietDelivery costs nothing by itself.
type quietDelivery struct{ id idem.Identity }

func (d *quietDelivery) Identity() (idem.Identity, error)     { return d.id, nil }
func (d *quietDelivery) Ack(context.Context) error            { return nil }
func (d *quietDelivery) Requeue(context.Context, error) error { return nil }
func (d *quietDelivery) Reject(context.Context, error) error  { return nil }
func (d *quietDelivery) Settled() idem.Outcome                { return idem.Unsettled }

func quietReceiver(guard idem.IdempotencyGuard, handle error) *idem.Receiver[*quietDelivery] {
	return &idem.Receiver[*quietDelivery]{Guard: guard, Handle: func(context.Context, *quietDelivery) error { return handle }}
}

// quietDeliveries are of as many messages, each with an id as long as a UUID.
func quietDeliveries(n int) []*quietDelivery {
	ds := make([]*quietDelivery, n)
	for i := range ds {
		ds[i] = &quietDelivery{idem.ID(fmt.Sprintf("%036d", i))}
	}
	return ds
}

func BenchmarkReceive(b *testing.B) {
	ds := quietDeliveries(1 << 16)
	for name, guard := range map[string]idem.IdempotencyGuard{"off": nil, "on": hookGuard(b, idem.WithMaxTracked(1<<14))} {
		b.Run("guard="+name, func(b *testing.B) {
			r, ctx := quietReceiver(guard, nil), context.Background()
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				_ = r.Receive(ctx, ds[n&(len(ds)-1)])
			}
		})
	}
}

func BenchmarkReceiveDuplicate(b *testing.B) {
	d := quietDeliveries(1)[0]
	r, ctx := quietReceiver(hookGuard(b), nil), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		_ = r.Receive(ctx, d)
	}
}

func BenchmarkConsume(b *testing.B) {
	for _, workers := range []int{1, 8} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			ds, n := quietDeliveries(1<<16), 0
			r := quietReceiver(hookGuard(b, idem.WithMaxTracked(1<<14)), nil)
			ctx, stop := context.WithCancel(context.Background())
			b.ReportAllocs()
			_ = r.Consume(ctx, workers, func(ctx context.Context) (*quietDelivery, error) {
				if n++; n > b.N {
					stop()
					return nil, ctx.Err()
				}
				return ds[n&(len(ds)-1)], nil
			})
		})
	}
}
