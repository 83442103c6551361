package idem

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 2, ceiling: never more than M terminal ids and never more than M in
// flight; the budgets are apart; what comes again takes no room.

var ceilings = []int{2, 3, 4, 5, 7, 100, 101}

func eachCeiling(t *testing.T, test func(t *testing.T, m int)) {
	for _, m := range ceilings {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) { test(t, m) })
	}
}

func TestCeilingOfTerminalIds(t *testing.T) {
	eachCeiling(t, func(t *testing.T, m int) {
		g, _ := newGuard(t, WithMaxTracked(m))
		most := 0
		for i := range few(5000) {
			if c := mustBegin(t, g, number(i)); i%3 == 0 {
				g.Reject(c)
			} else {
				g.Complete(c)
			}
			s := g.Stats()
			require.LessOrEqual(t, s.Tracked, m)
			require.GreaterOrEqual(t, s.Tracked, min(i+1, m/2), "the newest H are there")
			require.Zero(t, s.InFlight)
			most = max(most, s.Tracked)
		}
		assert.Equal(t, m/2*2, most, "two generations of H each")
	})
}

func TestCeilingOfIdsInFlight(t *testing.T) {
	eachCeiling(t, func(t *testing.T, m int) {
		g, _ := newGuard(t, WithMaxTracked(m))
		most := 0
		for i := range few(5000) {
			mustBegin(t, g, number(i))
			s := g.Stats()
			require.LessOrEqual(t, s.InFlight, m)
			require.GreaterOrEqual(t, s.InFlight, min(i+1, m/2))
			require.Zero(t, s.Tracked)
			requireBalance(t, s)
			most = max(most, s.InFlight)
		}
		assert.Equal(t, m/2*2, most)
	})
}

func TestCeilingHoldsOverAllShards(t *testing.T) {
	for _, m := range []int{manyShards, manyShards + 1} {
		g, _ := newGuard(t, WithMaxTracked(m))
		for i := range 5 * m / 2 {
			c := mustBegin(t, g, number(i))
			if i%2 == 0 {
				g.Complete(c)
			}
			if i%997 == 0 || i > 2*m-3 && i < 2*m+3 {
				s := g.Stats()
				require.LessOrEqual(t, s.Tracked, m)
				require.LessOrEqual(t, s.InFlight, m)
			}
		}
		s := g.Stats()
		assert.Greater(t, s.Tracked, m/2-1)
		assert.Greater(t, s.InFlight, m/2-1)
	}
}

func TestCeilingIsMAndNotOneMoreOrLess(t *testing.T) {
	const m = manyShards
	g, _ := newGuard(t, WithMaxTracked(m))
	for i := range m {
		mustHandle(t, g, number(i))
	}
	require.Equal(t, m, g.Stats().Tracked)
	require.Equal(t, Completed, look(g, number(0)))
	mustHandle(t, g, number(m))
	require.Equal(t, m/2+1, g.Stats().Tracked, "the older generation went as a whole")
	require.Equal(t, Begun, look(g, number(0)))
	require.Equal(t, Begun, look(g, number(m/2-1)))
	require.Equal(t, Completed, look(g, number(m/2)))
}

func TestCeilingFloodInFlightEvictsNoTerminal(t *testing.T) {
	eachCeiling(t, func(t *testing.T, m int) {
		g, _ := newGuard(t, WithMaxTracked(m))
		for i := range m / 2 {
			mustHandle(t, g, number(i))
		}
		for i := range 10 * m {
			mustBegin(t, g, number(1000+i))
		}
		for i := range m / 2 {
			require.Equal(t, Completed, look(g, number(i)))
		}
	})
}

func TestCeilingFloodOfTerminalsEvictsNothingInFlight(t *testing.T) {
	for _, m := range []int{4, 5, 7, 100, 101} { // two in flight at a time must not be beyond H
		g, _ := newGuard(t, WithMaxTracked(m))
		mustBegin(t, g, ID("a"))
		for i := range 10 * m {
			mustHandle(t, g, number(i))
		}
		require.Equal(t, InFlight, look(g, ID("a")))
	}
}

