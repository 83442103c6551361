package idem

import "time"

// era says which two generations of ids there are, and since when. The young
// one takes new ids, the old one is only consulted. The rules are told here, of
// times and numbers alone.
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
	start time.Time
	alive bool
}

// aged returns what e has become at now by time alone. Generations that have
// lived are gone, and stay so whatever the clock does next. One that began in
// the future, because the clock stepped back, begins now.
func (e era) aged(now time.Time, life time.Duration) era {
	e.young, e.old = e.young.restarted(now), e.old.restarted(now)
	if now.Before(e.floor) {
		e.floor = now
	}
	if e.young.over(now, life) {
		return era{number: e.number + 2} // the old one is older still
	}
	if e.old.over(now, life) {
		e.old = generation{}
	}
	return e
}

func (g generation) restarted(now time.Time) generation {
	if g.alive && now.Before(g.start) {
		g.start = now
	}
	return g
}

func (g generation) over(now time.Time, life time.Duration) bool {
	return g.alive && now.Sub(g.start) >= life
}

// open says whether the young generation takes ids at now, if it has room.
func (e era) open(now time.Time, half time.Duration) bool {
	return e.young.alive && now.Sub(e.young.start) < half
}

// rotated returns the era that follows e when an id lands at now that the young
// generation doesn't take. If it lacks room alone, and ids are dropped for it,
// that is a cut.
func (e era) rotated(now time.Time, cuts bool) era {
	next := era{number: e.number, young: generation{now, true}, old: e.old, floor: e.floor, cut: e.cut}
	if !e.young.alive {
		return next
	}
	next.number++
	next.old = e.young
	if cuts {
		next.floor, next.cut = e.young.start, true
	}
	return next
}

// horizon is how far back everything is remembered at now, half at the most.
func (e era) horizon(now time.Time, half time.Duration) time.Duration {
	if !e.cut {
		return half
	}
	return min(half, max(0, now.Sub(e.floor)))
}
