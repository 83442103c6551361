package idem

import (
	"math"
	"time"
)

// course is how the generations of one kind of id follow each other, over all
// shards. Who holds g.mu or any shard's lock may read it; who holds all may change
// it.
type course struct {
	line  *timeline
	half  time.Duration // a generation takes ids until half after its start
	life  time.Duration // and is consulted until life after it
	limit int           // it takes that many ids

	era   era
	early uint64 // rotations by size, before half

	// What follows from the era: moments from calm to before stale, at which time
	// changes nothing, and those before closes, at which the young generation takes
	// ids.
	calm, stale, closes time.Duration
}

func (c *course) init(line *timeline, half, life time.Duration, limit int) {
	c.line, c.half, c.life, c.limit = line, half, life, limit
	c.set(era{number: 2})
}

// set makes e the era, and works out what follows from it, so that most calls
// need to compare two numbers only.
func (c *course) set(e era) {
	c.era = e
	c.calm, c.stale, c.closes = math.MinInt64+1, math.MaxInt64, math.MinInt64
	for _, g := range [...]generation{e.young, e.old} {
		if g.alive {
			c.calm = max(c.calm, c.line.after(g.start, 0))
			c.stale = min(c.stale, c.line.after(g.start, c.life))
		}
	}
	if e.young.alive {
		c.closes = c.line.after(e.young.start, c.half)
	}
}

// share is a shard's part of a course, behind the shard's lock.
//
// The places that the young generation has left are dealt out to the shards, so
// that an id lands without a look at the others: all rooms and all ids in young
// sets together are the limit, always.
type share struct {
	room   int           // places for this shard's next ids
	newest time.Duration // the latest moment at which one landed
}

func (s *share) land(now *moment) {
	s.room--
	s.newest = max(s.newest, now.since)
}

// twin is a shard's part of the two generations of one kind.
type twin[S any] struct {
	share
	sets [2]S // the young generation's and the old one's
}

// The places in a twin's sets.
const youngSet, oldSet = 0, 1

func (t *twin[S]) young() *S { return &t.sets[youngSet] }

// giveBack frees the place of an id that was removed from sets[i]. In the old
// generation nobody wants it.
func (t *twin[S]) giveBack(i int) {
	if i == youngSet {
		t.room++
	}
}

// follow brings the twin from one era to the next. A set whose generation is over
// is given to recycle, together with the set that stays, if one does: the next
// generation will hold about as much as that.
func (t *twin[S]) follow(from, to era, recycle func(gone, like *S)) {
	if to.number == from.number+1 {
		t.sets[youngSet], t.sets[oldSet] = t.sets[oldSet], t.sets[youngSet]
	}
	keepsYoung, keepsOld := to.number == from.number, to.old.alive
	if !to.young.alive {
		t.newest = math.MinInt64
	}
	switch {
	case !keepsYoung && keepsOld:
		recycle(&t.sets[youngSet], &t.sets[oldSet])
	case keepsYoung && !keepsOld:
		recycle(&t.sets[oldSet], &t.sets[youngSet])
	case !keepsYoung:
		recycle(&t.sets[youngSet], nil)
		recycle(&t.sets[oldSet], nil)
	}
}
