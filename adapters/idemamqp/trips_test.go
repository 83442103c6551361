package idemamqp_test

import (
	"context"
	"sync"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A retry by way of a wait queue: what is rejected rests there, and returns when
// its time is over. Each return runs, although what was rejected before would be
// rejected again.
func TestReturnFromAWaitQueueRuns(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			var mu sync.Mutex
			var trips []string
			s := waitScene(t, kind, func(_ context.Context, d *idemamqp.Delivery, run int) error {
				id, err := d.Identity()
				assert.NoError(t, err)
				mu.Lock()
				trips = append(trips, id.ID)
				mu.Unlock()
				if run < 3 {
					return idem.WithOutcome(errHandler, idem.Reject)
				}
				return nil
			})
			sh := s.work(1, 1)
			s.publish("a")
			s.finishes(1)
			s.closes(3, sh)
			assert.Equal(t, []string{"a", "a;trip=2", "a;trip=4"}, trips)
			assert.Zero(t, s.guard.Stats().DuplicatesRejected)
		})
	}
}

// On its second trip the message is redelivered: that is a duplicate still.
func TestRedeliveryKeepsItsTrip(t *testing.T) {
	g := newGate()
	s := waitScene(t, "classic", func(_ context.Context, _ *idemamqp.Delivery, run int) error {
		if run == 1 {
			return idem.WithOutcome(errHandler, idem.Reject)
		}
		g.pass()
		return nil
	})
	first := s.work(1, 1)
	s.publish("a")
	g.await(t)
	first.cut()
	second := s.work(1, 1)
	s.until(func() bool { return s.guard.Stats().DuplicatesInFlight == 1 }, "the copy, held")
	g.open()
	s.closes(3, second)
	assert.Equal(t, account{started: 2, succeeded: 1}, s.of("a"))
}

// waitScene is a queue whose dead letters return after a while.
func waitScene(t *testing.T, kind string, handle handler) *scene {
	t.Helper()
	s := newScene(t, kind, handle)
	q := declareWith(t, kind, func(work string) amqp.Table {
		return amqp.Table{"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
	})
	s.queue, s.source = q, q.source()
	return s
}

// A dead letter that someone moves back, headers and all, is to run.
func TestMovedBackFromTheDeadLettersRuns(t *testing.T) {
	s := newScene(t, "classic", func(_ context.Context, _ *idemamqp.Delivery, run int) error {
		if run == 1 {
			return idem.WithOutcome(errHandler, idem.Reject)
		}
		return nil
	})
	sh := s.work(1, 1)
	s.publish("a")
	var msg amqp.Delivery
	s.until(func() bool {
		var ok bool
		var err error
		msg, ok, err = s.line.Get(s.dead, true)
		return err == nil && ok
	}, "a dead letter")
	s.send(amqp.Publishing{MessageId: msg.MessageId, Headers: msg.Headers, Body: msg.Body})
	s.finishes(1)
	s.closes(2, sh)
	assert.Equal(t, account{started: 2, succeeded: 1}, s.of("a"))
	require.Empty(t, s.deadLetters())
}
