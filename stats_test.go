package idem

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStatsCountEverything(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		g, clock := newGuard(t, WithWindow(1000), WithLease(100), WithMaxTracked(m))
		require.Equal(t, Stats{Horizon: 500}, g.Stats())
		a, b, c := mustBegin(t, g, ID("a")), mustBegin(t, g, ID("b")), mustBegin(t, g, ID("c"))
		d := mustBegin(t, g, ID("d"))
		require.Equal(t, Stats{InFlight: 4, Horizon: 500, Begun: 4}, g.Stats())
		g.Complete(a)
		g.Reject(b)
		g.Release(c)
		require.Equal(t, Stats{Tracked: 2, InFlight: 1, Horizon: 500, Begun: 4, Completed: 1, Rejected: 1, Released: 1}, g.Stats())
		for i, id := range []string{"a", "b", "b", "d", "d", "d", ""} {
			_, state := g.TryBegin(ID(id))
			require.Equal(t, []State{Completed, Rejected, Rejected, InFlight, InFlight, InFlight, Begun}[i], state)
		}
		want := Stats{
			Tracked: 2, InFlight: 1, Horizon: 500, Begun: 4, Completed: 1, Rejected: 1, Released: 1,
			DuplicatesCompleted: 1, DuplicatesRejected: 2, DuplicatesInFlight: 3, Unidentified: 1,
		}
		require.Equal(t, want, g.Stats())
		clock.add(200)
		want.InFlight, want.LeasesExpired = 0, 1
		require.Equal(t, want, g.Stats())
		g.Complete(d)
		want.Tracked, want.LateSettles = 3, 1
		require.Equal(t, want, g.Stats())
		require.True(t, g.Forget(ID("a")))
		want.Tracked = 2
		require.Equal(t, want, g.Stats())
		clock.add(2000)
		want.Tracked = 0
		require.Equal(t, want, g.Stats())
		requireBalance(t, want)
	})
}

func TestStatsLateSettlesOfEveryKind(t *testing.T) {
	g, clock := newGuard(t, WithLease(100))
	var claims []Claim
	for i := range 3 {
		claims = append(claims, mustBegin(t, g, number(i)))
	}
	clock.add(200)
	g.Complete(claims[0])
	g.Reject(claims[1])
	g.Release(claims[2])
	s := g.Stats()
	assert.EqualValues(t, 3, s.LateSettles)
	assert.EqualValues(t, 3, s.LeasesExpired)
	assert.Zero(t, s.Completed+s.Rejected+s.Released, "those count claims settled in time")
	requireBalance(t, s)
}

func TestStatsGaugesAreOfNow(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithLease(100), WithMaxTracked(m)},
			row{0, "begin", "f", "Begun"},
			row{0, "handle", "a", "Begun"},
			row{99, "tracked", "", "1"}, row{100, "tracked", "", "0"},
			row{199, "in flight", "", "1"}, row{200, "in flight", "", "0"},
		)
	})
}

func TestStatsHorizonIsHalfOfWWithoutAFlood(t *testing.T) {
	for _, w := range []time.Duration{1, 2, 3, 100, 101} {
		g, clock := newGuard(t, WithWindow(w), WithMaxTracked(100))
		for i := range 40 {
			mustHandle(t, g, number(i))
			clock.add(1)
			require.Equal(t, halfOf(w), g.Stats().Horizon)
		}
	}
}

func TestStatsHorizonShrinksInAFloodAndRecovers(t *testing.T) {
	eachCeilingOf(t, []int{4, 100, manyShards}, func(t *testing.T, m int) {
		h := m / 2
		g, clock := newGuard(t, WithWindow(100), WithMaxTracked(m))
		n := 0
		flood := func(k int) {
			for range k {
				mustHandle(t, g, number(n))
				n++
			}
		}
		flood(h)
		clock.add(10)
		flood(h)
		require.EqualValues(t, 50, g.Stats().Horizon, "all of it is remembered")
		clock.add(10)
		flood(1) // what landed at 0 is dropped; what landed at 10 or later is not
		require.EqualValues(t, 10, g.Stats().Horizon)
		clock.add(5)
		require.EqualValues(t, 15, g.Stats().Horizon)
		flood(h)
		require.EqualValues(t, 5, g.Stats().Horizon)
		clock.add(44)
		require.EqualValues(t, 49, g.Stats().Horizon)
		clock.add(1)
		require.EqualValues(t, 50, g.Stats().Horizon, "and no more")
		clock.add(1000)
		require.EqualValues(t, 50, g.Stats().Horizon)
		flood(1)
		require.EqualValues(t, 50, g.Stats().Horizon)
	})
}

