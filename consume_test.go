package idem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

type fakeNext = func(context.Context) (*fakeDelivery, error)

// feedOf returns a next that hands out ds, and then io.EOF.
func feedOf(ds ...*fakeDelivery) fakeNext {
	return feedThen(func(context.Context) (*fakeDelivery, error) { return nil, io.EOF }, ds...)
}

// feedThen returns a next that hands out ds, and then what last does.
func feedThen(last fakeNext, ds ...*fakeDelivery) fakeNext {
	return func(ctx context.Context) (*fakeDelivery, error) {
		if len(ds) == 0 {
			return last(ctx)
		}
		d := ds[0]
		ds = ds[1:]
		return d, nil
	}
}

// inOrder is next, called when all the others in the bubble stand still: what was
// handed out before is running or parked by then.
func inOrder(next fakeNext) fakeNext {
	return func(ctx context.Context) (*fakeDelivery, error) {
		synctest.Wait()
		return next(ctx)
	}
}

// idle is a broker that has nothing.
func idle(ctx context.Context) (*fakeDelivery, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// inBubble runs fn where time is the test's own, and a goroutine that is left
// behind and waits for nothing any more is a failure. One that would go in time
// is noticed too: no worker is on a stack when fn has returned.
func inBubble(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fn(t)
		stacks := make([]byte, 1<<20)
		for line := range strings.Lines(string(stacks[:runtime.Stack(stacks, true)])) {
			if strings.HasPrefix(line, "github.com/idem-go/idem.(*crew") {
				assert.Fail(t, "goroutine left behind", line)
			}
		}
	})
}

// takes is a handler that takes d of the bubble's time, whatever its context.
func takes(d time.Duration) func(context.Context, *fakeDelivery) error {
	return func(context.Context, *fakeDelivery) error {
		time.Sleep(d)
		return nil
	}
}

// untilStopped is a handler that returns when its context ends.
func untilStopped(ctx context.Context, _ *fakeDelivery) error {
	<-ctx.Done()
	return ctx.Err()
}

// named arrives with a name for the diary.
func (h *hookRig) named(id, name string) *fakeDelivery {
	d := h.arrive(id)
	d.name = name
	return d
}

func (h *hookRig) arriveAll(n int) (ds []*fakeDelivery) {
	for i := range n {
		ds = append(ds, h.arrive(fmt.Sprint("m", i)))
	}
	return ds
}

func TestConsumeRunsUpToWorkersHandlersAtOnce(t *testing.T) {
	for _, workers := range []int{1, 3, 20, 100, math.MaxInt} {
		inBubble(t, func(t *testing.T) {
			var running, most atomic.Int64
			h := newHookRig(t, func(context.Context, *fakeDelivery) error {
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(time.Second)
				running.Add(-1)
				return nil
			})
			start := time.Now()
			require.NoError(t, h.Consume(t.Context(), workers, feedOf(h.arriveAll(20)...)))
			bound := min(workers, 20)
			assert.Equal(t, int64(bound), most.Load())
			assert.Equal(t, time.Duration((20+bound-1)/bound)*time.Second, time.Since(start), "and no fewer")
			assert.Equal(t, uint64(20), h.guard.Stats().Completed)
		})
	}
}

func TestConsumeReturnsNilAtEOFWhenItHasFinishedWhatItHas(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, takes(time.Hour)) // longer than any Drain
		ds := h.arriveAll(2)
		start := time.Now()
		require.NoError(t, h.Consume(t.Context(), 5, feedOf(ds...)))
		assert.Equal(t, time.Hour, time.Since(start))
		for _, d := range ds {
			assert.Equal(t, idem.Ack, d.only(t).outcome)
		}
	})
	h := newHookRig(t, succeed)
	require.NoError(t, h.Consume(t.Context(), 1, feedOf()), "nothing at all")
}

// At the end of the deliveries the handlers go on at leisure, and what is parked
// gets its turn.
func TestConsumeAtEOFLetsParkedOnesHaveTheirTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		runs := 0
		h := newHookRig(t, func(ctx context.Context, _ *fakeDelivery) error {
			time.Sleep(10 * time.Second)
			require.NoError(t, ctx.Err())
			if runs++; runs == 1 {
				return errHandler
			}
			return nil
		})
		first, second := h.arrive("a"), h.arrive("a")
		require.NoError(t, h.Consume(t.Context(), 2, inOrder(feedOf(first, second))))
		assert.Equal(t, idem.Requeue, first.only(t).outcome)
		assert.Equal(t, idem.Ack, second.only(t).outcome)
		assert.Equal(t, 2, runs)
	})
}

