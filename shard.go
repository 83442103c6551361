package idem

import (
	"context"
	"sync"
)

// shard holds the ids of one part of the hashes. All that is known of an id is
// in one shard, so that one lock decides about it.
type shard struct {
	g     *Generational
	index uint64

	mu       sync.Mutex // protects all that follows
	terminal twin[idset]
	inFlight twin[flights]
	lapsed   lapsed
	waits    waits
	stats    Stats // the counters
	begun    uint64
	checks   uint64 // see mustHold
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

// follow catches up with what time and other shards have done.
func (sh *shard) follow(now *moment) {
	if e := sh.g.terminal.current.Load(); e != sh.terminal.seen || !e.calmAt(now) {
		sh.followTerminal(sh.g.terminal.at(now))
	}
	if e := sh.g.inFlight.current.Load(); e != sh.inFlight.seen || !e.calmAt(now) {
		sh.followInFlight(sh.g.inFlight.at(now))
	}
}

func (sh *shard) followTerminal(e *era) {
	if sh.terminal.seen == e {
		return
	}
	sh.terminal.follow(e, func(gone, like *idset) { gone.recycle(like) })
}

// followInFlight also notes the claims whose lease has run out.
func (sh *shard) followInFlight(e *era) {
	if sh.inFlight.seen == e {
		return
	}
	sh.inFlight.follow(e, func(gone, like *flights) {
		sh.stats.LeasesExpired += uint64(gone.len())
		gone.each(sh.lapsed.add)
		gone.recycle(like)
	})
}

// state is what TryBegin would answer. Completed and Rejected outrank InFlight:
// a late Complete may have overtaken a claim.
func (sh *shard) state(k *key) State {
	for i := range sh.terminal.sets {
		set := &sh.terminal.sets[i]
		if slot := set.find(k); slot >= 0 {
			return set.state(slot)
		}
	}
	if sh.flying(k) {
		return InFlight
	}
	return Begun
}

func (sh *shard) flying(k *key) bool {
	return sh.inFlight.sets[0].find(k) >= 0 || sh.inFlight.sets[1].find(k) >= 0
}

// tryBegin answers for one delivery, and returns the token of the claim with
// Begun.
func (sh *shard) tryBegin(now *moment, k *key, look glance) (uint64, State) {
	sh.follow(now)
	if state := sh.state(k); state != Begun {
		sh.countDuplicate(state, look)
		return 0, state
	}
	token := sh.nextToken()
	sh.followInFlight(sh.g.inFlight.reserve(now))
	sh.inFlight.young().add(k, token)
	sh.stats.Begun++
	return token, Begun
}

func (sh *shard) countDuplicate(state State, look glance) {
	if look == held {
		return
	}
	switch state {
	case InFlight:
		sh.stats.DuplicatesInFlight++
	case Completed:
		sh.stats.DuplicatesCompleted++
	case Rejected:
		sh.stats.DuplicatesRejected++
	}
}

// nextToken returns a token that no other claim of the guard has, nor, since
// every guard counts from a number of its own, one of another guard. Never 0.
func (sh *shard) nextToken() uint64 {
	for {
		sh.begun++
		if token := sh.g.firstToken + sh.begun<<maxShardBits | sh.index; token != 0 {
			return token
		}
	}
}

// settle ends c, if it is in flight, and wakes who waits for that.
func (sh *shard) settle(now *moment, c *Claim, v verb) {
	sh.follow(now)
	f := sh.takeOut(c)
	if f == nil {
		sh.settleLate(now, c, v)
		return
	}
	switch v {
	case complete:
		sh.stats.Completed++
		sh.remember(now, f, Completed)
	case reject:
		sh.stats.Rejected++
		sh.remember(now, f, Rejected)
	case release:
		sh.stats.Released++
	}
	sh.waits.wake(c.hash)
}

// release ends c without a look at the time.
func (sh *shard) release(c *Claim) {
	if sh.takeOut(c) != nil {
		sh.stats.Released++
		sh.waits.wake(c.hash)
	}
}

// takeOut ends c's flight and returns what it was, or nil.
func (sh *shard) takeOut(c *Claim) *flight {
	for i := range sh.inFlight.sets {
		set := &sh.inFlight.sets[i]
		if slot := set.findClaim(c); slot >= 0 {
			sh.inFlight.generation(i).giveBack()
			return set.remove(slot)
		}
	}
	return nil
}

// remember makes the id of a settled claim terminal. It was unknown when the
// claim was begun, so only a late Complete can have made it terminal since; but
// that may be so long ago that it is forgotten again.
func (sh *shard) remember(now *moment, f *flight, ended State) {
	if f.overtaken && sh.state(&f.key) == Completed {
		return
	}
	sh.store(now, &f.key, ended)
}

func (sh *shard) store(now *moment, k *key, ended State) {
	sh.followTerminal(sh.g.terminal.reserve(now))
	sh.terminal.young().add(k, ended)
}

// settleLate is for a claim that isn't in flight: settled before, another
// guard's, or one whose lease has run out. Only the last kind counts, and of it
// only the completion says something: the work is done, whoever owns the id now.
func (sh *shard) settleLate(now *moment, c *Claim, v verb) {
	if !sh.lapsed.take(c) {
		return
	}
	sh.stats.LateSettles++
	if v != complete {
		return
	}
	var k key
	k.set(sh.g.seed, c.id, sh.g.identity)
	if k.hash == c.hash { // else the id's memory was reused: we don't know the id
		sh.overtake(now, &k)
	}
}

// overtake makes k completed, whatever it is. What is completed keeps its time.
// A rejected id that is completed after all ends anew.
func (sh *shard) overtake(now *moment, k *key) {
	if sh.state(k) == Completed {
		return
	}
	sh.forget(k)
	sh.store(now, k, Completed)
	for i := range sh.inFlight.sets {
		set := &sh.inFlight.sets[i]
		if slot := set.find(k); slot >= 0 {
			set.at(slot).overtaken = true
		}
	}
	sh.waits.wake(k.hash)
}

// forget makes k unknown and says whether it was terminal.
func (sh *shard) forget(k *key) bool {
	for i := range sh.terminal.sets {
		set := &sh.terminal.sets[i]
		if slot := set.find(k); slot >= 0 {
			set.remove(slot)
			sh.terminal.generation(i).giveBack()
			return true
		}
	}
	return false
}

// waitIn returns a room to wait in while k is in flight, else nil.
func (sh *shard) waitIn(now *moment, k *key) *room {
	sh.mu.Lock()
	defer sh.unlock()
	sh.follow(now)
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
	s.Begun += sh.stats.Begun
	s.Completed += sh.stats.Completed
	s.Rejected += sh.stats.Rejected
	s.Released += sh.stats.Released
	s.DuplicatesInFlight += sh.stats.DuplicatesInFlight
	s.DuplicatesCompleted += sh.stats.DuplicatesCompleted
	s.DuplicatesRejected += sh.stats.DuplicatesRejected
	s.LeasesExpired += sh.stats.LeasesExpired
	s.LateSettles += sh.stats.LateSettles
}
