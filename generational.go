package idem

import (
	"context"
	"hash/maphash"
	"math"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Generational is the guard: an [IdempotencyGuard] that remembers ids in two
// generations, bounded in time and in number. See the package documentation for
// how, and [NewGenerational] for making one.
//
// All methods may be called from any number of goroutines. A nil *Generational
// and a zero Generational are off: everything begins, nothing is remembered.
type Generational struct {
	// Fixed when the guard is made.
	identity   MessageIdentity
	line       timeline
	seed       maphash.Seed
	firstToken uint64

	shards []atomic.Pointer[shard] // each made when it is first needed

	mu       sync.Mutex // held by who holds more than one shard's lock, and who makes a shard
	alone    bool       // somebody holds all locks
	terminal course
	inFlight course

	from, until time.Duration // moments from one to before the other: time changes nothing

	unidentified atomic.Uint64
}

var _ IdempotencyGuard = (*Generational)(nil)

// NewGenerational makes a guard. An option that is out of range is an error that
// wraps [ErrInvalidOption] and names the option, the value and the bound. A
// guard has no goroutine and needs no closing.
func NewGenerational(opts ...Option) (*Generational, error) {
	c, err := defaultConfig().with(opts)
	if err != nil {
		return nil, err
	}
	return newGenerational(c), nil
}

func newGenerational(c config) *Generational {
	g := &Generational{
		identity:   c.identity,
		line:       timeline{epoch: time.Now(), clock: c.clock},
		seed:       maphash.MakeSeed(),
		firstToken: rand.Uint64() >> 1 &^ (maxShards - 1),
		shards:     make([]atomic.Pointer[shard], shardsFor(c.maxTracked)),
	}
	limit := limitFor(c.maxTracked)
	g.terminal.init(&g.line, c.window/2+c.window%2, c.window, limit)
	lease := c.leaseOrDefault()
	g.inFlight.init(&g.line, lease, twice(lease), limit)
	g.foresee()
	return g
}

const (
	maxShardBits = 6
	maxShards    = 1 << maxShardBits

	// A shard of half as many has fewer goroutines to wait for, but takes more than
	// 56 bytes an id.
	idsPerShard = 512

	// Keys of so many ids, the longest there are, take half of what an arena's
	// references reach: room for the shards to differ.
	mostIDsAShard = 1 << 25
)

// shardsFor is a power of two. Shards keep goroutines out of each other's way,
// also on two processors, and are more places for a core to have in its caches:
// 64 instead of 32 take a twentieth less time side by side, and as much more alone.
func shardsFor(maxTracked int) int {
	wanted := max(1, min(maxShards, maxTracked/idsPerShard))
	return 1 << (bits.Len(uint(wanted)) - 1)
}

// limitFor is how many ids a generation takes: half of maxTracked, so that two
// of them keep the bound, or as many as the references of all shards reach.
func limitFor(maxTracked int) int {
	return int(min(int64(maxTracked/2), maxShards*mostIDsAShard))
}

// twice d, or the longest duration there is.
func twice(d time.Duration) time.Duration {
	if d > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return 2 * d
}

func (g *Generational) off() bool { return g == nil || g.shards == nil }

// TryBegin claims a message, or says why it can't; see [IdempotencyGuard].
func (g *Generational) TryBegin(id Identity) (Claim, State) {
	if g == nil { // here, where the compiler can put it into the caller
		return Claim{}, Begun
	}
	return g.tryBegin(id, first)
}

func (g *Generational) tryBegin(id Identity, look glance) (Claim, State) {
	if g.off() {
		return Claim{}, Begun
	}
	if id.ID == "" {
		g.unidentified.Add(1)
		return Claim{}, Begun
	}
	var room keyRoom
	k := keyOf(g.seed, id, g.identity, &room)
	sh := g.shard(k.hash)
	sh.expect()
	now := g.line.now()
	token, state := g.beginAt(sh, &now, &k, look)
	if state != Begun {
		return Claim{}, state
	}
	return Claim{id: id, token: token, hash: k.hash}, Begun
}

func (g *Generational) beginAt(sh *shard, now *moment, k *key, look glance) (uint64, State) {
	g.lock(now, sh)
	token, state, ok := sh.tryBegin(now, k, look)
	if !ok {
		g.lockOthers(now, sh)
		token, state, _ = sh.tryBegin(now, k, look)
		g.unlockOthers(sh)
	}
	sh.unlock()
	return token, state
}

// Complete says that the message is handled. A claim whose lease has run out is
// remembered all the same, if the memory behind its id is still what it was at
// TryBegin: by then the guard has forgotten the id and reads it there. A claim
// in flight it knows by token and hash, and needs that memory no more. Of claims
// whose lease has run out it knows the newest, about maxTracked, or 512 if that is more;
// completing an older one changes nothing.
func (g *Generational) Complete(c Claim) { g.settle(c, complete) }

// Reject says that the message was dead-lettered. It changes nothing for a claim
// whose lease has run out.
func (g *Generational) Reject(c Claim) { g.settle(c, reject) }

// Release says that the message is not done. It changes nothing for a claim
// whose lease has run out, and never forgets a message that was settled. It works
// also while the clock panics: whoever cleans up after that must be able to.
func (g *Generational) Release(c Claim) {
	done := false
	defer func() {
		if !done {
			g.releaseUntimed(c)
		}
	}()
	g.settle(c, release)
	done = true
}

// releaseUntimed takes no notice of what time has done since the last call.
func (g *Generational) releaseUntimed(c Claim) {
	sh := g.shard(c.hash)
	sh.mu.Lock()
	defer sh.unlock()
	sh.release(&c)
}

func (g *Generational) settle(c Claim, v verb) {
	if g.off() || c.hash == 0 {
		return
	}
	sh, now := g.shard(c.hash), g.line.now()
	g.settleAt(sh, &now, &c, v)
}

func (g *Generational) settleAt(sh *shard, now *moment, c *Claim, v verb) {
	g.lock(now, sh)
	if !sh.settle(now, c, v) {
		g.lockOthers(now, sh)
		sh.settle(now, c, v)
		g.unlockOthers(sh)
	}
	sh.unlock()
}

// Wait returns nil once TryBegin would not answer InFlight, or ctx's error if
// that comes first. A settled claim wakes it at once; a lease that runs out it
// notices within a second.
func (g *Generational) Wait(ctx context.Context, id Identity) error {
	if g.off() || id.ID == "" {
		return nil
	}
	var room keyRoom
	k := keyOf(g.seed, id, g.identity, &room)
	sh := g.shard(k.hash)
	for {
		now := g.line.now()
		g.lock(&now, sh)
		r := sh.waitIn(&k)
		sh.unlock()
		if r == nil {
			return nil
		}
		if err := sh.await(ctx, k.hash, r); err != nil {
			return err
		}
	}
}

// Forget makes a completed or rejected id unknown again, for a planned replay,
// and says whether it was one. An id in flight it leaves alone: false.
func (g *Generational) Forget(id Identity) bool {
	if g.off() || id.ID == "" {
		return false
	}
	var room keyRoom
	k := keyOf(g.seed, id, g.identity, &room)
	sh, now := g.shard(k.hash), g.line.now()
	g.lock(&now, sh)
	defer sh.unlock()
	return !sh.flying(&k) && sh.forget(&k)
}

// Stats returns what the guard holds and has done.
func (g *Generational) Stats() Stats {
	if g.off() {
		return Stats{}
	}
	now := g.line.now()
	g.lockAll()
	g.age(&now)
	s := Stats{
		Horizon:        g.terminal.era.horizon(g.line.time(now), g.terminal.half),
		EarlyRotations: g.terminal.early,
		Unidentified:   g.unidentified.Load(),
	}
	for sh := range g.made {
		sh.addTo(&s)
	}
	g.unlockOthers(nil)
	return s
}

// shard returns the shard for hash.
func (g *Generational) shard(hash uint64) *shard {
	slot := &g.shards[hash&uint64(len(g.shards)-1)]
	if sh := slot.Load(); sh != nil {
		return sh
	}
	return g.makeShard(slot, hash)
}

// makeShard also takes part in the order of locks: nobody turns the generations
// meanwhile.
func (g *Generational) makeShard(slot *atomic.Pointer[shard], hash uint64) *shard {
	g.mu.Lock()
	defer g.mu.Unlock()
	if sh := slot.Load(); sh != nil {
		return sh
	}
	sh := newShard(g, hash&uint64(len(g.shards)-1))
	slot.Store(sh)
	return sh
}
