package idem

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 4, in flight: an id begun stays in flight until it is settled, or for
// at least L and at most 2L.

var leases = []time.Duration{100, 101, 3, 2, 1, time.Hour, math.MaxInt64/2 - 1, math.MaxInt64 / 2}

func eachLease(t *testing.T, test func(t *testing.T, l time.Duration, opts []Option)) {
	eachSize(t, func(t *testing.T, m int) {
		for _, l := range leases {
			t.Run(fmt.Sprintf("lease=%d", l), func(t *testing.T) {
				test(t, l, []Option{WithLease(l), WithMaxTracked(m)})
			})
		}
	})
}

func TestInFlightEndsAt2LForTheFirstOfAGeneration(t *testing.T) {
	eachLease(t, func(t *testing.T, l time.Duration, opts []Option) {
		play(t, opts,
			row{0, "begin", "a", "Begun"},
			row{0, "begin", "a", "InFlight"},
			row{l, "begin", "a", "InFlight"},
			row{2*l - 1, "begin", "a", "InFlight"},
			row{2*l - 1, "in flight", "", "1"},
			row{2 * l, "in flight", "", "0"},
			row{2 * l, "begin", "a", "Begun"},
		)
	})
}

func TestInFlightLastsLForTheLastOfAGeneration(t *testing.T) {
	eachLease(t, func(t *testing.T, l time.Duration, opts []Option) {
		play(t, opts,
			row{0, "begin", "first", "Begun"},
			row{l - 1, "begin", "a", "Begun"},
			row{2*l - 1, "begin", "a", "InFlight"}, // L after
			row{2 * l, "begin", "a", "Begun"},      // L + 1 after
		)
	})
}

func TestInFlightAtLStartsAGeneration(t *testing.T) {
	eachLease(t, func(t *testing.T, l time.Duration, opts []Option) {
		if l > math.MaxInt64/3 {
			t.Skip("beyond what a Duration can say: see the clock's promise")
		}
		play(t, opts,
			row{0, "begin", "first", "Begun"},
			row{l, "begin", "a", "Begun"},
			row{2*l - 1, "begin", "first", "InFlight"},
			row{2 * l, "begin", "first", "Begun"},
			row{3*l - 1, "begin", "a", "InFlight"},
			row{3 * l, "begin", "a", "Begun"},
		)
	})
}

func TestInFlightLastsForEverUnderTheLongestLease(t *testing.T) {
	for _, l := range []time.Duration{math.MaxInt64/2 + 1, math.MaxInt64 - 1, math.MaxInt64} {
		play(t, []Option{WithLease(l)},
			row{0, "begin", "a", "Begun"},
			row{math.MaxInt64 / 2, "begin", "a", "InFlight"},
			row{math.MaxInt64 - 1, "begin", "a", "InFlight"},
		)
	}
}

func TestInFlightLapsesWithoutAnyTraffic(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		for _, after := range []time.Duration{200, 201, 1000, time.Hour, math.MaxInt64} {
			play(t, []Option{WithLease(100), WithMaxTracked(m)},
				row{0, "begin", "a", "Begun"},
				row{after, "begin", "a", "Begun"},
			)
		}
	})
}

func TestInFlightIsNotProlongedByLooks(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		rows := []row{{0, "begin", "a", "Begun"}}
		for at := time.Duration(0); at < 200; at += 9 {
			rows = append(rows, row{at, "begin", "a", "InFlight"})
		}
		play(t, []Option{WithLease(100), WithMaxTracked(m)}, append(rows, row{200, "begin", "a", "Begun"})...)
	})
}

func TestInFlightEndsWithTheSettle(t *testing.T) {
	for op, want := range map[string]string{"complete": "Completed", "reject": "Rejected", "release": "Begun"} {
		eachSize(t, func(t *testing.T, m int) {
			play(t, []Option{WithLease(100), WithMaxTracked(m)},
				row{0, "begin", "a", "Begun"},
				row{199, "in flight", "", "1"},
				row{199, op, "a", ""},
				row{199, "in flight", "", "0"},
				row{199, "look", "a", want},
			)
		})
	}
}

func TestInFlightIsSettledFromBothGenerations(t *testing.T) {
	for op, want := range map[string]string{"complete": "Completed", "reject": "Rejected", "release": "Begun"} {
		eachSize(t, func(t *testing.T, m int) {
			play(t, []Option{WithLease(100), WithMaxTracked(m)},
				row{0, "begin", "old", "Begun"},
				row{100, "begin", "young", "Begun"},
				row{150, op, "old", ""}, row{150, op, "young", ""},
				row{150, "in flight", "", "0"},
				row{150, "look", "old", want}, row{150, "look", "young", want},
			)
		})
	}
}

func TestInFlightUpToHNothingGoesBeforeL(t *testing.T) {
	for _, m := range []int{2, 3, 4, 5, 100, 101, manyShards} {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) {
			h := m / 2
			g, clock := newGuard(t, WithLease(100), WithMaxTracked(m))
			for i := range h {
				mustBegin(t, g, number(i))
			}
			clock.add(99)
			for i := range h {
				_, state := g.TryBegin(number(i))
				require.Equal(t, InFlight, state)
			}
			clock.add(100)
			require.Equal(t, h, g.Stats().InFlight, "199: all in one generation")
			clock.add(1)
			require.Zero(t, g.Stats().InFlight)
			require.EqualValues(t, h, g.Stats().LeasesExpired)
		})
	}
}

func TestInFlightUpToHNothingGoesHoweverManyCameAndWent(t *testing.T) {
	for _, m := range []int{6, 100, manyShards} {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) {
			h := m / 2
			g, _ := newGuard(t, WithMaxTracked(m))
			// As many as fit, in a ring: the oldest is settled, a new one begun.
			claims := make([]Claim, h)
			for i := range 3 * h {
				if i >= h {
					g.Release(claims[i%h])
				}
				claims[i%h] = mustBegin(t, g, number(i))
			}
			s := g.Stats()
			assert.Equal(t, h, s.InFlight)
			assert.Zero(t, s.LeasesExpired)
		})
	}
}

func TestInFlightBeyondHTheOldestGoAndTheNewestIsNeverRefused(t *testing.T) {
	for _, m := range []int{2, 3, 4, 5, 100, 101, manyShards} {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) {
			h := m / 2
			g, _ := newGuard(t, WithMaxTracked(m))
			for i := range 2 * h {
				mustBegin(t, g, number(i))
			}
			require.Equal(t, 2*h, g.Stats().InFlight)
			require.Zero(t, g.Stats().LeasesExpired)
			mustBegin(t, g, number(2*h))
			require.Equal(t, h+1, g.Stats().InFlight)
			require.EqualValues(t, h, g.Stats().LeasesExpired)
			for i := h; i <= 2*h; i++ {
				_, state := g.TryBegin(number(i))
				require.Equal(t, InFlight, state, "of the newest")
			}
			for i := range min(h, 10) {
				require.Equal(t, Begun, look(g, number(i)), "of the oldest")
			}
		})
	}
}
