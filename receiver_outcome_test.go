package idem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

var (
	errHandler = errors.New("no such customer")
	errBroker  = errors.New("channel closed")
)

// outcomeRow is one row of the table of outcomes.
type outcomeRow struct {
	name     string
	handler  error // what the handler returns
	classify func(error) idem.Outcome
	broken   bool         // the verb fails
	want     []string     // what follows on Begun and the handler
	leaves   idem.State   // what the next delivery finds
	reports  []error      // what Receive's error is; none: nil
	levels   []slog.Level // what is logged
}

func outcomeRows() []outcomeRow {
	always := func(o idem.Outcome) func(error) idem.Outcome { return func(error) idem.Outcome { return o } }
	warn := []slog.Level{slog.LevelWarn}
	return []outcomeRow{
		{name: "nil: complete, then ack",
			want: []string{"Complete", "Ack"}, leaves: idem.Completed},
		{name: "an Ack that fails does not undo the work",
			broken: true, want: []string{"Complete", "Ack"}, leaves: idem.Completed, reports: []error{errBroker}, levels: warn},
		{name: "an error that Classify maps to Ack is remembered",
			handler: errHandler, classify: always(idem.Ack),
			want: []string{"Complete", "Ack"}, leaves: idem.Completed, reports: []error{errHandler}},
		{name: "an error with outcome Ack is remembered",
			handler: idem.WithOutcome(errHandler, idem.Ack),
			want:    []string{"Complete", "Ack"}, leaves: idem.Completed, reports: []error{errHandler}},
		{name: "no error with outcome Ack",
			handler: idem.WithOutcome(nil, idem.Ack), want: []string{"Complete", "Ack"}, leaves: idem.Completed},
		{name: "an error: release, then requeue",
			handler: errHandler, want: []string{"Release", "Requeue"}, leaves: idem.Begun, reports: []error{errHandler}},
		{name: "a Requeue that fails",
			handler: errHandler, broken: true, want: []string{"Release", "Requeue"},
			leaves: idem.Begun, reports: []error{errHandler, errBroker}, levels: warn},
		{name: "context.Canceled from the handler is an ordinary failure",
			handler: fmt.Errorf("call: %w", context.Canceled),
			want:    []string{"Release", "Requeue"}, leaves: idem.Begun, reports: []error{context.Canceled}},
		{name: "no error, but outcome Requeue",
			handler: idem.WithOutcome(nil, idem.Requeue), want: []string{"Release", "Requeue"},
			leaves: idem.Begun, reports: []error{idem.WithOutcome(nil, idem.Requeue)}},
		{name: "postpone without an error: release, then ack",
			handler: idem.WithOutcome(nil, idem.Postpone), want: []string{"Release", "Ack"}, leaves: idem.Begun},
		{name: "postpone with an error",
			handler: idem.WithOutcome(errHandler, idem.Postpone),
			want:    []string{"Release", "Ack"}, leaves: idem.Begun, reports: []error{errHandler}},
		{name: "a postponing Ack that fails",
			handler: idem.WithOutcome(nil, idem.Postpone), broken: true,
			want: []string{"Release", "Ack"}, leaves: idem.Begun, reports: []error{errBroker}, levels: warn},
		{name: "reject: the broker first, then the guard",
			handler: idem.WithOutcome(errHandler, idem.Reject),
			want:    []string{"Reject", "remember Reject"}, leaves: idem.Rejected, reports: []error{errHandler}},
		{name: "a Reject that fails releases: the broker has it still",
			handler: idem.WithOutcome(errHandler, idem.Reject), broken: true,
			want: []string{"Reject", "Release"}, leaves: idem.Begun, reports: []error{errHandler, errBroker}, levels: warn},
		{name: "reject, wrapped",
			handler: fmt.Errorf("order 7: %w", idem.WithOutcome(errHandler, idem.Reject)),
			want:    []string{"Reject", "remember Reject"}, leaves: idem.Rejected, reports: []error{errHandler}},
		{name: "reject, joined",
			handler: errors.Join(io.ErrUnexpectedEOF, idem.WithOutcome(errHandler, idem.Reject)),
			want:    []string{"Reject", "remember Reject"}, leaves: idem.Rejected, reports: []error{errHandler, io.ErrUnexpectedEOF}},
		{name: "reject without an error",
			handler: idem.WithOutcome(nil, idem.Reject), want: []string{"Reject", "remember Reject"},
			leaves: idem.Rejected, reports: []error{idem.WithOutcome(nil, idem.Reject)}},
		{name: "unsettled: as requeue, and logged",
			handler: errHandler, classify: always(idem.Unsettled),
			want: []string{"Release", "Requeue"}, leaves: idem.Begun, reports: []error{errHandler}, levels: warn},
		{name: "unknown: as requeue, and logged",
			handler: errHandler, classify: always(99),
			want: []string{"Release", "Requeue"}, leaves: idem.Begun, reports: []error{errHandler}, levels: warn},
		{name: "success that Classify maps to Requeue",
			classify: always(idem.Requeue), want: []string{"Release", "Requeue"}, leaves: idem.Begun},
		{name: "success that Classify maps to Reject",
			classify: always(idem.Reject), want: []string{"Reject", "remember Reject"}, leaves: idem.Rejected},
		{name: "success that Classify maps to an unknown outcome",
			classify: always(5), want: []string{"Release", "Requeue"}, leaves: idem.Begun, levels: warn},
	}
}

