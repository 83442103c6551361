package idem

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// idsetRig is a set, and the built-in map beside it.
type idsetRig struct {
	set   idset
	seed  maphash.Seed
	room  keyRoom
	known map[Identity]State
}

func newIdsetRig(seed maphash.Seed) *idsetRig {
	return &idsetRig{set: idset{seed: seed}, seed: seed, known: map[Identity]State{}}
}

// key is valid until the next one is asked for.
func (r *idsetRig) key(id Identity) key {
	return keyOf(r.seed, id, IDAndDestination, &r.room)
}

func (r *idsetRig) check(t *testing.T) {
	t.Helper()
	require.NoError(t, r.set.check())
	require.Equal(t, len(r.known), r.set.len())
	for id, state := range r.known {
		k := r.key(id)
		slot := r.set.find(&k)
		require.GreaterOrEqual(t, slot, 0, "%.80v is not found", id)
		require.Equal(t, state, r.set.state(slot))
	}
}

// someId has all the forms there are.
func someId(rnd *rand.Rand) Identity {
	n := rnd.IntN(400)
	switch rnd.IntN(4) {
	case 0:
		return ID(fmt.Sprint(n))
	case 1:
		return IDAt(fmt.Sprint(n), fmt.Sprint(rnd.IntN(3)))
	case 2:
		return ID(fmt.Sprintf("%064d", n))
	default:
		return IDAt(fmt.Sprintf("%0100d", n), "there")
	}
}

func TestIdsetAgainstTheBuiltInMap(t *testing.T) {
	seed := maphash.MakeSeed()
	for run := range 8 {
		rnd := rand.New(rand.NewPCG(uint64(run), 1))
		r := newIdsetRig(seed)
		for step := range 3000 {
			id := someId(rnd)
			k := r.key(id)
			slot := r.set.find(&k)
			if state, ok := r.known[id]; ok {
				require.GreaterOrEqual(t, slot, 0)
				require.Equal(t, state, r.set.state(slot))
				r.set.remove(slot)
				delete(r.known, id)
			} else {
				require.Negative(t, slot)
				state := []State{Completed, Rejected}[rnd.IntN(2)]
				r.set.add(&k, state)
				r.known[id] = state
			}
			if step%500 == 0 {
				r.check(t)
			}
		}
		r.check(t)
		r.set.recycle(&idset{})
		r.known = map[Identity]State{}
		r.check(t)
		k := r.key(ID("a"))
		r.set.add(&k, Rejected)
		r.known[ID("a")] = Rejected
		r.check(t)
	}
}

func TestIdsetCompactsWhatIsRemoved(t *testing.T) {
	r := newIdsetRig(maphash.MakeSeed())
	keep := r.key(ID("kept"))
	r.set.add(&keep, Rejected)
	for i := range few(100_000) {
		k := r.key(number(i))
		r.set.add(&k, Completed)
		r.set.remove(r.set.find(&k))
		require.Less(t, r.set.arena.bytes, 4*chunkSize)
	}
	require.Equal(t, Rejected, r.set.state(r.set.find(&keep)))
	require.NoError(t, r.set.check())
}

func TestIdsetReusesItsStorage(t *testing.T) {
	seed := maphash.MakeSeed()
	sets := [2]*idsetRig{newIdsetRig(seed), newIdsetRig(seed)}
	fill := func(r *idsetRig) {
		for i := range 2000 {
			k := r.key(ids50k[i])
			r.set.add(&k, Completed)
		}
	}
	fill(sets[0])
	fill(sets[1])
	per := mallocs(20, func(i int) {
		sets[i%2].set.recycle(&sets[1-i%2].set)
		fill(sets[i%2])
	})
	assert.Less(t, per, 3.0)
}

// put copies b into the arena.
func (a *arena) put(b []byte) uint32 {
	ref, room := a.reserve(len(b))
	copy(room, b)
	return ref
}

func TestArenaTellsWhatWasPut(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var a arena
	for life := range 4 {
		var refs []uint32
		var put [][]byte
		total := 0
		for range 1 + rnd.IntN(3000) {
			b := make([]byte, 1+rnd.IntN(maxKey))
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			refs, put = append(refs, a.put(b)), append(put, b)
			total += len(b)
		}
		for i := range refs {
			require.True(t, bytes.HasPrefix(a.at(refs[i]), put[i]), "life %d, entry %d", life, i)
		}
		require.Equal(t, total, a.bytes)
		require.LessOrEqual(t, cap(a.tail), chunkSize)
		a.recycle(rnd.IntN(3 * chunkSize))
		require.Zero(t, a.used)
	}
}

