package idem_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

func TestReceiveByState(t *testing.T) {
	for _, row := range []struct {
		name   string
		before func(t *testing.T, h *hookRig) // what has become of the message so far
		want   []string
		cause  error
		levels []slog.Level
	}{
		{"unknown: runs the handler once", func(*testing.T, *hookRig) {},
			[]string{"Begun", "handle", "Complete", "Ack"}, nil, nil},
		{"released: runs again", func(t *testing.T, h *hookRig) { h.guard.Release(h.begun(t, "a")) },
			[]string{"Begun", "handle", "Complete", "Ack"}, nil, nil},
		{"completed: acked", func(t *testing.T, h *hookRig) { h.guard.Complete(h.begun(t, "a")) },
			[]string{"Completed", "Ack"}, nil, []slog.Level{slog.LevelDebug}},
		{"rejected: rejected again, neither run nor lost", func(t *testing.T, h *hookRig) { h.guard.Reject(h.begun(t, "a")) },
			[]string{"Rejected", "Reject"}, idem.ErrRejected, []slog.Level{slog.LevelWarn}},
		{"forgotten after a reject: runs", func(t *testing.T, h *hookRig) {
			h.guard.Reject(h.begun(t, "a"))
			require.True(t, h.guard.Forget(idem.ID("a")))
		}, []string{"Begun", "handle", "Complete", "Ack"}, nil, nil},
		{"an answer that is no state: given back, not lost", func(_ *testing.T, h *hookRig) {
			unknown := idem.State(9)
			h.calls.answer = &unknown
		}, []string{"Requeue"}, nil, []slog.Level{slog.LevelWarn}},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := newHookRig(t, succeed)
			row.before(t, h)
			d := h.arrive("a")

			require.NoError(t, h.Receive(t.Context(), d))

			assert.Equal(t, row.want, h.diary.read())
			assert.Equal(t, row.cause, d.only(t).cause)
			assert.Equal(t, row.levels, h.log.levels())
		})
	}
}

func TestADuplicateWhoseVerbFailsIsReported(t *testing.T) {
	for name, settle := range map[string]func(*hookRig, idem.Claim){
		"completed": func(h *hookRig, c idem.Claim) { h.guard.Complete(c) },
		"rejected":  func(h *hookRig, c idem.Claim) { h.guard.Reject(c) },
		"in flight": func(h *hookRig, _ idem.Claim) { h.OnInFlight = idem.AckInFlight },
	} {
		h := newHookRig(t, succeed)
		settle(h, h.begun(t, "a"))
		d := h.arrive("a")
		d.onVerb = func(context.Context, idem.Outcome) error { return errBroker }
		assert.ErrorIs(t, h.Receive(t.Context(), d), errBroker, name)
		assert.Contains(t, h.log.levels(), slog.LevelWarn, name)
		assert.NotContains(t, h.log.levels(), slog.LevelError, name)
		d.only(t)
	}
}

func TestADuplicateIsSettledAlsoWhenTheContextHasEnded(t *testing.T) {
	h := newHookRig(t, succeed)
	h.guard.Complete(h.begun(t, "a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := h.arrive("a")
	require.NoError(t, h.Receive(ctx, d))
	assert.Equal(t, idem.Ack, d.only(t).outcome)
}

func TestUnidentifiedMessagesAllRun(t *testing.T) {
	h := newHookRig(t, succeed)
	before := h.guard.Stats()
	for range 3 {
		require.NoError(t, h.Receive(t.Context(), h.arrive("")))
		assert.Equal(t, []string{"Begun", "handle", "Complete of nothing", "Ack"}, h.diary.read())
	}
	before.Unidentified = 3
	assert.Equal(t, before, h.guard.Stats())
}

func TestWithoutAGuardEveryDeliveryRuns(t *testing.T) {
	for name, guard := range map[string]idem.IdempotencyGuard{
		"nil":                   nil,
		"a nil *Generational":   (*idem.Generational)(nil),
		"a zero *Generational":  &idem.Generational{},
		"of a Durable endpoint": durableGuard(t),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHookRig(t, succeed)
			h.Guard = guard
			for range 3 {
				d := h.arrive("a")
				d.identity = func() (idem.Identity, error) { return idem.Identity{}, errHandler } // nobody asks
				require.NoError(t, h.Receive(t.Context(), d))
				assert.Equal(t, []string{"handle", "Ack"}, h.diary.read())
				assert.Zero(t, d.identities)
			}
			h.Classify = func(error) idem.Outcome { return idem.Reject }
			require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
			assert.Equal(t, []string{"handle", "Reject"}, h.diary.read())
		})
	}
}

