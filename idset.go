package idem

import "bytes"

// rejectedBit marks, in the first byte of a stored key, an id that was
// rejected, not completed.
const rejectedBit = 0x80

// idset is one generation's storage: an exact set of keys without pointers, each
// completed or rejected. The keys lie one behind the other in an arena; a table
// of their places finds them.
type idset struct {
	table table
	arena arena
}

func (s *idset) len() int { return s.table.n }

// find returns the slot of k, or -1.
func (s *idset) find(k *key) int {
	for i := s.table.first(k.hash); i >= 0; i = s.table.next(i, k.hash) {
		if holds(s.arena.at(s.table.ref(i)), k) {
			return i
		}
	}
	return -1
}

// holds says whether the stored key that begins entry is k. A key tells its own
// length, so one that begins as k does is k.
func holds(entry []byte, k *key) bool {
	return entry[0]&^rejectedBit == k.buf[0] &&
		len(entry) >= int(k.n) && bytes.Equal(entry[1:k.n], k.buf[1:k.n])
}

// state says how the id in slot i ended.
func (s *idset) state(i int) State {
	if s.arena.at(s.table.ref(i))[0]&rejectedBit != 0 {
		return Rejected
	}
	return Completed
}

// add stores k, which must not be in the set.
func (s *idset) add(k *key, ended State) {
	ref := s.arena.put(k.bytes())
	if ended == Rejected {
		s.arena.at(ref)[0] |= rejectedBit
	}
	s.table.insert(k.hash, ref)
}

// remove takes the id in slot i out of the set.
func (s *idset) remove(i int) {
	s.arena.waste(keyLen(s.arena.at(s.table.ref(i))))
	s.table.remove(i)
	if s.arena.wasteful() {
		s.compact()
	}
}

// compact copies what is left into a new arena.
func (s *idset) compact() {
	old := s.arena
	s.arena = arena{}
	for i, slot := range s.table.slots {
		if slot != 0 {
			entry := old.at(s.table.ref(i))
			s.table.setRef(i, s.arena.put(entry[:keyLen(entry)]))
		}
	}
}

// recycle empties the set for a new life that will hold about as much as like.
func (s *idset) recycle(like *idset) {
	s.table.recycle(like.table.n)
	s.arena.recycle(like.arena.used)
}
