package idemamqp_test

import (
	"context"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	"github.com/idem-go/idem/idemtest"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestDelivery(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*idemamqp.Delivery] { return conform(t, kind) })
		})
	}
}

// conform is RabbitMQ as the suite sees it.
func conform(t *testing.T, kind string) idemtest.Broker[*idemamqp.Delivery] {
	q := declare(t, kind)
	s := q.source()
	var l *line
	var next func(context.Context) (*idemamqp.Delivery, error)
	connect := func() {
		var deliveries <-chan amqp.Delivery
		l, deliveries = q.consume(s, 20)
		next = s.Next(deliveries)
	}
	connect()
	disconnect := (*line).hangUp
	return idemtest.Broker[*idemamqp.Delivery]{
		Publish:     func(id string) { q.publish(id) },
		Next:        func(ctx context.Context) (*idemamqp.Delivery, error) { return next(ctx) },
		Redeliver:   func() { disconnect(l); disconnect = (*line).hangUp; connect() },
		DeadLetters: q.deadLetters,
		Cut:         func() { l.wire.block(); disconnect = (*line).cut },
		Native: map[idem.Outcome]func(*idemamqp.Delivery){
			idem.Ack:     func(d *idemamqp.Delivery) { require.NoError(t, d.Msg().Ack(false)) },
			idem.Requeue: func(d *idemamqp.Delivery) { require.NoError(t, d.Msg().Nack(false, true)) },
			idem.Reject:  func(d *idemamqp.Delivery) { require.NoError(t, d.Msg().Reject(false)) },
		},
	}
}
