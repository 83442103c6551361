package idem

import "bytes"

// flight is one claim that nobody has settled: the key it was begun with, kept
// here because the caller's memory may be reused, and the token.
type flight struct {
	key       key
	token     uint64
	overtaken bool   // by a late Complete: the id may be terminal already
	next      uint32 // of a free flight: the next free one, plus one
}

func (f *flight) board(k *key, token uint64) {
	f.key.copy(k)
	f.token, f.overtaken = token, false
}

// flights is one generation of claims in flight. Places are used again as soon
// as they are free, so that a steady state allocates nothing.
type flights struct {
	table table
	slab  []flight
	free  uint32 // the first free flight, plus one; 0 if there is none
}

func (f *flights) len() int { return f.table.n }

// find returns the slot of k's flight, or -1.
func (f *flights) find(k *key) int {
	return f.table.find(k.hash, func(ref uint32) bool {
		other := &f.slab[ref].key
		return other.hash == k.hash && bytes.Equal(other.bytes(), k.bytes())
	})
}

// findClaim returns the slot of c's flight, or -1. It does not look at the id,
// whose memory may hold something else by now.
func (f *flights) findClaim(c *Claim) int {
	return f.table.find(c.hash, func(ref uint32) bool {
		return f.slab[ref].token == c.token && f.slab[ref].key.hash == c.hash
	})
}

// at returns the flight in a slot. It is valid until the next add.
func (f *flights) at(slot int) *flight { return &f.slab[f.table.refs[slot]] }

func (f *flights) hashOf(ref uint32) uint64 { return f.slab[ref].key.hash }

// add stores a flight for k, which must have none here.
func (f *flights) add(k *key, token uint64) {
	ref := f.take()
	f.slab[ref].board(k, token)
	f.table.insert(k.hash, ref, f.hashOf)
}

func (f *flights) take() uint32 {
	if f.free == 0 {
		f.slab = append(f.slab, flight{})
		return uint32(len(f.slab) - 1)
	}
	ref := f.free - 1
	f.free = f.slab[ref].next
	return ref
}

// remove ends the flight in a slot.
func (f *flights) remove(slot int) {
	ref := f.table.refs[slot]
	f.table.remove(slot, f.hashOf)
	f.slab[ref].next = f.free
	f.free = ref + 1
}

// each calls fn for every flight, in no order.
func (f *flights) each(fn func(*flight)) {
	for ref := range f.table.all {
		fn(&f.slab[ref])
	}
}

// recycle empties the set for a new life that will hold about as much as like, or
// nothing.
func (f *flights) recycle(like *flights) {
	n := 0
	if like != nil {
		n = like.table.n
	}
	f.table.recycle(n)
	if cap(f.slab) > max(keptFlights, 4*n) {
		f.slab = nil
	}
	f.slab, f.free = f.slab[:0], 0
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
const minLapsed = 512

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
	l.young[f.token] = f.key.hash
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
