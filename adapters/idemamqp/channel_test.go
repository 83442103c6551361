package idemamqp_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConsumeRefusesAutoAck(t *testing.T) {
	q := declare(t, "classic")
	l := dial(t)
	_, err := q.source().Consume(l.Channel, "", true, false, false, false, nil)
	assert.ErrorIs(t, err, idem.ErrInvalidOption)
	assert.ErrorContains(t, err, "autoAck must be false, not true")
	q.publish("a")
	msg, ok, err := q.line.Get(q.name, true)
	require.NoError(t, err)
	assert.True(t, ok, "nobody consumes")
	assert.Equal(t, "a", msg.MessageId)
}

func TestConsumeRefusesANilChannel(t *testing.T) {
	s, err := idemamqp.New("orders")
	require.NoError(t, err)
	_, err = s.Consume(nil, "", false, false, false, false, nil)
	assert.ErrorIs(t, err, idem.ErrInvalidOption)
}

func TestConsumeOfNoQueue(t *testing.T) {
	s, err := idemamqp.New("idemamqp.there is no such queue")
	require.NoError(t, err)
	_, err = s.Consume(dial(t).Channel, "", false, false, false, false, nil)
	var broker *amqp.Error
	require.ErrorAs(t, err, &broker)
	assert.Equal(t, amqp.NotFound, broker.Code)
	assert.ErrorContains(t, err, "idemamqp: consuming queue")
}

// With a consumer that was not started through the source, autoAck shows as soon
// as the first delivery is settled: the broker knows no such tag, and closes the
// channel. Consume says why.
func TestNextTellsOfAutoAck(t *testing.T) {
	s := newScene(t, "classic", succeed)
	l := dial(t)
	deliveries, err := l.Channel.Consume(s.name, "", true, false, false, false, nil)
	require.NoError(t, err)
	s.publish("a")
	err = s.receiver.Consume(t.Context(), 1, s.source.Next(deliveries))
	assert.ErrorContains(t, err, "has autoAck")
	var broker *amqp.Error
	require.ErrorAs(t, err, &broker)
	assert.Equal(t, amqp.PreconditionFailed, broker.Code)
}

func TestNextEndsWithTheDeliveries(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *line){
		"cancel":             func(t *testing.T, l *line) { require.NoError(t, l.Cancel("c", false)) },
		"the channel closed": func(t *testing.T, l *line) { require.NoError(t, l.Close()) },
		"hung up":            func(_ *testing.T, l *line) { l.hangUp() },
		"cut":                func(_ *testing.T, l *line) { l.cut() },
	} {
		t.Run(name, func(t *testing.T) {
			q := declare(t, "classic")
			s := q.source()
			l := dial(t)
			deliveries, err := s.Consume(l.Channel, "c", false, false, false, false, nil)
			require.NoError(t, err)
			next := s.Next(deliveries)
			q.publish("a")
			d, err := next(t.Context())
			require.NoError(t, err)
			end(t, l)
			_, err = next(t.Context())
			assert.True(t, err == io.EOF, "got %v", err) //nolint:errorlint // a wrapped one says something else to Consume
			err = d.Ack(t.Context())
			if name == "cancel" {
				assert.NoError(t, err, "its channel is still there")
				return
			}
			assert.ErrorIs(t, err, amqp.ErrClosed)
		})
	}
}

// The client's writes hang, as on a connection whose other end is gone without a
// word. A verb returns when its time is over.
func TestVerbOnADeadConnection(t *testing.T) {
	q := declare(t, "classic")
	s := q.source()
	l, deliveries := q.consume(s, 20)
	q.publish("a", "b")
	next := s.Next(deliveries)
	for range 2 {
		d, err := next(t.Context())
		require.NoError(t, err)
		l.wire.block()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		assert.ErrorIs(t, d.Ack(ctx), context.DeadlineExceeded)
		assert.ErrorIs(t, d.Requeue(ctx, nil), context.DeadlineExceeded)
	}
	l.cut()
	l2, deliveries := q.consume(s, 20)
	next = s.Next(deliveries)
	for range 2 {
		d, err := next(t.Context())
		require.NoError(t, err)
		assert.True(t, d.Msg().Redelivered)
		require.NoError(t, d.Ack(t.Context()))
	}
	l2.hangUp()
	q.requireEmpty()
}

// quick is a recovery of the client's own that takes no time.
func quick() *amqp.Recovery {
	return &amqp.Recovery{ReconnectionConfig: &amqp.ReconnectionConfig{MaxRetryCount: 20, RetryInterval: time.Millisecond}}
}

