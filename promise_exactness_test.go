package idem

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 7, exactness: ids are compared byte for byte.

func TestExactnessWhereTheIdEndsCounts(t *testing.T) {
	long := strings.Repeat("x", 100)
	pairs := [][2]Identity{
		{IDAt("ab", "c"), IDAt("a", "bc")},
		{IDAt("ab", "c"), ID("abc")},
		{IDAt("a", ""), IDAt("a", "\x00")},
		{ID("a"), ID("a\x00")},
		{ID("a"), ID("aa")},
		{ID("a"), ID("A")},
		{ID("\x00"), ID("\x00\x00")},
		{IDAt("a", "b"), IDAt("b", "a")},
		{IDAt("a", "b"), ID("\x01\x01ab")},
		{ID("ab"), ID("\x02ab")},
		{IDAt(long+"a", "b"), IDAt(long, "ab")},
		{IDAt(long, "a"), ID(long + "a")},
		{IDAt("a", long), IDAt("ax", long[1:])},
		{IDAt("a", long), IDAt(long, "a")},
		{ID(long), IDAt(long, long)},
		{ID(long + "a"), ID(long + "b")},
		{ID("a" + long), ID("b" + long)},
		{ID(long), ID(long + "x")},
	}
	for _, p := range pairs {
		t.Run(fmt.Sprintf("%.12q and %.12q", p[0], p[1]), func(t *testing.T) {
			g, _ := newGuard(t)
			mustHandle(t, g, p[0])
			c := mustBegin(t, g, p[1])
			g.Reject(c)
			assert.Equal(t, Completed, look(g, p[0]))
			assert.Equal(t, Rejected, look(g, p[1]))
			assert.True(t, g.Forget(p[1]))
			assert.Equal(t, Completed, look(g, p[0]))
		})
	}
}

// Around every length at which something changes: 64 bytes are kept as they are,
// of 65 the digest, whether they are in the id or in the destination.
func TestExactnessAtEveryLength(t *testing.T) {
	for _, n := range []int{1, 2, 31, 32, 33, 62, 63, 64, 65, 66, 67, 127, 128, 129, 1000, 1 << 20} {
		for _, dest := range []int{0, 1, n / 2, n - 1, n} {
			if n-dest < 0 {
				continue
			}
			t.Run(fmt.Sprintf("%d of %d", dest, n), func(t *testing.T) {
				g, _ := newGuard(t)
				all := string(fill(n, 'x'))
				id := IDAt(all[dest:], all[:dest])
				if dest == n {
					id = IDAt("y", all)
				}
				mustHandle(t, g, id)
				require.Equal(t, Completed, look(g, id))
				for _, at := range []int{0, n / 2, n - 1} {
					b := []byte(all)
					b[at] ^= 1
					other := IDAt(string(b[dest:]), string(b[:dest]))
					if dest == n {
						other = IDAt("y", string(b))
					}
					require.Equal(t, Begun, look(g, other), "another byte at %d", at)
				}
				require.Equal(t, Begun, look(g, IDAt(id.ID+"x", id.Destination)))
				require.Equal(t, Begun, look(g, IDAt(id.ID, id.Destination+"x")))
			})
		}
	}
}

func TestExactnessOfEveryByte(t *testing.T) {
	g, _ := newGuard(t)
	var ids []Identity
	for a := range 256 {
		ids = append(ids, ID(string([]byte{byte(a)})))
		for b := range 256 {
			ids = append(ids, ID(string([]byte{byte(a), byte(b)})))
		}
		ids = append(ids, IDAt(string([]byte{byte(a)}), string([]byte{byte(a)})))
	}
	for i, id := range ids[:40_000] { // fewer than H: nothing goes
		if i%2 == 0 {
			mustHandle(t, g, id)
		} else {
			g.Reject(mustBegin(t, g, id))
		}
	}
	for i, id := range ids[:40_000] {
		require.Equal(t, []State{Completed, Rejected}[i%2], look(g, id), "%q", id)
	}
	for _, id := range ids[40_000:] {
		require.Equal(t, Begun, look(g, id), "%q", id)
	}
}

func TestExactnessAHashAloneIsNoProof(t *testing.T) {
	// Two keys made to have the same hash: the storage must look at the bytes.
	var a, b key
	g, _ := newGuard(t)
	a.set(g.seed, ID("a"), IDAndDestination)
	b.set(g.seed, ID("b"), IDAndDestination)
	b.hash = a.hash
	var ids idset
	ids.add(&a, Completed)
	assert.Negative(t, ids.find(&b))
	ids.add(&b, Rejected)
	assert.Equal(t, Completed, ids.state(ids.find(&a)))
	assert.Equal(t, Rejected, ids.state(ids.find(&b)))

	var f flights
	f.add(&a, 1)
	assert.Negative(t, f.find(&b))
	f.add(&b, 2)
	assert.EqualValues(t, 1, f.at(f.find(&a)).token)
	assert.EqualValues(t, 2, f.at(f.find(&b)).token)
	assert.EqualValues(t, 2, f.at(f.findClaim(&Claim{token: 2, hash: a.hash})).token)
	assert.Negative(t, f.findClaim(&Claim{token: 3, hash: a.hash}))
}

func TestExactnessIDOnlyIgnoresTheDestination(t *testing.T) {
	long := strings.Repeat("d", 100)
	for _, id := range []string{"a", strings.Repeat("a", 64), strings.Repeat("a", 65)} {
		g, _ := newGuard(t, WithMessageIdentity(IDOnly))
		c := mustBegin(t, g, IDAt(id, "one"))
		_, state := g.TryBegin(IDAt(id, "two"))
		require.Equal(t, InFlight, state)
		_, state = g.TryBegin(IDAt(id, long))
		require.Equal(t, InFlight, state)
		g.Complete(c)
		require.Equal(t, Completed, look(g, ID(id)))
		require.Equal(t, Completed, look(g, IDAt(id, "three")))
		require.True(t, g.Forget(IDAt(id, "four")))
		require.Equal(t, Begun, look(g, IDAt(id, "one")))
	}
}

func TestExactnessIDOnlyOfALapsedClaim(t *testing.T) {
	g, clock := newGuard(t, WithMessageIdentity(IDOnly), WithLease(100))
	c := mustBegin(t, g, IDAt("a", "one"))
	clock.add(200)
	g.Complete(c)
	require.Equal(t, Completed, look(g, IDAt("a", "two")))
}

// Promise 8, unidentified: an empty ID always begins, untracked, and is counted.

func TestUnidentifiedAlwaysBegins(t *testing.T) {
	for _, m := range []MessageIdentity{IDAndDestination, IDOnly} {
		g, _ := newGuard(t, WithMessageIdentity(m))
		for i := range 10 {
			c, state := g.TryBegin(IDAt("", []string{"", "here"}[i%2]))
			require.Equal(t, Begun, state)
			require.Equal(t, Claim{}, c)
			verbs[[]string{"complete", "reject", "release"}[i%3]](g, c)
		}
		require.NoError(t, g.Wait(t.Context(), ID("")))
		require.False(t, g.Forget(ID("")))
		s := g.Stats()
		require.Equal(t, Stats{Unidentified: 10, Horizon: s.Horizon}, s)
	}
}
