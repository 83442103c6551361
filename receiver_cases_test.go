package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

// What people have reported of other libraries, and what is right.

// With retries inside the handler, the claim is released after the last one.
func TestACopyThatComesBetweenTwoAttemptsDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		retry := func(context.Context) error {
			for range 2 {
				if attempts++; attempts == 2 {
					return nil
				}
				time.Sleep(time.Second) // the back-off, by the bubble's clock
			}
			return errHandler
		}
		h := newHookRig(t, func(ctx context.Context, _ *fakeDelivery) error { return retry(ctx) })
		done := make(chan error)
		go func() { done <- h.Receive(t.Context(), h.named("a", "d1")) }()
		time.Sleep(500 * time.Millisecond)
		assert.Equal(t, idem.InFlight, h.state("a"))
		require.NoError(t, h.Receive(t.Context(), h.named("a", "d2")))
		require.NoError(t, <-done)
		assert.Equal(t, 2, attempts)
		assert.NotContains(t, h.diary.read(), "d2: handle")
	})
}

func TestDoHoldsACopyBetweenTwoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard := hookGuard(t)
		calls := 0
		attempt := func(context.Context) error {
			calls++
			time.Sleep(time.Second)
			calls++
			return nil
		}
		done := make(chan error)
		go func() {
			_, err := idem.Do(t.Context(), guard, idem.ID("a"), attempt)
			done <- err
		}()
		synctest.Wait()
		ran, err := idem.Do(t.Context(), guard, idem.ID("a"), attempt)
		require.NoError(t, err)
		assert.False(t, ran)
		require.NoError(t, <-done)
		assert.Equal(t, 2, calls)
	})
}

// A duplicate that is not settled comes back for ever.
func TestEachCopyAfterALostAckIsDroppedAndAcked(t *testing.T) {
	h := newHookRig(t, succeed)
	lost := h.named("a", "d1")
	lost.onVerb = func(context.Context, idem.Outcome) error { return errBroker }
	require.ErrorIs(t, h.Receive(t.Context(), lost), errBroker)
	for _, name := range []string{"d2", "d3"} { // each by itself, not through d1
		require.NoError(t, h.Receive(t.Context(), h.named("a", name)))
	}
	assert.Equal(t, []string{"Begun", "d1: handle", "Complete", "d1: Ack", "Completed", "d2: Ack", "Completed", "d3: Ack"}, h.diary.read())
	assert.Zero(t, h.guard.Stats().InFlight)
}

// Acked is not done: the handler has sent its message again for later.
func TestAPostponedMessageRunsWhenItComesLater(t *testing.T) {
	runs := 0
	h := newHookRig(t, func(context.Context, *fakeDelivery) error {
		if runs++; runs == 1 {
			return idem.WithOutcome(nil, idem.Postpone)
		}
		return nil
	})
	first, delayed := h.arrive("a"), h.arrive("a")
	require.NoError(t, h.Receive(t.Context(), first))
	require.NoError(t, h.Receive(t.Context(), delayed))
	assert.Equal(t, 2, runs)
	assert.Equal(t, idem.Ack, first.only(t).outcome)
	assert.Equal(t, idem.Ack, delayed.only(t).outcome)
}

// The postponed copy may even come before the handler has returned.
func TestAPostponedMessageThatComesAtOnceRunsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		var h *hookRig
		done := make(chan error, 1)
		h = newHookRig(t, func(context.Context, *fakeDelivery) error {
			if runs++; runs > 1 {
				return nil
			}
			go func() { done <- h.Receive(t.Context(), h.arrive("a")) }()
			synctest.Wait()
			return idem.WithOutcome(nil, idem.Postpone)
		})
		require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
		require.NoError(t, <-done)
		assert.Equal(t, 2, runs)
		assert.Equal(t, idem.Completed, h.state("a"))
	})
}

// A fault of the deduplication must not lose the message.
func TestADeliveryWhoseIdentityFailsIsNeverAckedUnprocessed(t *testing.T) {
	h := newHookRig(t, succeed)
	d := h.arrive("")
	d.identity = func() (idem.Identity, error) { return idem.Identity{}, errors.New("header missing") }
	require.Error(t, h.Receive(t.Context(), d))
	assert.Equal(t, []idem.Outcome{idem.Requeue}, d.outcomes())
	assert.NotContains(t, h.diary.read(), "handle")
}

func TestAMessageWhoseHandlerPanickedRunsWhenItComesBack(t *testing.T) {
	runs := 0
	h := newHookRig(t, func(context.Context, *fakeDelivery) error {
		if runs++; runs == 1 {
			panic("out of tea")
		}
		return nil
	})
	how := depart(func() error { return h.Receive(t.Context(), h.arrive("a")) })
	assert.Equal(t, "out of tea", how.panicked)
	assert.Zero(t, h.guard.Stats().InFlight)
	require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
	assert.Equal(t, 2, runs)
}

func TestAMessageThatWasClaimedButNeverStartedRunsWhenItComesBack(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := newHookRig(t, succeed)
	h.calls.before = func(string) { cancel() }
	require.NoError(t, h.Receive(ctx, h.arrive("a")))
	require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
	assert.Equal(t, []string{"Begun", "Release", "Requeue", "Begun", "handle", "Complete", "Ack"}, h.diary.read())
}

