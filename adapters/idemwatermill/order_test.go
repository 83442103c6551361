package idemwatermill

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func retry(n int, pause time.Duration) message.HandlerMiddleware {
	return middleware.Retry{MaxRetries: n, InitialInterval: pause, MaxInterval: pause, Multiplier: 1}.Middleware
}

var errPoison = idem.WithOutcome(errors.New("amount is negative: -3"), idem.Reject)

// One claim spans all tries of Retry: a copy that comes in between is held.
func TestOutsideRetry(t *testing.T) {
	r := newRig(t)
	g := r.gated()
	r.start(g.handle, r.poison(), r.dedup, retry(3, 100*time.Millisecond))
	r.publish("a", "original")
	g.next(t)
	r.publish("a", "copy")
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
	g.gate <- errHandler // Retry rests now
	assert.Equal(t, "original", g.next(t))
	g.gate <- nil
	r.settled()
	assert.Equal(t, []string{"original", "original"}, r.ranSoFar())
	assert.Equal(t, []string{"invoice of original"}, r.waiting(invoices))
	assert.Equal(t, uint64(1), r.guard.Stats().Begun)
}

// Wrong: inside Retry each try is a claim of its own, and between them a copy
// runs, while the original is still being tried.
func TestInsideRetryLetsACopyInBetweenTries(t *testing.T) {
	r := newRig(t)
	g := r.gated()
	r.start(g.handle, r.poison(), retry(3, 100*time.Millisecond), r.dedup)
	r.publish("a", "original")
	g.next(t)
	r.publish("a", "copy")
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
	g.gate <- errHandler
	assert.Equal(t, "copy", g.next(t), "not the original's second try")
	g.gate <- nil
	r.settled()
	assert.Equal(t, []string{"original", "copy"}, r.ranSoFar())
	assert.Equal(t, uint64(2), r.guard.Stats().Begun)
}

// Wrong, too: the refusal of a rejected copy is tried again, to no avail.
func TestInsideRetryRefusesARejectedCopyAgainAndAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		order func(r *rig) []message.HandlerMiddleware
		asked uint64
	}{
		"outside": {func(r *rig) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{r.poison(), r.dedup, retry(3, tick)}
		}, 1},
		"inside": {func(r *rig) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{r.poison(), retry(3, tick), r.dedup}
		}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.start(r.failing(100, errPoison), tt.order(r)...)
			r.publish("a")
			r.eventually(func() bool { return r.guard.Stats().Rejected == 1 })
			r.publish("a")
			r.eventually(func() bool { return len(r.waiting(poisoned)) == 2 })
			r.settled()
			assert.Equal(t, tt.asked, r.guard.Stats().DuplicatesRejected)
			assert.Len(t, r.ranSoFar(), 4, "all tries of the first one")
		})
	}
}

// The poison queue has it, and it is not done: the publisher may send it again.
func TestInsidePoisonQueue(t *testing.T) {
	r := newRig(t)
	r.start(r.failing(1, errHandler), r.poison(), r.dedup)
	r.publish("a")
	r.eventually(func() bool { return len(r.waiting(poisoned)) == 1 })
	r.settled()
	assert.Zero(t, r.guard.Stats().Completed)
	r.publish("a")
	r.settled()
	assert.Equal(t, []string{"a", "a"}, r.ranSoFar())
	assert.Equal(t, []string{"invoice of a"}, r.waiting(invoices))
}

// Wrong: outside, the guard sees PoisonQueue's nil, and takes a dead letter for
// handled. What the publisher sends again is dropped as a copy of it.
func TestOutsidePoisonQueueTakesADeadLetterForHandled(t *testing.T) {
	r := newRig(t)
	r.start(r.failing(1, errHandler), r.dedup, r.poison())
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().DuplicatesCompleted == 1 })
	r.settled()
	assert.Equal(t, []string{"a"}, r.ranSoFar(), "it never runs again")
	assert.Empty(t, r.waiting(invoices))
}

func TestRejectedMessagesGoToThePoisonQueueAgainUnrun(t *testing.T) {
	r := newRig(t)
	filter, err := middleware.PoisonQueueWithFilter(r.broker, poisoned, func(err error) bool {
		return idem.DefaultClassify(err) == idem.Reject
	})
	require.NoError(t, err)
	r.start(r.failing(100, errPoison), filter, r.dedup)
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Rejected == 1 })
	r.publish("a")
	r.eventually(func() bool { return len(r.waiting(poisoned)) == 2 })
	r.settled()
	r.heard(2, 0)
	assert.Equal(t, []string{"a"}, r.ranSoFar())
	var reasons []string
	r.locked(func() {
		for _, msg := range r.queues[poisoned] {
			reasons = append(reasons, msg.Metadata.Get(middleware.ReasonForPoisonedKey))
		}
	})
	assert.Equal(t, "amount is negative: -3", reasons[0])
	assert.True(t, strings.HasPrefix(reasons[1], "idemwatermill: ") && strings.HasSuffix(reasons[1], idem.ErrRejected.Error()), reasons[1])
}

