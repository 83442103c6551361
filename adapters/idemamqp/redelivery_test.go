package idemamqp_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Connections are closed under running handlers, a fifth of which fail, on a
// queue with duplicates: each message's effect happens once, and none is lost.
func TestCutsUnderRunningHandlers(t *testing.T) {
	const messages, cuts, workers = 400, 8, 8
	for _, kind := range kinds {
		for _, prefetch := range []int{1, 20, 250} {
			t.Run(fmt.Sprintf("%s, prefetch %d", kind, prefetch), func(t *testing.T) {
				landmarks := make(chan *gate)
				s := newScene(t, kind, stopsAt(messages/cuts, landmarks))
				s.publishSome(messages)
				sh := s.work(workers, prefetch)
				for range cuts {
					g := <-landmarks
					sh.cut()
					copies := s.guard.Stats().DuplicatesInFlight
					sh = s.work(workers, prefetch)
					s.until(func() bool { return s.guard.Stats().DuplicatesInFlight > copies }, "a copy of what is running")
					g.open()
				}
				s.requireOnce(sh, messages)
				assert.GreaterOrEqual(t, s.redelivered(), cuts)
			})
		}
	}
}

// publishSome publishes messages "0", "1" and so on, every tenth of them twice.
func (s *scene) publishSome(messages int) {
	s.t.Helper()
	var ids []string
	for i := range messages {
		ids = append(ids, strconv.Itoa(i))
		if i%10 == 9 {
			ids = append(ids, strconv.Itoa(i-5))
		}
	}
	s.publish(ids...)
}

// stopsAt is a handler that takes a moment, fails at the first run of every fifth
// message, and at the first run of every so-manieth waits for what the test has
// to do meanwhile.
func stopsAt(every int, landmarks chan<- *gate) handler {
	return func(_ context.Context, d *idemamqp.Delivery, run int) error {
		i, err := strconv.Atoi(string(d.Msg().Body))
		if err != nil {
			return err
		}
		if run == 1 && i%every == every/2 {
			g := newGate()
			landmarks <- g
			<-g.opened
		}
		time.Sleep(time.Duration(i%4) * time.Millisecond) // the work
		if run == 1 && i%5 == 0 {
			return errHandler
		}
		return nil
	}
}

// requireOnce waits until all is done, ends the shifts, and counts.
func (s *scene) requireOnce(sh *shift, messages int) {
	s.t.Helper()
	s.finishes(messages)
	s.until(func() bool { return s.ready() == 0 }, "an empty queue")
	sh.finish()
	s.requireEmpty()
	total, stats := s.total(), s.guard.Stats()
	s.t.Logf("%d deliveries, %d of them redelivered: %d runs, %d of them failed; %d suppressed, %d held",
		len(s.taken), s.redelivered(), total.started, total.started-total.succeeded, stats.DuplicatesCompleted, stats.DuplicatesInFlight)
	require.Equal(s.t, messages, s.done(), "messages handled")
	require.Equal(s.t, messages, total.succeeded, "effects")
	require.Zero(s.t, total.concurrent, "runs beside another one of the same message")
	require.Equal(s.t, messages/5, total.started-total.succeeded, "failed runs")
	require.Empty(s.t, s.deadLetters())
	require.Zero(s.t, stats.InFlight)
}

func (s *scene) redelivered() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.taken {
		if d.Msg().Redelivered {
			n++
		}
	}
	return n
}

// Two receivers share an endpoint. One after the other is stopped in good order
// and rebuilt, while the other goes on.
func TestRollingRestart(t *testing.T) {
	const messages, restarts, workers, prefetch = 400, 8, 4, 20
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			landmarks := make(chan *gate)
			s := newScene(t, kind, stopsAt(messages/restarts, landmarks))
			endpoints, err := idem.NewEndpoints()
			require.NoError(t, err)
			rebuild := func() *shift {
				s.guard, err = endpoints.Guard(idem.Endpoint{Name: s.name})
				require.NoError(t, err)
				r := *s.receiver
				r.Guard = s.guard
				return s.workAs(&r, workers, prefetch)
			}
			s.publishSome(messages)
			shifts := [2]*shift{rebuild(), rebuild()}
			passed := 0
			for i := range restarts {
				old := shifts[i%2]
				if passed > 0 {
					passed--
					old.stop()
				} else {
					g := <-landmarks
					old.stop()
					g.open() // a handler of the old one, or of the other
				}
				passed += old.letPass(landmarks)
				assert.ErrorIs(t, old.wait(), context.Canceled)
				old.hangUp()
				shifts[i%2] = rebuild()
			}
			s.finishes(messages)
			s.until(func() bool { return s.ready() == 0 }, "an empty queue")
			shifts[1].finish()
			s.requireOnce(shifts[0], messages)
		})
	}
}

// letPass opens the landmarks that are reached before the shift has ended: while the
// test was busy, a second handler of the same shift may have come to one. It returns
// how many there were.
func (sh *shift) letPass(landmarks <-chan *gate) (passed int) {
	for {
		select {
		case g := <-landmarks:
			g.open()
			passed++
		case <-sh.ended:
			return passed
		case <-time.After(patience): // wait says so
			return passed
		}
	}
}

// The handler goes on when Drain is over, and nobody waits for it: the connection
// is closed, the receiver rebuilt. The copy is held until the handler has ended.
func TestHandlerSlowerThanTheDrain(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			g := newGate()
			drained := make(chan struct{})
			s := newScene(t, kind, func(ctx context.Context, _ *idemamqp.Delivery, _ int) error {
				<-ctx.Done()
				close(drained)
				g.pass()
				return nil
			})
			s.receiver.Drain = time.Millisecond
			first := s.work(1, 1)
			s.publish("a")
			s.until(func() bool { return s.of("a").running == 1 }, "the run")
			first.stop()
			<-drained
			g.await(t)
			first.cut()
			second := s.work(1, 1)
			s.until(func() bool { return s.guard.Stats().DuplicatesInFlight == 1 }, "the copy, held")
			g.open()
			assert.ErrorIs(t, first.wait(), context.Canceled)
			s.closes(2, second)
			assert.Equal(t, account{started: 1, succeeded: 1}, s.of("a"))
		})
	}
}

// The same, but the handler gives up when its context ends: its message runs
// again, on the receiver that comes after.
func TestHandlerGivesUpAtTheDrain(t *testing.T) {
	s := newScene(t, "quorum", func(ctx context.Context, _ *idemamqp.Delivery, run int) error {
		if run == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	s.receiver.Drain = time.Millisecond
	first := s.work(1, 1)
	s.publish("a")
	s.until(func() bool { return s.of("a").running == 1 }, "the run")
	first.leave()
	second := s.work(1, 1)
	s.finishes(1)
	s.closes(1, second)
	assert.Equal(t, account{started: 2, succeeded: 1}, s.of("a"))
}