func TestAnErrorOfNextStopsConsumeAndIsReturned(t *testing.T) {
	for name, cause := range map[string]error{
		"an error":                               errBroker,
		"a wrapped EOF: the connection broke":    fmt.Errorf("read: %w", io.EOF),
		"an error of a context, but not of ours": context.Canceled,
		"joined with EOF":                        errors.Join(io.EOF),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				h := newHookRig(t, untilStopped)
				h.Drain = 5 * time.Second
				running, parked := h.arrive("a"), h.arrive("a")
				last := func(context.Context) (*fakeDelivery, error) {
					time.Sleep(time.Second)
					return nil, cause
				}
				start := time.Now()
				err := h.Consume(t.Context(), 3, inOrder(feedThen(last, running, parked)))
				assert.Equal(t, cause, err)
				assert.Equal(t, 6*time.Second, time.Since(start), "the handler's context ended Drain later")
				assert.Equal(t, idem.Requeue, running.only(t).outcome)
				assert.NoError(t, parked.only(t).cause, "never begun")
			})
		})
	}
}

func TestConsumeStopsWhenItsContextEnds(t *testing.T) {
	for drain, want := range map[time.Duration]time.Duration{0: 30 * time.Second, 7 * time.Second: 7 * time.Second} {
		for name, last := range map[string]fakeNext{
			"next returns the context's error": idle,
			"next returns another error": func(ctx context.Context) (*fakeDelivery, error) {
				<-ctx.Done()
				return nil, errBroker
			},
		} {
			t.Run(fmt.Sprint(name, " ", drain), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					h := newHookRig(t, untilStopped)
					h.Drain = drain
					running, parked := h.arrive("a"), h.arrive("a")
					var gaveBack time.Duration
					start := time.Now()
					parked.onVerb = func(context.Context, idem.Outcome) error { gaveBack = time.Since(start); return nil }

					err := h.Consume(ctx, 3, inOrder(feedThen(last, running, parked)))

					assert.Equal(t, context.DeadlineExceeded, err, "ctx's own")
					assert.Equal(t, time.Second+want, time.Since(start))
					assert.Equal(t, time.Second, gaveBack, "what was not begun doesn't wait for Drain")
					assert.Equal(t, idem.Requeue, parked.only(t).outcome)
					assert.NoError(t, parked.only(t).cause)
					assert.ErrorIs(t, running.only(t).cause, context.Canceled)
					require.NoError(t, running.only(t).err)
				})
			})
		}
	}
}

func TestAHandlerThatIsDoneWithinDrainCounts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		h := newHookRig(t, func(ctx context.Context, _ *fakeDelivery) error {
			time.Sleep(10 * time.Second)
			return ctx.Err()
		})
		d := h.arrive("a")
		start := time.Now()
		assert.Equal(t, context.DeadlineExceeded, h.Consume(ctx, 1, feedThen(idle, d)))
		assert.Equal(t, 10*time.Second, time.Since(start), "it waits for the handlers, and no longer")
		assert.Equal(t, idem.Ack, d.only(t).outcome)
		assert.Equal(t, idem.Completed, h.state("a"))
	})
}

func TestConsumeStartsNothingNewAfterItsContextHasEnded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, succeed)
		ctx, cancel := context.WithCancel(t.Context())
		late := h.arrive("a")
		taken := 0
		err := h.Consume(ctx, 1, func(ctx context.Context) (*fakeDelivery, error) {
			taken++
			cancel()
			<-ctx.Done()
			return late, nil
		})
		assert.Equal(t, context.Canceled, err)
		assert.Equal(t, 1, taken)
		assert.Equal(t, []string{"Requeue"}, h.diary.read(), "given back, and the guard has not heard of it")
		v := late.only(t)
		require.NoError(t, v.err)
		assert.Equal(t, 30*time.Second, v.left)
		assert.NoError(t, v.cause)
	})
}

func TestConsumeGivesBackWhatWaitsForAWorkerWhenItsContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		h := newHookRig(t, takes(20*time.Second))
		other := h.begun(t, "a")
		parked, waiting := h.named("a", "parked"), h.named("b", "waiting")
		// While next waits for b, the parked one takes the only worker's place.
		last := func(ctx context.Context) (*fakeDelivery, error) {
			h.guard.Release(other)
			time.Sleep(time.Second)
			return waiting, nil
		}
		assert.Equal(t, context.DeadlineExceeded, h.Consume(ctx, 1, inOrder(feedThen(last, parked))))
		assert.Equal(t, []string{"InFlight", "Begun", "parked: handle", "waiting: Requeue", "Complete", "parked: Ack"}, h.diary.read())
		assert.NoError(t, waiting.only(t).cause)
	})
}