func TestReceiveSettlesAsTheOutcomeSays(t *testing.T) {
	for _, row := range outcomeRows() {
		t.Run(row.name, func(t *testing.T) {
			h := newHookRig(t, failWith(row.handler))
			h.Classify = row.classify
			d := h.arrive("a")
			if row.broken {
				d.onVerb = func(context.Context, idem.Outcome) error { return errBroker }
			}

			err := h.Receive(t.Context(), d)

			assert.Equal(t, append([]string{"Begun", "handle"}, row.want...), h.diary.read())
			assert.Equal(t, row.leaves, h.state("a"))
			assertReports(t, err, row.reports)
			assert.Equal(t, row.levels, h.log.levels())
			assert.Equal(t, 1, d.identities, "the identity is read once")
			if v := d.only(t); v.outcome != idem.Ack {
				assertCause(t, v.cause, row.handler)
			}
		})
	}
}

// assertReports checks that err is all of want, and nil where that is empty.
func assertReports(t *testing.T, err error, want []error) {
	t.Helper()
	if len(want) == 0 {
		assert.NoError(t, err)
	}
	for _, w := range want {
		if errors.Unwrap(w) == nil && w.Error() == "idem: outcome "+idem.DefaultClassify(w).String() {
			assert.EqualError(t, err, w.Error())
			continue
		}
		assert.ErrorIs(t, err, w)
	}
}

// assertCause checks what a verb was told of a handler that ran: its own error,
// and never nil, which would say that it did not run.
func assertCause(t *testing.T, cause, handler error) {
	t.Helper()
	if handler == nil {
		assert.Error(t, cause)
		return
	}
	assert.Equal(t, handler, cause)
}

func TestReceiveReturnsASingleErrorAsItIs(t *testing.T) {
	h := newHookRig(t, failWith(errHandler))
	assert.Equal(t, errHandler, h.Receive(t.Context(), h.arrive("a")))
}

func TestAFailingVerbIsNamedWithTheMessage(t *testing.T) {
	for o, handler := range map[idem.Outcome]error{
		idem.Ack: nil, idem.Requeue: errHandler, idem.Reject: idem.WithOutcome(errHandler, idem.Reject),
	} {
		h := newHookRig(t, failWith(handler))
		d := h.arrive("order-7")
		d.id.Destination = "orders"
		d.onVerb = func(context.Context, idem.Outcome) error { return errBroker }

		err := h.Receive(t.Context(), d)

		assert.ErrorContains(t, err, fmt.Sprintf(`idem: %v of "order-7" failed: channel closed`, o))
		records := h.log.all()
		require.Len(t, records, 1)
		assert.Equal(t, "order-7", hookAttr(records[0], "id"))
		assert.Equal(t, "orders", hookAttr(records[0], "destination"))
		assert.Contains(t, hookAttr(records[0], "error"), "channel closed")
	}
}

