package idem

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What many shards could do wrong and one can't.

// shardRig is a guard of many shards, and ids of which it knows the shard.
type shardRig struct {
	t     *testing.T
	g     *Generational
	clock *guardClock
	next  int
}

func newShardRig(t *testing.T, opts ...Option) *shardRig {
	g, clock := newGuard(t, append([]Option{WithMaxTracked(manyShards)}, opts...)...)
	return &shardRig{t: t, g: g, clock: clock}
}

// few makes the guard one of limit ids a generation, spread over many shards.
func (r *shardRig) few(limit int64) *shardRig {
	r.g.terminal.limit, r.g.inFlight.limit = limit, limit
	return r
}

func (r *shardRig) shardOf(id Identity) uint64 {
	var k key
	k.set(r.g.seed, id, r.g.identity)
	return k.hash % uint64(len(r.g.shards))
}

func (r *shardRig) now() *moment {
	now := r.g.line.now()
	return &now
}

// id is a new id of one shard.
func (r *shardRig) id(shard uint64) Identity {
	for {
		r.next++
		if id := number(r.next); r.shardOf(id) == shard {
			return id
		}
	}
}

func TestShardThatLagsForgetsWhatIsOver(t *testing.T) {
	r := newShardRig(t, WithWindow(100))
	a := r.id(0)
	mustHandle(t, r.g, a)
	sh := r.g.shards[0].Load()
	// Everybody else goes on; shard 0 is not told, as if it were locked meanwhile.
	for range 10 {
		r.clock.add(50)
		r.g.terminal.reserve(r.now())
	}
	require.Equal(t, 1, sh.terminal.sets[0].len()+sh.terminal.sets[1].len(), "it has not looked yet")
	require.Equal(t, Begun, look(r.g, a))
	require.Zero(t, sh.terminal.sets[0].len()+sh.terminal.sets[1].len())
}

func TestShardThatLagsOneTurnStillRemembers(t *testing.T) {
	r := newShardRig(t, WithWindow(100)).few(2)
	a, b := r.id(0), r.id(1)
	mustHandle(t, r.g, a)
	mustHandle(t, r.g, b)
	r.g.terminal.reserve(r.now()) // turns
	require.Equal(t, Completed, look(r.g, a))
	require.Equal(t, Completed, look(r.g, b))
}

func TestShardSleepsForTwoTurns(t *testing.T) {
	// Its two sets are for the generations that have the same parity by now.
	r := newShardRig(t, WithWindow(100)).few(2)
	a := r.id(0)
	mustHandle(t, r.g, a)
	for range 2 * 2 {
		r.g.terminal.reserve(r.now())
	}
	require.Equal(t, Begun, look(r.g, a))
	mustHandle(t, r.g, a)
	require.Equal(t, Completed, look(r.g, a))
}

func TestShardIsTidiedByTheCallThatTurns(t *testing.T) {
	r := newShardRig(t, WithWindow(100), WithLease(100))
	for shard := range uint64(10) {
		mustHandle(t, r.g, r.id(shard))
		mustBegin(t, r.g, r.id(shard))
	}
	r.clock.add(200)
	look(r.g, r.id(63)) // another shard's
	for i := range 10 {
		sh := r.g.shards[i].Load()
		require.Zero(t, sh.terminal.sets[0].len()+sh.terminal.sets[1].len())
		require.Zero(t, sh.inFlight.sets[0].len()+sh.inFlight.sets[1].len())
		require.EqualValues(t, 1, sh.stats.LeasesExpired)
	}
}

func TestShardTurnBetweenReserveAndLanding(t *testing.T) {
	// The id has its place in a generation that is closed before the shard stores
	// it: it counts there, and is remembered as long as that generation is.
	r := newShardRig(t, WithWindow(100)).few(3)
	a := r.id(0)
	c := mustBegin(t, r.g, a)
	now := r.now()
	sh := r.g.shards[0].Load()

	sh.mu.Lock()
	e := r.g.terminal.reserve(now)
	for range 3 { // others fill the generation and turn it
		r.g.terminal.reserve(now)
	}
	require.NotSame(t, e, r.g.terminal.current.Load())
	sh.follow(now) // what a slower follow would do in between is the same
	f := sh.takeOut(&c)
	sh.stats.Completed++
	sh.followTerminal(e)
	sh.terminal.young().add(&f.key, Completed)
	sh.mu.Unlock()

	require.Equal(t, Completed, look(r.g, a))
	require.Equal(t, 1, r.g.Stats().Tracked)
	r.clock.add(99)
	require.Equal(t, Completed, look(r.g, a))
	r.clock.add(1)
	require.Equal(t, Begun, look(r.g, a))
}

