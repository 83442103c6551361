package idem

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBeginAnswersAsTryBegin(t *testing.T) {
	g, _ := newGuard(t)
	c, state, err := Begin(t.Context(), g, ID("a"))
	require.NoError(t, err)
	require.Equal(t, Begun, state)
	require.NotZero(t, c.Token())
	g.Complete(c)
	c, state, err = Begin(t.Context(), g, ID("a"))
	require.NoError(t, err)
	require.Equal(t, Completed, state)
	require.Equal(t, Claim{}, c)
	g.Reject(mustBegin(t, g, ID("b")))
	_, state, err = Begin(t.Context(), g, ID("b"))
	require.NoError(t, err)
	require.Equal(t, Rejected, state)
}

func TestBeginHoldsUntilTheOtherIsSettled(t *testing.T) {
	for name, verb := range verbs {
		synctest.Test(t, func(t *testing.T) {
			g, err := NewGenerational()
			require.NoError(t, err)
			c := mustBegin(t, g, ID("a"))
			start := time.Now()
			var wg sync.WaitGroup
			wg.Go(func() {
				_, state, err := Begin(t.Context(), g, ID("a"))
				assert.NoError(t, err)
				assert.Equal(t, settled[name], state)
				assert.Equal(t, time.Minute, time.Since(start))
			})
			time.Sleep(time.Minute)
			verb(g, c)
			wg.Wait()
		})
	}
}

func TestBeginGivesInFlightOnlyWithTheContextsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerational()
		require.NoError(t, err)
		mustBegin(t, g, ID("a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		c, state, err := Begin(ctx, g, ID("a"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, InFlight, state)
		require.Equal(t, Claim{}, c)
		// An ended context does not keep an id from being begun.
		c, state, err = Begin(ctx, g, ID("b"))
		require.NoError(t, err)
		require.Equal(t, Begun, state)
		require.NotZero(t, c.Token())
	})
}

func TestBeginCountsAHeldDeliveryAsOneDuplicate(t *testing.T) {
	for name, verb := range verbs {
		synctest.Test(t, func(t *testing.T) {
			g, err := NewGenerational()
			require.NoError(t, err)
			c := mustBegin(t, g, ID("a"))
			var wg sync.WaitGroup
			const holders = 5
			for range holders {
				wg.Go(func() {
					c, state, err := Begin(t.Context(), g, ID("a"))
					assert.NoError(t, err)
					if state == Begun {
						time.Sleep(10 * time.Second) // the others look again many times
						g.Complete(c)
					}
				})
			}
			time.Sleep(10 * time.Second)
			verb(g, c)
			wg.Wait()
			s := g.Stats()
			require.EqualValues(t, holders, s.DuplicatesInFlight, name)
			require.Zero(t, s.DuplicatesCompleted)
			require.Zero(t, s.DuplicatesRejected)
			requireBalance(t, s)
		})
	}
}

func TestBeginOneOfManyHoldersGetsTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerational()
		require.NoError(t, err)
		c := mustBegin(t, g, ID("a"))
		var wg sync.WaitGroup
		var mu sync.Mutex
		running, ran := 0, 0
		for range 50 {
			wg.Go(func() {
				_, _ = Do(t.Context(), g, ID("a"), func(context.Context) error {
					mu.Lock()
					running, ran = running+1, ran+1
					assert.Equal(t, 1, running, "one at a time")
					fail := ran < 10
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					running--
					mu.Unlock()
					if fail {
						return errors.New("not yet")
					}
					return nil
				})
			})
		}
		synctest.Wait()
		g.Release(c)
		wg.Wait()
		require.Equal(t, 10, ran, "each failure lets one more run; after the success none")
	})
}

// foreignGuard answers what it is told to.
type foreignGuard struct {
	state    State
	released int
	waits    int
}

func (f *foreignGuard) TryBegin(id Identity) (Claim, State) { return NewClaim(id, 7), f.state }
func (f *foreignGuard) Wait(context.Context, Identity) error {
	f.waits++
	f.state = Completed
	return nil
}
func (f *foreignGuard) Complete(Claim) {}
func (f *foreignGuard) Reject(Claim)   {}
func (f *foreignGuard) Release(Claim)  { f.released++ }

func TestDoRunsNothingOnAStateItDoesNotKnow(t *testing.T) {
	for _, state := range []State{Rejected + 1, 17, 255} {
		ran, err := Do(t.Context(), &foreignGuard{state: state}, ID("a"), func(context.Context) error {
			t.Error("ran")
			return nil
		})
		require.False(t, ran)
		require.ErrorContains(t, err, "idem: ")
		require.ErrorContains(t, err, state.String())
	}
}

func TestBeginAndDoWorkWithAGuardWrittenElsewhere(t *testing.T) {
	f := &foreignGuard{state: InFlight}
	ran, err := Do(t.Context(), f, ID("a"), func(context.Context) error { return nil })
	require.NoError(t, err)
	require.False(t, ran)
	require.Equal(t, 1, f.waits)
	f = &foreignGuard{state: Begun}
	ran, err = Do(t.Context(), f, ID("a"), func(context.Context) error { return nil })
	require.NoError(t, err)
	require.True(t, ran)
	require.Equal(t, 1, f.released, "deferred; changes nothing once completed")
}

