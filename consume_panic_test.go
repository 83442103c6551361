package idem_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

// byID is a handler that does what the table says for the delivery's id, and
// succeeds where it says nothing.
func byID(table map[string]func(context.Context) error) func(context.Context, *fakeDelivery) error {
	return func(ctx context.Context, d *fakeDelivery) error {
		if fn := table[d.id.ID]; fn != nil {
			return fn(ctx)
		}
		return nil
	}
}

func TestAHandlersPanicIsRaisedAgainAfterTheOthersHaveStopped(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		value := errors.New("out of tea")
		start := time.Now()
		var stopped time.Duration
		h := newHookRig(t, byID(map[string]func(context.Context) error{
			"panics": func(context.Context) error { time.Sleep(time.Second); panic(value) },
			"runs": func(ctx context.Context) error {
				<-ctx.Done()
				stopped = time.Since(start)
				return ctx.Err()
			},
		}))
		h.Drain = 10 * time.Second
		panics, runs, parked := h.arrive("panics"), h.arrive("runs"), h.arrive("runs")
		var nextEnded time.Duration
		last := func(ctx context.Context) (*fakeDelivery, error) {
			<-ctx.Done()
			nextEnded = time.Since(start)
			return nil, ctx.Err()
		}

		how := depart(func() error { return h.Consume(t.Context(), 4, inOrder(feedThen(last, panics, runs, parked))) })

		assert.Same(t, value, how.panicked, "with its own value")
		assert.Equal(t, time.Second, nextEnded, "next is told to stop")
		assert.Equal(t, 11*time.Second, stopped, "the others have Drain")
		assert.Equal(t, 11*time.Second, time.Since(start), "it is raised after they have stopped")
		for _, d := range []*fakeDelivery{panics, runs, parked} {
			assert.Equal(t, idem.Requeue, d.only(t).outcome)
		}
		assert.NoError(t, parked.only(t).cause, "never begun")
		assert.Zero(t, h.guard.Stats().InFlight)
	})
}

func TestNothingIsStartedAfterAPanic(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, byID(map[string]func(context.Context) error{
			"m0": func(context.Context) error { panic("out of tea") },
		}))
		how := depart(func() error { return h.Consume(t.Context(), 1, inOrder(feedOf(h.arriveAll(10)...))) })
		assert.Equal(t, "out of tea", how.panicked)
		assert.Equal(t, []string{"Begun", "handle", "Release", "Requeue"}, h.diary.read())
	})
}

func TestAPanicIsLoggedWithItsStack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, panicHere)
		depart(func() error { return h.Consume(t.Context(), 1, inOrder(feedThen(idle, h.arrive("a")))) })
		records := h.log.all()
		require.Len(t, records, 1)
		assert.Equal(t, slog.LevelError, records[0].Level)
		assert.Equal(t, "out of tea", hookAttr(records[0], "panic"))
		assert.Contains(t, hookAttr(records[0], "stack"), "panicHere", "where it came from, which the second panic hides")
	})
}

func panicHere(context.Context, *fakeDelivery) error { panic("out of tea") }

func TestOfTwoPanicsTheFirstIsRaised(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, byID(map[string]func(context.Context) error{
			"m0": func(ctx context.Context) error { <-ctx.Done(); panic("second") },
			"m1": func(context.Context) error { time.Sleep(time.Second); panic("first") },
		}))
		how := depart(func() error { return h.Consume(t.Context(), 2, feedThen(idle, h.arriveAll(2)...)) })
		assert.Equal(t, "first", how.panicked)
		assert.Len(t, h.log.levels(), 2, "and both are logged")
	})
}

func TestAPanicAfterEOFIsRaised(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, byID(map[string]func(context.Context) error{
			"m0": func(context.Context) error { time.Sleep(time.Hour); panic("late") },
		}))
		how := depart(func() error { return h.Consume(t.Context(), 2, feedOf(h.arriveAll(2)...)) })
		assert.Equal(t, "late", how.panicked)
	})
}

// A handler's panic outranks what next makes of the stop.
func TestAPanicOutranksNextsError(t *testing.T) {
	for name, last := range map[string]fakeNext{
		"an error": func(ctx context.Context) (*fakeDelivery, error) { <-ctx.Done(); return nil, errBroker },
		"a panic":  func(ctx context.Context) (*fakeDelivery, error) { <-ctx.Done(); panic("next's") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				h := newHookRig(t, panicHere)
				how := depart(func() error { return h.Consume(t.Context(), 2, feedThen(last, h.arrive("a"))) })
				assert.Equal(t, "out of tea", how.panicked)
			})
		})
	}
}

// Nobody else could be told: without this the process would die of the logger.
func TestALoggerThatPanicsOverAPanicHidesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, panicHere)
		h.log.onRecord = func(slog.Record) { panic("disk full") }
		how := depart(func() error { return h.Consume(t.Context(), 1, feedThen(idle, h.arrive("a"))) })
		assert.Equal(t, "out of tea", how.panicked)
	})
}

func TestALoggerThatPanicsOverAnErrorIsRaised(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, failWith(errHandler))
		h.log.onRecord = func(slog.Record) { panic("disk full") }
		d := h.arrive("a")
		how := depart(func() error { return h.Consume(t.Context(), 1, feedThen(idle, d)) })
		assert.Equal(t, "disk full", how.panicked)
		assert.Equal(t, idem.Requeue, d.only(t).outcome)
	})
}

func TestAWorkerThatLeavesByGoexitIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const leavers = 5
		table := map[string]func(context.Context) error{}
		for n := range leavers {
			table[fmt.Sprint("m", n)] = func(context.Context) error { runtime.Goexit(); return nil }
		}
		h := newHookRig(t, byID(table))
		ds := h.arriveAll(leavers + 3)
		require.NoError(t, h.Consume(t.Context(), 2, feedOf(ds...)))
		for n, d := range ds {
			if n < leavers {
				assert.Equal(t, idem.Requeue, d.only(t).outcome)
			} else {
				assert.Equal(t, idem.Ack, d.only(t).outcome)
			}
		}
		assert.Zero(t, h.guard.Stats().InFlight)
	})
}

func TestWhatNextPanicsWithGoesOnAfterTheOthersHaveStopped(t *testing.T) {
	for kind, fault := range map[string]func(){"panic": func() { panic("next's") }, "Goexit": runtime.Goexit} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				h := newHookRig(t, untilStopped)
				h.Drain = 5 * time.Second
				running := h.arrive("a")
				last := func(context.Context) (*fakeDelivery, error) { fault(); return nil, nil }
				start := time.Now()
				how := depart(func() error { return h.Consume(t.Context(), 2, inOrder(feedThen(last, running))) })
				assert.Equal(t, kind == "Goexit", how.goexit)
				assert.Equal(t, kind == "panic", how.panicked == "next's")
				assert.Equal(t, 5*time.Second, time.Since(start))
				assert.Equal(t, idem.Requeue, running.only(t).outcome)
			})
		})
	}
}
