package idem

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 9, clock: read at most once a call; steps back neither freeze expiry
// nor extend a life beyond W from when the guard saw the step; nothing wraps.

func TestClockIsReadOnceACall(t *testing.T) {
	g, clock := newGuard(t)
	c := mustBegin(t, g, ID("a"))
	calls := map[string]func(){
		"TryBegin, a duplicate": func() { g.TryBegin(ID("a")) },
		"TryBegin, a new id":    func() { g.TryBegin(ID("b")) },
		"Complete":              func() { g.Complete(c) },
		"Complete again":        func() { g.Complete(c) },
		"Reject":                func() { g.Reject(c) },
		"Release":               func() { g.Release(c) },
		"Forget":                func() { g.Forget(ID("c")) },
		"Wait for nothing":      func() { _ = g.Wait(t.Context(), ID("c")) },
		"Stats":                 func() { g.Stats() },
		"Do":                    func() { g.TryBegin(ID("")) },
	}
	for name, call := range calls {
		before := clock.readings()
		call()
		assert.LessOrEqual(t, clock.readings()-before, 1, name)
	}
}

func TestClockIsNotReadForClaimsThatAreNoClaims(t *testing.T) {
	// A deferred Release of an unidentified message costs nothing.
	g, clock := newGuard(t)
	for _, verb := range verbs {
		verb(g, Claim{})
		verb(g, NewClaim(ID("a"), 7))
	}
	g.TryBegin(ID(""))
	require.Zero(t, clock.readings())
}

func TestClockBackwardStepFreezesNothing(t *testing.T) {
	const w = 100 * time.Second
	eachSize(t, func(t *testing.T, m int) {
		for _, back := range []time.Duration{1, time.Second, w / 2, w, 36 * w, math.MaxInt64} {
			for _, op := range []string{"look", "handle", "tracked"} {
				g, clock := newGuard(t, WithWindow(w), WithMaxTracked(m))
				s := newScript(t, g, clock)
				s.play(row{0, "handle", "a", "Begun"})
				s.start = s.start.Add(-back)
				s.play(row{0, op, "seen", map[string]string{"look": "Begun", "handle": "Begun", "tracked": "1"}[op]})
				s.play(row{w - 1, "look", "a", "Completed"}, row{w, "look", "a", "Begun"})
			}
		}
	})
}

func TestClockBackwardStepUnderTrafficFreezesNothing(t *testing.T) {
	const w = 100 * time.Second
	eachSize(t, func(t *testing.T, m int) {
		g, clock := newGuard(t, WithWindow(w), WithMaxTracked(m))
		mustHandle(t, g, ID("a"))
		clock.add(-time.Hour)
		for i := range 10 {
			require.Equal(t, Completed, look(g, ID("a")))
			mustHandle(t, g, number(i))
			clock.add(w / 10)
		}
		clock.add(1)
		require.Equal(t, Begun, look(g, ID("a")))
	})
}

func TestClockBackwardStepWithAMonotonicReading(t *testing.T) {
	// A fake that starts at time.Now() carries the reading through every Add.
	const w = 100 * time.Second
	for _, back := range []time.Duration{2 * time.Second, w / 2, time.Hour} {
		g, clock := newGuard(t, WithWindow(w))
		now := time.Now()
		clock.set(now)
		mustHandle(t, g, ID("a"))
		now = now.Add(-back)
		clock.set(now)
		require.Equal(t, Completed, look(g, ID("a")))
		clock.set(now.Add(w - 1))
		require.Equal(t, Completed, look(g, ID("a")))
		clock.set(now.Add(w))
		require.Equal(t, Begun, look(g, ID("a")), "stepped back by %v", back)
	}
}

func TestClockBackwardStepDoesNotKeepFlightsForEver(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		g, clock := newGuard(t, WithLease(100), WithMaxTracked(m))
		mustBegin(t, g, ID("a"))
		clock.add(-time.Hour)
		_, state := g.TryBegin(ID("a"))
		require.Equal(t, InFlight, state)
		clock.add(199)
		_, state = g.TryBegin(ID("a"))
		require.Equal(t, InFlight, state)
		clock.add(1)
		_, state = g.TryBegin(ID("a"))
		require.Equal(t, Begun, state)
	})
}

