package idem

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 12, nil: every method of a nil *Generational and of a zero one is off.

func TestNilAndZeroGuardsAreOff(t *testing.T) {
	other, _ := newGuard(t)
	claims := []Claim{{}, NewClaim(ID("a"), 1), mustBegin(t, other, ID("a"))}
	for name, g := range map[string]*Generational{"nil": nil, "zero": {}} {
		t.Run(name, func(t *testing.T) {
			var guard IdempotencyGuard = g
			for _, id := range []Identity{ID("a"), ID("a"), IDAt("a", "b"), {}} {
				c, state := guard.TryBegin(id)
				require.Equal(t, Begun, state)
				require.Equal(t, Claim{}, c)
				require.NoError(t, guard.Wait(t.Context(), id))
				require.False(t, g.Forget(id))
			}
			for _, c := range claims {
				guard.Complete(c)
				guard.Reject(c)
				guard.Release(c)
			}
			_, state := guard.TryBegin(ID("a"))
			require.Equal(t, Begun, state)
			require.Equal(t, Stats{}, g.Stats())
		})
	}
	assert.Equal(t, 1, other.Stats().InFlight)
}

func TestNilGuardsBeginAndRunEverything(t *testing.T) {
	guards := map[string]IdempotencyGuard{
		"nil": nil, "typed nil": (*Generational)(nil), "zero": &Generational{},
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, guard := range guards {
		t.Run(name, func(t *testing.T) {
			runs := 0
			for range 3 {
				c, state, err := Begin(t.Context(), guard, ID("a"))
				require.NoError(t, err)
				require.Equal(t, Begun, state)
				require.Equal(t, Claim{}, c)
				ran, err := Do(t.Context(), guard, ID("a"), func(context.Context) error { runs++; return nil })
				require.NoError(t, err)
				require.True(t, ran)
			}
			require.Equal(t, 3, runs)
			ran, err := Do(ended, guard, ID("a"), func(context.Context) error { runs++; return nil })
			require.ErrorIs(t, err, context.Canceled)
			require.False(t, ran)
			require.Equal(t, 3, runs)
			_, state, err := Begin(ended, guard, ID("a"))
			require.NoError(t, err)
			require.Equal(t, Begun, state)
		})
	}
}
