package idem_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

// One worker, many held duplicates of a message that runs elsewhere: other
// messages pass them.
func TestHeldDuplicatesDoNotOccupyAWorker(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, succeed)
		elsewhere := h.begun(t, "a")
		var ds []*fakeDelivery
		for range 100 {
			ds = append(ds, h.arrive("a"))
		}
		b := h.arrive("b")
		last := func(context.Context) (*fakeDelivery, error) {
			synctest.Wait()
			assert.Equal(t, idem.Ack, b.only(t).outcome, "b has passed them all")
			for _, d := range ds {
				assert.Empty(t, d.calls())
			}
			h.guard.Complete(elsewhere)
			return nil, io.EOF
		}
		require.NoError(t, h.Consume(t.Context(), 1, feedThen(last, append(ds, b)...)))
		for _, d := range ds {
			assert.Equal(t, idem.Ack, d.only(t).outcome)
		}
		assert.Equal(t, uint64(100), h.guard.Stats().DuplicatesInFlight)
	})
}

// The broker has nothing more, and one worker waits for it: it must not keep the
// place from what is parked.
func TestAParkedOnesTurnComesWhileNextWaits(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHookRig(t, succeed)
		elsewhere := h.begun(t, "a")
		d := h.arrive("a")
		d.onVerb = func(context.Context, idem.Outcome) error { cancel(); return nil }
		time.AfterFunc(10*time.Second, func() { h.guard.Release(elsewhere) })
		start := time.Now()
		assert.Equal(t, context.Canceled, h.Consume(ctx, 1, inOrder(feedThen(idle, d))))
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.Equal(t, []string{"InFlight", "Begun", "handle", "Complete", "Ack"}, h.diary.read())
	})
}

// A parked one runs in a worker's place: not beside it.
func TestAParkedOneRunsInAWorkersPlace(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		running, most := 0, 0
		h := newHookRig(t, func(context.Context, *fakeDelivery) error {
			running++
			most = max(most, running)
			time.Sleep(10 * time.Second)
			running--
			return nil
		})
		elsewhere := map[string]idem.Claim{}
		var ds []*fakeDelivery
		for _, id := range []string{"a", "b", "c"} {
			elsewhere[id] = h.begun(t, id)
			ds = append(ds, h.arrive(id))
		}
		ds = append(ds, h.arrive("d"))
		last := func(context.Context) (*fakeDelivery, error) {
			for _, claim := range elsewhere {
				h.guard.Release(claim)
			}
			return nil, io.EOF
		}
		start := time.Now()
		require.NoError(t, h.Consume(t.Context(), 1, inOrder(feedThen(last, ds...))))
		assert.Equal(t, 1, most)
		assert.Equal(t, 40*time.Second, time.Since(start))
		for _, d := range ds {
			assert.Equal(t, idem.Ack, d.only(t).outcome)
		}
	})
}

// While it waits for a place the time to hold runs on.
func TestAParkedOneThatFindsNoPlaceInTimeIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, takes(time.Hour))
		elsewhere := h.begun(t, "a")
		parked, long := h.named("a", "parked"), h.named("b", "long")
		h.HoldTimeout = 10 * time.Second
		time.AfterFunc(5*time.Second, func() { h.guard.Release(elsewhere) })
		require.NoError(t, h.Consume(t.Context(), 1, inOrder(feedOf(parked, long))))
		assert.Equal(t, []string{"InFlight", "Begun", "long: handle", "Begun", "Release", "parked: Requeue", "Complete", "long: Ack"}, h.diary.read())
		assert.NoError(t, parked.only(t).cause)
	})
}

// A copy whose message was completed meanwhile needs no worker: it is acked, also
// where none is free in time.
func TestAParkedOneThatIsCompletedNeedsNoWorker(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, takes(time.Minute))
		h.HoldTimeout = 10 * time.Second
		elsewhere := h.begun(t, "a")
		time.AfterFunc(time.Second, func() { h.guard.Complete(elsewhere) })
		copied, slow := h.arrive("a"), h.arrive("slow")
		require.NoError(t, h.Consume(t.Context(), 1, inOrder(feedOf(copied, slow))))
		assert.Equal(t, idem.Ack, copied.only(t).outcome)
		assert.Equal(t, idem.Ack, slow.only(t).outcome)
	})
}

// A copy that rests before it is given back rests beside the workers, too.
func TestRestingCopiesDoNotOccupyAWorker(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, succeed)
		h.OnInFlight = idem.RequeueInFlight
		h.begun(t, "a")
		var ds []*fakeDelivery
		for range 50 {
			ds = append(ds, h.arrive("a"))
		}
		start := time.Now()
		require.NoError(t, h.Consume(t.Context(), 1, feedOf(ds...)))
		assert.Equal(t, time.Second, time.Since(start), "all at the same time")
		for _, d := range ds {
			assert.Equal(t, idem.Requeue, d.only(t).outcome)
		}
	})
}

func TestParkedOnesAreGivenBackAtTheirHoldTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHookRig(t, takes(2*time.Minute))
		slow, held := h.arrive("a"), h.arrive("a")
		start := time.Now()
		held.onVerb = func(context.Context, idem.Outcome) error {
			assert.Equal(t, time.Minute, time.Since(start))
			return nil
		}
		require.NoError(t, h.Consume(t.Context(), 2, inOrder(feedOf(slow, held))))
		assert.Equal(t, idem.Requeue, held.only(t).outcome)
		assert.Equal(t, idem.Ack, slow.only(t).outcome)
	})
}

// Copies pile up behind a slow message, and come all at once.
func TestAStormOfCopiesRunsOnce(t *testing.T) {
	for _, workers := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				const copies = 970
				runs := map[string]int{}
				h := newHookRig(t, func(_ context.Context, d *fakeDelivery) error {
					time.Sleep(3 * time.Second)
					runs[d.id.ID]++ // only ever one at a time: a, and then b
					return nil
				}, idem.WithMaxTracked(100))
				h.HoldTimeout = time.Hour
				h.Guard = h.guard // itself: behind another one it counts a held delivery at each look
				ds := []*fakeDelivery{h.arrive("a")}
				for range copies {
					ds = append(ds, h.arrive("b"))
				}
				if workers > 1 {
					ds = ds[1:] // b alone
				}
				require.NoError(t, h.Consume(t.Context(), workers, feedOf(ds...)))
				assert.Equal(t, 1, runs["b"])
				for _, d := range ds {
					assert.Equal(t, idem.Ack, d.only(t).outcome)
				}
				s := h.guard.Stats()
				assert.Zero(t, s.EarlyRotations, "duplicates take no room")
				assert.Equal(t, uint64(len(ds)-len(runs)), s.DuplicatesCompleted+s.DuplicatesInFlight)
			})
		})
	}
}

// Every copy of the storm fails but the last: each has its turn, one at a time.
func TestAStormOfFailingCopiesRunsEachInItsTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const copies = 50
		runs, running := 0, 0
		h := newHookRig(t, func(context.Context, *fakeDelivery) error {
			running++
			assert.Equal(t, 1, running)
			time.Sleep(time.Second)
			running--
			if runs++; runs < copies {
				return errHandler
			}
			return nil
		})
		var ds []*fakeDelivery
		for range copies {
			ds = append(ds, h.arrive("a"))
		}
		require.NoError(t, h.Consume(t.Context(), 4, feedOf(ds...)))
		assert.Equal(t, copies, runs)
		count := map[string]int{}
		for _, line := range h.diary.read() {
			count[line]++
		}
		assert.Equal(t, copies-1, count["Requeue"])
		assert.Equal(t, 1, count["Ack"])
	})
}