// The router nacks what nobody outside has taken: then it isn't a dead letter.
func TestRejectWithoutAPoisonQueueRunsAgain(t *testing.T) {
	r := newRig(t)
	r.start(r.failing(1, errPoison), r.dedup)
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	r.settled()
	r.heard(1, 1)
	assert.Equal(t, []string{"a", "a"}, r.ranSoFar())
	assert.Zero(t, r.guard.Stats().Rejected)
}

func TestPoisonQueueThatFailsRunsAgain(t *testing.T) {
	r := newRig(t)
	r.refuse = failFirst(1, poisoned)
	r.start(r.failing(100, errPoison), r.poison(), r.dedup)
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Rejected == 1 })
	r.settled()
	r.heard(1, 1)
	assert.Equal(t, []string{"a", "a"}, r.ranSoFar())
	assert.Equal(t, []string{"a"}, r.waiting(poisoned))
	assert.Equal(t, uint64(1), r.guard.Stats().Released)
}

// What comes back from the poison queue is on a new trip, whatever the guard
// remembers of the first. Its own copies are suppressed.
func TestWhatTheRequeuerBringsBackRuns(t *testing.T) {
	r := newRig(t)
	r.start(r.failing(2, errPoison), r.poison(), r.dedup)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	require.NoError(t, err)
	_, err = requeuer.NewRequeuer(requeuer.Config{
		Subscriber: r.connect(), SubscribeTopic: poisoned, Publisher: r.broker,
		GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return orders, nil },
		Router:               router,
	}, nil)
	require.NoError(t, err)
	run(t, router)
	r.lose = 1 // of the first ack, whosever it is
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 && len(r.waiting(poisoned)) == 0 })
	r.settled()
	assert.Len(t, r.ranSoFar(), 3)
	assert.Equal(t, []string{"invoice of a"}, r.waiting(invoices))
	assert.Equal(t, uint64(2), r.guard.Stats().Rejected)
}

func TestWhatAPersonBringsBackRuns(t *testing.T) {
	r := newRig(t)
	r.start(r.failing(1, errPoison), r.poison(), r.dedup)
	r.publish("a")
	r.eventually(func() bool { return r.guard.Stats().Rejected == 1 })
	var dead *message.Message
	r.locked(func() { dead = r.queues[poisoned][0] })
	for range 2 {
		require.NoError(t, r.Publish(orders, dead))
	}
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	r.settled()
	assert.Equal(t, []string{"a", "a"}, r.ranSoFar())
	assert.Equal(t, []string{"invoice of a"}, r.waiting(invoices))
}

func TestOutcomesThatAreSuccessToTheRouter(t *testing.T) {
	for name, tt := range map[string]struct {
		err       error
		opts      []Option
		completed uint64
	}{
		"Ack":                 {err: idem.WithOutcome(errHandler, idem.Ack), completed: 1},
		"Postpone":            {err: idem.WithOutcome(nil, idem.Postpone)},
		"Postpone with error": {err: idem.WithOutcome(errHandler, idem.Postpone)},
		"Classify": {err: errHandler, completed: 1, opts: []Option{WithClassify(func(err error) idem.Outcome {
			if errors.Is(err, errHandler) {
				return idem.Ack
			}
			return idem.Requeue
		})}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tt.opts...)
			r.start(func(msg *message.Message) ([]*message.Message, error) {
				r.ran(msg)
				return invoice(msg), tt.err
			}, r.poison(), r.dedup)
			r.publish("a")
			r.eventually(func() bool { acks, _, _ := r.counts(); return acks == 1 })
			r.settled()
			stats := r.guard.Stats()
			assert.Equal(t, tt.completed, stats.Completed)
			assert.Equal(t, 1-tt.completed, stats.Released)
			assert.Empty(t, r.waiting(poisoned))
			assert.Len(t, r.waiting(invoices), 1)
		})
	}
}

func TestUnknownOutcomesRunAgain(t *testing.T) {
	for _, o := range []idem.Outcome{idem.Unsettled, 99} {
		r := newRig(t)
		r.start(r.failing(1, idem.WithOutcome(errHandler, o)), r.dedup)
		r.publish("a")
		r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
		r.settled()
		r.heard(1, 1)
		assert.Equal(t, uint64(1), r.guard.Stats().Released)
	}
}
