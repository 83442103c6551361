package idem

import (
	"errors"
	"fmt"
	"math/rand/v2"
)

// The checks of this file run after each step in a build with the tag
// invariants, and in tests. A build without it has none of them.

// unlock ends a step under the shard's lock.
func (sh *shard) unlock() {
	if invariants {
		sh.mustHold()
	}
	sh.mu.Unlock()
}

// mustHold panics if the shard's structure is broken. A large shard is looked at
// now and then only: looking costs as much as it holds.
func (sh *shard) mustHold() {
	held := sh.terminal.sets[0].len() + sh.terminal.sets[1].len() + sh.inFlight.sets[0].len() + sh.inFlight.sets[1].len()
	if held > 16 && rand.IntN(4*held) > 0 {
		return
	}
	if err := sh.check(); err != nil {
		panic(fmt.Sprintf("idem: broken invariant in shard %d: %v", sh.index, err))
	}
}

// mustAgree panics if the shards don't agree on the generations. It needs all
// locks.
func (g *Generational) mustAgree() {
	if !invariants {
		return
	}
	if err := errors.Join(g.checkPlaces(&g.terminal), g.checkPlaces(&g.inFlight)); err != nil {
		panic(fmt.Sprintf("idem: broken invariant: %v", err))
	}
}

// check says what is wrong with the shard, if anything is.
func (sh *shard) check() error {
	var errs []error
	for i := range 2 {
		ids, flying := &sh.terminal.sets[i], &sh.inFlight.sets[i]
		errs = append(errs,
			ids.check(), sh.checkKeys(ids), sh.checkLife(&sh.g.terminal, i),
			flying.check(), sh.checkFlights(flying), sh.checkLife(&sh.g.inFlight, i))
	}
	errs = append(errs, sh.checkTwice(), sh.waits.check())
	if n := sh.lapsed.len(); n > 2*sh.lapsed.half {
		errs = append(errs, fmt.Errorf("%d lapsed claims, of %d at the most", n, 2*sh.lapsed.half))
	}
	return errors.Join(errs...)
}

// checkKeys looks for ids of other shards.
func (sh *shard) checkKeys(s *idset) error {
	for ref := range s.table.all {
		if hash := s.hashOf(ref); hash&uint64(len(sh.g.shards)-1) != sh.index {
			return fmt.Errorf("the id with hash %x is of another shard", hash)
		}
	}
	return nil
}

func (sh *shard) checkFlights(f *flights) (err error) {
	f.each(func(fl *flight) {
		if hashOf(sh.g.seed, fl.stored[:]) != fl.hash || fl.hash&uint64(len(sh.g.shards)-1) != sh.index || fl.token&(maxShards-1) != sh.index {
			err = fmt.Errorf("flight %x of %q has hash %x", fl.token, fl.key().rest, fl.hash)
		}
	})
	return err
}

// checkTwice looks for ids that are in both generations, and for flights of ids
// that are terminal though no late Complete has overtaken them.
func (sh *shard) checkTwice() error {
	for ref := range sh.terminal.sets[0].table.all {
		if k := sh.terminal.sets[0].key(ref); sh.terminal.sets[1].find(&k) >= 0 {
			return fmt.Errorf("%q is terminal twice", k.rest)
		}
	}
	var err error
	for i := range 2 {
		sh.inFlight.sets[i].each(func(f *flight) {
			k := f.key()
			terminal := sh.terminal.sets[0].find(&k) >= 0 || sh.terminal.sets[1].find(&k) >= 0
			if i == 0 && sh.inFlight.sets[1].find(&k) >= 0 || terminal && !f.overtaken {
				err = fmt.Errorf("%q is in flight, and more", k.rest)
			}
		})
	}
	return err
}

// checkLife looks for ids of a generation that is over, and for more of a
// generation than there may be.
func (sh *shard) checkLife(c *course, i int) error {
	life := [...]generation{c.era.young, c.era.old}[i]
	n, s := sh.size(c, i), sh.share(c)
	switch {
	case n > 0 && !life.alive:
		return fmt.Errorf("%d ids in a generation that is over", n)
	case n > c.limit, i == youngSet && life.alive && n+s.room > c.limit, s.room < 0:
		return fmt.Errorf("%d ids and %d places in sets[%d], of %d at the most", n, s.room, i, c.limit)
	}
	return nil
}

// checkPlaces says whether the places of a young generation are all there. It
// needs all locks.
func (g *Generational) checkPlaces(c *course) error {
	places, n := 0, 0
	for sh := range g.made {
		places += sh.share(c).room + sh.size(c, youngSet)
		n++
	}
	if c.era.young.alive && n > 0 && places != c.limit {
		return fmt.Errorf("%d places in a generation, not %d", places, c.limit)
	}
	return nil
}

// key is the stored key behind ref.
func (s *idset) key(ref uint32) key { return keyIn(s.arena.at(ref), s.hashOf(ref)) }

func (s *idset) check() error {
	if err := s.table.check(s.hashOf); err != nil {
		return err
	}
	n := s.arena.wasted
	for ref := range s.table.all {
		n += keyLen(s.arena.at(ref))
	}
	if n != s.arena.bytes {
		return fmt.Errorf("the arena holds %d bytes, of which %d are known", s.arena.bytes, n)
	}
	return nil
}

// check says whether many flights have an index, and whether it knows every place
// and no more.
func (f *flights) check() error {
	if !f.indexed() {
		return f.checkResting()
	}
	for place := range f.slab {
		if f.slotOf(place) < 0 {
			return fmt.Errorf("place %d of %d is not found", place, len(f.slab))
		}
	}
	if f.index.n != len(f.slab) {
		return fmt.Errorf("%d places are known, not %d", f.index.n, len(f.slab))
	}
	return f.index.check(f.hashOf)
}

// checkResting says whether there are too many flights to do without an index, and
// whether one that waits for them is empty: a tag left behind would stand for a
// flight that has ended.
func (f *flights) checkResting() error {
	if len(f.slab) > fewFlights {
		return fmt.Errorf("%d flights without an index", len(f.slab))
	}
	if f.index == nil {
		return nil
	}
	for slot, tag := range f.index.tags {
		if tag != 0 {
			return fmt.Errorf("an index that rests has tag %x in slot %d", tag, slot)
		}
	}
	return nil
}

// check says whether every reference is found from its home, and the tags are
// what they should be.
func (t *table) check(hashOf func(ref uint32) uint64) error {
	n := 0
	for slot, ref := range t.refs {
		if slot < tagsAWord && t.tags[slot] != t.tags[len(t.refs)+slot] {
			return fmt.Errorf("the copy of tag %d differs", slot)
		}
		if t.tags[slot] == 0 {
			continue
		}
		n++
		hash := hashOf(ref)
		if t.tags[slot] != tagOf(hash) {
			return fmt.Errorf("slot %d has tag %x, not %x", slot, t.tags[slot], tagOf(hash))
		}
		for i := t.home(hash); i != slot; i = t.wrap(i + 1) {
			if t.tags[i] == 0 {
				return fmt.Errorf("slot %d is empty, between slot %d and its home", i, slot)
			}
		}
	}
	if n != t.n || n*loadDen > len(t.refs)*loadNum {
		return fmt.Errorf("%d slots are in use of %d, not %d", n, len(t.refs), t.n)
	}
	return nil
}

func (w waits) check() error {
	for hash, r := range w {
		if r.guests <= 0 {
			return fmt.Errorf("an empty room for hash %x", hash)
		}
	}
	return nil
}