func durableGuard(t *testing.T) *idem.Generational {
	captureDefaultLog(t)
	endpoints, err := idem.NewEndpoints()
	require.NoError(t, err)
	guard, err := endpoints.Guard(idem.Endpoint{Name: "orders", Mode: idem.Durable})
	require.NoError(t, err)
	return guard
}

// The handler's context is the caller's own, not one made for it.
func TestTheHandlerGetsTheContextAndTheDelivery(t *testing.T) {
	ctx := context.WithValue(t.Context(), hookKey{}, "mine")
	var h *hookRig
	d := &fakeDelivery{}
	h = newHookRig(t, func(got context.Context, delivery *fakeDelivery) error {
		assert.Equal(t, ctx, got)
		assert.Same(t, d, delivery)
		return nil
	})
	d.id, d.diary = idem.ID("a"), h.diary
	require.NoError(t, h.Receive(ctx, d))
}

func TestADeliveryMayBeAnInterface(t *testing.T) {
	h := newHookRig(t, succeed)
	r := &idem.Receiver[idem.Delivery]{Guard: h.calls, Handle: func(context.Context, idem.Delivery) error { return nil }}
	require.NoError(t, r.Receive(t.Context(), h.arrive("a")))
	assert.Equal(t, []string{"Begun", "Complete", "Ack"}, h.diary.read())
}

// ctxMoments are the moments at which a context can end, and what follows.
func ctxMoments() map[string]struct {
	end  func(t *testing.T, h *hookRig, d *fakeDelivery, cancel func())
	want []string
	runs bool
} {
	type moment = struct {
		end  func(t *testing.T, h *hookRig, d *fakeDelivery, cancel func())
		want []string
		runs bool
	}
	inGuard := func(call string) func(*testing.T, *hookRig, *fakeDelivery, func()) {
		return func(_ *testing.T, h *hookRig, _ *fakeDelivery, cancel func()) {
			h.calls.before = func(c string) {
				if c == call {
					cancel()
				}
			}
		}
	}
	handled := []string{"Begun", "handle", "Complete", "Ack"}
	return map[string]moment{
		"before Receive": {func(_ *testing.T, _ *hookRig, _ *fakeDelivery, cancel func()) { cancel() },
			[]string{"Begun", "Release", "Requeue"}, false},
		"while the identity is read": {func(_ *testing.T, _ *hookRig, d *fakeDelivery, cancel func()) {
			d.identity = func() (idem.Identity, error) { cancel(); return d.id, nil }
		}, []string{"Begun", "Release", "Requeue"}, false},
		"between Begun and the handler": {inGuard("TryBegin"),
			[]string{"Begun", "Release", "Requeue"}, false},
		"in the handler": {func(_ *testing.T, h *hookRig, _ *fakeDelivery, cancel func()) {
			handle := h.Handle
			h.Handle = func(ctx context.Context, d *fakeDelivery) error { cancel(); return handle(ctx, d) }
		}, handled, true},
		"in Complete": {inGuard("Complete"), handled, true},
		"in the verb": {func(_ *testing.T, _ *hookRig, d *fakeDelivery, cancel func()) {
			d.onVerb = func(ctx context.Context, _ idem.Outcome) error { cancel(); return ctx.Err() }
		}, handled, true},
		"while held": {func(t *testing.T, h *hookRig, _ *fakeDelivery, cancel func()) {
			h.begun(t, "a")
			time.AfterFunc(time.Second, cancel)
		}, []string{"InFlight", "Requeue"}, false},
		"while held, before the first look": {func(t *testing.T, h *hookRig, _ *fakeDelivery, cancel func()) {
			h.begun(t, "a")
			cancel()
		}, []string{"InFlight", "Requeue"}, false},
	}
}

func TestWhenTheContextEnds(t *testing.T) {
	for name, row := range ctxMoments() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				h := newHookRig(t, succeed)
				d := h.arrive("a")
				row.end(t, h, d, cancel)

				require.NoError(t, h.Receive(ctx, d), "giving back in order is no error")

				assert.Equal(t, row.want, h.diary.read())
				require.NoError(t, d.only(t).err, "the verb's context is alive")
				assert.NoError(t, d.only(t).cause, "never begun, nothing failed")
				for _, level := range h.log.levels() {
					assert.Equal(t, slog.LevelDebug, level)
				}
				assert.Equal(t, row.runs, h.state("a") == idem.Completed)
			})
		})
	}
}

