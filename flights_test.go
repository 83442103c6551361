package idem

import (
	"hash/maphash"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// flown is what a flight of the rig's must hold, beside its key.
type flown struct {
	token     uint64
	overtaken bool
}

// flightsRig is a set of flights, and the built-in map beside it.
type flightsRig struct {
	rnd   *rand.Rand
	seed  maphash.Seed
	set   flights
	known map[Identity]flown
	ids   []Identity // all that are known, to choose one of
	token uint64     // the last one given
	many  bool       // there have been more than a few since there were none
}

func newFlightsRig(seed maphash.Seed, rnd *rand.Rand) *flightsRig {
	return &flightsRig{rnd: rnd, seed: seed, known: map[Identity]flown{}}
}

func (r *flightsRig) key(id Identity) (k key) {
	k.set(r.seed, id, IDAndDestination)
	return k
}

// begin adds a flight of some id, if that has none.
func (r *flightsRig) begin(t *testing.T) {
	t.Helper()
	id := someId(r.rnd)
	if _, ok := r.known[id]; ok {
		return
	}
	k := r.key(id)
	require.Negative(t, r.set.find(&k))
	r.token += 2
	r.set.add(&k, r.token)
	f := r.set.at(r.set.find(&k))
	require.False(t, f.overtaken)
	f.overtaken = r.rnd.IntN(4) == 0
	r.known[id], r.ids = flown{r.token, f.overtaken}, append(r.ids, id)
	r.many = r.many || len(r.ids) > fewFlights
}

// end removes one of the flights.
func (r *flightsRig) end(t *testing.T) {
	t.Helper()
	i, last := r.rnd.IntN(len(r.ids)), len(r.ids)-1
	id := r.ids[i]
	r.ids[i], r.ids = r.ids[last], r.ids[:last]
	k, token := r.key(id), r.known[id].token
	delete(r.known, id)
	r.set.remove(r.set.find(&k))
	require.Negative(t, r.set.find(&k))
	require.Negative(t, r.set.findClaim(&Claim{token: token, hash: k.hash}))
	r.many = r.many && len(r.ids) > 0
}

// step begins a flight or ends one, and begins more in a wave that rises.
func (r *flightsRig) step(t *testing.T, rises bool) {
	t.Helper()
	if n := r.rnd.IntN(4); len(r.ids) == 0 || rises == (n > 0) {
		r.begin(t)
	} else {
		r.end(t)
	}
	require.Equal(t, len(r.known), r.set.len())
	require.Equal(t, r.many, r.set.indexed(), "%d flights", len(r.ids))
	require.NoError(t, r.set.check())
}

// check looks every flight up.
func (r *flightsRig) check(t *testing.T) {
	t.Helper()
	for id, want := range r.known {
		k := r.key(id)
		place := r.set.find(&k)
		require.GreaterOrEqual(t, place, 0)
		require.Equal(t, place, r.set.findClaim(&Claim{token: want.token, hash: k.hash}))
		require.Negative(t, r.set.findClaim(&Claim{token: want.token + 1, hash: k.hash}))
		f := r.set.at(place)
		require.Equal(t, k, f.key())
		require.Equal(t, want, flown{f.token, f.overtaken})
	}
	tokens := map[uint64]bool{}
	r.set.each(func(f *flight) { tokens[f.token] = true })
	require.Len(t, tokens, len(r.known))
}

// crest is how high a wave gets: every other one about to the edge.
func (r *flightsRig) crest() int {
	if r.rnd.IntN(2) == 0 {
		return fewFlights - 1 + r.rnd.IntN(3)
	}
	return 1 + r.rnd.IntN(8*fewFlights)
}

// wave rises to a crest, and falls until no flight is left.
func (r *flightsRig) wave(t *testing.T) {
	t.Helper()
	for crest := r.crest(); len(r.ids) < crest; {
		r.step(t, true)
	}
	r.check(t)
	if r.rnd.IntN(5) == 0 {
		r.recycle(t)
	}
	for len(r.ids) > 0 {
		r.step(t, false)
	}
}

// recycle ends all flights at once.
func (r *flightsRig) recycle(t *testing.T) {
	t.Helper()
	r.set.recycle(flightsOf(r.seed, r.crest()))
	clear(r.known)
	r.ids, r.many = nil, false
	require.Zero(t, r.set.len())
	require.False(t, r.set.indexed())
	require.NoError(t, r.set.check())
}

func TestFlightsAgainstTheBuiltInMap(t *testing.T) {
	seed := maphash.MakeSeed()
	for run := range 6 {
		r := newFlightsRig(seed, rand.New(rand.NewPCG(uint64(run), 2)))
		for range 50 {
			r.wave(t)
		}
	}
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
