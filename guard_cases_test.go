package idem

import (
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Faults that people reported of libraries like this one, each as the smallest
// sequence that shows it.

func TestCaseAFailedAttemptIsNotRemembered(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		rows := []row{}
		for range 100 {
			rows = append(rows, row{0, "begin", "a", "Begun"}, row{0, "release", "a", ""})
		}
		play(t, []Option{WithMaxTracked(m)}, append(rows, row{0, "begin", "a", "Begun"})...)
	})
}

func TestCaseABeginThatPanicsClaimsNothing(t *testing.T) {
	clock := newBadClock()
	g, err := NewGenerational(WithClock(clock))
	require.NoError(t, err)
	clock.do = func() { panic("bad clock") }
	require.Panics(t, func() { g.TryBegin(ID("a")) })
	clock.do = nil
	mustHandle(t, g, ID("a"))
	require.Equal(t, Completed, look(g, ID("a")))
}

func TestCaseALeakedClaimDoesNotBlockItsIdForEver(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithLease(time.Minute), WithMaxTracked(m)},
			row{0, "begin", "a", "Begun"},
			row{2 * time.Minute, "begin", "a", "Begun"},
		)
	})
}

func TestCaseInFlightAndDoneAreToldApart(t *testing.T) {
	play(t, nil,
		row{0, "begin", "a", "Begun"},
		row{0, "begin", "a", "InFlight"},
		row{0, "complete", "a", ""},
		row{0, "begin", "a", "Completed"},
	)
}

func TestCaseAnInFlightMarkAtTheZeroTimeIsNotExpired(t *testing.T) {
	for _, start := range []time.Time{{}, time.Unix(0, 0)} {
		g, clock := newGuard(t)
		clock.set(start)
		newScript(t, g, clock).play(
			row{0, "begin", "a", "Begun"},
			row{0, "begin", "a", "InFlight"},
			row{1, "begin", "a", "InFlight"},
		)
	}
}

func TestCaseAnIdleGuardForgets(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		const w = time.Minute
		play(t, []Option{WithWindow(w), WithMaxTracked(m)},
			row{0, "handle", "a", "Begun"},
			row{10 * w, "begin", "a", "Begun"},
		)
	})
}

func TestCaseAnIdFromJustBeforeATurnLivesItsTime(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithMaxTracked(m)},
			row{0, "handle", "first", "Begun"},
			row{49, "handle", "x", "Begun"},
			row{50, "handle", "turn", "Begun"},
			row{98, "begin", "x", "Completed"},
		)
	})
}

func TestCaseAnExpiredIdIsRecordedAnew(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		const w = time.Minute
		play(t, []Option{WithWindow(w), WithMaxTracked(m)},
			row{0, "handle", "a", "Begun"},
			row{2 * w, "handle", "a", "Begun"},
			row{2*w + time.Second, "begin", "a", "Completed"},
		)
	})
}

func TestCaseReleasingAndBeginningAgainTakesNoRoom(t *testing.T) {
	const m = 100
	g, _ := newGuard(t, WithMaxTracked(m))
	before := heap()
	for range 100_000 {
		g.Release(mustBegin(t, g, ID("a")))
	}
	mustHandle(t, g, ID("a"))
	for i := range m/2 - 1 {
		mustHandle(t, g, number(i))
	}
	require.Equal(t, Completed, look(g, ID("a")))
	require.Less(t, int(heap().HeapAlloc)-int(before.HeapAlloc), 64<<10)
}

func TestCaseAFloodCostsOldIdsOnly(t *testing.T) {
	g, _ := newGuard(t, WithMaxTracked(100))
	for i := range few(10_000) {
		mustHandle(t, g, number(i))
		for j := max(0, i-49); j <= i; j++ {
			if state := look(g, number(j)); state != Completed {
				t.Fatalf("%d ids later: %v", i-j, state)
			}
		}
	}
}

