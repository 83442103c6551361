package idem_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

// faultPlace is a place where foreign code runs, and what follows when it does
// not return.
type faultPlace struct {
	name   string
	set    func(h *hookRig, d *fakeDelivery, fault func())
	want   []string
	leaves idem.State
}

// The clock's readings for one message that is handled: TryBegin, then the verb.
func faultPlaces() []faultPlace {
	inVerb := func(o idem.Outcome, classify idem.Outcome) func(*hookRig, *fakeDelivery, func()) {
		return func(h *hookRig, d *fakeDelivery, fault func()) {
			h.Classify = func(error) idem.Outcome { return classify }
			d.onVerb = func(_ context.Context, called idem.Outcome) error {
				if called == o {
					fault()
				}
				return nil
			}
		}
	}
	inGuard := func(call string, classify idem.Outcome) func(*hookRig, *fakeDelivery, func()) {
		return func(h *hookRig, d *fakeDelivery, fault func()) {
			h.Classify = func(error) idem.Outcome { return classify }
			h.calls.before = once(call, fault)
		}
	}
	return []faultPlace{
		{"Identity", func(_ *hookRig, d *fakeDelivery, fault func()) {
			d.identity = func() (idem.Identity, error) { fault(); return idem.Identity{}, nil }
		}, []string{"Release of nothing", "Requeue"}, idem.Begun},
		{"TryBegin", inGuard("TryBegin", idem.Ack), []string{"Release of nothing", "Requeue"}, idem.Begun},
		{"the handler", func(h *hookRig, _ *fakeDelivery, fault func()) {
			h.Handle = func(context.Context, *fakeDelivery) error { fault(); return nil }
		}, []string{"Begun", "Release", "Requeue"}, idem.Begun},
		{"Settled, once", func(_ *hookRig, d *fakeDelivery, fault func()) {
			d.onSettled = func(o idem.Outcome, reads int) idem.Outcome {
				if reads == 1 {
					fault()
				}
				return o
			}
		}, []string{"Begun", "handle", "Release", "Requeue"}, idem.Begun},
		{"Settled, always", func(_ *hookRig, d *fakeDelivery, fault func()) {
			d.onSettled = func(o idem.Outcome, _ int) idem.Outcome { fault(); return o }
		}, []string{"Begun", "handle", "Release", "Requeue"}, idem.Begun},
		{"Classify", func(h *hookRig, _ *fakeDelivery, fault func()) {
			h.Classify = func(error) idem.Outcome { fault(); return idem.Ack }
		}, []string{"Begun", "handle", "Release", "Requeue"}, idem.Begun},
		{"the logger, told of an unknown outcome", func(h *hookRig, _ *fakeDelivery, fault func()) {
			h.Classify = func(error) idem.Outcome { return 9 }
			h.log.onRecord = func(slog.Record) { fault() }
		}, []string{"Begun", "handle", "Release", "Release", "Requeue"}, idem.Begun},
		{"the logger, told of a failing Ack", func(h *hookRig, d *fakeDelivery, fault func()) {
			d.onVerb = func(context.Context, idem.Outcome) error { return errBroker }
			h.log.onRecord = func(slog.Record) { fault() }
		}, []string{"Begun", "handle", "Complete", "Ack", "Release"}, idem.Completed},
		{"the logger, told of a failing Reject", func(h *hookRig, d *fakeDelivery, fault func()) {
			h.Classify = func(error) idem.Outcome { return idem.Reject }
			d.onVerb = func(context.Context, idem.Outcome) error { return errBroker }
			h.log.onRecord = func(slog.Record) { fault() }
		}, []string{"Begun", "handle", "Reject", "Release"}, idem.Begun},
		{"Complete", inGuard("Complete", idem.Ack), []string{"Begun", "handle", "Complete", "Release", "Requeue"}, idem.Begun},
		{"Release", inGuard("Release", idem.Requeue), []string{"Begun", "handle", "Release", "Release", "Requeue"}, idem.Begun},
		{"Release of a postponed one", inGuard("Release", idem.Postpone), []string{"Begun", "handle", "Release", "Release", "Requeue"}, idem.Begun},
		{"the guard's Reject", inGuard("remember Reject", idem.Reject),
			[]string{"Begun", "handle", "Reject", "remember Reject", "Release"}, idem.Begun},
		{"Ack", inVerb(idem.Ack, idem.Ack), []string{"Begun", "handle", "Complete", "Ack", "Release"}, idem.Completed},
		{"Ack of a postponed one", inVerb(idem.Ack, idem.Postpone), []string{"Begun", "handle", "Release", "Ack", "Release"}, idem.Begun},
		{"Requeue", inVerb(idem.Requeue, idem.Requeue), []string{"Begun", "handle", "Release", "Requeue", "Release"}, idem.Begun},
		{"Reject", inVerb(idem.Reject, idem.Reject), []string{"Begun", "handle", "Reject", "Release"}, idem.Begun},
		{"the logger, told of a duplicate", func(h *hookRig, _ *fakeDelivery, fault func()) {
			claim, _ := h.guard.TryBegin(idem.ID("a"))
			h.guard.Complete(claim)
			h.log.onRecord = func(slog.Record) { fault() }
		}, []string{"Completed", "Release of nothing", "Requeue"}, idem.Completed},
	}
}

