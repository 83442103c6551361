package idem

import "hash/maphash"

// rejectedBit marks, in the first byte of a stored key, an id that was
// rejected, not completed.
const rejectedBit = 0x80

// idset is one generation's storage: an exact set of keys without pointers, each
// completed or rejected. The keys lie one behind the other in an arena; a table
// of their places finds them.
type idset struct {
	seed  maphash.Seed // of the keys' hashes
	table table
	arena arena
}

func (s *idset) len() int { return s.table.n }

// find returns the slot of k, or -1.
func (s *idset) find(k *key) int {
	return s.table.find(k.hash, func(ref uint32) bool { return k.begins(s.arena.at(ref)) })
}

func (s *idset) entry(slot int) []byte { return s.arena.at(s.table.refs[slot]) }

// state says how the id in slot ended.
func (s *idset) state(slot int) State {
	if s.entry(slot)[0]&rejectedBit != 0 {
		return Rejected
	}
	return Completed
}

// expect gets ready what a key with hash is written to.
func (s *idset) expect(hash uint64) {
	first, last := s.arena.next()
	prefetch(s.table.next(hash), first, last)
}

// add stores k, which must not be in the set.
func (s *idset) add(k *key, ended State) {
	ref, room := s.arena.reserve(k.len())
	k.put(room)
	if ended == Rejected {
		room[0] |= rejectedBit
	}
	s.table.insert(k.hash, ref, s.hashOf)
}

func (s *idset) hashOf(ref uint32) uint64 { return hashOf(s.seed, s.arena.at(ref)) }

// remove takes the id in slot out of the set.
func (s *idset) remove(slot int) {
	s.arena.waste(keyLen(s.entry(slot)))
	s.table.remove(slot, s.hashOf)
	if s.arena.wasteful() {
		s.compact()
	}
}

// compact copies what is left into a new arena.
func (s *idset) compact() {
	old := s.arena
	s.arena = arena{}
	for slot, tag := range s.table.tags[:len(s.table.refs)] {
		if tag != 0 {
			entry := old.at(s.table.refs[slot])
			ref, room := s.arena.reserve(keyLen(entry))
			copy(room, entry)
			s.table.refs[slot] = ref
		}
	}
}

// recycle empties the set for a new life that will hold about as much as like, or
// nothing.
func (s *idset) recycle(like *idset) {
	n, size := 0, 0
	if like != nil {
		n, size = like.table.n, like.arena.size()
	}
	s.table.recycle(n)
	s.arena.recycle(size)
}
