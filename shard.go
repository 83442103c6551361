package idem

import (
	"context"
	"math"
	"sync"
	"unsafe"
)

// shard holds the ids of one part of the hashes. All that is known of an id is
// in one shard, so that one lock decides about it. What every call writes comes
// first, to be in few cache lines, and all is within 512 bytes: in front of a larger
// object the allocator keeps a word, and no line would be where it should be.
type shard struct {
	mu        sync.Mutex // protects all that follows but g and index
	waits     waits
	begun     uint64
	completed uint64
	inFlight  twin[flights]
	terminal  twin[idset]
	counts    counts
	lapsed    lapsed

	g     *Generational
	index uint64
}

// newShard knows the eras and has no room: with its first id it is dealt its part.
func newShard(g *Generational, index uint64) *shard {
	sh := &shard{g: g, index: index}
	full := slotsFor(g.terminal.limit / len(g.shards))
	for i := range sh.terminal.sets {
		sh.terminal.sets[i].seed, sh.terminal.sets[i].table.full = g.seed, full
	}
	sh.lapsed.half = max(minLapsed, g.inFlight.limit/len(g.shards))
	sh.terminal.newest, sh.inFlight.newest = math.MinInt64, math.MinInt64
	return sh
}

// expect gets ready the lines that TryBegin and Complete write to; the third is only
// read. Where several cores are at work another one has them as a rule, and to fetch
// them takes as long as to read the clock. They are counted from the shard's start:
// for a field's address the compiler first reads the shard, to see that it is there.
func (sh *shard) expect() {
	first := unsafe.Pointer(sh)
	prefetch(first, unsafe.Add(first, cacheLine), unsafe.Add(first, 3*cacheLine))
}

// glance says whether a look at an id is a delivery's first.
type glance bool

const (
	first glance = true
	held  glance = false // counted as a duplicate already, when it was first seen
)

// verb is how a claim is settled.
type verb uint8

const (
	complete verb = iota
	reject
	release
)

// ended is what a message that was settled so is.
func (v verb) ended() State {
	if v == reject {
		return Rejected
	}
	return Completed
}

func (sh *shard) share(c *course) *share {
	if c == &sh.g.terminal {
		return &sh.terminal.share
	}
	return &sh.inFlight.share
}

// size is how many ids of a course are in its set with index i.
func (sh *shard) size(c *course, i int) int {
	if c == &sh.g.terminal {
		return sh.terminal.sets[i].len()
	}
	return sh.inFlight.sets[i].len()
}

// follow brings the shard from an era of c to the one that has followed. Claims in
// a generation that is over have lapsed.
func (sh *shard) follow(c *course, from era) {
	if c == &sh.g.terminal {
		sh.terminal.follow(from, c.era, func(gone, like *idset) { gone.recycle(like) })
	} else {
		sh.inFlight.follow(from, c.era, func(gone, like *flights) {
			sh.counts.leasesExpired += uint64(gone.len())
			sh.lapsed.addAll(gone)
			gone.recycle(like)
		})
	}
}

// findRoom says whether an id can land at now. Behind all locks it can always: room
// is made there.
func (sh *shard) findRoom(c *course, now *moment) bool {
	if sh.share(c).room > 0 && now.since < c.closes {
		return true
	}
	if !sh.g.alone {
		return false
	}
	sh.g.makeRoom(c, now, sh)
	return true
}

// state is what TryBegin would answer. Completed and Rejected outrank InFlight:
// a late Complete may have overtaken a claim.
func (sh *shard) state(k *key) State {
	if i, slot := sh.find(k); slot >= 0 {
		return sh.terminal.sets[i].state(slot)
	}
	if sh.flying(k) {
		return InFlight
	}
	return Begun
}

// find returns the terminal set and the slot of k; the slot is -1 if there is
// none. What comes again has come lately as a rule.
func (sh *shard) find(k *key) (i, slot int) {
	for i := range sh.terminal.sets {
		if slot := sh.terminal.sets[i].find(k); slot >= 0 {
			return i, slot
		}
	}
	return 0, -1
}

func (sh *shard) flying(k *key) bool {
	return sh.inFlight.sets[0].find(k) >= 0 || sh.inFlight.sets[1].find(k) >= 0
}

// tryBegin answers for one delivery, and returns the token of the claim with
// Begun. If it isn't ok for want of room nothing has happened.
func (sh *shard) tryBegin(now *moment, k *key, look glance) (token uint64, state State, ok bool) {
	if state := sh.state(k); state != Begun {
		sh.countDuplicate(state, look)
		return 0, state, true
	}
	if !sh.findRoom(&sh.g.inFlight, now) {
		return 0, Begun, false
	}
	sh.inFlight.young().expect()
	sh.terminal.young().expect(k.hash)
	token = sh.nextToken()
	sh.inFlight.land(now)
	sh.inFlight.young().add(k, token)
	return token, Begun, true
}

func (sh *shard) countDuplicate(state State, look glance) {
	if look == held {
		return
	}
	switch state {
	case InFlight:
		sh.counts.duplicatesInFlight++
	case Completed:
		sh.counts.duplicatesCompleted++
	case Rejected:
		sh.counts.duplicatesRejected++
	}
}

// nextToken returns a token that no other claim of the guard has, nor, since
// every guard counts from a number of its own, one of another guard. Never 0: the
// first is below half of what there is.
func (sh *shard) nextToken() uint64 {
	sh.begun++
	return sh.g.firstToken + sh.begun<<maxShardBits | sh.index
}