func TestCeilingDuplicatesTakeNoRoom(t *testing.T) {
	g, _ := newGuard(t, WithMaxTracked(4))
	a := mustBegin(t, g, ID("a"))
	g.Complete(a)
	b := mustBegin(t, g, ID("b"))
	for range 1000 {
		_, state := g.TryBegin(ID("a"))
		require.Equal(t, Completed, state)
		_, state = g.TryBegin(ID("b"))
		require.Equal(t, InFlight, state)
		g.Complete(a)
		g.Reject(a)
		g.Release(a)
	}
	s := g.Stats()
	assert.Equal(t, 1, s.Tracked)
	assert.Equal(t, 1, s.InFlight)
	assert.Zero(t, s.EarlyRotations)
	assert.EqualValues(t, 1, s.Completed)
	g.Release(b)
}

func TestCeilingSettledIdsGiveTheirPlaceBack(t *testing.T) {
	for _, op := range []string{"complete", "reject", "release"} {
		t.Run(op, func(t *testing.T) {
			g, clock := newGuard(t, WithMaxTracked(6)) // H is 3
			s := newScript(t, g, clock)
			s.play(row{0, "begin", "old", "Begun"})
			for i := range 1000 {
				id := fmt.Sprint(i)
				s.play(row{0, "begin", id, "Begun"}, row{0, "begin", id + "'", "Begun"},
					row{0, op, id, ""}, row{0, op, id + "'", ""},
					row{0, "look", "old", "InFlight"}, row{0, "in flight", "", "1"})
			}
			assert.Zero(t, g.Stats().LeasesExpired)
		})
	}
}

func TestCeilingForgottenIdsGiveTheirPlaceBack(t *testing.T) {
	g, clock := newGuard(t, WithMaxTracked(6))
	s := newScript(t, g, clock)
	s.play(row{0, "handle", "old", "Begun"})
	for range 1000 {
		s.play(row{0, "handle", "a", "Begun"}, row{0, "bury", "b", "Begun"},
			row{0, "forget", "a", "true"}, row{0, "forget", "b", "true"},
			row{0, "tracked", "", "1"})
	}
	s.play(row{0, "look", "old", "Completed"})
	assert.Zero(t, g.Stats().EarlyRotations)
}

func TestCeilingReleasedIdsTakeNoTerminalPlace(t *testing.T) {
	g, clock := newGuard(t, WithMaxTracked(6))
	s := newScript(t, g, clock)
	for range 1000 {
		s.play(row{0, "begin", "a", "Begun"}, row{0, "release", "a", ""}, row{0, "tracked", "", "0"})
	}
	s.play(row{0, "handle", "a", "Begun"}, row{0, "handle", "b", "Begun"}, row{0, "handle", "c", "Begun"},
		row{0, "look", "a", "Completed"})
	assert.Zero(t, g.Stats().EarlyRotations)
}

func TestCeilingARejectedIdThatIsCompletedCountsOnce(t *testing.T) {
	// H is 2: if it counted twice, b would be evicted.
	play(t, []Option{WithWindow(1000), WithLease(10), WithMaxTracked(4)},
		row{0, "begin", "a", "Begun"},
		row{20, "bury", "a", "Begun"},
		row{20, "tracked", "", "1"},
		row{20, "complete", "a#1", ""},
		row{20, "tracked", "", "1"},
		row{20, "handle", "b", "Begun"},
		row{20, "tracked", "", "2"},
		row{20, "handle", "c", "Begun"}, row{20, "handle", "d", "Begun"},
		row{20, "tracked", "", "4"},
		row{20, "look", "a", "Completed"}, row{20, "look", "b", "Completed"},
	)
}
