package horizon_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/benchmarks/internal/horizon"
)

// Up to a rate of M/W the guard remembers for half the window, and beyond that the
// newest M/2.
func TestHorizonAtARate(t *testing.T) {
	const m, w = 1000, 100 * time.Second
	for _, c := range []struct {
		rate float64
		want time.Duration
	}{
		{1, w / 2},
		{9, w / 2},
		{10, w / 2},
		{20, 25 * time.Second},
		{100, 5 * time.Second},
		{1000, 500 * time.Millisecond},
	} {
		got, err := horizon.At(m, w, c.rate)
		require.NoError(t, err)
		assert.InEpsilon(t, c.want, got, 0.005, "at %v a second: %v", c.rate, got)
	}
}

func TestHorizonOfAnInvalidGuard(t *testing.T) {
	_, err := horizon.At(1, time.Minute, 10)
	require.ErrorIs(t, err, idem.ErrInvalidOption)
}
