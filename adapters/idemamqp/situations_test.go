package idemamqp_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSuccess(t *testing.T) {
	s := newScene(t, "classic", succeed)
	sh := s.work(4, 20)
	s.publish("a", "b", "c")
	s.until(func() bool { return s.ended() == 3 }, "three acks")
	sh.hangUp()
	assert.NoError(t, sh.wait(), "the deliveries have ended, which is no error")
	s.requireEmpty()
	assert.Equal(t, account{started: 3, succeeded: 3}, s.total())
	assert.Empty(t, s.deadLetters())
}

func TestFailureRunsAgain(t *testing.T) {
	s := newScene(t, "classic", func(_ context.Context, _ *idemamqp.Delivery, run int) error {
		if run < 3 {
			return errHandler
		}
		return nil
	})
	sh := s.work(1, 1)
	s.publish("a")
	s.finishes(1)
	s.closes(1, sh)
	assert.Equal(t, account{started: 3, succeeded: 1}, s.of("a"))
	assert.EqualValues(t, 2, s.guard.Stats().Released)
	assert.Empty(t, s.deadLetters())
}

func TestPoisonIsDeadLettered(t *testing.T) {
	s := newScene(t, "classic", func(context.Context, *idemamqp.Delivery, int) error {
		return idem.WithOutcome(errHandler, idem.Reject)
	})
	sh := s.work(1, 1)
	s.publish("a")
	s.until(func() bool { return len(s.deadLetters()) == 1 }, "a dead letter")
	s.closes(1, sh)
	assert.Equal(t, account{started: 1}, s.of("a"))
}

// A publisher that retries makes a copy that is no redelivery: the broker's flag
// says nothing about it.
func TestDuplicateAfterSuccessIsAcked(t *testing.T) {
	s := newScene(t, "classic", func(_ context.Context, d *idemamqp.Delivery, _ int) error {
		assert.False(t, d.Msg().Redelivered)
		return nil
	})
	sh := s.work(4, 20)
	s.publish("a")
	s.finishes(1)
	s.publish("a")
	s.until(func() bool { return s.guard.Stats().DuplicatesCompleted == 1 }, "the duplicate")
	s.closes(2, sh)
	assert.Equal(t, account{started: 1, succeeded: 1}, s.of("a"))
}

var policies = []idem.InFlightPolicy{idem.HoldInFlight, idem.RequeueInFlight, idem.AckInFlight}

func TestDuplicateInFlight(t *testing.T) {
	for _, policy := range policies {
		for _, first := range []error{nil, errHandler} {
			t.Run(fmt.Sprintf("%v, the first run returns %v", policy, first), func(t *testing.T) {
				g := newGate()
				s := newScene(t, "classic", func(_ context.Context, _ *idemamqp.Delivery, run int) error {
					if run > 1 {
						return nil
					}
					g.pass()
					return first
				})
				s.receiver.OnInFlight = policy
				sh := s.work(2, 20)
				s.publish("a", "a")
				g.await(t)
				s.until(func() bool { return s.guard.Stats().DuplicatesInFlight > 0 }, "the copy")
				g.open()
				s.finishes(1)
				want := account{started: 1, succeeded: 1}
				if first != nil {
					want.started = 2
				}
				s.closes(2, sh)
				assert.Equal(t, want, s.of("a"))
			})
		}
	}
}

// The connection is cut under the first run, which fails after its copy has come:
// the copy is the only one left.
func TestTheLastCopyInFlight(t *testing.T) {
	for policy, succeeded := range map[idem.InFlightPolicy]int{
		idem.HoldInFlight:    1,
		idem.RequeueInFlight: 1,
		idem.AckInFlight:     0, // which is what its documentation says
	} {
		t.Run(policy.String(), func(t *testing.T) {
			g := newGate()
			s := newScene(t, "classic", func(_ context.Context, _ *idemamqp.Delivery, run int) error {
				if run > 1 {
					return nil
				}
				g.pass()
				return errHandler
			})
			s.receiver.OnInFlight = policy
			first := s.work(1, 1)
			s.publish("a")
			g.await(t)
			first.cut()
			second := s.work(1, 1)
			s.until(func() bool { return s.guard.Stats().DuplicatesInFlight > 0 }, "the copy")
			if policy == idem.AckInFlight {
				s.until(func() bool { return s.ended() == 1 }, "its ack")
				second.leave() // which brings the ack home
			}
			g.open()
			require.NoError(t, first.wait())
			s.finishes(succeeded)
			s.closes(1, second)
			assert.Equal(t, succeeded, s.of("a").succeeded)
			assert.Zero(t, s.of("a").concurrent)
		})
	}
}