// What a copy finds that comes back before the verb has returned.
func TestWhatACopyFindsDuringTheVerb(t *testing.T) {
	for name, row := range map[string]struct {
		handler error
		finds   idem.State
	}{
		"ack: completed already":            {nil, idem.Completed},
		"requeue: released already":         {errHandler, idem.Begun},
		"postpone: released already":        {idem.WithOutcome(nil, idem.Postpone), idem.Begun},
		"reject: in flight until it worked": {idem.WithOutcome(errHandler, idem.Reject), idem.InFlight},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHookRig(t, failWith(row.handler))
			d := h.arrive("a")
			var found []idem.State
			d.onVerb = func(context.Context, idem.Outcome) error {
				found = append(found, h.state("a"))
				return nil
			}
			_ = h.Receive(t.Context(), d)
			assert.Equal(t, []idem.State{row.finds}, found)
		})
	}
}

func TestAHandlerThatSettlesByItself(t *testing.T) {
	leaves := map[string]func() error{
		"returns nil":      func() error { return nil },
		"returns an error": func() error { return errHandler },
		"asks for another": func() error { return idem.WithOutcome(errHandler, idem.Reject) },
		"panics":           func() error { panic("out of tea") },
		"leaves by Goexit": func() error { panic(hookGoexit) },
	}
	for settled, row := range map[idem.Outcome]struct {
		guard string
		state idem.State
	}{
		idem.Ack:      {"Complete", idem.Completed},
		idem.Requeue:  {"Release", idem.Begun},
		idem.Reject:   {"remember Reject", idem.Rejected},
		idem.Postpone: {"Release", idem.Begun},
		99:            {"Release", idem.Begun}, // an adapter of tomorrow: rather twice than never
	} {
		for name, leave := range leaves {
			t.Run(fmt.Sprintf("%v, %s", settled, name), func(t *testing.T) {
				h := newHookRig(t, func(_ context.Context, d *fakeDelivery) error {
					d.native(settled)
					return orGoexit(leave)
				})
				d := h.arrive("a")
				how := depart(func() error { return h.Receive(t.Context(), d) })

				assert.Equal(t, []string{"Begun", "handle", "native " + settled.String(), row.guard}, h.diary.read())
				assert.Empty(t, d.calls(), "no verb is called")
				assert.Equal(t, row.state, h.state("a"))
				assert.Equal(t, depart(func() error { return orGoexit(leave) }), how, "it goes on as it left")
			})
		}
	}
}

func TestASelfSettledDeliveryIsNotClassified(t *testing.T) {
	h := newHookRig(t, func(_ context.Context, d *fakeDelivery) error {
		d.native(idem.Ack)
		return errHandler
	})
	h.Classify = func(error) idem.Outcome { t.Error("asked"); return idem.Requeue }
	assert.Equal(t, errHandler, h.Receive(t.Context(), h.arrive("a")))
}

// verbScenes are all the ways to a verb.
func verbScenes() map[string]func(t *testing.T, h *hookRig) {
	return map[string]func(t *testing.T, h *hookRig){
		"Ack":                  func(t *testing.T, h *hookRig) {},
		"Requeue":              func(t *testing.T, h *hookRig) { h.Classify = func(error) idem.Outcome { return idem.Requeue } },
		"Reject":               func(t *testing.T, h *hookRig) { h.Classify = func(error) idem.Outcome { return idem.Reject } },
		"Postpone":             func(t *testing.T, h *hookRig) { h.Classify = func(error) idem.Outcome { return idem.Postpone } },
		"Ack of a duplicate":   func(t *testing.T, h *hookRig) { h.guard.Complete(h.begun(t, "a")) },
		"Reject of a rejected": func(t *testing.T, h *hookRig) { h.guard.Reject(h.begun(t, "a")) },
		"Requeue of a held one": func(t *testing.T, h *hookRig) {
			h.begun(t, "a")
		},
		"Ack of a running one": func(t *testing.T, h *hookRig) {
			h.OnInFlight = idem.AckInFlight
			h.begun(t, "a")
		},
		"Requeue of a running one": func(t *testing.T, h *hookRig) {
			h.OnInFlight = idem.RequeueInFlight
			h.begun(t, "a")
		},
		"without a guard": func(t *testing.T, h *hookRig) { h.Guard = nil },
	}
}

