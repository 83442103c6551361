package idem

import (
	"hash/maphash"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestNoAddressIsWrongToPrefetch(t *testing.T) {
	var x [2 * cacheLine]byte
	for i := range x {
		prefetch(unsafe.Pointer(&x[i]), unsafe.Pointer(&x[0]), nil)
	}
	prefetch(nil, nil, nil)
}

func TestExpectAtEverySizeOfASet(t *testing.T) {
	s := idset{seed: maphash.MakeSeed()}
	for i := range 5_000 {
		var k key
		k.set(s.seed, number(i), IDAndDestination)
		s.expect(k.hash)
		s.add(&k, Completed)
	}
	s.recycle(nil)
	s.expect(1)
	s.expect(^uint64(0))
	require.Zero(t, s.len())
	require.NoError(t, s.check())
}

func TestExpectAtEverySizeOfASlab(t *testing.T) {
	seed := maphash.MakeSeed()
	var f flights
	for range 2 * fewFlights {
		f.expect()
		var k key
		k.set(seed, number(f.len()), IDAndDestination)
		f.add(&k, uint64(f.len()))
	}
	f.recycle(nil)
	f.expect()
	require.Zero(t, f.len())
}

// What is asked for is what is then written.
func TestExpectAsksForWhatIsWritten(t *testing.T) {
	s := idset{seed: maphash.MakeSeed()}
	for i := range 2_000 {
		var k key
		k.set(s.seed, number(i), IDAndDestination)
		first, last := s.arena.next()
		require.Equal(t, cap(s.arena.tail)-len(s.arena.tail) >= cacheLine, first != nil)
		slots, ref := len(s.table.refs), s.table.next(k.hash)
		s.add(&k, Completed)
		if first != nil {
			require.Equal(t, unsafe.Pointer(&s.entry(s.find(&k))[0]), first)
			require.Equal(t, unsafe.Add(first, cacheLine-1), last)
		}
		if len(s.table.refs) == slots {
			require.Equal(t, unsafe.Pointer(&s.table.refs[s.table.home(k.hash)]), ref)
		}
	}
}

func TestExpectAsksForTheFlightThatIsWritten(t *testing.T) {
	seed := maphash.MakeSeed()
	var f flights
	for i := range 8 * fewFlights {
		first, last := f.next()
		require.Equal(t, f.len() < cap(f.slab), first != nil)
		require.Equal(t, first != nil, last != nil)
		k := keyOf(seed, number(i), IDAndDestination, new(keyRoom))
		f.add(&k, uint64(i+1))
		if first != nil {
			added := f.at(f.find(&k))
			require.Equal(t, unsafe.Pointer(added), first)
			require.Equal(t, unsafe.Pointer(&added.stored[maxKey-1]), last)
		}
		if i%3 == 0 {
			f.remove(i % f.len())
		}
	}
}
