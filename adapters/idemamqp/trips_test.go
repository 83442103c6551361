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
			require.Len(t, trips, 3)
			assert.Equal(t, "a", trips[0])
			assert.Regexp(t, `^a;trip=2@\d+$`, trips[1])
			assert.Regexp(t, `^a;trip=4@\d+$`, trips[2])
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
	return waitFor(t, kind, 20, handle)
}

func waitFor(t *testing.T, kind string, milliseconds int, handle handler) *scene {
	t.Helper()
	s := newScene(t, kind, handle)
	q := declareWith(t, kind, func(work string) amqp.Table {
		return amqp.Table{"x-message-ttl": milliseconds, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
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

// The handler publishes the message anew for each return, without its headers, and
// acks the one it has: the broker counts from 1 again, and only the time tells the
// returns apart.
func TestReturnsThatTheHandlerPublishesRun(t *testing.T) {
	var s *scene
	s = waitFor(t, "classic", 1100, func(ctx context.Context, d *idemamqp.Delivery, run int) error {
		if run == 3 {
			return nil
		}
		return s.line.PublishWithContext(ctx, "", s.dead, false, false, amqp.Publishing{MessageId: d.Msg().MessageId, Body: d.Msg().Body})
	})
	sh := s.work(1, 1)
	s.publish("a")
	s.until(func() bool { return s.of("a").started == 3 }, "each return runs")
	s.closes(3, sh)
	assert.Zero(t, s.guard.Stats().DuplicatesCompleted)
}