func TestShardTwoTurnsBetweenReserveAndLanding(t *testing.T) {
	// By then H newer ids have come: it is gone at once, and nothing else with it.
	r := newShardRig(t, WithWindow(100)).few(2)
	a := r.id(0)
	c := mustBegin(t, r.g, a)
	now := r.now()
	sh := r.g.shards[0].Load()

	sh.mu.Lock()
	sh.follow(now)
	f := sh.takeOut(&c)
	e := r.g.terminal.reserve(now)
	for range 5 {
		r.g.terminal.reserve(now)
	}
	require.EqualValues(t, 2, r.g.terminal.current.Load().number-e.number)
	sh.stats.Completed++
	sh.followTerminal(e)
	sh.terminal.young().add(&f.key, Completed)
	sh.mu.Unlock()

	require.Equal(t, Begun, look(r.g, a))
	require.Zero(t, r.g.Stats().Tracked)
	mustHandle(t, r.g, a)
	require.Equal(t, Completed, look(r.g, a))
	requireBalance(t, r.g.Stats())
}

func TestShardGivesPlacesBackToTheirOwnGeneration(t *testing.T) {
	r := newShardRig(t, WithWindow(100)).few(3)
	old := r.id(0)
	mustHandle(t, r.g, old)
	r.clock.add(50)
	young := r.id(1)
	mustHandle(t, r.g, young)
	e := r.g.terminal.current.Load()
	require.EqualValues(t, 1, e.old.landed.Load())
	require.True(t, r.g.Forget(old))
	require.EqualValues(t, 0, e.old.landed.Load())
	require.EqualValues(t, 1, e.young.landed.Load())
	require.True(t, r.g.Forget(young))
	require.EqualValues(t, 0, e.young.landed.Load())
}

func TestShardsAreMadeWhenTheyAreNeeded(t *testing.T) {
	r := newShardRig(t)
	made := func() (n int) {
		for i := range r.g.shards {
			n += count(r.g.shards[i].Load() != nil)
		}
		return n
	}
	require.Zero(t, made())
	r.g.Stats()
	require.Zero(t, made())
	mustHandle(t, r.g, r.id(5))
	mustHandle(t, r.g, r.id(5))
	require.Equal(t, 1, made())
	for shard := range uint64(64) {
		mustHandle(t, r.g, r.id(shard))
	}
	require.Equal(t, 64, made())
	require.Equal(t, 66, r.g.Stats().Tracked)
}

func TestShardsHoldTheirInvariants(t *testing.T) {
	// As the build with the tag does after each step; and the check can fail.
	r := newShardRig(t, WithWindow(100), WithLease(10)).few(20)
	for i := range 3000 {
		c, state := r.g.TryBegin(number(i % 100))
		if state == Begun {
			switch i % 4 {
			case 0:
				r.g.Complete(c)
			case 1:
				r.g.Reject(c)
			case 2:
				r.g.Release(c)
			}
		}
		if i%50 == 0 {
			r.clock.add(time.Duration(i % 17))
			for s := range r.g.shards {
				if sh := r.g.shards[s].Load(); sh != nil {
					require.NoError(t, sh.check())
				}
			}
		}
	}
	for name, break_ := range map[string]func(*shard){
		"a tag":            func(sh *shard) { sh.terminal.young().table.tags[0] ^= 1 },
		"a count":          func(sh *shard) { sh.terminal.young().table.n++ },
		"the arena":        func(sh *shard) { sh.terminal.young().arena.bytes++ },
		"landed":           func(sh *shard) { sh.terminal.seen.young.landed.Store(0) },
		"a free place":     func(sh *shard) { sh.inFlight.young().free = 1 },
		"a flight's token": func(sh *shard) { sh.inFlight.young().slab[0].token++ },
		"a set's number":   func(sh *shard) { sh.terminal.number[0] += 2 },
		"a room":           func(sh *shard) { sh.waits.enter(1).guests = 0 },
		"a shard's index":  func(sh *shard) { sh.index++ },
	} {
		r := newShardRig(t)
		mustHandle(t, r.g, r.id(0))
		mustBegin(t, r.g, r.id(0))
		sh := r.g.shards[0].Load()
		require.NoError(t, sh.check())
		break_(sh)
		require.Error(t, sh.check(), name)
		require.Panics(t, sh.mustHold, name)
	}
}
