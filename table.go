package idem

// table finds small references by hash: open addressing with linear probing over
// one array of integers, which the collector need not look into. What a
// reference stands for, and whether it is the one looked for, its owner knows.
//
// A slot holds the upper half of the hash and the reference plus one; 0 is
// empty. The home of an entry follows from the half hash, so that growing and
// removing need nothing but the array itself.
type table struct {
	slots []uint64
	n     int
}

const (
	minSlots = 8

	// The table is at most three quarters full: at that load a look-up that finds
	// nothing reads about eight slots, one or two cache lines.
	loadNum, loadDen = 3, 4
)

func fragment(hash uint64) uint64 { return hash >> 32 }

// home spreads the half hashes evenly over any number of slots, in their order.
func (t *table) home(frag uint64) int {
	return int(frag * uint64(len(t.slots)) >> 32)
}

// first returns the first slot that may hold what hash stands for, or -1.
func (t *table) first(hash uint64) int {
	if t.n == 0 {
		return -1
	}
	frag := fragment(hash)
	return t.scan(t.home(frag), frag)
}

// next returns the slot after i that may hold what hash stands for, or -1.
func (t *table) next(i int, hash uint64) int {
	return t.scan(t.after(i), fragment(hash))
}

func (t *table) scan(i int, frag uint64) int {
	for t.slots[i] != 0 {
		if t.slots[i]>>32 == frag {
			return i
		}
		i = t.after(i)
	}
	return -1
}

func (t *table) after(i int) int {
	if i++; i < len(t.slots) {
		return i
	}
	return 0
}

// ref returns what slot i, which must be taken, refers to.
func (t *table) ref(i int) uint32 { return uint32(t.slots[i]) - 1 }

// setRef makes slot i, which must be taken, refer to something else.
func (t *table) setRef(i int, ref uint32) {
	t.slots[i] = t.slots[i]>>32<<32 | uint64(ref+1)
}

// insert adds a reference. It does not look for an equal one.
func (t *table) insert(hash uint64, ref uint32) {
	if (t.n+1)*loadDen > len(t.slots)*loadNum {
		t.grow()
	}
	t.place(fragment(hash)<<32 | uint64(ref+1))
	t.n++
}

func (t *table) place(slot uint64) {
	i := t.home(slot >> 32)
	for t.slots[i] != 0 {
		i = t.after(i)
	}
	t.slots[i] = slot
}

func (t *table) grow() {
	old := t.slots
	t.slots = make([]uint64, grownSlots(len(old)))
	for _, slot := range old {
		if slot != 0 {
			t.place(slot)
		}
	}
}

// grownSlots doubles a small table and lets a large one grow by a quarter: then
// at least six tenths of it are in use, which bounds the bytes per id.
func grownSlots(n int) int {
	if n < 256 {
		return max(minSlots, 2*n)
	}
	return n + n/4
}

// remove empties slot i and closes the gap: an entry that probed past the slot
// moves back into it, and so on, so that no look-up ever meets a false end and
// removed entries leave nothing behind.
func (t *table) remove(i int) {
	t.n--
	for j := t.after(i); t.slots[j] != 0; j = t.after(j) {
		if t.reaches(t.home(t.slots[j]>>32), i, j) {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = 0
}

// reaches says whether a probe that starts at home comes by i before j.
func (t *table) reaches(home, i, j int) bool {
	if i <= j {
		return home <= i || home > j
	}
	return home <= i && home > j
}

// recycle empties the table for a new life. It keeps the storage if that is not
// much more than n entries need.
func (t *table) recycle(n int) {
	if len(t.slots) > max(keptSlots, 4*n) {
		t.slots = nil
	} else {
		clear(t.slots)
	}
	t.n = 0
}

// keptSlots are never given back: too little to matter, and what a quiet guard
// would otherwise allocate again and again.
const keptSlots = 32
