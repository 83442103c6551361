package idem

import (
	"slices"
	"unsafe"
)

// flight is one claim that nobody has settled: the key it was begun with, kept
// here because the caller's memory may be reused, and the token.
type flight struct {
	token     uint64
	hash      uint64
	overtaken bool // by a late Complete: the id may be terminal already
	stored    [maxKey]byte
}

func (f *flight) board(k *key, token uint64) {
	f.token, f.hash, f.overtaken = token, k.hash, false
	k.put(f.stored[:])
}

// key is valid as long as the flight is.
func (f *flight) key() key { return keyIn(f.stored[:], f.hash) }

// flights is one generation of claims in flight, side by side in a slab whose
// storage is used again, so that a steady state allocates nothing. There are few
// as a rule, and looking at each reads less memory than a table would.
type flights struct {
	slab  []flight
	index *table // of the places in the slab, from when there are many until there are none
}

// fewFlights are looked through one by one.
const fewFlights = 8

func (f *flights) len() int { return len(f.slab) }

// indexed says whether the index is in use. An empty one waits for the next time
// that there are many.
func (f *flights) indexed() bool { return f.index != nil && f.index.n > 0 }

// find returns the place of k's flight, or -1.
func (f *flights) find(k *key) int {
	return f.search(k.hash, func(other *flight) bool { return k.begins(other.stored[:]) })
}

// findClaim returns the place of c's flight, or -1. It does not look at the id,
// whose memory may hold something else by now.
func (f *flights) findClaim(c *Claim) int {
	return f.search(c.hash, func(other *flight) bool { return other.token == c.token })
}

// search returns the place of the flight with hash that is the one looked for, or
// -1.
func (f *flights) search(hash uint64, is func(*flight) bool) int {
	if f.indexed() {
		return f.searchIndex(hash, is)
	}
	for place := range f.slab {
		if other := &f.slab[place]; other.hash == hash && is(other) {
			return place
		}
	}
	return -1
}

func (f *flights) searchIndex(hash uint64, is func(*flight) bool) int {
	slot := f.index.find(hash, func(place uint32) bool {
		other := &f.slab[place]
		return other.hash == hash && is(other)
	})
	if slot < 0 {
		return -1
	}
	return int(f.index.refs[slot])
}

// at returns the flight in a place. It is valid until the next add or remove.
func (f *flights) at(place int) *flight { return &f.slab[place] }

func (f *flights) hashOf(place uint32) uint64 { return f.slab[place].hash }

// expect gets ready what the next flight is written to.
func (f *flights) expect() {
	first, last := f.next()
	prefetch(first, last, last)
}

// next returns the first byte of the next flight and the last one of its key; nil if
// the slab is full.
func (f *flights) next() (first, last unsafe.Pointer) {
	n := len(f.slab)
	if n == cap(f.slab) {
		return nil, nil
	}
	next := &f.slab[:n+1][n]
	return unsafe.Pointer(next), unsafe.Pointer(&next.stored[maxKey-1])
}

// add stores a flight for k, which must have none here.
func (f *flights) add(k *key, token uint64) {
	place := len(f.slab)
	f.slab = slices.Grow(f.slab, 1)[:place+1]
	f.slab[place].board(k, token)
	switch {
	case f.indexed():
		f.index.insert(k.hash, uint32(place), f.hashOf)
	case place >= fewFlights:
		f.makeIndex()
	}
}

func (f *flights) makeIndex() {
	if f.index == nil {
		f.index = new(table)
	}
	for place := range f.slab {
		f.index.insert(f.slab[place].hash, uint32(place), f.hashOf)
	}
}

// remove ends the flight in a place, and moves the last one there.
func (f *flights) remove(place int) {
	last := len(f.slab) - 1
	if f.indexed() {
		f.removeFromIndex(place, last)
	}
	if place != last {
		f.slab[place] = f.slab[last]
	}
	f.slab = f.slab[:last]
}

func (f *flights) removeFromIndex(place, last int) {
	f.index.remove(f.slotOf(place), f.hashOf)
	if place != last {
		f.index.refs[f.slotOf(last)] = uint32(place)
	}
}

// slotOf returns the index's slot of a place.
func (f *flights) slotOf(place int) int {
	return f.index.find(f.slab[place].hash, func(ref uint32) bool { return ref == uint32(place) })
}

// each calls fn for every flight, in no order.
func (f *flights) each(fn func(*flight)) {
	for place := range f.slab {
		fn(&f.slab[place])
	}
}

// recycle empties the set for a new life that will hold about as much as like, or
// nothing.
func (f *flights) recycle(like *flights) {
	n := 0
	if like != nil {
		n = like.len()
	}
	if cap(f.slab) > max(keptFlights, 4*n) {
		f.slab, f.index = nil, nil
	}
	f.slab = f.slab[:0]
	if f.index != nil {
		f.index.recycle(n)
	}
}

// keptFlights are never given back, as keptSlots.
const keptFlights = 4

// lapsed remembers the claims whose lease ran out, so that a handler that
// completes after all is told from one that settles twice. Only leaks and very
// slow handlers get here. It is bounded like everything: two generations, of
// half the bound each, swapped whole.
//
// Unlike the ids it has no end in time: a completion counts however late.
type lapsed struct {
	half       int
	young, old map[uint64]uint64 // token to hash
}

// minLapsed is the half of the smallest guards: a few kilobytes, and only once
// that many claims have leaked.
const minLapsed = idsPerShard / 2

func (l *lapsed) addAll(f *flights) {
	if l.young == nil && f.len() > 0 {
		l.young = make(map[uint64]uint64, min(f.len(), l.half))
	}
	f.each(l.add)
}

func (l *lapsed) add(f *flight) {
	if len(l.young) >= l.half {
		l.young, l.old = nil, l.young
	}
	if l.young == nil {
		l.young = make(map[uint64]uint64)
	}
	l.young[f.token] = f.hash
}

func (l *lapsed) has(c *Claim) bool {
	hash, ok := l.young[c.token]
	if !ok {
		hash, ok = l.old[c.token]
	}
	return ok && hash == c.hash
}

// drop forgets c: a late claim settles once, too.
func (l *lapsed) drop(c *Claim) {
	for _, m := range [...]*map[uint64]uint64{&l.young, &l.old} {
		delete(*m, c.token)
		if len(*m) == 0 {
			*m = nil // an empty map keeps the size it once had
		}
	}
}

func (l *lapsed) len() int { return len(l.young) + len(l.old) }
