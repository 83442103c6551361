package idem

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 1, retention: a terminal id is remembered for at least W/2 and at most
// W, whatever calls come in between.

// windows are even and odd, and as small as they get: W/2 is rounded up.
var windows = []time.Duration{100, 101, 4, 5, 3, 2, 1, 5 * time.Minute, math.MaxInt64 - 1, math.MaxInt64}

func halfOf(w time.Duration) time.Duration { return w/2 + w%2 }

// eachWindow runs a test for every window, with one shard and with many.
func eachWindow(t *testing.T, test func(t *testing.T, w time.Duration, opts []Option)) {
	eachSize(t, func(t *testing.T, m int) {
		for _, w := range windows {
			t.Run(fmt.Sprintf("window=%d", w), func(t *testing.T) {
				test(t, w, []Option{WithWindow(w), WithMaxTracked(m)})
			})
		}
	})
}

func TestRetentionEndsAtWForTheFirstOfAGeneration(t *testing.T) {
	eachWindow(t, func(t *testing.T, w time.Duration, opts []Option) {
		for op, state := range map[string]string{"handle": "Completed", "bury": "Rejected"} {
			play(t, opts,
				row{0, op, "a", "Begun"},
				row{0, "look", "a", state},
				row{w - 1, "look", "a", state},
				row{w, "look", "a", "Begun"},
			)
		}
	})
}

func TestRetentionIsHalfOfWForTheLastOfAGeneration(t *testing.T) {
	eachWindow(t, func(t *testing.T, w time.Duration, opts []Option) {
		last := halfOf(w) - 1
		play(t, opts,
			row{0, "handle", "first", "Begun"},
			row{last, "handle", "a", "Begun"},
			row{w - 1, "look", "a", "Completed"},
			row{w, "look", "a", "Begun"},
		)
		require.GreaterOrEqual(t, w-last, halfOf(w), "the script itself: that is at least W/2")
	})
}

func TestRetentionOfAnIdAtHalfOfWStartsAGeneration(t *testing.T) {
	eachWindow(t, func(t *testing.T, w time.Duration, opts []Option) {
		half := halfOf(w)
		if half > math.MaxInt64-w {
			t.Skip("beyond what a Duration can say: see the clock's promise")
		}
		rows := []row{{0, "handle", "first", "Begun"}}
		if half < w {
			rows = append(rows, row{half, "look", "first", "Completed"})
		}
		play(t, opts, append(rows,
			row{half, "handle", "a", "Begun"},
			row{half + w - 1, "look", "a", "Completed"},
			row{half + w, "look", "a", "Begun"},
		)...)
	})
}

func TestRetentionIsNeverProlonged(t *testing.T) {
	const w = 100
	for _, op := range []string{"look", "complete", "reject", "release"} {
		t.Run(op, func(t *testing.T) {
			eachSize(t, func(t *testing.T, m int) {
				rows, want := []row{{0, "handle", "a", "Begun"}}, ""
				if op == "look" {
					want = "Completed"
				}
				for at := time.Duration(0); at < w; at += 7 {
					rows = append(rows, row{at, op, "a", want})
				}
				play(t, []Option{WithWindow(w), WithMaxTracked(m)}, append(rows,
					row{w - 1, "look", "a", "Completed"},
					row{w, "look", "a", "Begun"},
				)...)
			})
		})
	}
}

func TestRetentionOfOthersIsNotProlongedByTraffic(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		g, clock := newGuard(t, WithWindow(100), WithMaxTracked(m))
		mustHandle(t, g, ID("a"))
		for i := range 99 {
			clock.add(1)
			mustHandle(t, g, number(i))
			require.Equal(t, Completed, look(g, ID("a")), "at %d", i+1)
		}
		clock.add(1)
		require.Equal(t, Begun, look(g, ID("a")))
	})
}

