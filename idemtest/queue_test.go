package idemtest_test

import (
	"context"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
)

func queueBroker(t *testing.T) idemtest.Broker[*idemtest.Delivery] {
	q := idemtest.NewQueue()
	return idemtest.Broker[*idemtest.Delivery]{
		Publish: func(id string) { q.Publish(idem.ID(id)) },
		Next:    q.Next,
		Redeliver: func() {
			q.SetFault(nil)
			q.Redeliver()
		},
		DeadLetters: func() (ids []string) {
			for _, id := range q.DeadLetters() {
				ids = append(ids, id.ID)
			}
			return ids
		},
		Cut: func() {
			q.SetFault(func(ctx context.Context, _ idem.Outcome) error { <-ctx.Done(); return ctx.Err() })
		},
		Quiet: 5e6,
	}
}

func TestQueue(t *testing.T) { idemtest.TestDelivery(t, queueBroker) }
