package idem

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

type noDelivery struct{ Delivery }

// A storm's workers go when it is over: no more wait than can be handed work.
func TestNoMoreWorkersRestThanCanBeHandedWork(t *testing.T) {
	c := crew[noDelivery]{handed: make(chan noDelivery, 2)}
	require.True(t, c.rests())
	require.True(t, c.rests())
	require.False(t, c.rests())
	require.EqualValues(t, 2, c.idle.Load())
	c.idle.Add(-1) // start hands one of them a delivery
	require.True(t, c.rests())
	require.False(t, c.rests())
}

// start hands a delivery to whoever is counted: one that isn't going to take it must
// not be, for a moment either.
func TestAWorkerThatGoesIsNeverCounted(t *testing.T) {
	c := crew[noDelivery]{handed: make(chan noDelivery, 1)}
	require.True(t, c.rests())
	var going sync.WaitGroup
	for range 4 {
		going.Go(func() {
			for range 200_000 {
				if c.rests() {
					t.Error("more rest than can be handed work")
				}
			}
		})
	}
	var gone atomic.Bool
	go func() { going.Wait(); gone.Store(true) }()
	for !gone.Load() {
		require.LessOrEqual(t, c.idle.Load(), int64(1))
	}
}
