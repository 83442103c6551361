package idem

import (
	"encoding/binary"
	"math"
	"math/bits"
	"unsafe"
)

// table finds small references by hash: open addressing with linear probing over
// two arrays of integers, which the collector need not look into. What a
// reference stands for, and whether it is the one looked for, its owner knows.
//
// Every slot has a tag of one byte, taken from the hash, and 0 when it is empty.
// Eight tags are compared at once, as one word, and a look-up that finds nothing
// hardly ever reads more than the tags: they are few enough for a core's cache.
type table struct {
	tags []uint8 // one a slot, and the first eight again behind the last
	refs []uint32
	full int // slots for as many as are to be expected at the most; 0: not known
	n    int // last: what comes before it is hardly ever written
}

const (
	minSlots  = 8
	tagsAWord = 8

	// At most three quarters of the slots are in use: a look-up that finds nothing
	// then reads one or two words of tags.
	loadNum, loadDen = 3, 4
)

// tagOf takes bits that neither the home nor the shard is chosen by.
func tagOf(hash uint64) uint8 { return max(1, uint8(hash>>8)) }

// home spreads hashes evenly over any number of slots.
func (t *table) home(hash uint64) int {
	return int(hash >> 32 * uint64(len(t.refs)) >> 32)
}

// lowBits and highBits have the lowest and the highest bit of every byte set.
const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// zeros marks, by its highest bit, every byte of word that is 0. It may also mark
// bytes above the lowest of them.
func zeros(word uint64) uint64 { return (word - lowBits) &^ word & highBits }

// below has all bits set below the lowest mark, or all if there is none.
func below(marks uint64) uint64 { return marks&-marks - 1 }

// place is the slot of the lowest mark, in the word that begins at slot i.
func (t *table) place(i int, marks uint64) int {
	return t.wrap(i + bits.TrailingZeros64(marks)/8)
}

func (t *table) wrap(i int) int {
	if i >= len(t.refs) {
		return i - len(t.refs)
	}
	return i
}

func (t *table) word(i int) uint64 { return binary.LittleEndian.Uint64(t.tags[i : i+tagsAWord]) }

// find returns the slot for hash whose reference is the one looked for, or -1.
func (t *table) find(hash uint64, is func(ref uint32) bool) int {
	if t.n == 0 {
		return -1
	}
	pattern := uint64(tagOf(hash)) * lowBits
	for i := t.home(hash); ; i = t.wrap(i + tagsAWord) {
		word := t.word(i)
		empty := zeros(word)
		for marks := zeros(word^pattern) & below(empty); marks != 0; marks &= marks - 1 {
			if slot := t.place(i, marks); is(t.refs[slot]) {
				return slot
			}
		}
		if empty != 0 {
			return -1
		}
	}
}

// insert adds a reference. It does not look for an equal one. To grow it asks
// for the hashes of those there are.
func (t *table) insert(hash uint64, ref uint32, hashOf func(ref uint32) uint64) {
	if (t.n+1)*loadDen > len(t.refs)*loadNum {
		t.grow(hashOf)
	}
	t.put(hash, ref)
	t.n++
}

func (t *table) put(hash uint64, ref uint32) {
	i := t.home(hash)
	empty := zeros(t.word(i))
	for empty == 0 {
		i = t.wrap(i + tagsAWord)
		empty = zeros(t.word(i))
	}
	slot := t.place(i, empty)
	t.refs[slot] = ref
	t.setTag(slot, tagOf(hash))
}

// next returns where a reference for hash is about to be written, nil in a table
// without a slot.
func (t *table) next(hash uint64) unsafe.Pointer {
	if len(t.refs) == 0 {
		return nil
	}
	return unsafe.Pointer(&t.refs[t.home(hash)])
}

// setTag also keeps the copy of the first tags, so that a word can be read at
// every slot.
func (t *table) setTag(slot int, tag uint8) {
	t.tags[slot] = tag
	if slot < tagsAWord {
		t.tags[len(t.refs)+slot] = tag
	}
}

func (t *table) grow(hashOf func(ref uint32) uint64) {
	old := *t
	n := t.grownSlots()
	t.tags, t.refs = make([]uint8, n+tagsAWord), make([]uint32, n)
	for ref := range old.all {
		t.put(hashOf(ref), ref)
	}
}

// all yields every reference, in no order.
func (t *table) all(yield func(ref uint32) bool) {
	for slot, ref := range t.refs {
		if t.tags[slot] != 0 && !yield(ref) {
			return
		}
	}
}

// grownSlots doubles a small table and lets a large one grow by a quarter: then
// at least six tenths of it are in use, which bounds the bytes per id. Where it is
// known how large it gets it is doubled up to just that: so it is filled anew a
// quarter as often, and ends no larger.
func (t *table) grownSlots() int {
	n := len(t.refs)
	least := n + n/4
	switch {
	case least < t.full:
		return max(minSlots, halvedAbove(least, t.full))
	case n < 256:
		return max(minSlots, 2*n)
	default:
		return least
	}
}

// halvedAbove halves full as often as it stays above n.
func halvedAbove(n, full int) int {
	for full/2 > n {
		full /= 2
	}
	return full
}

// slotsFor is how many slots n references take, if they may be a few more: in a
// part of a set that is divided by hash.
func slotsFor(n int) int {
	n += 3 * int(math.Sqrt(float64(n))) // three deviations
	return n*loadDen/loadNum + loadDen
}

// remove empties a slot and closes the gap: an entry that probed past the slot
// moves back into it, and so on, so that no look-up ever meets a false end and
// removed entries leave nothing behind.
func (t *table) remove(gap int, hashOf func(ref uint32) uint64) {
	t.n--
	for i := t.wrap(gap + 1); t.tags[i] != 0; i = t.wrap(i + 1) {
		if t.passes(t.home(hashOf(t.refs[i])), gap, i) {
			t.refs[gap] = t.refs[i]
			t.setTag(gap, t.tags[i])
			gap = i
		}
	}
	t.setTag(gap, 0)
}

// passes says whether a probe that starts at home comes by gap before i.
func (t *table) passes(home, gap, i int) bool {
	if gap <= i {
		return home <= gap || home > i
	}
	return home <= gap && home > i
}

// recycle empties the table for a new life. It keeps the storage if that is not
// much more than n entries need.
func (t *table) recycle(n int) {
	if len(t.refs) > max(keptSlots, 4*n) {
		t.tags, t.refs = nil, nil
	} else {
		clear(t.tags)
	}
	t.n = 0
}

// keptSlots are never given back: too little to matter, and what a quiet guard
// would otherwise allocate again and again.
const keptSlots = 32
