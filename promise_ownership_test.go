package idem

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 5, ownership: a claim counts while it is in flight, and once.

// verbs are the three ways to settle.
var verbs = map[string]func(*Generational, Claim){
	"complete": (*Generational).Complete,
	"reject":   (*Generational).Reject,
	"release":  (*Generational).Release,
}

var settled = map[string]State{"complete": Completed, "reject": Rejected, "release": Begun}

func TestOwnershipAClaimSettlesOnceInAnyOrder(t *testing.T) {
	for one, verb := range verbs {
		for two, again := range verbs {
			for three, third := range verbs {
				t.Run(one+" "+two+" "+three, func(t *testing.T) {
					g, _ := newGuard(t)
					c := mustBegin(t, g, ID("a"))
					verb(g, c)
					before := g.Stats()
					again(g, c)
					third(g, c)
					require.Equal(t, before, g.Stats())
					require.Equal(t, settled[one], look(g, ID("a")))
				})
			}
		}
	}
}

func TestOwnershipASettledClaimDoesNotTouchTheNextOwner(t *testing.T) {
	for name, verb := range verbs {
		t.Run(name, func(t *testing.T) {
			g, _ := newGuard(t)
			c := mustBegin(t, g, ID("a"))
			g.Release(c)
			next := mustBegin(t, g, ID("a"))
			require.NotEqual(t, c.Token(), next.Token())
			verb(g, c)
			_, state := g.TryBegin(ID("a"))
			require.Equal(t, InFlight, state)
			g.Complete(next)
			require.Equal(t, Completed, look(g, ID("a")))
		})
	}
}

func TestOwnershipASettledClaimStaysSettledAfterItsIdIsForgotten(t *testing.T) {
	for name, verb := range verbs {
		t.Run(name, func(t *testing.T) {
			g, clock := newGuard(t, WithWindow(100), WithLease(100))
			c := mustBegin(t, g, ID("a"))
			g.Complete(c)
			clock.add(1000)
			verb(g, c)
			require.Equal(t, Begun, look(g, ID("a")))
			require.Zero(t, g.Stats().LateSettles)
		})
	}
}

func TestOwnershipForeignClaimsSettleNothing(t *testing.T) {
	other, _ := newGuard(t)
	foreign := map[string]Claim{
		"zero":          {},
		"NewClaim":      NewClaim(ID("a"), 1),
		"another guard": mustBegin(t, other, ID("a")),
	}
	for whose, claim := range foreign {
		for name, verb := range verbs {
			t.Run(whose+" "+name, func(t *testing.T) {
				g, _ := newGuard(t)
				mine := mustBegin(t, g, ID("a"))
				verb(g, claim)
				verb(g, NewClaim(ID("a"), mine.Token()))
				_, state := g.TryBegin(ID("a"))
				require.Equal(t, InFlight, state)
				verb(g, mine)
				require.Equal(t, settled[name], look(g, ID("a")))
				verb(g, claim)
				require.Equal(t, settled[name], look(g, ID("a")))
			})
		}
	}
}

func TestOwnershipAnotherGuardsClaimChangesNothingOverThere(t *testing.T) {
	a, _ := newGuard(t)
	b, _ := newGuard(t)
	ca, cb := mustBegin(t, a, ID("x")), mustBegin(t, b, ID("x"))
	a.Complete(cb)
	b.Reject(ca)
	assert.Equal(t, Stats{InFlight: 1, Begun: 1, Horizon: a.Stats().Horizon}, a.Stats())
	assert.Equal(t, Stats{InFlight: 1, Begun: 1, Horizon: b.Stats().Horizon}, b.Stats())
}

func TestOwnershipClaimsAreSmallComparableValues(t *testing.T) {
	g, _ := newGuard(t)
	a, b := mustBegin(t, g, ID("a")), mustBegin(t, g, ID("b"))
	same := a
	assert.True(t, a == same)
	assert.False(t, a == b)
	assert.NotZero(t, a.Token())
	assert.Zero(t, Claim{}.Token())
	assert.EqualValues(t, 7, NewClaim(ID("x"), 7).Token())
	assert.Equal(t, ID("x"), NewClaim(ID("x"), 7).Identity())
	assert.Equal(t, ID("a"), a.Identity())
	assert.LessOrEqual(t, unsafe.Sizeof(a), uintptr(48))
	_, state := g.TryBegin(ID("a"))
	require.Equal(t, InFlight, state)
	dup, _ := g.TryBegin(ID("a"))
	assert.Equal(t, Claim{}, dup, "no claim but with Begun")
}

func TestOwnershipTokensNeverRepeat(t *testing.T) {
	seen := map[uint64]bool{}
	for range 4 {
		g, _ := newGuard(t, WithMaxTracked(manyShards))
		for i := range 5000 {
			c := mustBegin(t, g, number(i))
			require.NotZero(t, c.Token())
			require.False(t, seen[c.Token()])
			seen[c.Token()] = true
		}
	}
}