func TestRetentionEndsWhenNobodyCalls(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		for _, idle := range []time.Duration{100, 101, 149, 150, 151, 200, 250, 1000, time.Hour, math.MaxInt64 - 50} {
			play(t, []Option{WithWindow(100), WithMaxTracked(m)},
				row{0, "handle", "first", "Begun"},
				row{49, "handle", "last", "Begun"},
				row{49, "tracked", "", "2"},
				row{49 + idle, "tracked", "", "0"},
				row{49 + idle, "look", "first", "Begun"},
				row{49 + idle, "look", "last", "Begun"},
			)
		}
	})
}

func TestRetentionStartsAnewForAnIdThatIsHandledAgain(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithMaxTracked(m)},
			row{0, "handle", "a", "Begun"},
			row{200, "handle", "a", "Begun"},
			row{201, "look", "a", "Completed"},
			row{299, "look", "a", "Completed"},
			row{300, "look", "a", "Begun"},
		)
	})
}

func TestRetentionCountsFromTheEndNotFromTheBegin(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(100), WithMaxTracked(m)},
			row{0, "begin", "a", "Begun"},
			row{5000, "complete", "a", ""},
			row{5099, "look", "a", "Completed"},
			row{5100, "look", "a", "Begun"},
		)
	})
}

func TestRetentionOfTheNewestHIsHalfOfWInAnyFlood(t *testing.T) {
	for _, m := range []int{2, 3, 4, 5, 7, 100, 101} {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) {
			h := m / 2
			g, clock := newGuard(t, WithWindow(100), WithMaxTracked(m))
			for i := range 20 * m {
				mustHandle(t, g, number(i))
				for j := max(0, i-h+1); j <= i; j++ {
					require.Equal(t, Completed, look(g, number(j)), "%d of the newest, after %d", i-j+1, i+1)
				}
			}
			clock.add(49)
			for j := 20*m - h; j < 20*m; j++ {
				require.Equal(t, Completed, look(g, number(j)), "a tick before W/2")
			}
			clock.add(51)
			for j := 20*m - h; j < 20*m; j++ {
				require.Equal(t, Begun, look(g, number(j)), "at W")
			}
		})
	}
}

func TestRetentionOfTheNewestHOverAllShards(t *testing.T) {
	const m, h = manyShards, manyShards / 2
	g, clock := newGuard(t, WithWindow(100), WithMaxTracked(m))
	for i := range 2*m + h/3 {
		mustHandle(t, g, number(i))
	}
	clock.add(49)
	last := 2*m + h/3
	for i := last - h; i < last; i++ {
		require.Equal(t, Completed, look(g, number(i)), "%d of the newest %d", last-i, h)
	}
	assert.Equal(t, Begun, look(g, number(last-m-1)), "more than M ago")
}

func TestRetentionMayBeCutBySizeBeyondTheNewestH(t *testing.T) {
	// H is 3. a lands first; it goes when its generation is the older of two and
	// the younger is full.
	play(t, []Option{WithWindow(100), WithMaxTracked(6)},
		row{0, "handle", "a", "Begun"}, row{0, "handle", "b", "Begun"}, row{0, "handle", "c", "Begun"},
		row{0, "handle", "d", "Begun"}, row{0, "handle", "e", "Begun"}, row{0, "handle", "f", "Begun"},
		row{0, "look", "a", "Completed"},
		row{0, "handle", "g", "Begun"},
		row{0, "look", "a", "Begun"}, row{0, "look", "c", "Begun"},
		row{0, "look", "d", "Completed"}, row{0, "look", "e", "Completed"}, row{0, "look", "f", "Completed"},
	)
}

func TestRetentionOfARejectedIdThatIsCompletedStartsAnew(t *testing.T) {
	// The lease ends before the window does: a late Complete meets a rejected id.
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(1000), WithLease(10), WithMaxTracked(m)},
			row{0, "begin", "a", "Begun"},
			row{20, "begin", "a", "Begun"},
			row{20, "reject", "a", ""},
			row{20, "look", "a", "Rejected"},
			row{20, "tracked", "", "1"},
			row{700, "complete", "a#1", ""},
			row{700, "look", "a", "Completed"},
			row{700, "tracked", "", "1"},
			row{1699, "look", "a", "Completed"},
			row{1700, "look", "a", "Begun"},
		)
	})
}