type hookKey struct{}

func TestVerbsRunOnADetachedBoundedContext(t *testing.T) {
	for name, set := range verbScenes() {
		for _, timeout := range []time.Duration{0, 7 * time.Second} {
			t.Run(fmt.Sprint(name, " ", timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(context.WithValue(t.Context(), hookKey{}, "kept"))
					h := newHookRig(t, func(context.Context, *fakeDelivery) error { cancel(); return nil })
					h.SettleTimeout = timeout
					set(t, h)
					d := h.arrive("a")
					time.AfterFunc(time.Millisecond, cancel) // for those that never run

					_ = h.Receive(ctx, d)

					v := d.only(t)
					assert.NoError(t, v.err, "alive, though the caller's context may have ended")
					assert.Equal(t, defaultTo(timeout, 30*time.Second), v.left)
					assert.Equal(t, "kept", v.ctx.Value(hookKey{}))
					assert.Error(t, v.ctx.Err(), "ended when the verb has returned")
				})
			})
		}
	}
}

func defaultTo(d, whenZero time.Duration) time.Duration {
	if d == 0 {
		return whenZero
	}
	return d
}

func TestAVerbThatBlocksIsLeftAtItsDeadline(t *testing.T) {
	for name, set := range verbScenes() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHookRig(t, succeed)
				h.SettleTimeout, h.HoldTimeout = 5*time.Second, time.Second
				set(t, h)
				d := h.arrive("a")
				var blocked time.Duration
				d.onVerb = func(ctx context.Context, _ idem.Outcome) error {
					defer func(start time.Time) { blocked = time.Since(start) }(time.Now())
					<-ctx.Done()
					return ctx.Err()
				}

				assert.ErrorIs(t, h.Receive(t.Context(), d), context.DeadlineExceeded)

				d.only(t)
				assert.Equal(t, 5*time.Second, blocked)
				assert.Contains(t, h.log.levels(), slog.LevelWarn)
			})
		})
	}
}

func TestAnErrorFromIdentityIsTreatedAsTheHandlers(t *testing.T) {
	for name, row := range map[string]struct {
		classify func(error) idem.Outcome
		want     []string
	}{
		"by default it is given back": {nil, []string{"Requeue"}},
		"Classify maps it to Ack":     {func(error) idem.Outcome { return idem.Ack }, []string{"Ack"}},
		"Classify maps it to Reject":  {func(error) idem.Outcome { return idem.Reject }, []string{"Reject"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHookRig(t, succeed)
			h.Classify = row.classify
			d := h.arrive("")
			d.identity = func() (idem.Identity, error) { return idem.ID("half read"), errHandler }

			err := h.Receive(t.Context(), d)

			assert.Equal(t, row.want, h.diary.read(), "neither handler nor guard is touched")
			assert.ErrorIs(t, err, errHandler)
			assert.ErrorContains(t, err, "idem: no identity: ")
			if v := d.only(t); v.outcome != idem.Ack {
				assert.ErrorIs(t, v.cause, errHandler)
			}
			assert.Equal(t, idem.Stats{Horizon: h.guard.Stats().Horizon}, h.guard.Stats())
		})
	}
}

func TestAnIdentityThatSettlesByItself(t *testing.T) {
	h := newHookRig(t, succeed)
	d := h.arrive("")
	d.identity = func() (idem.Identity, error) {
		d.native(idem.Reject)
		return idem.Identity{}, errHandler
	}
	assert.ErrorIs(t, h.Receive(t.Context(), d), errHandler)
	assert.Equal(t, []string{"native Reject"}, h.diary.read())
}
