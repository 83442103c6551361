package idem

import (
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