func TestArenaStartsSmallAndGivesBack(t *testing.T) {
	var a arena
	a.put([]byte("x"))
	a.put(make([]byte, firstChunk-1))
	require.Equal(t, firstChunk, cap(a.chunks[0]), "full, and no fuller")
	for size := 2 * firstChunk; size < chunkSize; size *= 2 {
		a.put(make([]byte, 1))
		require.Equal(t, size, cap(a.chunks[0]))
		a.put(make([]byte, size/2-1))
	}
	var starts []int
	for range 500 {
		a.put(make([]byte, maxKey))
		if a.used > 1+len(starts) {
			require.Equal(t, chunkSize, cap(a.chunks[a.used-2]), "the one before has grown to a whole one")
			starts = append(starts, cap(a.tail))
		}
	}
	require.Equal(t, []int{1024, 2048, 3072, chunkSize}, starts[:4], "a quarter of what there is")
	for range 600 {
		a.put(make([]byte, maxKey))
	}
	chunks := len(a.chunks)
	require.Greater(t, chunks, 10)
	a.recycle(a.size())
	require.Len(t, a.chunks, chunks, "kept for a life as large")
	require.Zero(t, a.size())
	a.recycle(chunks * chunkSize / 2)
	require.Len(t, a.chunks, chunks, "or half as large")
	for _, c := range []struct{ size, chunks int }{
		{2 * chunkSize, 4}, // and room for a small one, of which there is none
		{chunkSize - firstChunk, 2},
		{chunkSize - firstChunk - 1, 1},
		{chunkSize/2 - firstChunk, 1},
		{chunkSize/2 - firstChunk - 1, 0},
	} {
		a.recycle(c.size)
		require.Len(t, a.chunks, c.chunks, "twice of %d", c.size)
		require.Equal(t, c.chunks, cap(a.chunks), "nor does the list of them hold the others")
	}
	a.put([]byte("x"))
	require.Equal(t, firstChunk, a.size())
	a.recycle(0)
	require.Len(t, a.chunks, 1, "too little to give back")
	for range 100 {
		a.put(make([]byte, maxKey))
	}
	require.Equal(t, chunkSize+cap(a.chunks[1]), a.size())
	a.recycle(0)
	require.Empty(t, a.chunks, "nor kept for a life that was none")
}

// flightsOf returns a set with n flights.
func flightsOf(seed maphash.Seed, n int) *flights {
	var f flights
	for i := range n {
		var k key
		k.set(seed, ids50k[i], IDAndDestination)
		f.add(&k, uint64(i+1))
	}
	return &f
}

func TestFlightsGiveBackAfterAPeak(t *testing.T) {
	seed := maphash.MakeSeed()
	for _, c := range []struct {
		had, like     int
		slab, indexed bool // after
	}{
		{1000, 0, false, false},
		{1000, 200, false, false},
		{1000, 1000, true, true},
		{100, 40, true, true},                    // though the index is made anew
		{fewFlights + 1, fewFlights, true, true}, // else a steady state of nine would make one again and again
		{fewFlights + 1, 1, false, false},
		{fewFlights, 2, true, false}, // a slab for eight is not much more than two need
		{fewFlights, 1, false, false},
		{keptFlights, 0, true, false},
	} {
		f := flightsOf(seed, c.had)
		f.recycle(flightsOf(seed, c.like))
		require.Zero(t, f.len())
		require.Equal(t, c.indexed, f.index != nil, "%+v", c)
		require.True(t, f.index == nil || len(f.index.refs) <= max(keptSlots, 4*c.like), "%+v", c)
		require.Equal(t, c.slab, cap(f.slab) > 0, "%+v", c)
		require.NoError(t, f.check())
	}
	f := flightsOf(seed, 1000)
	f.recycle(nil)
	require.Nil(t, f.index)
	require.Nil(t, f.slab)
}