func TestClockSawtoothDoesNotFreezeExpiry(t *testing.T) {
	// Forward by 3, back by 2: whatever it does, a life ends W after the last step
	// back that the guard saw, and at the latest when the clock has come W further.
	g, clock := newGuard(t, WithWindow(100))
	mustHandle(t, g, ID("a"))
	for range 200 {
		clock.add(3)
		look(g, ID("x"))
		clock.add(-2)
		look(g, ID("x"))
	}
	require.Equal(t, Begun, look(g, ID("a")))
}

func TestClockIdsThatLandAfterAStepBackLiveTheirTime(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		g, clock := newGuard(t, WithWindow(100), WithMaxTracked(m))
		s := newScript(t, g, clock)
		s.play(row{0, "handle", "a", "Begun"}, row{60, "handle", "b", "Begun"})
		s.start = s.start.Add(-1000)
		s.play(row{0, "handle", "c", "Begun"}, row{49, "handle", "d", "Begun"},
			row{50, "handle", "e", "Begun"},
			row{99, "look", "c", "Completed"}, row{99, "look", "d", "Completed"},
			row{100, "look", "c", "Begun"}, row{100, "look", "d", "Begun"}, row{100, "look", "b", "Begun"},
			row{149, "look", "e", "Completed"}, row{150, "look", "e", "Begun"})
	})
}

func TestClockJumpsForwardOfAnySize(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		for _, to := range []time.Time{farthest, time.Unix(1<<40, 0), time.Unix(1<<55, 0)} {
			g, clock := newGuard(t, WithWindow(100), WithLease(100), WithMaxTracked(m))
			c := mustBegin(t, g, ID("f"))
			mustHandle(t, g, ID("a"))
			clock.set(to)
			start := time.Now()
			require.Equal(t, Begun, look(g, ID("a")))
			require.Equal(t, Begun, look(g, ID("f")))
			require.Less(t, time.Since(start), time.Second, "a jump costs a few steps, not one per generation")
			g.Complete(c)
			require.Equal(t, Completed, look(g, ID("f")))
			clock.add(99)
			require.Equal(t, Completed, look(g, ID("f")))
			clock.add(1)
			require.Equal(t, Begun, look(g, ID("f")))
			clock.set(time.Time{})
			mustHandle(t, g, ID("b"))
			require.Equal(t, Completed, look(g, ID("b")))
			clock.add(100)
			require.Equal(t, Begun, look(g, ID("b")))
		}
	})
}

func TestClockJumpsFromTheZeroTime(t *testing.T) {
	// Both are farther from today than a Duration can say.
	for _, window := range []time.Duration{100, 290 * 365 * 24 * time.Hour, math.MaxInt64} {
		for _, years := range []int{293, 1700, 1734, 1735, 1969, 2023, 2100, 2400} {
			for days := range 366 {
				g, clock := newGuard(t, WithWindow(window), WithLease(window))
				clock.set(time.Time{})
				mustHandle(t, g, ID("a"))
				mustBegin(t, g, ID("f"))
				clock.set(time.Time{}.AddDate(years, 0, days))
				require.Equal(t, Begun, look(g, ID("a")), "%d years later, window %v", years, window)
				if window < math.MaxInt64/2 {
					require.Equal(t, Begun, look(g, ID("f")), "%d years later, lease %v", years, window)
				}
			}
		}
	}
	// Where the longest Duration ends, seen from here.
	end := time.Now().Add(math.MinInt64)
	for _, step := range []time.Duration{-time.Hour, 0, time.Hour, 300 * time.Hour} {
		g, clock := newGuard(t, WithWindow(400*time.Hour))
		clock.set(time.Time{})
		mustHandle(t, g, ID("a"))
		clock.set(end.Add(step).Round(0))
		require.Equal(t, Begun, look(g, ID("a")))
		mustHandle(t, g, ID("b"))
		clock.add(400*time.Hour - 1)
		require.Equal(t, Completed, look(g, ID("b")))
		clock.add(1)
		require.Equal(t, Begun, look(g, ID("b")))
	}
}