// settle ends c, if it is in flight, and wakes who waits for that. If it isn't ok
// for want of room nothing has happened.
func (sh *shard) settle(now *moment, c *Claim, v verb) (ok bool) {
	i, place := sh.locate(c)
	switch {
	case place < 0:
		return sh.settleLate(now, c, v)
	case v == release:
		sh.counts.released++
		sh.takeOut(i, place)
	case !sh.remember(now, sh.inFlight.sets[i].at(place), v):
		return false
	default:
		sh.takeOut(i, place)
	}
	sh.waits.wake(c.hash)
	return true
}

// release ends c without a look at the time.
func (sh *shard) release(c *Claim) {
	if i, place := sh.locate(c); place >= 0 {
		sh.counts.released++
		sh.takeOut(i, place)
		sh.waits.wake(c.hash)
	}
}

// locate returns the set and the place of c's flight; the place is -1 if there is
// none.
func (sh *shard) locate(c *Claim) (i, place int) {
	for i := range sh.inFlight.sets {
		if place := sh.inFlight.sets[i].findClaim(c); place >= 0 {
			return i, place
		}
	}
	return 0, -1
}

func (sh *shard) takeOut(i, place int) {
	sh.inFlight.sets[i].remove(place)
	sh.inFlight.giveBack(i)
}

// remember makes the id of a claim that is settled now terminal. It was unknown
// when the claim was begun, so only a late Complete can have made it terminal
// since; but that may be so long ago that it is forgotten again.
func (sh *shard) remember(now *moment, f *flight, v verb) (ok bool) {
	k := f.key()
	known := f.overtaken && sh.state(&k) == Completed
	if !known && !sh.store(now, &k, v) {
		return false
	}
	sh.count(v)
	return true
}

func (sh *shard) count(v verb) {
	if v == complete {
		sh.completed++
	} else {
		sh.counts.rejected++
	}
}

// store makes k terminal, which it is not.
func (sh *shard) store(now *moment, k *key, v verb) (ok bool) {
	if !sh.findRoom(&sh.g.terminal, now) {
		return false
	}
	sh.add(now, k, v.ended())
	return true
}

func (sh *shard) add(now *moment, k *key, ended State) {
	sh.terminal.land(now)
	sh.terminal.young().add(k, ended)
}

// settleLate is for a claim that isn't in flight: settled before, another
// guard's, or one whose lease has run out. Only the last kind counts, and of it
// only the completion says something: the work is done, whoever owns the id now.
func (sh *shard) settleLate(now *moment, c *Claim, v verb) (ok bool) {
	if !sh.lapsed.has(c) {
		return true
	}
	if v == complete && !sh.completeLate(now, c) {
		return false
	}
	sh.lapsed.drop(c)
	sh.counts.lateSettles++
	return true
}

// completeLate looks at the id's own memory. If that was reused we don't know the
// id any more.
func (sh *shard) completeLate(now *moment, c *Claim) (ok bool) {
	var room keyRoom
	k := keyOf(sh.g.seed, c.id, sh.g.identity, &room)
	return k.hash != c.hash || sh.overtake(now, &k)
}

// overtake makes k completed, whatever it is. What is completed keeps its time.
// A rejected id that is completed after all ends anew, if need be in the place it
// has.
func (sh *shard) overtake(now *moment, k *key) (ok bool) {
	i, slot := sh.find(k)
	switch {
	case slot >= 0 && sh.terminal.sets[i].state(slot) == Completed:
		return true
	case slot >= 0 && sh.vacates(i, now):
	case !sh.findRoom(&sh.g.terminal, now):
		return false
	}
	sh.forget(k)
	sh.add(now, k, Completed)
	sh.outrank(k)
	return true
}

// vacates says that a terminal id that is taken from sets[i] leaves a place in
// which another can land at now.
func (sh *shard) vacates(i int, now *moment) bool {
	return i == youngSet && now.since < sh.g.terminal.closes
}

// outrank tells a flight of k that k has been completed.
func (sh *shard) outrank(k *key) {
	for i := range sh.inFlight.sets {
		set := &sh.inFlight.sets[i]
		if place := set.find(k); place >= 0 {
			set.at(place).overtaken = true
		}
	}
	sh.waits.wake(k.hash)
}

// forget makes k unknown and says whether it was terminal.
func (sh *shard) forget(k *key) bool {
	i, slot := sh.find(k)
	if slot < 0 {
		return false
	}
	sh.terminal.sets[i].remove(slot)
	sh.terminal.giveBack(i)
	return true
}

// waitIn returns a room to wait in while k is in flight, else nil.
func (sh *shard) waitIn(k *key) *room {
	if sh.state(k) != InFlight {
		return nil
	}
	return sh.waits.enter(k.hash)
}

// await waits in r, and leaves it whatever happens there: ctx is foreign code.
func (sh *shard) await(ctx context.Context, hash uint64, r *room) error {
	defer sh.leave(hash, r)
	return r.wait(ctx)
}

func (sh *shard) leave(hash uint64, r *room) {
	sh.mu.Lock()
	defer sh.unlock()
	sh.waits.leave(hash, r)
}

// addTo adds what the shard counts and holds to s.
func (sh *shard) addTo(s *Stats) {
	s.Tracked += sh.terminal.sets[0].len() + sh.terminal.sets[1].len()
	s.InFlight += sh.inFlight.sets[0].len() + sh.inFlight.sets[1].len()
	s.Begun += sh.begun
	s.Completed += sh.completed
	sh.counts.addTo(s)
}