func TestCaseTheBoundHoldsWithAllFreshIds(t *testing.T) {
	for _, m := range []int{2, 3, 7, 100} {
		g, _ := newGuard(t, WithMaxTracked(m))
		for i := range few(50_000) {
			c, _ := g.TryBegin(ids50k[i])
			g.Complete(c)
			if tracked := g.Stats().Tracked; tracked > m {
				t.Fatalf("maxTracked %d: %d tracked", m, tracked)
			}
		}
	}
}

// ids50k are made once: making them takes longer than the guard does.
var ids50k = func() (ids [50_000]Identity) {
	for i := range ids {
		ids[i] = number(i)
	}
	return ids
}()

func TestCaseScopesDoNotCollide(t *testing.T) {
	g, _ := newGuard(t, WithMessageIdentity(IDOnly))
	mustBegin(t, g, IDAt("a", "one"))
	require.Equal(t, InFlight, look(g, IDAt("a", "two")))

	for name, verb := range verbs {
		g, _ = newGuard(t)
		one := mustBegin(t, g, IDAt("a", "one"))
		mustBegin(t, g, IDAt("a", "two"))
		verb(g, one)
		require.Equal(t, settled[name], look(g, IDAt("a", "one")))
		require.Equal(t, InFlight, look(g, IDAt("a", "two")))
	}
}

func TestCaseARedeliveryNeedNotBeAdjacent(t *testing.T) {
	play(t, nil,
		row{0, "handle", "a", "Begun"},
		row{0, "handle", "b", "Begun"},
		row{0, "look", "a", "Completed"},
	)
}

func TestCaseTheDefaultsLimitNothingToNone(t *testing.T) {
	g, err := NewGenerational()
	require.NoError(t, err)
	mustHandle(t, g, ID("a"))
	require.Equal(t, Completed, look(g, ID("a")))
}

func TestCaseTheClockStepsFromTenToNine(t *testing.T) {
	const w = 10 * time.Minute
	ten := time.Date(2024, 3, 31, 10, 0, 0, 0, time.UTC)
	eachSize(t, func(t *testing.T, m int) {
		mock := clock.NewMock()
		mock.Set(ten)
		g, err := NewGenerational(WithClock(mock), WithWindow(w), WithMaxTracked(m))
		require.NoError(t, err)
		mustHandle(t, g, ID("a"))
		mock.Set(ten.Add(-time.Hour))
		for i := range 10 {
			require.Equal(t, Completed, look(g, ID("a")))
			mustHandle(t, g, number(i))
			mock.Add(w / 10)
		}
		mock.Add(1)
		require.Equal(t, Begun, look(g, ID("a")))
	})
}

func TestCaseTheMockMovesWhileOthersCall(t *testing.T) {
	mock := clock.NewMock()
	g, err := NewGenerational(WithClock(mock), WithWindow(100), WithLease(100))
	require.NoError(t, err)
	mustHandle(t, g, ID("old"))
	var movers, callers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 8 {
		callers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					c, _ := g.TryBegin(ids50k[(n*8+i)%1000])
					g.Complete(c)
				}
			}
		})
	}
	movers.Go(func() {
		for range 200 {
			mock.Add(7)
		}
	})
	movers.Wait()
	close(stop)
	callers.Wait()
	require.Equal(t, Begun, look(g, ID("old")))
	requireBalance(t, g.Stats())
	mock.Add(200)
	require.Zero(t, g.Stats().Tracked)
}

func TestCaseAStormOfOneIdTurnsNothing(t *testing.T) {
	g, _ := newGuard(t, WithMaxTracked(4))
	mustHandle(t, g, ID("old"))
	c := mustBegin(t, g, ID("b"))
	for range 970 {
		_, state := g.TryBegin(ID("b"))
		require.Equal(t, InFlight, state)
	}
	g.Complete(c)
	for range 970 {
		require.Equal(t, Completed, look(g, ID("b")))
	}
	assert.Equal(t, Completed, look(g, ID("old")))
	assert.Zero(t, g.Stats().EarlyRotations)
}