func TestAfterARejectACopyIsRejectedToo(t *testing.T) {
	s := newScene(t, "classic", func(context.Context, *idemamqp.Delivery, int) error {
		return idem.WithOutcome(errHandler, idem.Reject)
	})
	sh := s.work(1, 1)
	s.publish("a")
	s.until(func() bool { return len(s.deadLetters()) == 1 }, "the dead letter")
	s.publish("a")
	s.until(func() bool { return len(s.deadLetters()) == 2 }, "the copy, neither run nor lost")
	s.closes(2, sh)
	assert.Equal(t, account{started: 1}, s.of("a"))
	assert.EqualValues(t, 1, s.guard.Stats().DuplicatesRejected)
}

// The ack fails because the connection is gone: the copy is dropped and acked on
// its own channel, and the handler has run once.
func TestLostAck(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			g := newGate()
			s := newScene(t, kind, func(context.Context, *idemamqp.Delivery, int) error {
				g.pass()
				return nil
			})
			first := s.work(1, 1)
			s.publish("a")
			g.await(t)
			first.cut()
			g.open()
			require.NoError(t, first.wait())
			assert.Equal(t, 1, s.done())

			second := s.work(1, 1)
			s.until(func() bool { return s.guard.Stats().DuplicatesCompleted == 1 }, "the copy")
			s.closes(2, second)
			assert.Equal(t, account{started: 1, succeeded: 1}, s.of("a"))
		})
	}
}

// What the handler does natively decides, and is not done twice: the broker would
// close the channel, and everything on it would come again.
func TestHandlerSettlesByItself(t *testing.T) {
	for _, row := range []struct {
		name   string
		settle func(*amqp.Delivery) error
		err    error
		runs   int
		dead   []string
	}{
		{"ack", func(m *amqp.Delivery) error { return m.Ack(false) }, nil, 1, nil},
		{"ack, and fails", func(m *amqp.Delivery) error { return m.Ack(false) }, errHandler, 1, nil},
		{"nack to requeue", func(m *amqp.Delivery) error { return m.Nack(false, true) }, nil, 2, nil},
		{"reject to requeue", func(m *amqp.Delivery) error { return m.Reject(true) }, nil, 2, nil},
		{"nack", func(m *amqp.Delivery) error { return m.Nack(false, false) }, nil, 1, []string{"a"}},
		{"reject", func(m *amqp.Delivery) error { return m.Reject(false) }, nil, 1, []string{"a"}},
		{"reject, and fails", func(m *amqp.Delivery) error { return m.Reject(false) }, errHandler, 1, []string{"a"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t, "classic", func(_ context.Context, d *idemamqp.Delivery, run int) error {
				if run > 1 || string(d.Msg().Body) != "a" {
					return nil
				}
				assert.NoError(t, row.settle(d.Msg()))
				assert.NoError(t, row.settle(d.Msg()), "a second time")
				return row.err
			})
			sh := s.work(1, 1)
			s.publish("a", "b", "b")
			s.until(func() bool { return s.of("b").succeeded == 1 && s.of("a").started == row.runs }, "the runs")
			assert.False(t, sh.IsClosed())
			s.closes(3, sh)
			assert.Equal(t, row.runs, s.of("a").started)
			assert.Equal(t, row.dead, s.deadLetters())
		})
	}
}