func eachCeilingOf(t *testing.T, ms []int, test func(t *testing.T, m int)) {
	for _, m := range ms {
		t.Run("maxTracked="+time.Duration(m).String(), func(t *testing.T) { test(t, m) })
	}
}

func TestStatsHorizonIsKept(t *testing.T) {
	// What landed within the horizon is remembered, in any flood.
	g, clock := newGuard(t, WithWindow(100), WithMaxTracked(20))
	landed := map[int]time.Time{}
	for i := range 3000 {
		if i*i%7 < 3 {
			clock.add(time.Duration(i % 9))
		}
		mustHandle(t, g, number(i))
		landed[i] = clock.Now()
		horizon := g.Stats().Horizon
		for j := max(0, i-30); j <= i; j++ {
			if clock.Now().Sub(landed[j]) < horizon {
				require.Equal(t, Completed, look(g, number(j)), "horizon %d", horizon)
			}
		}
	}
	require.NotZero(t, g.Stats().EarlyRotations)
}

func TestStatsHorizonAfterAStepBack(t *testing.T) {
	g, clock := newGuard(t, WithWindow(100), WithMaxTracked(4))
	for i := range 7 {
		mustHandle(t, g, number(i))
	}
	clock.add(-time.Hour)
	require.Zero(t, g.Stats().Horizon, "not negative")
	clock.add(20)
	require.EqualValues(t, 20, g.Stats().Horizon)
	clock.add(80)
	require.EqualValues(t, 50, g.Stats().Horizon)
}

func TestStatsEarlyRotationsAreThoseBySize(t *testing.T) {
	g, clock := newGuard(t, WithWindow(100), WithMaxTracked(6))
	for i := range 20 {
		mustHandle(t, g, number(i)) // one a half window: all turns are by time
		clock.add(50)
	}
	require.Zero(t, g.Stats().EarlyRotations)
	for i := range 3 {
		mustHandle(t, g, number(100+i))
	}
	clock.add(50) // full, but its time is over too
	mustHandle(t, g, number(200))
	require.Zero(t, g.Stats().EarlyRotations)
	mustHandle(t, g, number(201))
	clock.add(49)
	mustHandle(t, g, number(202))
	require.Zero(t, g.Stats().EarlyRotations)
	mustHandle(t, g, number(203))
	require.EqualValues(t, 1, g.Stats().EarlyRotations)
	for i := range 9 {
		mustBegin(t, g, number(300+i)) // flights are not counted here
	}
	require.EqualValues(t, 1, g.Stats().EarlyRotations)
}

func TestStatsAreComparable(t *testing.T) {
	g, _ := newGuard(t)
	once, again := g.Stats(), g.Stats()
	assert.True(t, once == again)
	mustBegin(t, g, ID("a"))
	assert.False(t, g.Stats() == Stats{})
}

func TestStatsOfTwoGuardsAreApart(t *testing.T) {
	a, _ := newGuard(t)
	b, _ := newGuard(t)
	mustHandle(t, a, ID("x"))
	require.Equal(t, Stats{Horizon: b.Stats().Horizon}, b.Stats())
	require.Equal(t, Begun, look(b, ID("x")))
}

func TestForget(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithMaxTracked(m)},
			row{0, "forget", "a", "false"}, // unknown
			row{0, "begin", "a", "Begun"},
			row{0, "forget", "a", "false"}, // in flight
			row{0, "begin", "a", "InFlight"},
			row{0, "complete", "a", ""},
			row{0, "forget", "a", "true"},
			row{0, "forget", "a", "false"},
			row{0, "bury", "a", "Begun"},
			row{0, "forget", "a", "true"},
			row{0, "handle", "a", "Begun"}, // a life of its own
			row{60, "handle", "b", "Begun"},
			row{60, "forget", "a", "true"}, // of the old generation too
			row{60, "look", "a", "Begun"},
			row{60, "look", "b", "Completed"},
			row{60, "tracked", "", "1"},
			row{159, "forget", "b", "true"},
			row{159, "handle", "b", "Begun"},
			row{160, "forget", "b", "true"},
			row{160, "handle", "c", "Begun"},
			row{260, "forget", "c", "false"}, // over
		)
	})
}

func TestForgetLeavesAnOvertakenFlightAlone(t *testing.T) {
	play(t, []Option{WithWindow(1000), WithLease(100)},
		row{0, "begin", "a", "Begun"},
		row{200, "begin", "a", "Begun"},
		row{200, "complete", "a#1", ""},
		row{200, "forget", "a", "false"}, // in flight as well
		row{200, "look", "a", "Completed"},
		row{200, "complete", "a#2", ""},
		row{200, "forget", "a", "true"},
		row{200, "look", "a", "Begun"},
	)
}