// once runs fault at the first of these calls.
func once(call string, fault func()) func(string) {
	done := false
	return func(c string) {
		if c == call && !done {
			done = true
			fault()
		}
	}
}

// Whatever doesn't return: nothing stays in flight, the delivery is settled by
// one verb, and the panic or Goexit goes on with its own value.
func TestWhateverDoesNotReturnLeavesNothingBehind(t *testing.T) {
	value := errors.New("out of tea")
	for _, place := range faultPlaces() {
		for kind, fault := range map[string]func(){"panic": func() { panic(value) }, "Goexit": runtime.Goexit} {
			t.Run(kind+" in "+place.name, func(t *testing.T) {
				h := newHookRig(t, succeed)
				d := h.arrive("a")
				place.set(h, d, fault)

				how := depart(func() error { return h.Receive(t.Context(), d) })

				assert.Equal(t, kind == "Goexit", how.goexit)
				if kind == "panic" {
					assert.Same(t, value, how.panicked)
				}
				assert.Equal(t, place.want, h.diary.read())
				d.only(t)
				assert.Zero(t, h.guard.Stats().InFlight)
				assert.Equal(t, place.leaves, h.state("a"))
			})
		}
	}
}

func TestTheCauseSaysThatTheHandlerDidNotReturn(t *testing.T) {
	h := newHookRig(t, func(context.Context, *fakeDelivery) error { panic("out of tea") })
	d := h.arrive("a")
	depart(func() error { return h.Receive(t.Context(), d) })
	assert.ErrorContains(t, d.only(t).cause, "idem: handling panicked")
}

// Each step of the clean-up is taken, also when another one panics in its turn.
func TestASecondPanicStopsNoStepOfTheCleanUp(t *testing.T) {
	for _, row := range []struct {
		name   string
		set    func(h *hookRig, d *fakeDelivery)
		want   []string
		leaves idem.State
	}{
		{"in Release", func(h *hookRig, _ *fakeDelivery) {
			h.calls.before = once("Release", func() { panic("second") })
		}, []string{"Begun", "handle", "Release", "Requeue"}, idem.InFlight},
		{"in Requeue", func(_ *hookRig, d *fakeDelivery) {
			d.onVerb = func(context.Context, idem.Outcome) error { panic("second") }
		}, []string{"Begun", "handle", "Release", "Requeue"}, idem.Begun},
		{"in the logger, of a Requeue that fails", func(h *hookRig, d *fakeDelivery) {
			d.onVerb = func(context.Context, idem.Outcome) error { return errBroker }
			h.log.onRecord = func(slog.Record) { panic("second") }
		}, []string{"Begun", "handle", "Release", "Requeue"}, idem.Begun},
		{"in Settled", func(_ *hookRig, d *fakeDelivery) {
			d.onSettled = func(idem.Outcome, int) idem.Outcome { panic("second") }
		}, []string{"Begun", "handle", "Release", "Requeue"}, idem.Begun},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := newHookRig(t, func(context.Context, *fakeDelivery) error { panic("first") })
			d := h.arrive("a")
			row.set(h, d)
			how := depart(func() error { return h.Receive(t.Context(), d) })
			assert.Equal(t, "second", how.panicked, "the runtime shows both")
			assert.Equal(t, row.want, h.diary.read())
			d.only(t)
			assert.Equal(t, row.leaves, h.state("a"))
		})
	}
}

// hookClock panics when it is told to.
type hookClock struct {
	reads atomic.Int64
	at    func(read int64) bool // whether to panic at the n-th reading, from 1
}

func (c *hookClock) Now() time.Time {
	if n := c.reads.Add(1); c.at != nil && c.at(n) {
		panic("clock stopped")
	}
	return time.Unix(1_700_000_000, 0)
}