// When the channel of the first one died, the second is the only live copy.
func TestACopyIsNotAnsweredAsHandledWhileTheFirstRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		h := newHookRig(t, func(context.Context, *fakeDelivery) error {
			time.Sleep(time.Second)
			if runs++; runs == 1 {
				return errHandler
			}
			return nil
		})
		first, second := h.arrive("a"), h.arrive("a")
		first.onVerb = func(context.Context, idem.Outcome) error { return errBroker }
		done := make(chan error)
		go func() { done <- h.Receive(t.Context(), first) }()
		synctest.Wait()
		require.NoError(t, h.Receive(t.Context(), second))
		require.ErrorIs(t, <-done, errBroker)
		assert.Equal(t, 2, runs)
		assert.Equal(t, []idem.Outcome{idem.Ack}, second.outcomes())
		assert.Equal(t, idem.Completed, h.state("a"))
	})
}

// No id, no deduplication; equal bodies are no id either.
func TestMessagesWithoutAnIDAreNotTheSame(t *testing.T) {
	type body struct {
		*fakeDelivery
		text string
	}
	for name, texts := range map[string][]string{"different bodies": {"x", "y"}, "the same body": {"x", "x", "x"}} {
		h := newHookRig(t, succeed)
		var ran []string
		r := &idem.Receiver[body]{Guard: h.calls, Handle: func(_ context.Context, d body) error {
			ran = append(ran, d.text)
			return nil
		}}
		for _, text := range texts {
			require.NoError(t, r.Receive(t.Context(), body{h.arrive(""), text}))
		}
		assert.Equal(t, texts, ran, name)
		assert.Zero(t, h.guard.Stats().Tracked, name)
	}
}

// A second ack of one delivery makes a broker close the channel.
func TestADeliveryTheHandlerSettledIsNotSettledAgain(t *testing.T) {
	for settled, state := range map[idem.Outcome]idem.State{idem.Ack: idem.Completed, idem.Requeue: idem.Begun} {
		h := newHookRig(t, func(ctx context.Context, d *fakeDelivery) error {
			if settled == idem.Ack {
				return d.Ack(ctx)
			}
			return d.Requeue(ctx, nil)
		})
		d := h.arrive("a")
		require.NoError(t, h.Receive(t.Context(), d))
		assert.Equal(t, []idem.Outcome{settled}, d.outcomes())
		assert.Equal(t, state, h.state("a"))
	}
}

// The Receiver's context is alive: somebody else's ended.
func TestACanceledInnerCallIsAnOrdinaryFailure(t *testing.T) {
	for _, inner := range []error{context.Canceled, context.DeadlineExceeded, fmt.Errorf("query: %w", context.Canceled)} {
		h := newHookRig(t, failWith(inner))
		d := h.arrive("a")
		require.Equal(t, inner, h.Receive(t.Context(), d))
		assert.Equal(t, []string{"Begun", "handle", "Release", "Requeue"}, h.diary.read())
		assert.Equal(t, inner, d.only(t).cause)
	}
}

// Settling is clean-up, not work.
func TestWorkFinishedAsTheContextEndsIsAcked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := newHookRig(t, func(context.Context, *fakeDelivery) error { cancel(); return nil })
	d := h.arrive("a")
	require.NoError(t, h.Receive(ctx, d))
	v := d.only(t)
	assert.Equal(t, idem.Ack, v.outcome)
	require.NoError(t, v.err)
	assert.Positive(t, v.left)
	assert.Equal(t, idem.Completed, h.state("a"))
}

// flaggedDelivery knows what the broker says about it.
type flaggedDelivery struct {
	*fakeDelivery
	Redelivered bool
}

// A flag is no proof of novelty: producers retry, and clusters fail over.
func TestTheRedeliveredFlagDecidesNothing(t *testing.T) {
	h := newHookRig(t, succeed)
	runs := 0
	r := &idem.Receiver[flaggedDelivery]{Guard: h.guard, Handle: func(context.Context, flaggedDelivery) error { runs++; return nil }}
	for _, flag := range []bool{true, false, false} {
		require.NoError(t, r.Receive(t.Context(), flaggedDelivery{h.arrive("a"), flag}))
	}
	assert.Equal(t, 1, runs)
}

// Prefetched and never begun: the guard has nothing of it.
func TestWhatWasPrefetchedAndNotBegunRunsWhenItComesBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHookRig(t, func(context.Context, *fakeDelivery) error { cancel(); return nil })
		ds := h.arriveAll(50)
		left := ds
		assert.Equal(t, context.Canceled, h.Consume(ctx, 1, inOrder(func(context.Context) (*fakeDelivery, error) {
			d := left[0]
			left = left[1:]
			return d, nil
		})))
		for _, d := range ds[1:] {
			assert.NotContains(t, d.outcomes(), idem.Ack)
			assert.Equal(t, idem.Begun, h.state(d.id.ID))
		}
		require.NoError(t, h.Consume(t.Context(), 4, feedOf(ds[1:]...)))
		assert.Equal(t, uint64(50), h.guard.Stats().Completed)
	})
}
