package idem

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// tableRig is a table over a slice of hashes, and the built-in map beside it.
type tableRig struct {
	table  table
	hashes []uint64       // by reference
	known  map[uint32]int // reference to how often, which is 1
}

func (r *tableRig) hashOf(ref uint32) uint64 { return r.hashes[ref] }

func (r *tableRig) insert(hash uint64) uint32 {
	ref := uint32(len(r.hashes))
	r.hashes = append(r.hashes, hash)
	r.table.insert(hash, ref, r.hashOf)
	r.known[ref]++
	return ref
}

func (r *tableRig) find(ref uint32) int {
	return r.table.find(r.hashes[ref], func(other uint32) bool { return other == ref })
}

func (r *tableRig) check(t *testing.T) {
	t.Helper()
	require.NoError(t, r.table.check(r.hashOf))
	require.Equal(t, len(r.known), r.table.n)
	for ref := range r.known {
		slot := r.find(ref)
		require.GreaterOrEqual(t, slot, 0, "reference %d of %d is not found", ref, len(r.known))
		require.Equal(t, ref, r.table.refs[slot])
	}
	seen := 0
	for ref := range r.table.all {
		require.Equal(t, 1, r.known[ref])
		seen++
	}
	require.Equal(t, len(r.known), seen)
}

// hashing is how to make hashes that are hard on a table.
var hashing = map[string]func(*rand.Rand) uint64{
	"spread":              func(r *rand.Rand) uint64 { return r.Uint64() },
	"all the same":        func(*rand.Rand) uint64 { return 0x1234_5678_9abc_def0 },
	"one home":            func(r *rand.Rand) uint64 { return r.Uint64() >> 32 },
	"the last home":       func(r *rand.Rand) uint64 { return r.Uint64() | 0xffff_ffff<<32 },
	"one tag":             func(r *rand.Rand) uint64 { return r.Uint64()&^0xff00 | 0x4200 },
	"the tag of empty":    func(r *rand.Rand) uint64 { return r.Uint64() &^ 0xff00 },
	"tags that are close": func(r *rand.Rand) uint64 { return r.Uint64()&^0xff00 | uint64(1+r.IntN(2))<<8 },
	"tags at the top":     func(r *rand.Rand) uint64 { return r.Uint64()&^0xff00 | uint64(0x7f+r.IntN(3))<<8 },
}

func TestTableAgainstTheBuiltInMap(t *testing.T) {
	for name, hash := range hashing {
		t.Run(name, func(t *testing.T) {
			for seed := range 20 {
				rnd := rand.New(rand.NewPCG(uint64(seed), 7))
				r := tableRig{known: map[uint32]int{}}
				most := 1 + rnd.IntN(80)
				for step := range 400 {
					if len(r.known) < most && rnd.IntN(2) == 0 {
						r.insert(hash(rnd))
					} else {
						for ref := range r.known { // whichever comes first
							r.table.remove(r.find(ref), r.hashOf)
							delete(r.known, ref)
							require.Negative(t, r.find(ref))
							break
						}
					}
					if step < 50 || step%20 == 0 {
						r.check(t)
					}
				}
				if seed%2 == 0 {
					r.table.recycle(most)
					r.known = map[uint32]int{}
					r.check(t)
					r.insert(hash(rnd))
					r.check(t)
				}
			}
		})
	}
}

func TestTableThatIsEmptyFindsNothing(t *testing.T) {
	var empty table
	require.Negative(t, empty.find(0, func(uint32) bool { return true }))
	require.Negative(t, empty.find(^uint64(0), func(uint32) bool { return true }))
}

func TestTableGrowsByBounds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	r := tableRig{known: map[uint32]int{}}
	for n := 1; n <= 20_000; n++ {
		r.insert(rnd.Uint64())
		slots := len(r.table.refs)
		require.LessOrEqual(t, n*loadDen, slots*loadNum, "an empty quarter ends every look-up")
		if n > 300 {
			require.GreaterOrEqual(t, n*10, slots*5, "half of it is in use at least")
		}
	}
	r.check(t)
}

// A table that knows how large it gets grows to that in few steps, and on as any.
func TestTableGrowsToWhatIsExpected(t *testing.T) {
	for _, n := range []int{9, 10, 11, 12, 13, 20, 500, 1562, 12_345} {
		rnd := rand.New(rand.NewPCG(1, 2))
		r := tableRig{table: table{full: slotsFor(n)}, known: map[uint32]int{}}
		moved := 0
		for i := range n {
			slots := len(r.table.refs)
			if r.insert(rnd.Uint64()); len(r.table.refs) != slots {
				moved += i
			}
			require.LessOrEqual(t, r.table.n*loadDen, len(r.table.refs)*loadNum, "%d of %d", i, n)
		}
		require.LessOrEqual(t, len(r.table.refs), slotsFor(n), "%d", n)
		if n >= 20 {
			require.Equal(t, slotsFor(n), len(r.table.refs), "%d", n)
		}
		require.LessOrEqual(t, moved, 2*n, "%d", n)
		for range 2 * n {
			r.insert(rnd.Uint64())
		}
		r.check(t)
	}
}

func TestTableRecycles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	fill := func(n int) *tableRig {
		r := &tableRig{known: map[uint32]int{}}
		for range n {
			r.insert(rnd.Uint64())
		}
		return r
	}
	r := fill(1000)
	slots := len(r.table.refs)
	r.table.recycle(1000)
	require.Len(t, r.table.refs, slots, "kept for a life as large")
	r = fill(1000)
	r.table.recycle((slots + 3) / 4)
	require.Len(t, r.table.refs, slots, "kept where four times is enough")
	r = fill(1000)
	r.table.recycle((slots+3)/4 - 1)
	require.Nil(t, r.table.refs, "given back")
	require.Nil(t, r.table.tags)
	r = fill(20)
	r.table.recycle(0)
	require.NotNil(t, r.table.refs, "too little to give back")
	require.Zero(t, r.table.n)
}

func TestZerosMarksTheLowestZeroByte(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 100_000 {
		word := rnd.Uint64()
		for b := range 8 {
			if rnd.IntN(3) == 0 {
				word &^= 0xff << (8 * b)
			}
			if rnd.IntN(3) == 0 {
				word = word&^(0xff<<(8*b)) | 1<<(8*b)
			}
		}
		want := -1
		for b := range 8 {
			if word>>(8*b)&0xff == 0 {
				want = b
				break
			}
		}
		var t8 table
		t8.refs = make([]uint32, 8)
		if marks := zeros(word); want < 0 {
			require.Zero(t, marks, "%x", word)
			require.Equal(t, ^uint64(0), below(marks))
		} else {
			require.Equal(t, want, t8.place(0, marks), "%x", word)
			require.Equal(t, uint64(1)<<(8*want+7)-1, below(marks))
		}
	}
}