// hasty is a guard whose Wait looks neither at the claim nor at ctx.
type hasty struct{ *foreignGuard }

func (h hasty) Wait(context.Context, Identity) error { return nil }

func (h hasty) TryBegin(Identity) (Claim, State) { return Claim{}, InFlight }

func TestBeginEndsWithItsCtxWhateverWaitLooksAt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	claim, state, err := Begin(ctx, hasty{&foreignGuard{}}, ID("a"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, InFlight, state)
	require.Zero(t, claim)
}

func TestDoRunsOncePerMessage(t *testing.T) {
	g, _ := newGuard(t)
	runs := 0
	for i := range 5 {
		ran, err := Do(t.Context(), g, ID("a"), func(context.Context) error { runs++; return nil })
		require.NoError(t, err)
		require.Equal(t, i == 0, ran)
	}
	require.Equal(t, 1, runs)
}

func TestDoRejectedBefore(t *testing.T) {
	g, _ := newGuard(t)
	g.Reject(mustBegin(t, g, ID("a")))
	ran, err := Do(t.Context(), g, ID("a"), func(context.Context) error { t.Error("ran"); return nil })
	require.False(t, ran)
	require.ErrorIs(t, err, ErrRejected)
}

func TestDoReleasesOnAnErrorAndGivesItBack(t *testing.T) {
	g, _ := newGuard(t)
	for _, cause := range []error{errors.New("boom"), context.Canceled, ErrRejected} {
		ran, err := Do(t.Context(), g, ID("a"), func(context.Context) error { return cause })
		require.True(t, ran)
		require.Same(t, cause, err)
		require.Zero(t, g.Stats().InFlight)
		require.Equal(t, Begun, look(g, ID("a")))
	}
}

func TestDoReleasesOnPanicAndGoexit(t *testing.T) {
	g, _ := newGuard(t)
	require.PanicsWithValue(t, "boom", func() {
		_, _ = Do(t.Context(), g, ID("a"), func(context.Context) error { panic("boom") })
	})
	require.Zero(t, g.Stats().InFlight)
	elsewhere(func() {
		_, _ = Do(t.Context(), g, ID("a"), func(context.Context) error { runtime.Goexit(); return nil })
		t.Error("came back")
	})
	require.Zero(t, g.Stats().InFlight)
	require.EqualValues(t, 2, g.Stats().Released)
	require.Equal(t, Begun, look(g, ID("a")))
}

func TestDoHandsOnTheContext(t *testing.T) {
	type mark struct{}
	g, _ := newGuard(t)
	ctx := context.WithValue(t.Context(), mark{}, 1)
	_, err := Do(ctx, g, ID("a"), func(got context.Context) error {
		assert.Equal(t, ctx, got)
		return nil
	})
	require.NoError(t, err)
}

func TestDoWithAnEndedContext(t *testing.T) {
	g, _ := newGuard(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	never := func(context.Context) error { t.Error("ran"); return nil }

	ran, err := Do(ctx, g, ID("new"), never)
	require.False(t, ran)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, Begun, look(g, ID("new")), "nothing is left claimed")
	require.Zero(t, g.Stats().InFlight)

	mustHandle(t, g, ID("done"))
	ran, err = Do(ctx, g, ID("done"), never)
	require.False(t, ran)
	require.NoError(t, err, "handled is handled")

	mustBegin(t, g, ID("running"))
	ran, err = Do(ctx, g, ID("running"), never)
	require.False(t, ran)
	require.ErrorIs(t, err, context.Canceled)
}

func TestDoWithANilFunctionClaimsNothing(t *testing.T) {
	g, _ := newGuard(t)
	for _, guard := range []IdempotencyGuard{g, nil} {
		require.PanicsWithValue(t, "idem: Do called with a nil function", func() {
			_, _ = Do(t.Context(), guard, ID("a"), nil)
		})
	}
	require.Zero(t, g.Stats().Begun)
}

func TestDoOfAnUnidentifiedMessageAlwaysRuns(t *testing.T) {
	g, _ := newGuard(t)
	for range 3 {
		ran, err := Do(t.Context(), g, IDAt("", "here"), func(context.Context) error { return nil })
		require.NoError(t, err)
		require.True(t, ran)
	}
	require.Zero(t, g.Stats().Tracked)
}

func TestStateNames(t *testing.T) {
	for want, s := range map[string]State{"Begun": 0, "InFlight": 1, "Completed": 2, "Rejected": 3, "State(4)": 4, "State(255)": 255} {
		assert.Equal(t, want, s.String())
	}
	for want, m := range map[string]MessageIdentity{"IDAndDestination": 0, "IDOnly": 1, "MessageIdentity(2)": 2} {
		assert.Equal(t, want, m.String())
	}
}
