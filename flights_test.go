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