func TestAClockThatPanicsInsideTheGuard(t *testing.T) {
	for _, row := range []struct {
		name string
		at   func(int64) bool
		want []string
		left int // in flight
	}{
		{"in TryBegin", func(n int64) bool { return n == 1 }, []string{"Requeue"}, 0},
		{"in Complete", func(n int64) bool { return n == 2 }, []string{"handle", "Requeue"}, 0},
		{"in Complete, and in the Release after it", func(n int64) bool { return n == 2 || n == 3 }, []string{"handle", "Requeue"}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			clock := &hookClock{at: row.at}
			h := newHookRig(t, succeed, idem.WithClock(clock))
			h.Guard = h.guard
			d := h.arrive("a")

			how := depart(func() error { return h.Receive(t.Context(), d) })

			assert.Equal(t, "clock stopped", how.panicked)
			assert.Equal(t, row.want, h.diary.read())
			assert.Equal(t, row.left, h.guard.Stats().InFlight)
			require.NoError(t, h.Receive(t.Context(), h.arrive("b")), "the guard is usable")
			assert.Equal(t, []string{"handle", "Ack"}, h.diary.read())
		})
	}
}

func TestAPanicWithoutAGuard(t *testing.T) {
	for kind, fault := range map[string]func(){"panic": func() { panic("out of tea") }, "Goexit": runtime.Goexit} {
		h := newHookRig(t, func(context.Context, *fakeDelivery) error { fault(); return nil })
		h.Guard = nil
		d := h.arrive("a")
		how := depart(func() error { return h.Receive(t.Context(), d) })
		assert.Equal(t, kind == "Goexit", how.goexit)
		assert.Equal(t, []string{"handle", "Requeue"}, h.diary.read())
	}
}

// The verb of the clean-up has a context that is alive and bounded, too.
func TestThePanicsVerbIsDetachedAndBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := newHookRig(t, func(context.Context, *fakeDelivery) error { cancel(); panic("out of tea") })
	h.SettleTimeout = time.Hour
	d := h.arrive("a")
	depart(func() error { return h.Receive(ctx, d) })
	v := d.only(t)
	require.NoError(t, v.err)
	assert.InDelta(t, time.Hour, v.left, float64(time.Minute))
}

func TestAPanicWithNil(t *testing.T) {
	h := newHookRig(t, func(context.Context, *fakeDelivery) error { panic(nil) })
	how := depart(func() error { return h.Receive(t.Context(), h.arrive("a")) })
	assert.IsType(t, new(runtime.PanicNilError), how.panicked)
	assert.Equal(t, []string{"Begun", "handle", "Release", "Requeue"}, h.diary.read())
}

// A panic in a held one's second look leaves nothing behind either.
func TestAPanicAsAHeldOnesTurnComes(t *testing.T) {
	h := newHookRig(t, succeed)
	running := h.begun(t, "a")
	h.calls.IdempotencyGuard = releasedWhenWaitedFor{h.guard, running}
	looks := 0
	h.calls.before = func(call string) {
		if call != "TryBegin" {
			return
		}
		if looks++; looks == 2 {
			panic("second look")
		}
	}
	d := h.arrive("a")
	how := depart(func() error { return h.Receive(t.Context(), d) })
	assert.Equal(t, "second look", how.panicked)
	assert.Equal(t, []string{"InFlight", "Release of nothing", "Requeue"}, h.diary.read())
	assert.Equal(t, idem.Requeue, d.only(t).outcome)
	assert.Equal(t, idem.Begun, h.state("a"), fmt.Sprint(h.guard.Stats()))
}

// releasedWhenWaitedFor releases the running claim once somebody waits, and so not
// before the first look.
type releasedWhenWaitedFor struct {
	idem.IdempotencyGuard
	running idem.Claim
}

func (g releasedWhenWaitedFor) Wait(ctx context.Context, id idem.Identity) error {
	g.Release(g.running)
	return g.IdempotencyGuard.Wait(ctx, id)
}

// The handler settles by itself, and then the clock stops for as long as it takes.
func TestAClockThatPanicsAfterANativeVerbLeavesNothingInFlight(t *testing.T) {
	for _, verb := range []idem.Outcome{idem.Ack, idem.Reject, idem.Requeue} {
		for _, leave := range []func(){func() {}, func() { panic("out of tea") }, runtime.Goexit} {
			var stopped atomic.Bool
			clock := &hookClock{at: func(int64) bool { return stopped.Load() }}
			h := newHookRig(t, nil, idem.WithClock(clock))
			h.Handle = func(_ context.Context, d *fakeDelivery) error {
				d.native(verb)
				stopped.Store(true)
				leave()
				return nil
			}
			depart(func() error { return h.Receive(t.Context(), h.arrive("a")) })
			stopped.Store(false)
			assert.Zero(t, h.guard.Stats().InFlight, "%v", verb)
		}
	}
}
