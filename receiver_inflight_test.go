package idem_test

import (
	"context"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

// Neither runs nor settles until the running one is settled; then what became
// of that decides.
func TestAHeldDeliveryGoesByWhatBecomesOfTheRunningOne(t *testing.T) {
	for _, row := range []struct {
		name    string
		becomes func(g *idem.Generational, c idem.Claim)
		want    []string
		leaves  idem.State
	}{
		{"completed: acked", (*idem.Generational).Complete, []string{"InFlight", "Completed", "Ack"}, idem.Completed},
		{"failed: its own turn", (*idem.Generational).Release, []string{"InFlight", "Begun", "handle", "Complete", "Ack"}, idem.Completed},
		{"rejected: rejected again", (*idem.Generational).Reject, []string{"InFlight", "Rejected", "Reject"}, idem.Rejected},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHookRig(t, succeed)
				running := h.begun(t, "a")
				d := h.arrive("a")
				start := time.Now()
				time.AfterFunc(17*time.Second, func() {
					assert.Empty(t, d.calls(), "held: not settled")
					row.becomes(h.guard, running)
				})

				require.NoError(t, h.Receive(t.Context(), d))

				assert.Equal(t, 17*time.Second, time.Since(start), "woken at once")
				assert.Equal(t, row.want, h.diary.read())
				assert.Equal(t, row.leaves, h.state("a"))
				d.only(t)
			})
		})
	}
}

func TestAHeldDeliveryGetsItsTurnWhenTheLeaseLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = time.Minute
		h := newHookRig(t, succeed, idem.WithLease(lease))
		h.HoldTimeout = time.Hour
		h.begun(t, "a") // leaked
		start := time.Now()

		require.NoError(t, h.Receive(t.Context(), h.arrive("a")))

		assert.Equal(t, []string{"InFlight", "Begun", "handle", "Complete", "Ack"}, h.diary.read())
		assert.GreaterOrEqual(t, time.Since(start), lease)
		assert.LessOrEqual(t, time.Since(start), 2*lease+time.Second)
	})
}

func TestAHeldDeliveryIsGivenBackAtTheHoldTimeout(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{0: time.Minute, 5 * time.Second: 5 * time.Second, time.Nanosecond: time.Nanosecond} {
		synctest.Test(t, func(t *testing.T) {
			h := newHookRig(t, succeed)
			h.HoldTimeout = timeout
			running := h.begun(t, "a")
			d := h.arrive("a")
			start := time.Now()

			require.NoError(t, h.Receive(t.Context(), d), "nothing failed")

			assert.Equal(t, want, time.Since(start))
			assert.Equal(t, []string{"InFlight", "Requeue"}, h.diary.read())
			assert.NoError(t, d.only(t).cause)
			assert.Equal(t, []slog.Level{slog.LevelDebug}, h.log.levels())
			assert.Equal(t, idem.InFlight, h.state("a"), "the running one's claim is its own")
			h.guard.Complete(running)
			assert.Equal(t, idem.Completed, h.state("a"))
		})
	}
}

// The time to hold is one, however often somebody else gets the turn.
func TestTheHoldTimeoutCountsFromTheFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHookRig(t, succeed)
		h.HoldTimeout = 10 * time.Second
		running := h.begun(t, "a")
		h.calls.before = func(call string) {
			if call == "TryBegin" { // somebody is always faster
				h.guard.Release(running)
				running, _ = h.guard.TryBegin(idem.ID("a"))
				time.AfterFunc(4*time.Second, func() { h.guard.Release(running) })
			}
		}
		start := time.Now()
		require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.Equal(t, []string{"InFlight", "InFlight", "InFlight", "Requeue"}, h.diary.read())
	})
}

func TestAHeldDeliveryIsGivenBackWhenTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		h := newHookRig(t, succeed)
		h.HoldTimeout = math.MaxInt64
		h.begun(t, "a")
		d := h.arrive("a")
		start := time.Now()
		require.NoError(t, h.Receive(ctx, d))
		assert.Equal(t, 3*time.Second, time.Since(start))
		assert.Equal(t, []string{"InFlight", "Requeue"}, h.diary.read())
		assert.NoError(t, d.only(t).cause)
	})
}

// Of many held copies one runs at a time, each as the one before fails.
func TestHeldCopiesRunOneAtATimeUntilOneSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const copies, failures = 10, 4
		running, most, runs := 0, 0, 0
		h := newHookRig(t, func(context.Context, *fakeDelivery) error {
			running++
			most = max(most, running)
			time.Sleep(time.Second) // the bubble's clock
			running--
			if runs++; runs <= failures {
				return errHandler
			}
			return nil
		})
		h.Guard = h.guard
		done := make(chan error, copies)
		for range copies {
			go func() { done <- h.Receive(t.Context(), h.arrive("a")) }()
		}
		failed := 0
		for range copies {
			if <-done != nil {
				failed++
			}
		}
		assert.Equal(t, 1, most)
		assert.Equal(t, failures, failed)
		assert.Equal(t, failures+1, runs)
		s := h.guard.Stats()
		assert.Equal(t, uint64(failures+1), s.Begun)
		assert.Equal(t, uint64(copies-1), s.DuplicatesInFlight, "a held delivery counts once")
		assert.Zero(t, s.DuplicatesCompleted)
	})
}

func TestRequeueInFlightPausesAndGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHookRig(t, succeed)
		h.OnInFlight = idem.RequeueInFlight
		h.begun(t, "a")
		d := h.arrive("a")
		start := time.Now()
		require.NoError(t, h.Receive(t.Context(), d))
		assert.Equal(t, time.Second, time.Since(start))
		assert.Equal(t, []string{"InFlight", "Requeue"}, h.diary.read())
		assert.NoError(t, d.only(t).cause)
		assert.Equal(t, []slog.Level{slog.LevelDebug}, h.log.levels())
		assert.Equal(t, uint64(1), h.guard.Stats().DuplicatesInFlight)
	})
}

// pausingDelivery knows its own pause.
type pausingDelivery struct {
	*fakeDelivery
	pause time.Duration
}

func (d pausingDelivery) RequeuePause() time.Duration { return d.pause }

func TestTheAdaptersPauseComesFirst(t *testing.T) {
	for _, pause := range []time.Duration{-time.Second, 0, 20 * time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			h := newHookRig(t, succeed)
			r := &idem.Receiver[pausingDelivery]{
				Guard: h.calls, OnInFlight: idem.RequeueInFlight, Logger: h.Logger,
				Handle: func(context.Context, pausingDelivery) error { return errHandler },
			}
			h.begun(t, "a")
			d := pausingDelivery{h.arrive("a"), pause}
			start := time.Now()
			require.NoError(t, r.Receive(t.Context(), d))
			assert.Equal(t, max(0, pause), time.Since(start))
			assert.Equal(t, idem.Requeue, d.only(t).outcome)
		})
	}
}

func TestAPauseEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		h := newHookRig(t, succeed)
		h.OnInFlight = idem.RequeueInFlight
		h.begun(t, "a")
		d := h.arrive("a")
		start := time.Now()
		require.NoError(t, h.Receive(ctx, d))
		assert.Equal(t, 300*time.Millisecond, time.Since(start))
		require.NoError(t, d.only(t).err)
	})
}

// The documented loss: what was acked is gone if the running one fails.
func TestAckInFlightAcksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHookRig(t, succeed)
		h.OnInFlight = idem.AckInFlight
		running := h.begun(t, "a")
		d := h.arrive("a")
		start := time.Now()
		require.NoError(t, h.Receive(t.Context(), d))
		assert.Zero(t, time.Since(start))
		assert.Equal(t, []string{"InFlight", "Ack"}, h.diary.read())
		assert.Equal(t, idem.Ack, d.only(t).outcome)
		assert.Equal(t, []slog.Level{slog.LevelDebug}, h.log.levels())
		h.guard.Release(running)
		assert.Equal(t, idem.Begun, h.state("a"))
	})
}

// The policies are for running messages only.
func TestThePolicyLeavesSettledMessagesAlone(t *testing.T) {
	for _, policy := range []idem.InFlightPolicy{idem.HoldInFlight, idem.RequeueInFlight, idem.AckInFlight} {
		h := newHookRig(t, succeed)
		h.OnInFlight = policy
		h.guard.Complete(h.begun(t, "done"))
		h.guard.Reject(h.begun(t, "dead"))
		for _, id := range []string{"done", "dead", "new"} {
			require.NoError(t, h.Receive(t.Context(), h.arrive(id)))
		}
		assert.Equal(t, []string{"Completed", "Ack", "Rejected", "Reject", "Begun", "handle", "Complete", "Ack"}, h.diary.read(), policy)
	}
}

// hastyGuard wakes its waiters for nothing, as a guard written elsewhere may.
type hastyGuard struct {
	*recordingGuard
	ctx context.Context
}

func (g *hastyGuard) Wait(ctx context.Context, _ idem.Identity) error {
	g.ctx = ctx
	g.diary.note("Wait")
	time.Sleep(time.Second) // the bubble's clock
	return nil
}

func TestAWaitThatReturnsTooEarlyRunsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHookRig(t, succeed)
		h.HoldTimeout = 2500 * time.Millisecond
		h.begun(t, "a")
		guard := &hastyGuard{recordingGuard: h.calls}
		h.Guard = guard
		require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
		assert.Equal(t, []string{"InFlight", "Wait", "InFlight", "Wait", "InFlight", "Wait", "InFlight", "Requeue"}, h.diary.read())
		assert.Error(t, guard.ctx.Err(), "nothing of the hold is left")
	})
}

func TestNothingOfTheHoldIsLeftWhenItsTurnHasCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHookRig(t, succeed)
		h.HoldTimeout = time.Hour
		running := h.begun(t, "a")
		guard := &hastyGuard{recordingGuard: h.calls}
		h.Guard = guard
		time.AfterFunc(1500*time.Millisecond, func() { h.guard.Release(running) })
		require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
		assert.Equal(t, []string{"InFlight", "Wait", "InFlight", "Wait", "Begun", "handle", "Complete", "Ack"}, h.diary.read())
		assert.Equal(t, context.Canceled, guard.ctx.Err(), "its timer is stopped")
	})
}
