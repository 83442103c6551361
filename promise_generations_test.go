package idem

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 3, two generations: swapped whole; a life starts with the first id
// that lands, however late the calls come.

func TestGenerationStartsWithItsFirstId(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithMaxTracked(m)},
			// Looks and ids that are only begun start nothing.
			row{0, "look", "x", "Begun"},
			row{30, "begin", "y", "Begun"},
			row{40, "handle", "a", "Begun"},
			row{89, "handle", "b", "Begun"}, // 49 after a: a's generation
			row{139, "look", "a", "Completed"}, row{139, "look", "b", "Completed"},
			row{140, "look", "a", "Begun"}, row{140, "look", "b", "Begun"},
		)
	})
}

func TestGenerationThatIsLateStartsWhenItsFirstIdLands(t *testing.T) {
	// The classic fault is to start it on a grid, or at the look that noticed.
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithMaxTracked(m)},
			row{0, "handle", "a", "Begun"},
			row{60, "look", "a", "Completed"}, // past W/2, but nothing lands
			row{75, "handle", "b", "Begun"},
			row{99, "look", "a", "Completed"},
			row{100, "look", "a", "Begun"},
			row{174, "look", "b", "Completed"},
			row{175, "look", "b", "Begun"},
		)
	})
}

func TestGenerationIsGoneAtWWhenTheNextCallIsLate(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithMaxTracked(m)},
			row{0, "handle", "a", "Begun"},
			row{99, "handle", "b", "Begun"}, // turns: a's generation is the old one
			row{100, "look", "a", "Begun"},  // and over
			row{100, "look", "b", "Completed"},
			row{198, "look", "b", "Completed"},
			row{199, "look", "b", "Begun"},
		)
	})
}

func TestGenerationsDieTogetherWhenBothAreOver(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithMaxTracked(m)},
			row{0, "handle", "a", "Begun"},
			row{60, "handle", "b", "Begun"},
			row{159, "look", "b", "Completed"},
			row{160, "look", "b", "Begun"}, row{160, "look", "a", "Begun"},
			row{160, "handle", "c", "Begun"},
			row{259, "look", "c", "Completed"},
			row{260, "tracked", "", "0"},
		)
	})
}

func TestGenerationsKeepTurning(t *testing.T) {
	// One turn works in most; the second and the twelfth are what is forgotten.
	eachSize(t, func(t *testing.T, m int) {
		m = max(m, 8000)
		g, clock := newGuard(t, WithWindow(100), WithMaxTracked(m))
		const each = 1000
		for step := range 12 {
			for i := range each {
				mustHandle(t, g, number(step*each+i))
			}
			require.LessOrEqual(t, g.Stats().Tracked, 2*each, "step %d", step)
			require.Equal(t, min(step+1, 2)*each, g.Stats().Tracked, "step %d", step)
			clock.add(50)
		}
		assert.Zero(t, g.Stats().EarlyRotations)
	})
}

func TestGenerationTakesIdsUntilItHoldsH(t *testing.T) {
	for _, m := range []int{2, 3, 4, 5, 7} {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) {
			g, clock := newGuard(t, WithWindow(100), WithMaxTracked(m))
			for i := range m / 2 {
				clock.add(1)
				mustHandle(t, g, number(i))
			}
			require.Zero(t, g.Stats().EarlyRotations)
			clock.add(1)
			mustHandle(t, g, number(m))
			require.EqualValues(t, 1, g.Stats().EarlyRotations)
			// The new generation has a life of its own from here.
			clock.add(99)
			require.Equal(t, Completed, look(g, number(m)))
			require.Equal(t, Begun, look(g, number(0)))
			clock.add(1)
			require.Equal(t, Begun, look(g, number(m)))
		})
	}
}

func TestGenerationsOfFlightsTurnOnTheirOwn(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithLease(1000), WithMaxTracked(m)},
			row{0, "begin", "f", "Begun"},
			row{0, "handle", "a", "Begun"},
			row{100, "look", "a", "Begun"},
			row{500, "tracked", "", "0"},
			row{500, "in flight", "", "1"},
			row{1999, "look", "f", "InFlight"},
		)
	})
}

func TestGuardHasNoGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	for i := range 1000 {
		g, err := NewGenerational()
		require.NoError(t, err)
		mustHandle(t, g, number(i))
	}
	assert.LessOrEqual(t, runtime.NumGoroutine(), before)
}

func TestGuardHasNoGoroutineInABubble(t *testing.T) {
	// synctest fails the test if one is left.
	synctest.Test(t, func(t *testing.T) {
		g, err := NewGenerational(WithWindow(time.Minute))
		require.NoError(t, err)
		mustHandle(t, g, ID("a"))
		time.Sleep(time.Minute - 1)
		require.Equal(t, Completed, look(g, ID("a")))
		time.Sleep(time.Nanosecond)
		require.Equal(t, Begun, look(g, ID("a")))
	})
}