// One message is slow, and 969 copies of another one wait behind it.
func TestSlowHandlerAndAStormOfCopies(t *testing.T) {
	g := newGate()
	s := newScene(t, "classic", func(_ context.Context, d *idemamqp.Delivery, _ int) error {
		if string(d.Msg().Body) == "slow" {
			g.pass()
		}
		return nil
	})
	sh := s.work(1, 0)
	s.publish("slow")
	g.await(t)
	s.publish(append(slices.Repeat([]string{"b"}, 970), "last")...)
	assert.Zero(t, s.of("b"))
	g.open()
	s.finishes(3)
	s.closes(972, sh)
	assert.Equal(t, account{started: 1, succeeded: 1}, s.of("b"))
	stats := s.guard.Stats()
	assert.EqualValues(t, 969, stats.DuplicatesCompleted)
	assert.Equal(t, 3, stats.Tracked)
	assert.Zero(t, stats.EarlyRotations)
}

// Consume is stopped in the middle of a run, which still ends and is acked. The
// 49 that the client has fetched ahead were never begun, and run later.
func TestShutdownInMidHandler(t *testing.T) {
	g := newGate()
	s := newScene(t, "classic", func(context.Context, *idemamqp.Delivery, int) error {
		g.pass()
		return nil
	})
	var ids []string
	for i := range 50 {
		ids = append(ids, fmt.Sprint("m", i))
	}
	s.publish(ids...)
	first := s.work(1, 50)
	g.await(t)
	first.stop()
	g.open()
	assert.ErrorIs(t, first.wait(), context.Canceled)
	assert.Equal(t, account{started: 1, succeeded: 1}, s.total())
	stats := s.guard.Stats()
	assert.EqualValues(t, 1, stats.Begun, "what was only fetched ahead does not touch the guard")
	assert.EqualValues(t, 1, stats.Completed)
	first.hangUp()

	second := s.work(8, 50)
	s.finishes(50)
	s.closes(50, second)
	assert.Equal(t, account{started: 50, succeeded: 50}, s.total())
	assert.Zero(t, s.guard.Stats().DuplicatesCompleted, "the ack of the first did arrive")
}

// The guard is the endpoint's: what the old receiver has handled, the new one
// knows.
func TestReceiverRebuilt(t *testing.T) {
	endpoints, err := idem.NewEndpoints()
	require.NoError(t, err)
	s := newScene(t, "classic", succeed)
	for i := range 3 {
		guard, err := endpoints.Guard(idem.Endpoint{Name: s.name})
		require.NoError(t, err)
		rebuilt := *s.receiver
		rebuilt.Guard = guard
		s.source = s.queue.source()
		sh := s.workAs(&rebuilt, 2, 20)
		s.publish("a")
		s.closes(i+1, sh)
	}
	assert.Equal(t, account{started: 1, succeeded: 1}, s.of("a"))
}

// Delivery tags begin with 1 on every channel, bodies may be the same: neither
// stands in for an id that isn't there.
func TestUnidentifiedMessagesAllRun(t *testing.T) {
	s := newScene(t, "classic", succeed)
	for i, body := range []string{"x", "x", "y"} {
		sh := s.work(1, 1)
		s.send(amqp.Publishing{Body: []byte(body)})
		s.closes(i+1, sh)
	}
	assert.Equal(t, account{started: 2, succeeded: 2}, s.of("x"))
	assert.EqualValues(t, 3, s.guard.Stats().Unidentified)
	assert.Zero(t, s.guard.Stats().Tracked)
}

// An id that can't be made out is no reason to lose the message.
func TestWithoutIdentityTheMessageIsGivenBack(t *testing.T) {
	s := newScene(t, "classic", succeed)
	asked := 0
	s.source = s.queue.source(idemamqp.WithID(func(m *amqp.Delivery) (string, error) {
		if asked++; asked == 1 {
			return "", errHandler
		}
		return m.CorrelationId, nil
	}))
	sh := s.work(1, 1)
	s.send(amqp.Publishing{MessageId: "a", CorrelationId: "b", Body: []byte("a")})
	s.finishes(1)
	s.closes(1, sh)
	assert.Equal(t, account{started: 1, succeeded: 1}, s.of("a"))
	assert.Equal(t, 2, asked)
}
