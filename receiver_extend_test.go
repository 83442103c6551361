package idem_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

// extendingDelivery is a delivery whose broker redelivers after a time.
type extendingDelivery struct {
	*fakeDelivery
	extend func(ctx context.Context, call int) (time.Duration, error) // call counts from 1
	start  time.Time

	mu      sync.Mutex // protects what follows
	calls   []time.Duration
	running int
	overlap bool // a verb was called while an Extend ran, or an Extend after it
}

func (d *extendingDelivery) Extend(ctx context.Context) (time.Duration, error) {
	d.mu.Lock()
	d.calls = append(d.calls, time.Since(d.start))
	call := len(d.calls)
	d.running++
	d.overlap = d.overlap || len(d.outcomes()) > 0
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.running--
		d.mu.Unlock()
	}()
	return d.extend(ctx, call)
}

// extendRig is a rig whose deliveries extend.
type extendRig struct {
	*hookRig
	r *idem.Receiver[*extendingDelivery]
}

func newExtendRig(t testing.TB, handle func(context.Context, *extendingDelivery) error, opts ...idem.Option) *extendRig {
	h := newHookRig(t, succeed, opts...)
	return &extendRig{hookRig: h, r: &idem.Receiver[*extendingDelivery]{Guard: h.guard, Logger: h.Logger, Handle: handle}}
}

func (h *extendRig) arrive(id string, extend func(context.Context, int) (time.Duration, error)) *extendingDelivery {
	d := &extendingDelivery{fakeDelivery: h.hookRig.arrive(id), extend: extend, start: time.Now()}
	d.onVerb = func(context.Context, idem.Outcome) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.overlap = d.overlap || d.running > 0
		return nil
	}
	return d
}

// every asks to be called again after pause.
func every(pause time.Duration) func(context.Context, int) (time.Duration, error) {
	return func(context.Context, int) (time.Duration, error) { return pause, nil }
}

// handleFor is a handler that takes its time.
func handleFor(d time.Duration) func(context.Context, *extendingDelivery) error {
	return func(context.Context, *extendingDelivery) error {
		time.Sleep(d) // the bubble's clock
		return nil
	}
}

func seconds(n ...int) (all []time.Duration) {
	for _, s := range n {
		all = append(all, time.Duration(s)*time.Second)
	}
	return all
}

func TestExtendIsCalledWhileTheHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(35*time.Second))
		d := h.arrive("a", every(10*time.Second))
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Equal(t, seconds(0, 10, 20, 30), d.calls)
		time.Sleep(time.Hour)
		assert.Len(t, d.calls, 4, "not after it was settled")
		assert.False(t, d.overlap)
	})
}

func TestExtendIsCalledWithoutAGuardToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(150*time.Minute))
		h.r.Guard = nil
		d := h.arrive("a", every(50*time.Minute))
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Equal(t, []time.Duration{0, 50 * time.Minute}, d.calls, "no longer than the default lease")
	})
}

func TestExtendSaysWhenToCallAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(time.Minute))
		nexts := []time.Duration{1, 2, 4, 8, 0}
		d := h.arrive("a", func(_ context.Context, call int) (time.Duration, error) {
			return nexts[call-1] * time.Second, nil
		})
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Equal(t, seconds(0, 1, 3, 7, 15), d.calls, "a next of 0 ends the calls")
	})
}

func TestANegativeNextEndsTheCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(time.Minute))
		d := h.arrive("a", every(-time.Second))
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Equal(t, seconds(0), d.calls)
	})
}

// An error costs nothing but a line in the log: the handler may be in time.
func TestAnExtendThatFailsIsLoggedAndCalledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(5*time.Second))
		d := h.arrive("a", func(context.Context, int) (time.Duration, error) { return 2 * time.Second, errBroker })
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Equal(t, seconds(0, 2, 4), d.calls)
		assert.Equal(t, []slog.Level{slog.LevelWarn, slog.LevelWarn, slog.LevelWarn}, h.log.levels())
		assert.Equal(t, idem.Ack, d.only(t).outcome)
	})
}

func TestExtendIsCalledNoLongerThanTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(10*time.Minute), idem.WithLease(time.Minute))
		d := h.arrive("a", every(25*time.Second))
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Equal(t, seconds(0, 25, 50), d.calls)
	})
}

func TestExtendIsCalledWhileHeld(t *testing.T) {
	for name, row := range map[string]struct {
		settle func(*idem.Generational, idem.Claim)
		calls  []time.Duration
	}{
		"and then while it runs":   {(*idem.Generational).Release, seconds(0, 2, 4, 5, 7)},
		"and not after it is done": {(*idem.Generational).Complete, seconds(0, 2, 4)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newExtendRig(t, handleFor(3*time.Second))
				running := h.begun(t, "a")
				d := h.arrive("a", every(2*time.Second))
				time.AfterFunc(5*time.Second, func() { row.settle(h.guard, running) })
				require.NoError(t, h.r.Receive(t.Context(), d))
				assert.Equal(t, row.calls, d.calls)
				assert.False(t, d.overlap)
				d.only(t)
			})
		})
	}
}

func TestExtendIsCalledUntilTheHoldIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(0))
		h.r.HoldTimeout = 5 * time.Second
		h.begun(t, "a")
		d := h.arrive("a", every(2*time.Second))
		require.NoError(t, h.r.Receive(t.Context(), d))
		time.Sleep(time.Hour)
		assert.Equal(t, seconds(0, 2, 4), d.calls)
		assert.False(t, d.overlap)
	})
}

func TestExtendIsCalledWhileACopyRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(0))
		h.r.OnInFlight = idem.RequeueInFlight
		h.begun(t, "a")
		d := h.arrive("a", every(400*time.Millisecond))
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Equal(t, []time.Duration{0, 400 * time.Millisecond, 800 * time.Millisecond}, d.calls)
		assert.False(t, d.overlap)
	})
}

// A duplicate that is settled at once needs no time.
func TestExtendIsNotCalledForWhatIsSettledAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(0))
		h.guard.Complete(h.begun(t, "a"))
		d := h.arrive("a", every(time.Second))
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Empty(t, d.calls)
	})
}

func TestExtendIsNotCalledAfterTheHandlerHasSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, func(_ context.Context, d *extendingDelivery) error {
			time.Sleep(3 * time.Second)
			d.native(idem.Ack)
			time.Sleep(time.Minute)
			return nil
		})
		d := h.arrive("a", every(2*time.Second))
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Equal(t, seconds(0, 2), d.calls)
	})
}

// The verb waits for the Extend that is running: it is told to hurry.
func TestAVerbDoesNotOvertakeAnExtend(t *testing.T) {
	for name, handle := range map[string]func() error{
		"success": func() error { return nil },
		"failure": func() error { return errHandler },
		"panic":   func() error { panic("out of tea") },
		"Goexit":  func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newExtendRig(t, func(context.Context, *extendingDelivery) error {
					time.Sleep(time.Second)
					return handle()
				})
				d := h.arrive("a", func(ctx context.Context, _ int) (time.Duration, error) {
					<-ctx.Done()
					time.Sleep(time.Second) // the way back
					return time.Second, ctx.Err()
				})
				depart(func() error { return h.r.Receive(t.Context(), d) })
				d.only(t)
				assert.False(t, d.overlap)
				assert.Equal(t, seconds(0), d.calls)
				assert.Equal(t, 2*time.Second, time.Since(d.start))
				assert.Empty(t, h.log.levels(), "we ended it ourselves: no trouble")
			})
		})
	}
}

// Extend goes on while the handler winds down, after the context has ended.
func TestExtendOutlivesTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), hookKey{}, "kept"), time.Second)
		defer cancel()
		h := newExtendRig(t, handleFor(5*time.Second))
		d := h.arrive("a", func(ctx context.Context, _ int) (time.Duration, error) {
			assert.NoError(t, ctx.Err())
			assert.Equal(t, "kept", ctx.Value(hookKey{}))
			return 2 * time.Second, nil
		})
		require.NoError(t, h.r.Receive(ctx, d))
		assert.Equal(t, seconds(0, 2, 4), d.calls)
	})
}

func TestAPanicInExtendGoesOnFromReceive(t *testing.T) {
	value := errors.New("out of tea")
	for name, row := range map[string]struct {
		set  func(t *testing.T, h *extendRig)
		want []string
	}{
		"while the handler runs, which is settled first": {func(*testing.T, *extendRig) {}, []string{"Ack"}},
		"while held, then its turn": {func(t *testing.T, h *extendRig) {
			running := h.begun(t, "a")
			time.AfterFunc(5*time.Second, func() { h.guard.Release(running) })
		}, []string{"Requeue"}},
		"while held in vain": {func(t *testing.T, h *extendRig) {
			running := h.begun(t, "a")
			time.AfterFunc(2*time.Minute, func() { h.guard.Release(running) })
		}, []string{"Requeue"}},
		"while it rests": {func(t *testing.T, h *extendRig) {
			h.r.OnInFlight = idem.RequeueInFlight
			running := h.begun(t, "a")
			time.AfterFunc(2*time.Minute, func() { h.guard.Release(running) })
		}, []string{"Requeue"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newExtendRig(t, handleFor(5*time.Second))
				row.set(t, h)
				d := h.arrive("a", func(context.Context, int) (time.Duration, error) { panic(value) })

				how := depart(func() error { return h.r.Receive(t.Context(), d) })

				assert.Same(t, value, how.panicked)
				assert.Equal(t, row.want, h.diary.read())
				if row.want[0] == "Ack" {
					assert.Equal(t, idem.Completed, h.state("a"))
				}
				time.Sleep(time.Hour)
				assert.Zero(t, h.guard.Stats().InFlight)
				assert.Equal(t, idem.Begun, h.state("a"))
			})
		})
	}
}