// The turn of a held delivery comes, and its context has ended meanwhile.
func TestWhenTheContextEndsAsAHeldOnesTurnComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHookRig(t, succeed)
		running := h.begun(t, "a")
		d := h.arrive("a")
		looks := 0
		h.calls.before = func(call string) {
			if looks++; call == "TryBegin" && looks == 2 {
				cancel()
			}
		}
		time.AfterFunc(time.Second, func() { h.guard.Release(running) })

		require.NoError(t, h.Receive(ctx, d))

		assert.Equal(t, []string{"InFlight", "Begun", "Release", "Requeue"}, h.diary.read())
		assert.NoError(t, d.only(t).cause)
		assert.Equal(t, idem.Begun, h.state("a"))
	})
}

func TestReceiveWithoutAGuardGivesBackWhenTheContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h := newHookRig(t, succeed)
	h.Guard = nil
	d := h.arrive("a")
	require.NoError(t, h.Receive(ctx, d))
	assert.Equal(t, []string{"Requeue"}, h.diary.read())
	assert.NoError(t, d.only(t).cause)
}

func TestAMisusedReceiverPanicsAtOnce(t *testing.T) {
	handle := func(context.Context, *fakeDelivery) error { return nil }
	type receiver = idem.Receiver[*fakeDelivery]
	for want, r := range map[string]*receiver{
		"idem: nil Receiver":                                          nil,
		"idem: Receiver without Handle":                               {},
		"idem: Receiver with unknown OnInFlight: InFlightPolicy(3)":   {Handle: handle, OnInFlight: 3},
		"idem: Receiver with unknown OnInFlight: InFlightPolicy(255)": {Handle: handle, OnInFlight: 255},
		"HoldTimeout -1ns":                                            {Handle: handle, HoldTimeout: -1},
		"SettleTimeout -1s":                                           {Handle: handle, SettleTimeout: -time.Second},
		"Drain -1m0s":                                                 {Handle: handle, Drain: -time.Minute},
		"Drain -2562047h47m16.854775808s":                             {Handle: handle, Drain: math.MinInt64},
	} {
		d := &fakeDelivery{id: idem.ID("a"), diary: &hookDiary{}}
		calls := map[string]func() error{
			"Receive": func() error { return r.Receive(t.Context(), d) },
			"Consume": func() error {
				return r.Consume(t.Context(), 1, func(context.Context) (*fakeDelivery, error) {
					t.Error("next called")
					return nil, os.ErrClosed
				})
			},
		}
		for name, call := range calls {
			text, _ := depart(call).panicked.(string)
			assert.True(t, strings.HasPrefix(text, "idem: "), "%s: %q", name, text)
			assert.Contains(t, text, want, name)
		}
		assert.Empty(t, d.calls())
		assert.Zero(t, d.identities)
	}
}

func TestTheLongestDurationsWork(t *testing.T) {
	h := newHookRig(t, succeed)
	h.HoldTimeout, h.SettleTimeout, h.Drain = math.MaxInt64, math.MaxInt64, math.MaxInt64
	require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
	require.NoError(t, h.Consume(t.Context(), 1, feedOf(h.arrive("a"))))
	assert.Equal(t, []string{"Begun", "handle", "Complete", "Ack", "Completed", "Ack"}, h.diary.read())
}

func TestTheDefaultLoggerIsSlogs(t *testing.T) {
	log := captureDefaultLog(t)
	h := newHookRig(t, succeed)
	h.Logger = nil
	h.guard.Reject(h.begun(t, "a"))
	require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
	assert.Equal(t, []slog.Level{slog.LevelWarn}, log.levels())
}

func TestALoggerThatWantsNoDebugGetsNone(t *testing.T) {
	h := newHookRig(t, succeed)
	h.log.least = slog.LevelInfo
	h.guard.Complete(h.begun(t, "a"))
	require.NoError(t, h.Receive(t.Context(), h.arrive("a")))
	assert.Empty(t, h.log.levels())
}

func TestAReceiverIsForManyGoroutines(t *testing.T) {
	const ids, copies = 20, 10
	h := newHookRig(t, succeed)
	done := make(chan error)
	for n := range ids * copies {
		go func() { done <- h.Receive(t.Context(), h.arrive(fmt.Sprint(n%ids))) }()
	}
	for range ids * copies {
		require.NoError(t, <-done)
	}
	count := map[string]int{}
	for _, line := range h.diary.read() {
		count[line]++
	}
	assert.Equal(t, ids, count["handle"])
	assert.Equal(t, ids*copies, count["Ack"])
	assert.Equal(t, uint64(ids), h.guard.Stats().Completed)
}