func TestClockZeroTimesMeanNothingSpecial(t *testing.T) {
	for _, at := range []time.Time{{}, time.Unix(0, 0), time.Unix(0, math.MinInt64), farthest} {
		g, clock := newGuard(t, WithWindow(100), WithLease(100))
		clock.set(at)
		mustBegin(t, g, ID("f"))
		mustHandle(t, g, ID("a"))
		for range 2 {
			_, state := g.TryBegin(ID("f"))
			require.Equal(t, InFlight, state)
			require.Equal(t, Completed, look(g, ID("a")))
			clock.add(1)
		}
	}
}

func TestClockDurationsDoNotWrap(t *testing.T) {
	for _, d := range []time.Duration{1, 2, 3, math.MaxInt64/2 - 1, math.MaxInt64 / 2, math.MaxInt64/2 + 1, math.MaxInt64 - 1, math.MaxInt64} {
		g, clock := newGuard(t, WithWindow(d), WithLease(d))
		mustBegin(t, g, ID("f"))
		mustHandle(t, g, ID("a"))
		require.Equal(t, Completed, look(g, ID("a")), "window %d", d)
		require.Equal(t, InFlight, look(g, ID("f")), "lease %d", d)
		require.Equal(t, halfOf(d), g.Stats().Horizon)
		if d > 1 {
			clock.add(d - 1)
			require.Equal(t, Completed, look(g, ID("a")))
			require.Equal(t, InFlight, look(g, ID("f")))
			clock.add(1)
			require.Equal(t, Begun, look(g, ID("a")))
		}
	}
}

func TestClockKeepsTheMonotonicReading(t *testing.T) {
	line := timeline{epoch: time.Now()}
	now := line.time(line.now())
	assert.NotEqual(t, now, now.Round(0), "Round strips the monotonic reading")
	assert.WithinDuration(t, time.Now(), now, time.Minute)

	// The wall clock of a reading may be anything, if the monotonic one is there.
	g, clock := newGuard(t, WithWindow(time.Hour))
	clock.set(time.Now())
	mustHandle(t, g, ID("a"))
	start := g.terminal.era.young.start
	assert.NotEqual(t, start, start.Round(0))
}

func TestClockOfBeforeTheGuardWasMade(t *testing.T) {
	// A monotonic reading from a moment before, as a fake clock that was set to
	// time.Now has: that is no slow call, and edges are where they should be.
	g, clock := newGuard(t, WithWindow(100), WithLease(50))
	clock.set(g.line.epoch.Add(-time.Millisecond))
	flying := mustBegin(t, g, ID("f"))
	mustHandle(t, g, ID("a"))
	clock.add(99)
	require.Equal(t, Completed, look(g, ID("a")))
	require.Equal(t, InFlight, look(g, ID("f")))
	clock.add(1)
	require.Equal(t, Begun, look(g, ID("a")))
	require.Equal(t, Begun, look(g, ID("f")))
	g.Release(flying)
}

func TestClockASlowCallDoesNotShortenLives(t *testing.T) {
	// A call reads the clock and is slow to get here; another has begun a
	// generation meanwhile. On a monotonic clock that is no step back.
	g, clock := newGuard(t, WithWindow(time.Second))
	now := time.Now()
	clock.set(now)
	mustHandle(t, g, ID("a"))
	clock.set(now.Add(-time.Millisecond))
	require.Equal(t, Completed, look(g, ID("a")))
	mustHandle(t, g, ID("b"))
	clock.set(now.Add(time.Second - 1))
	require.Equal(t, Completed, look(g, ID("a")))
	require.Equal(t, Completed, look(g, ID("b")))
	clock.set(now.Add(time.Second))
	require.Equal(t, Begun, look(g, ID("a")))
	require.Equal(t, Begun, look(g, ID("b")))
}