// The handler's own panic comes first.
func TestTheHandlersPanicOutranksExtends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, func(context.Context, *extendingDelivery) error {
			time.Sleep(time.Second)
			panic("the handler's")
		})
		d := h.arrive("a", func(context.Context, int) (time.Duration, error) { panic("Extend's") })
		assert.Equal(t, "the handler's", depart(func() error { return h.r.Receive(t.Context(), d) }).panicked)
		d.only(t)
	})
}

func TestAnExtendThatLeavesByGoexitIsNotCalledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(5*time.Second))
		d := h.arrive("a", func(context.Context, int) (time.Duration, error) { runtime.Goexit(); return 1, nil })
		require.NoError(t, h.r.Receive(t.Context(), d))
		assert.Equal(t, idem.Ack, d.only(t).outcome)
		assert.Len(t, d.calls, 1)
	})
}

func TestALoggerThatPanicsOverAFailingExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(5*time.Second))
		h.log.onRecord = func(slog.Record) { panic("disk full") }
		d := h.arrive("a", func(context.Context, int) (time.Duration, error) { return time.Second, errBroker })
		assert.Equal(t, "disk full", depart(func() error { return h.r.Receive(t.Context(), d) }).panicked)
		assert.Equal(t, idem.Ack, d.only(t).outcome, "the work is done")
		assert.Equal(t, idem.Completed, h.state("a"))
	})
}

// The second look of a held one fails: the verb waits for the Extend all the same.
func TestExtendEndsWithAHoldThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExtendRig(t, handleFor(0))
		running := h.begun(t, "a")
		h.r.Guard = h.calls
		looks := 0
		h.calls.before = func(call string) {
			if looks++; call == "TryBegin" && looks == 2 {
				panic("clock stopped")
			}
		}
		d := h.arrive("a", func(ctx context.Context, _ int) (time.Duration, error) {
			<-ctx.Done()
			time.Sleep(time.Second) // the way back
			return time.Second, ctx.Err()
		})
		time.AfterFunc(5*time.Second, func() { h.guard.Release(running) })
		assert.Equal(t, "clock stopped", depart(func() error { return h.r.Receive(t.Context(), d) }).panicked)
		assert.Equal(t, 6*time.Second, time.Since(d.start))
		assert.Equal(t, seconds(0), d.calls)
		assert.False(t, d.overlap)
		assert.Equal(t, idem.Requeue, d.only(t).outcome)
	})
}

// A parked copy has taken the seat while next was at work.
func TestExtendIsCalledWhileADeliveryWaitsForASeat(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWaitForASeat(t, every(10*time.Second))
		require.NoError(t, w.r.Consume(t.Context(), 1, w.next))
		assert.Equal(t, seconds(0, 10, 20, 30, 35, 45, 55, 65), w.b.calls)
		assert.False(t, w.b.overlap)
		assert.Equal(t, idem.Ack, w.b.only(t).outcome)
	})
}

func TestAPanicOfExtendWhileADeliveryWaitsForASeat(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWaitForASeat(t, func(context.Context, int) (time.Duration, error) { panic("out of tea") })
		assert.PanicsWithValue(t, "out of tea", func() { _ = w.r.Consume(t.Context(), 1, w.next) })
		assert.Equal(t, idem.Requeue, w.b.only(t).outcome)
		assert.Equal(t, idem.Ack, w.parked.only(t).outcome, "it ends in peace")
		assert.Equal(t, idem.Begun, w.state("b"))
	})
}

// waitForASeat is a copy whose message runs elsewhere, parked, and b, which is taken
// just as the copy begins to run for 35 seconds, in the only seat.
type waitForASeat struct {
	*extendRig
	parked, b *extendingDelivery
	elsewhere idem.Claim
	calls     int // of next
}

func newWaitForASeat(t *testing.T, extend func(context.Context, int) (time.Duration, error)) *waitForASeat {
	h := newExtendRig(t, handleFor(35*time.Second))
	return &waitForASeat{extendRig: h, elsewhere: h.begun(t, "a"), parked: h.arrive("a", every(time.Hour)), b: h.arrive("b", extend)}
}

func (w *waitForASeat) next(context.Context) (*extendingDelivery, error) {
	synctest.Wait()
	switch w.calls++; w.calls {
	case 1:
		return w.parked, nil
	case 2:
		w.guard.Release(w.elsewhere)
		synctest.Wait()
		return w.b, nil
	default:
		return nil, io.EOF
	}
}
