package idem

import (
	"math"
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

	// What follows from the above, so that most calls need three comparisons:
	// moments from calm to before stale, at which time changes nothing, and those
	// before closes, at which the young generation takes ids.
	calm, stale, closes time.Duration
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

// aged returns the era that e has become at now by time alone, which may be e.
// Generations that have lived are gone, and stay so whatever the clock does next.
// One that began in the future, because the clock stepped back, begins now.
func (e *era) aged(now time.Time, life time.Duration) *era {
	next := &era{number: e.number, young: e.young.restarted(now), old: e.old.restarted(now), floor: e.floor, cut: e.cut}
	if _, stepped := elapsed(e.floor, now); stepped {
		next.floor = now
	}
	if next.young.over(now, life) {
		return &era{number: e.number + 2} // the old one is older still
	}
	if next.old.over(now, life) {
		next.old = generation{}
	}
	if *next == e.bare() {
		return e
	}
	return next
}

// bare is e without what follows from it.
func (e *era) bare() era {
	return era{number: e.number, young: e.young, old: e.old, floor: e.floor, cut: e.cut}
}

func (g generation) restarted(now time.Time) generation {
	if _, stepped := elapsed(g.start, now); stepped && g.alive() {
		g.start = now
	}
	return g
}

func (g generation) over(now time.Time, life time.Duration) bool {
	d, _ := elapsed(g.start, now)
	return g.alive() && d >= life
}

// open says whether the young generation takes ids at now, if it has room.
func (e *era) open(now time.Time, half time.Duration) bool {
	d, _ := elapsed(e.young.start, now)
	return e.young.alive() && d < half
}

// rotated returns the era that follows e when an id lands at now that the young
// generation doesn't take.
func (e *era) rotated(now time.Time, bySize bool) *era {
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
	d, _ := elapsed(e.floor, now)
	return min(half, max(0, d))
}

// eras replaces one era by the next. It has no lock: a rotation is one
// compare-and-swap, and every shard follows when it next looks.
type eras struct {
	line  *timeline
	half  time.Duration // a generation takes ids until half after its start
	life  time.Duration // and is consulted until life after it
	limit int64         // it takes that many ids

	current atomic.Pointer[era]
	untidy  atomic.Bool   // shards may hold sets of generations that are over
	early   atomic.Uint64 // rotations by size, before half
}

func (c *eras) init(line *timeline, half, life time.Duration, limit int64) {
	c.line, c.half, c.life, c.limit = line, half, life, limit
	first := &era{number: 2}
	c.foresee(first)
	c.current.Store(first)
}

// at returns the era at now.
func (c *eras) at(now *moment) *era {
	if e := c.current.Load(); e.calmAt(now) {
		return e
	}
	return c.catchUp(*now)
}

// calmAt says that time changes nothing in e at now, as far as was foreseen.
func (e *era) calmAt(now *moment) bool { return now.since >= e.calm && now.since < e.stale }

func (c *eras) catchUp(now moment) *era {
	for {
		e := c.current.Load()
		now = c.line.notBefore(now, e.calm)
		if next := e.aged(c.line.time(now), c.life); next == e || c.replace(e, next) {
			return next
		}
	}
}

// reserve makes room for one id that lands at now, and returns the era whose
// young generation it lands in. If that generation is closed before the shard
// has stored the id, nothing is wrong: its room is in a set that is consulted
// as long as it should be.
func (c *eras) reserve(now *moment) *era {
	if e := c.current.Load(); now.since >= e.calm && now.since < e.closes && e.young.take(c.limit) {
		return e
	}
	return c.rotate(*now)
}

// rotate is reserve where there may be no room, or no young generation yet.
func (c *eras) rotate(now moment) *era {
	for {
		e := c.catchUp(now)
		now = c.line.notBefore(now, e.calm)
		open := e.open(c.line.time(now), c.half)
		if open && e.young.take(c.limit) {
			return e
		}
		if next := e.rotated(c.line.time(now), open); c.replace(e, next) {
			c.countEarly(open)
			return next
		}
	}
}

func (c *eras) countEarly(bySize bool) {
	if bySize {
		c.early.Add(1)
	}
}

func (c *eras) replace(e, next *era) bool {
	c.foresee(next)
	if !c.current.CompareAndSwap(e, next) {
		return false
	}
	if next.number != e.number {
		c.untidy.Store(true)
	}
	return true
}

// foresee works out, for an era nobody has seen yet, what follows from it.
func (c *eras) foresee(e *era) {
	e.calm, e.stale, e.closes = math.MinInt64+1, math.MaxInt64, math.MinInt64
	for _, g := range [...]generation{e.young, e.old} {
		if g.alive() {
			e.calm = max(e.calm, c.line.after(g.start, 0))
			e.stale = min(e.stale, c.line.after(g.start, c.life))
		}
	}
	if e.young.alive() {
		e.closes = min(e.stale, c.line.after(e.young.start, c.half))
	}
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
	t.seen = e
	for i := range t.sets {
		if !t.current(i) {
			t.number[i] = t.due(i)
			recycle(&t.sets[i], t.like(1-i))
		}
	}
}

// due is the number of the generation that sets[i] is for.
func (t *twin[S]) due(i int) uint64 { return t.seen.number - (t.seen.number^uint64(i))&1 }

// current says that sets[i] holds what it should, of a living generation.
func (t *twin[S]) current(i int) bool {
	return t.number[i] == t.due(i) && t.generation(i).alive()
}

func (t *twin[S]) like(i int) *S {
	if t.current(i) {
		return &t.sets[i]
	}
	return new(S)
}