func TestAGiveBackThatFailsIsLoggedAndStopsNothing(t *testing.T) {
	for name, set := range map[string]struct {
		onVerb   func(context.Context, idem.Outcome) error
		onRecord func(slog.Record)
		panics   any
	}{
		"the verb fails":    {onVerb: func(context.Context, idem.Outcome) error { return errBroker }},
		"the verb panics":   {onVerb: func(context.Context, idem.Outcome) error { panic("out of tea") }, panics: "out of tea"},
		"the logger panics": {onRecord: func(slog.Record) { panic("out of tea") }, panics: "out of tea"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				h := newHookRig(t, succeed)
				d := h.arrive("a")
				d.onVerb, h.log.onRecord = set.onVerb, set.onRecord
				how := depart(func() error {
					return h.Consume(ctx, 1, func(context.Context) (*fakeDelivery, error) { cancel(); return d, nil })
				})
				assert.Equal(t, set.panics, how.panicked)
				assert.Equal(t, idem.Requeue, d.only(t).outcome)
				if set.panics == nil {
					assert.Equal(t, context.Canceled, how.err)
					assert.Equal(t, []slog.Level{slog.LevelDebug, slog.LevelWarn}, h.log.levels())
				}
			})
		})
	}
}

func TestConsumeWithAContextThatHasEndedTakesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h := newHookRig(t, succeed)
	assert.Equal(t, context.Canceled, h.Consume(ctx, 1, func(context.Context) (*fakeDelivery, error) {
		t.Error("next called")
		return nil, io.EOF
	}))
}

func TestConsumeKeepsTheValuesOfItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ctx := context.WithValue(t.Context(), hookKey{}, "kept")
		h := newHookRig(t, func(ctx context.Context, _ *fakeDelivery) error {
			assert.Equal(t, "kept", ctx.Value(hookKey{}))
			return nil
		})
		feed := feedOf(h.arrive("a"))
		require.NoError(t, h.Consume(ctx, 1, func(next context.Context) (*fakeDelivery, error) {
			assert.Equal(t, "kept", next.Value(hookKey{}))
			return feed(next)
		}))
	})
}

// next is the broker's: called by one goroutine, and only while a worker is free.
func TestNextIsCalledOneAtATimeAndOnlyWhileAWorkerIsFree(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var running, inNext atomic.Int64
		h := newHookRig(t, func(context.Context, *fakeDelivery) error {
			running.Add(1)
			time.Sleep(time.Second)
			running.Add(-1)
			return nil
		})
		feed := feedOf(h.arriveAll(10)...)
		require.NoError(t, h.Consume(t.Context(), 2, func(ctx context.Context) (*fakeDelivery, error) {
			assert.Equal(t, int64(1), inNext.Add(1))
			defer inNext.Add(-1)
			synctest.Wait() // until the workers stand still
			assert.Less(t, running.Load(), int64(2))
			return feed(ctx)
		}))
	})
}

func TestConsumeLogsTheErrorsOfHandlersAtWarn(t *testing.T) {
	for name, row := range map[string]struct {
		handler error
		verb    error
		levels  []slog.Level
	}{
		"the handler's":     {errHandler, nil, []slog.Level{slog.LevelWarn}},
		"the verb's":        {nil, errBroker, []slog.Level{slog.LevelWarn}},
		"both, each once":   {errHandler, errBroker, []slog.Level{slog.LevelWarn, slog.LevelWarn}},
		"none":              {nil, nil, nil},
		"postponed: no one": {idem.WithOutcome(nil, idem.Postpone), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHookRig(t, failWith(row.handler))
			d := h.arrive("a")
			d.onVerb = func(context.Context, idem.Outcome) error { return row.verb }
			require.NoError(t, h.Consume(t.Context(), 1, feedOf(d)), "they don't stop it")
			assert.Equal(t, row.levels, h.log.levels())
			var text string
			for _, r := range h.log.all() {
				text += hookAttr(r, "error")
			}
			for _, err := range []error{row.handler, row.verb} {
				if err != nil && len(row.levels) > 0 {
					assert.Contains(t, text, err.Error())
				}
			}
		})
	}
}

func TestAMisusedConsumePanicsAtOnce(t *testing.T) {
	h := newHookRig(t, succeed)
	for want, call := range map[string]func() error{
		"idem: Consume with 0 workers":  func() error { return h.Consume(t.Context(), 0, feedOf()) },
		"idem: Consume with -1 workers": func() error { return h.Consume(t.Context(), -1, feedOf()) },
		"idem: Consume without next":    func() error { return h.Consume(t.Context(), 1, nil) },
	} {
		assert.Equal(t, want, depart(call).panicked)
	}
}

// One endpoint, two readers: during a rebalance both get the same record.
func TestTwoConsumersOfOneGuardRunARecordOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, takes(time.Second))
		done := make(chan error)
		for range 2 {
			go func() { done <- h.Consume(t.Context(), 1, feedOf(h.arrive("a"), h.arrive("b"))) }()
		}
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		count := map[string]int{}
		for _, line := range h.diary.read() {
			count[line]++
		}
		assert.Equal(t, 2, count["handle"])
		assert.Equal(t, 4, count["Ack"])
	})
}