func TestOwnershipTheFirstTokenLeavesRoomForAllThatFollow(t *testing.T) {
	for range 1000 {
		g, _ := newGuard(t)
		require.Less(t, g.firstToken, uint64(1)<<63, "2^57 claims of a shard are not 0 again")
		require.Zero(t, g.firstToken%maxShards, "the rest is the shard's")
	}
}

// A lease that ran out.

func TestOwnershipCompleteOfALapsedClaimRecords(t *testing.T) {
	eachSize(t, func(t *testing.T, m int) {
		play(t, []Option{WithWindow(1000), WithLease(100), WithMaxTracked(m)},
			row{0, "begin", "a", "Begun"},
			row{250, "complete", "a", ""},
			row{250, "look", "a", "Completed"},
			row{1249, "look", "a", "Completed"},
			row{1250, "look", "a", "Begun"},
		)
	})
}

func TestOwnershipCompleteOfALapsedClaimRecordsWhoeverOwnsTheIdNow(t *testing.T) {
	for next, state := range map[string]string{"complete": "Completed", "reject": "Completed", "release": "Completed"} {
		eachSize(t, func(t *testing.T, m int) {
			play(t, []Option{WithWindow(1000), WithLease(100), WithMaxTracked(m)},
				row{0, "begin", "a", "Begun"},
				row{250, "begin", "a", "Begun"},
				row{260, "complete", "a#1", ""},
				row{260, "begin", "a", "Completed"}, // outranks the one in flight
				row{260, "in flight", "", "1"},
				row{270, next, "a#2", ""}, // erases nothing, and prolongs nothing
				row{270, "look", "a", state},
				row{270, "in flight", "", "0"},
				row{270, "tracked", "", "1"},
				row{1259, "look", "a", "Completed"},
				row{1260, "look", "a", "Begun"},
			)
		})
	}
}

func TestOwnershipALateCompleteProlongsNothing(t *testing.T) {
	// The id was completed meanwhile, by its second owner or by another late one.
	for _, id := range []string{"a#2", "a#1"} {
		eachSize(t, func(t *testing.T, m int) {
			play(t, []Option{WithWindow(1000), WithLease(10), WithMaxTracked(m)},
				row{0, "begin", "a", "Begun"},
				row{20, "begin", "a", "Begun"},
				row{40, "begin", "a", "Begun"},
				row{50, "complete", "a#3", ""},
				row{700, "complete", id, ""}, // it would be of the next generation
				row{1049, "look", "a", "Completed"},
				row{1050, "look", "a", "Begun"},
				row{1050, "tracked", "", "0"},
			)
		})
	}
}

func TestOwnershipAnOvertakenClaimRecordsWhenTheRecordIsGone(t *testing.T) {
	// The window is shorter than the lease: what the late Complete recorded is
	// forgotten when the second owner is done.
	for op, want := range map[string]string{"complete": "Completed", "reject": "Rejected", "release": "Begun"} {
		eachSize(t, func(t *testing.T, m int) {
			play(t, []Option{WithWindow(100), WithLease(1000), WithMaxTracked(m)},
				row{0, "begin", "a", "Begun"},
				row{2000, "begin", "a", "Begun"},
				row{2000, "complete", "a#1", ""},
				row{2099, "look", "a", "Completed"},
				row{2100, "look", "a", "InFlight"},
				row{2200, op, "a#2", ""},
				row{2200, "look", "a", want},
				row{2299, "look", "a", want},
				row{2300, "look", "a", "Begun"},
			)
		})
	}
}

func TestOwnershipCompletedOutranksRejected(t *testing.T) {
	play(t, []Option{WithWindow(1000), WithLease(100)},
		row{0, "begin", "a", "Begun"},
		row{250, "bury", "a", "Begun"},
		row{260, "look", "a", "Rejected"},
		row{260, "complete", "a#1", ""},
		row{260, "look", "a", "Completed"},
	)
}

func TestOwnershipCompletedTakesThePlaceOfRejected(t *testing.T) {
	// In a full generation too: it closes for nothing, and nothing goes.
	g, clock := newGuard(t, WithMaxTracked(4), WithWindow(1000), WithLease(10))
	late := mustBegin(t, g, ID("a"))
	clock.add(20)
	mustHandle(t, g, ID("old"))
	mustHandle(t, g, ID("older"))
	mustHandle(t, g, ID("young"))
	g.Reject(mustBegin(t, g, ID("a")))
	g.Complete(late)
	require.EqualValues(t, 1, g.Stats().EarlyRotations)
	for _, id := range []string{"old", "older", "young", "a"} {
		require.Equal(t, Completed, look(g, ID(id)), id)
	}
}

