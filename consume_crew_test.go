package idem

import (
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