func TestFlightsUseTheIndexFromManyUntilThereAreNone(t *testing.T) {
	seed := maphash.MakeSeed()
	f := flightsOf(seed, fewFlights+1)
	for f.len() > 0 {
		require.True(t, f.indexed())
		f.remove(f.len() / 2)
		require.NoError(t, f.check())
	}
	require.False(t, f.indexed())
	index := f.index
	for i := range fewFlights + 1 {
		require.False(t, f.indexed())
		var k key
		k.set(seed, ids50k[i], IDAndDestination)
		f.add(&k, uint64(i+1))
		require.Equal(t, i, f.find(&k))
	}
	require.True(t, f.indexed())
	require.Same(t, index, f.index, "used again")
	require.NoError(t, f.check())
}

func TestFlightsKnowAClaimByTokenAndHash(t *testing.T) {
	seed := maphash.MakeSeed()
	for _, n := range []int{fewFlights, fewFlights + 1} {
		f := flightsOf(seed, n)
		last := f.at(n - 1)
		require.Equal(t, n-1, f.findClaim(&Claim{token: last.token, hash: last.hash}))
		require.Negative(t, f.findClaim(&Claim{token: last.token, hash: last.hash ^ 1}))
		require.Negative(t, f.findClaim(&Claim{token: last.token + 1, hash: last.hash}))
	}
}

func TestFlightsTellABrokenIndex(t *testing.T) {
	seed := maphash.MakeSeed()
	for name, spoil := range map[string]func(*flights){
		"no index":      func(f *flights) { f.index = nil },
		"another place": func(f *flights) { f.index.refs[f.slotOf(3)]++ },
		"too few":       func(f *flights) { f.index.remove(f.slotOf(3), f.hashOf) },
		"one twice":     func(f *flights) { f.index.insert(f.hashOf(3), 3, f.hashOf) },
		"a tag":         func(f *flights) { f.index.setTag(f.slotOf(3), 0) },
		"a count":       func(f *flights) { f.index.n++ },
		"a tag's copy":  func(f *flights) { f.index.tags[len(f.index.refs)] ^= 1 },
	} {
		f := flightsOf(seed, 20)
		require.NoError(t, f.check())
		spoil(f)
		require.Error(t, f.check(), name)
	}
	f := flightsOf(seed, 20)
	f.slab = f.slab[:19]
	require.Error(t, f.check(), "one too many")
	f = flightsOf(seed, fewFlights+1)
	f.index = nil
	require.Error(t, f.check(), "just too many to have no index")
}

func TestFlightsTellAnIndexThatRestsAndIsNotEmpty(t *testing.T) {
	f := flightsOf(maphash.MakeSeed(), 20)
	for f.len() > 0 {
		f.remove(0)
	}
	require.NoError(t, f.check())
	for slot := range f.index.tags { // the copies, too
		f.index.tags[slot] = 1
		require.Error(t, f.check(), "slot %d", slot)
		f.index.tags[slot] = 0
	}
	require.NoError(t, f.check())
}

func TestFlightsReuseTheirPlaces(t *testing.T) {
	seed := maphash.MakeSeed()
	var f flights
	var k key
	for i := range 10_000 {
		k.set(seed, ids50k[i], IDAndDestination)
		f.add(&k, uint64(i+1))
		if i%2 == 1 {
			f.remove(f.find(&k))
			k.set(seed, ids50k[i-1], IDAndDestination)
			f.remove(f.find(&k))
		}
	}
	require.LessOrEqual(t, cap(f.slab), 2)
	require.Nil(t, f.index)
}

func TestLapsedKnowsTheYoungestAndEachOnce(t *testing.T) {
	l := lapsed{half: 10}
	for i := range 100 {
		l.add(&flight{hash: uint64(i) + 1000, token: uint64(i)})
		require.LessOrEqual(t, l.len(), 20)
	}
	claim := func(i int) *Claim { return &Claim{token: uint64(i), hash: uint64(i) + 1000} }
	require.False(t, l.has(claim(79)))
	for i := 80; i < 100; i++ {
		require.False(t, l.has(&Claim{token: uint64(i), hash: 1}), "another id's hash")
		require.True(t, l.has(claim(i)))
		l.drop(claim(i))
		require.False(t, l.has(claim(i)))
	}
	require.Zero(t, l.len())
}