func TestOwnershipReleaseAndRejectOfALapsedClaimChangeNothing(t *testing.T) {
	for _, op := range []string{"release", "reject"} {
		eachSize(t, func(t *testing.T, m int) {
			play(t, []Option{WithWindow(1000), WithLease(100), WithMaxTracked(m)},
				row{0, "begin", "a", "Begun"}, row{0, "begin", "b", "Begun"}, row{0, "begin", "c", "Begun"},
				row{250, op, "a", ""},
				row{250, "look", "a", "Begun"},
				row{250, "begin", "b", "Begun"},
				row{250, op, "b#1", ""},
				row{250, "begin", "b", "InFlight"},
				row{250, "begin", "c", "Begun"}, row{250, "complete", "c", ""},
				row{250, op, "c#1", ""},
				row{250, "look", "c", "Completed"},
				row{250, "tracked", "", "1"},
			)
		})
	}
}

func TestOwnershipALapsedClaimSettlesOnceToo(t *testing.T) {
	g, clock := newGuard(t, WithWindow(100), WithLease(100))
	c := mustBegin(t, g, ID("a"))
	clock.add(200)
	g.Complete(c)
	require.Equal(t, Completed, look(g, ID("a")))
	require.True(t, g.Forget(ID("a")))
	before := g.Stats()
	g.Complete(c)
	g.Release(c)
	g.Reject(c)
	require.Equal(t, before, g.Stats())
	require.Equal(t, Begun, look(g, ID("a")))
	require.EqualValues(t, 1, g.Stats().LateSettles)
}

func TestOwnershipALapsedClaimIsKnownAfterItsPlaceWasTakenBySize(t *testing.T) {
	g, _ := newGuard(t, WithMaxTracked(4))
	claims := map[int]Claim{}
	for i := range 6 {
		claims[i] = mustBegin(t, g, number(i))
	}
	require.EqualValues(t, 2, g.Stats().LeasesExpired)
	g.Complete(claims[0])
	require.Equal(t, Completed, look(g, number(0)))
	require.EqualValues(t, 1, g.Stats().LateSettles)
	requireBalance(t, g.Stats())
}

func TestOwnershipLapsedClaimsAreRememberedWithinABound(t *testing.T) {
	// The youngest H of each shard are, and a few of a small guard's at least; all
	// of them would be a leak.
	for _, m := range []int{2, 511, 512, 1023, 1024, 2048, 32_768, manyShards} {
		g, _ := newGuard(t, WithMaxTracked(m))
		for i := range max(4*m, 2000) {
			mustBegin(t, g, number(i))
		}
		known := 0
		for sh := range g.made {
			known += sh.lapsed.len()
		}
		assert.LessOrEqual(t, known, max(m, 2*minLapsed), "maxTracked %d", m)
		assert.GreaterOrEqual(t, known, m/2, "maxTracked %d", m)
	}
}

// The caller's memory.

// over is an id that lies over buf, as one cut out of a reused payload does.
func over(buf []byte) Identity { return ID(unsafe.String(unsafe.SliceData(buf), len(buf))) }

func TestOwnershipTheIdsMemoryMayBeReusedWhileInFlight(t *testing.T) {
	for _, n := range []int{1, 36, 64, 65, 500} {
		for name, verb := range verbs {
			g, _ := newGuard(t)
			buf := fill(n, 'a')
			c := mustBegin(t, g, over(buf))
			copy(buf, fill(n, 'b'))
			next := mustBegin(t, g, over(buf))
			verb(g, c)
			require.Equal(t, settled[name], look(g, ID(string(fill(n, 'a')))), "%s, %d bytes", name, n)
			_, state := g.TryBegin(ID(string(fill(n, 'b'))))
			require.Equal(t, InFlight, state)
			verb(g, next)
			require.Equal(t, settled[name], look(g, ID(string(fill(n, 'b')))))
		}
	}
}

func TestOwnershipALapsedClaimWhoseMemoryWasReusedRecordsNothing(t *testing.T) {
	for _, n := range []int{1, 36, 64, 65, 500} {
		g, clock := newGuard(t, WithLease(100))
		buf := fill(n, 'a')
		c := mustBegin(t, g, over(buf))
		copy(buf, fill(n, 'b'))
		clock.add(200)
		g.Complete(c)
		require.Equal(t, Begun, look(g, ID(string(fill(n, 'a')))))
		require.Equal(t, Begun, look(g, ID(string(fill(n, 'b')))))
		require.Zero(t, g.Stats().Tracked)
		requireBalance(t, g.Stats())
	}
}

func fill(n int, b byte) []byte {
	buf := make([]byte, n)
	for i := range buf {
		buf[i] = b
	}
	return buf
}
