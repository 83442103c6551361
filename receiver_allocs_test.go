//go:build !invariants

// The checks of a build with the tag invariants allocate after each step.

package idem_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

// What is allocated per delivery is the same with the guard on and off.
func TestTheGuardsPartOfReceiveAllocatesNothing(t *testing.T) {
	const runs = 2000
	perRun := func(guard idem.IdempotencyGuard, handle error) float64 {
		r, ds, n := quietReceiver(guard, handle), quietDeliveries(4*runs), 0
		receive := func() {
			_ = r.Receive(t.Context(), ds[n])
			n = (n + 1) % len(ds)
		}
		for range 2 * runs { // until the guard is as large as it gets
			receive()
		}
		return testing.AllocsPerRun(runs, receive)
	}
	for name, handle := range map[string]error{"handled": nil, "released": idem.WithOutcome(nil, idem.Postpone)} {
		off := perRun(nil, handle)
		on := perRun(hookGuard(t, idem.WithMaxTracked(256)), handle)
		assert.Equal(t, off, on, name)
	}
}

func TestADuplicateAllocatesNoMoreThanAnyOther(t *testing.T) {
	d := quietDeliveries(1)[0]
	off := quietReceiver(nil, nil)
	on := quietReceiver(hookGuard(t), nil)
	require.NoError(t, on.Receive(t.Context(), d))
	assert.LessOrEqual(t,
		testing.AllocsPerRun(1000, func() { _ = on.Receive(t.Context(), d) }),
		testing.AllocsPerRun(1000, func() { _ = off.Receive(t.Context(), d) }))
}