func TestConsumeRefusesWhatTheClientReopens(t *testing.T) {
	q := declare(t, "classic")
	s := q.source()
	for name, prepare := range map[string]func(*line) error{
		"that has a prefetch": func(l *line) error { return l.Qos(20, 0, false) },
		"that has declared the queue": func(l *line) error {
			_, err := l.QueueDeclarePassive(q.dead, true, false, false, false, nil)
			if err == nil {
				_, err = l.QueueDeclare(q.dead, true, false, false, false, nil)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := dialWith(t, amqp.Config{Recovery: quick()})
			require.NoError(t, prepare(l))
			_, err := s.Consume(l.Channel, "", false, false, false, false, nil)
			assert.ErrorIs(t, err, idem.ErrInvalidOption)
			assert.ErrorContains(t, err, "Config.Recovery must be nil")
		})
	}
	l := dialWith(t, amqp.Config{Recovery: &amqp.Recovery{TopologyRecoveryMode: amqp.TopologyRecoveryDisabled}})
	require.NoError(t, l.Qos(20, 0, false))
	_, err := s.Consume(l.Channel, "", false, false, false, false, nil)
	assert.NoError(t, err, "nobody consumes again on a channel like that")
}

// The client reopens the channel under a delivery, and tag 1 means another
// message there: an ack that went out would take that one with it.
func TestAckAfterTheClientHasReopenedTheChannel(t *testing.T) {
	q := declare(t, "classic")
	s := q.source()
	l := dialWith(t, amqp.Config{Recovery: quick()})
	deliveries, err := s.Consume(l.Channel, "", false, false, false, false, nil) // nothing shows of the recovery yet
	require.NoError(t, err)
	next := s.Next(deliveries)
	q.publish("old")
	old, err := next(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, old.Msg().DeliveryTag)

	// The old message goes elsewhere, and a new one comes under its tag.
	other := dial(t)
	require.NoError(t, l.wire.Close())
	var msg amqp.Delivery
	require.Eventually(t, func() bool {
		var ok bool
		msg, ok, err = other.Get(q.name, false)
		return err == nil && ok
	}, patience, time.Millisecond)
	assert.Equal(t, "old", msg.MessageId)
	require.Eventually(t, func() bool {
		state, err := q.line.QueueDeclarePassive(q.name, true, false, false, false, nil)
		return err == nil && state.Consumers == 1 && !l.IsClosed()
	}, patience, time.Millisecond, "the client has reopened the channel")
	q.publish("new")

	_, err = next(t.Context())
	assert.ErrorContains(t, err, "has reopened the channel by itself")
	assert.NotErrorIs(t, err, io.EOF)
	assert.ErrorIs(t, old.Ack(t.Context()), amqp.ErrClosed)
	assert.ErrorIs(t, old.Msg().Ack(false), amqp.ErrClosed)
	require.NoError(t, msg.Ack(false))
	l.hangUp()
	msg, ok, err := other.Get(q.name, true)
	require.NoError(t, err)
	require.True(t, ok, "the new message was settled by the old one's ack")
	assert.Equal(t, "new", msg.MessageId)
}

// The client reopens the channel and does not consume again: nothing comes any more,
// and nothing ends, also where nothing had come before.
func TestNextTellsOfAReopenedChannelThatNobodyConsumes(t *testing.T) {
	for _, before := range []int{0, 1} {
		q := declare(t, "classic")
		s := q.source()
		recovery := quick()
		recovery.TopologyRecoveryMode = amqp.TopologyRecoveryDisabled
		l := dialWith(t, amqp.Config{Recovery: recovery})
		deliveries, err := s.Consume(l.Channel, "", false, false, false, false, nil)
		require.NoError(t, err)
		next := s.Next(deliveries)
		for range before {
			q.publish("a")
			d, err := next(t.Context())
			require.NoError(t, err)
			require.NoError(t, d.Ack(t.Context()))
		}
		require.NoError(t, l.wire.Close())
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err = next(ctx)
		assert.ErrorContains(t, err, "has reopened the channel by itself", "%d before", before)
		assert.ErrorIs(t, err, amqp.ErrClosed)
	}
}

// A process that reconnects for years keeps nothing of its old channels.
func TestSourceForgetsClosedChannels(t *testing.T) {
	q := declare(t, "classic")
	s := q.source()
	for range 5 {
		l, deliveries := q.consume(s, 1)
		q.publish("a")
		msg := <-deliveries
		require.NoError(t, s.Delivery(msg).Ack(t.Context()))
		assert.Equal(t, 1, s.Watches())
		l.hangUp()
		assert.ErrorIs(t, s.Delivery(msg).Ack(t.Context()), amqp.ErrClosed, "the old channel's end is known still")
	}
}

// What the client still had buffered when the channel was closed can't be settled:
// it isn't handed out, and comes again.
func TestNextDropsWhatWasBufferedAtTheEnd(t *testing.T) {
	q := declare(t, "classic")
	s := q.source()
	l, deliveries := q.consume(s, 1)
	q.publish("a")
	msg := <-deliveries
	l.hangUp()
	late := make(chan amqp.Delivery, 1)
	late <- msg
	close(late)
	_, err := s.Next(late)(t.Context())
	assert.True(t, err == io.EOF, "got %v", err) //nolint:errorlint // a wrapped one says something else to Consume
	l, deliveries = q.consume(s, 1)
	d, err := s.Next(deliveries)(t.Context())
	require.NoError(t, err)
	require.NoError(t, d.Ack(t.Context()))
	l.hangUp()
	q.requireEmpty()
}
