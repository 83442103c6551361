package idem

import (
	"sync/atomic"
	"time"
)

// era says which two generations of ids there are, and since when. The young
// one takes new ids, the old one is only consulted. An era is never changed,
// but replaced as a whole; the counts of its generations go on.
type era struct {
	number uint64 // of the young generation; the old one's is one less
	young  generation
	old    generation

	// Where a generation was dropped for its size alone, nothing is forgotten
	// that landed at floor or later.
	floor time.Time
	cut   bool
}

// generation is the life of one set of ids, over all shards. It begins with the
// first id that lands in it: the zero generation has not begun, or is over.
type generation struct {
	start  time.Time
	landed *atomic.Int64 // ids in it
}

func newGeneration(now time.Time) generation {
	g := generation{start: now, landed: new(atomic.Int64)}
	g.landed.Store(1)
	return g
}

func (g generation) alive() bool { return g.landed != nil }

// take reserves a place for one id, if there are fewer than limit. It never
// counts too many, not even for a moment: another call could see it and close
// the generation too early.
func (g generation) take(limit int64) bool {
	for {
		n := g.landed.Load()
		if n >= limit {
			return false
		}
		if g.landed.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// giveBack frees the place of an id that is not in the generation any more.
func (g generation) giveBack() { g.landed.Add(-1) }

// since returns how long before now start was, and whether the clock has stepped
// back behind it. A monotonic clock can't: there, now is merely older than
// start, read by a call that was slow to get here, and no time has passed.
func since(now, start time.Time) (d time.Duration, stepped bool) {
	d = now.Sub(start)
	if d < 0 && monotonic(now) {
		return 0, false
	}
	return d, d < 0
}

// monotonic says whether t has a monotonic reading, which Round strips.
func monotonic(t time.Time) bool { return t != t.Round(0) }

// steady says that time alone changes nothing in g at now.
func (g generation) steady(now time.Time, life time.Duration) bool {
	if !g.alive() {
		return true
	}
	d, stepped := since(now, g.start)
	return !stepped && d < life
}

// aged returns the era that e has become at now by time alone. Generations that
// have lived are gone, and stay so whatever the clock does next. One that began
// in the future, because the clock stepped back, begins now.
func (e *era) aged(now time.Time, life time.Duration) *era {
	next := *e
	next.young.start = notAfter(now, e.young.start)
	next.old.start = notAfter(now, e.old.start)
	next.floor = notAfter(now, e.floor)
	if !next.young.steady(now, life) {
		return &era{number: e.number + 2} // the old one is older still
	}
	if !next.old.steady(now, life) {
		next.old = generation{}
	}
	return &next
}

func notAfter(now, t time.Time) time.Time {
	if _, stepped := since(now, t); stepped {
		return now
	}
	return t
}

// turned returns the era that follows e when an id lands at now that the young
// generation doesn't take.
func (e *era) turned(now time.Time, bySize bool) *era {
	next := &era{number: e.number, young: newGeneration(now), floor: e.floor, cut: e.cut}
	if !e.young.alive() {
		next.old = e.old
		return next
	}
	next.number++
	next.old = e.young
	if bySize && e.old.alive() && e.old.landed.Load() > 0 {
		next.floor, next.cut = e.young.start, true
	}
	return next
}

// horizon is how far back everything is remembered at now, half at the most.
func (e *era) horizon(now time.Time, half time.Duration) time.Duration {
	if !e.cut {
		return half
	}
	d, _ := since(now, e.floor)
	return min(half, max(0, d))
}

// eras replaces one era by the next. It has no lock: a turn is one
// compare-and-swap, and every shard follows when it next looks.
type eras struct {
	half  time.Duration // a generation takes ids until half after its start
	life  time.Duration // and is consulted until life after it
	limit int64         // it takes that many ids

	current atomic.Pointer[era]
	turned  atomic.Bool   // shards may hold sets of generations that are over
	early   atomic.Uint64 // turns by size, before half
}

func (c *eras) init(half, life time.Duration, limit int64) {
	c.half, c.life, c.limit = half, life, limit
	c.current.Store(&era{number: 2})
}

// at returns the era at now.
func (c *eras) at(now time.Time) *era {
	for {
		e := c.current.Load()
		if e.young.steady(now, c.life) && e.old.steady(now, c.life) {
			return e
		}
		c.replace(e, e.aged(now, c.life))
	}
}

// reserve makes room for one id that lands at now, and returns the era whose
// young generation it lands in. If that generation is closed before the shard
// has stored the id, nothing is wrong: its room is in a set that is consulted
// as long as it should be.
func (c *eras) reserve(now time.Time) *era {
	for {
		e := c.at(now)
		open := e.takes(now, c.half)
		if open && e.young.take(c.limit) {
			return e
		}
		if next := e.turned(now, open); c.replace(e, next) {
			c.countEarly(open)
			return next
		}
	}
}

// takes says whether the young generation takes ids at now, if it has room.
func (e *era) takes(now time.Time, half time.Duration) bool {
	if !e.young.alive() {
		return false
	}
	d, _ := since(now, e.young.start)
	return d < half
}

func (c *eras) countEarly(bySize bool) {
	if bySize {
		c.early.Add(1)
	}
}

func (c *eras) replace(e, next *era) bool {
	if !c.current.CompareAndSwap(e, next) {
		return false
	}
	if next.number != e.number {
		c.turned.Store(true)
	}
	return true
}

// twin is a shard's part of the two generations: which era it has followed to,
// and the sets, of which the one for a generation's number is found by parity.
type twin[S any] struct {
	seen   *era
	number [2]uint64
	sets   [2]S
}

func (t *twin[S]) young() *S { return &t.sets[t.seen.number&1] }

// generation returns the generation whose ids are in sets[i].
func (t *twin[S]) generation(i int) generation {
	if t.seen.number&1 == uint64(i) {
		return t.seen.young
	}
	return t.seen.old
}

// follow brings the twin to era e. A set whose generation is over is given to
// recycle, together with the set that closed last, or an empty one: about as
// much as that held the new generation will hold.
func (t *twin[S]) follow(e *era, recycle func(gone, like *S)) {
	if t.seen == e {
		return
	}
	t.seen = e
	for i := range t.sets {
		number := e.number - (e.number^uint64(i))&1
		if t.number[i] == number && t.generation(i).alive() {
			continue
		}
		t.number[i] = number
		recycle(&t.sets[i], t.like(i))
	}
}

// like returns the set beside sets[i], if it is of a living generation.
func (t *twin[S]) like(i int) *S {
	other := 1 - i
	number := t.seen.number - (t.seen.number^uint64(other))&1
	if t.number[other] == number && t.generation(other).alive() {
		return &t.sets[other]
	}
	return new(S)
}
