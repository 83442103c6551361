package idem

import (
	"math"
	"time"
)

// A call works behind its shard's lock alone, as long as time has changed nothing
// and there is room for its id. Else it begins again behind all locks, where the
// generations can be turned.

// lock locks sh, at a moment for which its sets are right.
func (g *Generational) lock(now *moment, sh *shard) {
	sh.mu.Lock()
	if now.since < g.from || now.since >= g.until {
		g.lockOthers(now, sh)
		g.unlockOthers(sh)
	}
}

// lockOthers locks all shards, of which sh is locked already, and does what time
// has done. It lets go of sh for a while: whoever holds more than one shard's lock
// has taken g.mu before them.
func (g *Generational) lockOthers(now *moment, sh *shard) {
	sh.unlock()
	g.lockAll()
	g.age(now)
}

func (g *Generational) lockAll() {
	g.mu.Lock()
	for sh := range g.made {
		sh.mu.Lock()
	}
	g.alone = true
}

// unlockOthers unlocks all shards but sh, which may be nil.
func (g *Generational) unlockOthers(sh *shard) {
	g.mustAgree()
	g.alone = false
	for other := range g.made {
		if other != sh {
			other.unlock()
		}
	}
	g.mu.Unlock()
}

// made yields the shards that there are.
func (g *Generational) made(yield func(*shard) bool) {
	for i := range g.shards {
		if sh := g.shards[i].Load(); sh != nil && !yield(sh) {
			return
		}
	}
}

// age does what time has done until now. A moment that is older than a
// generation, and not because the clock has stepped back, is that of a call that
// was slow to get here.
func (g *Generational) age(now *moment) {
	begun := max(g.terminal.calm, g.inFlight.calm)
	*now = g.line.notBefore(*now, begun)
	if now.since < begun {
		g.stepBack(now)
	}
	for _, c := range [...]*course{&g.terminal, &g.inFlight} {
		if next := c.era.aged(g.line.time(*now), c.life); next != c.era {
			g.setEra(c, next)
		}
	}
}

// stepBack forgets that ids landed later than now.
func (g *Generational) stepBack(now *moment) {
	for sh := range g.made {
		for _, s := range [...]*share{&sh.terminal.share, &sh.inFlight.share} {
			s.newest = min(s.newest, now.since)
		}
	}
}

// setEra brings all shards to another era.
func (g *Generational) setEra(c *course, next era) {
	from := c.era
	c.set(next)
	g.foresee()
	for sh := range g.made {
		sh.follow(c, from)
	}
}

// foresee works out from when to when time changes nothing.
func (g *Generational) foresee() {
	g.from, g.until = max(g.terminal.calm, g.inFlight.calm), min(g.terminal.stale, g.inFlight.stale)
}

// makeRoom sees to it that an id of sh can land at now, if need be in a new
// generation. That one begins no earlier than the last id has landed in the one
// that closes: else it would close early itself, and take that id with it before
// its time.
func (g *Generational) makeRoom(c *course, now *moment, sh *shard) {
	left, newest, old := g.survey(c)
	*now = g.line.notBefore(*now, newest)
	t := g.line.time(*now)
	open := c.era.open(t, c.half)
	if open && left > 0 {
		g.deal(c, left, sh)
		return
	}
	g.setEra(c, c.era.rotated(t, open && old > 0))
	g.deal(c, c.limit, sh)
	if open {
		c.early++
	}
}

// survey says how many places the young generation has left, when the last id
// landed, and how many ids are in the old one.
func (g *Generational) survey(c *course) (left int, newest time.Duration, old int) {
	newest = math.MinInt64
	for sh := range g.made {
		s := sh.share(c)
		left += s.room
		newest = max(newest, s.newest)
		old += sh.size(c, oldSet)
	}
	return left, newest, old
}

// deal gives every shard an equal part of the places, and what is left over to
// the one that needs them.
func (g *Generational) deal(c *course, places int, needy *shard) {
	n := 0
	for range g.made {
		n++
	}
	for sh := range g.made {
		sh.share(c).room = places / n
	}
	needy.share(c).room += places % n
}
