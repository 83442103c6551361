package idem

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

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
func (r *shardRig) few(limit int) *shardRig {
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

// land handles n new ids of one shard.
func (r *shardRig) land(shard uint64, n int) (landed []Identity) {
	for range n {
		landed = append(landed, r.id(shard))
		mustHandle(r.t, r.g, landed[len(landed)-1])
	}
	return landed
}

func (r *shardRig) known(ids []Identity) (n int) {
	for _, id := range ids {
		n += count(look(r.g, id) == Completed)
	}
	return n
}

// A core that takes a shard from another one waits for every line that is written.
func TestShardIsWrittenInFewLines(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("NOT RUN: only where words have 64 bits; elsewhere the fields lie as they fall")
	}
	var sh shard
	line := func(p unsafe.Pointer) uintptr { return (uintptr(p) - uintptr(unsafe.Pointer(&sh))) / cacheLine }
	ids, flights := sh.terminal.young(), sh.inFlight.young()
	for _, c := range []struct {
		line        uintptr
		first, last unsafe.Pointer
	}{
		{0, unsafe.Pointer(&sh.mu), unsafe.Add(unsafe.Pointer(&flights.slab), unsafe.Sizeof(uintptr(0)))}, // its length
		{1, unsafe.Pointer(&sh.terminal.share), unsafe.Pointer(&sh.terminal.newest)},
		{3, unsafe.Pointer(&ids.table.n), unsafe.Pointer(&ids.arena.bytes)},
	} {
		require.Equal(t, [2]uintptr{c.line, c.line}, [2]uintptr{line(c.first), line(c.last)})
	}
	require.NotEqual(t, line(unsafe.Pointer(&ids.table.n)), line(unsafe.Pointer(&ids.table.tags)), "cores may share what is only read")
	require.LessOrEqual(t, unsafe.Sizeof(sh), uintptr(512), "a larger one begins behind a word of the allocator's")
	require.Zero(t, uintptr(unsafe.Pointer(newShard(benchGuard(t, 2), 0)))%cacheLine)
}

func TestShardThatNobodyAsksTurnsWithTheOthers(t *testing.T) {
	r := newShardRig(t, WithWindow(100)).few(2)
	ids := r.land(0, 2)
	sh := r.g.shards[0].Load()
	r.land(1, 2) // turns
	require.Equal(t, 2, sh.terminal.sets[0].len()+sh.terminal.sets[1].len())
	require.Equal(t, 2, r.known(ids), "still consulted")
	r.land(2, 2) // turns again
	require.Zero(t, sh.terminal.sets[0].len()+sh.terminal.sets[1].len(), "emptied by the call that turned")
	require.Zero(t, r.known(ids))
}

func TestShardThatIsNewTakesPartInWhatGoesOn(t *testing.T) {
	for turns := range 4 {
		r := newShardRig(t, WithWindow(100)).few(3)
		r.land(0, 3*turns+1)
		a := r.land(1, 1)
		require.Equal(t, 1, r.known(a))
		r.clock.add(99)
		require.Equal(t, 1, r.known(a))
		r.clock.add(1)
		require.Zero(t, r.known(a))
	}
}

func TestShardsShareThePlacesOfAGeneration(t *testing.T) {
	// Wherever the ids land, a generation takes H of them, no more and no fewer.
	const h = 7
	for name, shardOf := range map[string]func(i int) uint64{
		"all in one":     func(int) uint64 { return 5 },
		"in turn":        func(i int) uint64 { return uint64(i) % 64 },
		"back and forth": func(i int) uint64 { return uint64(i) / 3 % 2 },
		"more and more":  func(i int) uint64 { return uint64(i*i) % uint64(i/4+1) % 64 },
	} {
		t.Run(name, func(t *testing.T) {
			r := newShardRig(t).few(h)
			for i := range 20 * h {
				r.land(shardOf(i), 1)
				require.EqualValues(t, i/h, r.g.Stats().EarlyRotations, "after %d ids", i+1)
				require.Equal(t, min(i+1, h+i%h+1), r.g.Stats().Tracked)
				require.NoError(t, r.g.checkPlaces(&r.g.terminal))
			}
		})
	}
}

func TestShardsTakePlacesBack(t *testing.T) {
	// A place that is free in one shard is for all.
	r := newShardRig(t).few(3)
	ids := r.land(0, 3)
	require.True(t, r.g.Forget(ids[1]))
	r.land(1, 1)
	require.Zero(t, r.g.Stats().EarlyRotations)
	r.land(2, 1)
	require.EqualValues(t, 1, r.g.Stats().EarlyRotations)

	claims := []Claim{mustBegin(t, r.g, r.id(0)), mustBegin(t, r.g, r.id(1)), mustBegin(t, r.g, r.id(2))}
	for i := range 30 {
		r.g.Release(claims[i%3])
		claims[i%3] = mustBegin(t, r.g, r.id(uint64(i)))
	}
	require.Equal(t, 3, r.g.Stats().InFlight)
	require.Zero(t, r.g.Stats().LeasesExpired)
}

func TestShardMakesRoomForWhatLandsAlone(t *testing.T) {
	// A full generation is closed by an id that lands, not by one that needn't.
	r := newShardRig(t, WithWindow(100)).few(2)
	r.land(0, 2)
	old := r.land(1, 2)
	require.Equal(t, 2, r.known(old))
	young := r.g.terminal.era
	mustBegin(t, r.g, r.id(3))
	require.Equal(t, Completed, look(r.g, old[0]))
	r.g.Release(mustBegin(t, r.g, r.id(4)))
	require.True(t, r.g.Forget(old[1]))
	require.Equal(t, young, r.g.terminal.era)
}

func TestShardStormOfOneIDTurnsOnce(t *testing.T) {
	// All of them find no room, and let go of their lock to make some. Only one
	// needs it then.
	for range rounds(300) {
		r := newShardRig(t).few(1)
		before, stormed := r.id(0), r.id(1)
		mustBegin(t, r.g, before)
		r.g.shard(1) // so that they meet there
		var begun atomic.Int64
		var storm sync.WaitGroup
		for range 8 {
			storm.Go(func() {
				_, state := r.g.TryBegin(stormed)
				begun.Add(int64(count(state == Begun)))
			})
		}
		storm.Wait()
		require.EqualValues(t, 1, begun.Load())
		require.EqualValues(t, 1, r.g.inFlight.early)
		require.Equal(t, InFlight, look(r.g, before))
	}
}

// A call that is slow to get here, between its look at the clock and the lock,
// closes a full generation. What has landed there meanwhile keeps its half window,
// and so do the newest H.
func TestShardSlowCallDoesNotCutTheNewestShort(t *testing.T) {
	for name, clock := range map[string]*guardClock{"standard": nil, "injected": {now: time.Now()}} {
		t.Run(name, func(t *testing.T) {
			r := newShardRig(t, WithWindow(time.Second)).few(3)
			r.g.line = timeline{epoch: time.Now()}
			if clock != nil {
				r.g.line = timeline{epoch: clock.now, clock: clock}
			}
			start := time.Now()
			at := func(ms time.Duration) moment {
				return moment{since: ms * time.Millisecond, read: start.Add(ms * time.Millisecond)}
			}
			land := func(ms time.Duration, shard uint64) *key {
				var k key
				k.set(r.g.seed, r.id(shard), IDAndDestination)
				now := at(ms)
				token, state := r.g.beginAt(r.g.shard(k.hash), &now, &k, first)
				require.Equal(t, Begun, state)
				now = at(ms)
				r.g.settleAt(r.g.shard(k.hash), &now, &Claim{token: token, hash: k.hash}, complete)
				return &k
			}
			state := func(ms time.Duration, k *key) State {
				now := at(ms)
				_, state := r.g.beginAt(r.g.shard(k.hash), &now, k, held)
				return state
			}
			land(0, 0)
			late := [2]*key{land(400, 1), land(399, 2)}
			slow := land(100, 3)
			require.EqualValues(t, 1, r.g.terminal.early)
			land(899, 4) // by a start at 100 it would close the generation
			for _, k := range []*key{late[0], late[1], slow} {
				require.Equal(t, Completed, state(899, k))
			}
			land(900, 5)
			require.Equal(t, Completed, state(900, slow))
			require.Equal(t, Begun, state(900, late[0]))
		})
	}
}

// The same call is older than the one generation, and not than the other.
func TestShardSlowCallThatOneCourseSeesAlone(t *testing.T) {
	r := newShardRig(t, WithWindow(time.Hour), WithMaxTracked(2))
	r.g.line = timeline{epoch: time.Now()}
	begin := func(since time.Duration, id int) State {
		var k key
		k.set(r.g.seed, number(id), IDAndDestination)
		_, state := r.g.beginAt(r.g.shard(k.hash), &moment{since: since}, &k, first)
		return state
	}
	require.Equal(t, Begun, begin(100, 1))
	require.Equal(t, Begun, begin(200, 2))
	before := r.g.inFlight.era
	require.Equal(t, InFlight, begin(150, 2))
	require.Equal(t, before, r.g.inFlight.era)
}

func TestShardStepBackThatOneCourseSeesAlone(t *testing.T) {
	r := newShardRig(t, WithWindow(time.Hour), WithLease(time.Hour)).few(2)
	r.clock.set(time.Now())
	mustBegin(t, r.g, r.id(0))
	r.clock.add(10 * time.Second)
	mustHandle(t, r.g, r.id(0)) // the terminal ones begin here
	mustBegin(t, r.g, r.id(0))
	r.clock.add(-5 * time.Second)
	r.g.Stats() // before this, and after the start of those in flight
	r.clock.add(4500 * time.Millisecond)
	now := r.now()
	mustBegin(t, r.g, r.id(1)) // turns those in flight
	require.Equal(t, now.read, r.g.inFlight.era.young.start)
}

func TestShardLandingsOfTheFutureEndWithTheirGenerations(t *testing.T) {
	r := newShardRig(t, WithWindow(100), WithLease(100)).few(2)
	r.clock.set(time.Now())
	r.land(0, 2)
	r.clock.add(200)
	r.g.Stats() // all is over
	r.clock.add(-300)
	now := r.now()
	r.land(0, 1)
	require.Equal(t, now.read, r.g.terminal.era.young.start)
}

func TestShardsAreDealtEqualParts(t *testing.T) {
	r := newShardRig(t).few(1000)
	for shard := range uint64(4) {
		r.land(shard, 1)
	}
	for shard := range uint64(4) {
		room := r.g.shards[shard].Load().terminal.room
		require.GreaterOrEqual(t, room, 240)
		require.LessOrEqual(t, room, 255)
	}
}

func TestShardStepBackForgetsTheLandingsOfTheFuture(t *testing.T) {
	// Else the next generation would begin in the future.
	r := newShardRig(t, WithWindow(time.Hour)).few(1)
	r.clock.set(time.Now())
	r.land(0, 1)
	r.clock.add(10 * time.Minute)
	r.land(0, 1)
	r.clock.add(-20 * time.Minute)
	r.known(nil)
	r.g.Stats()
	r.clock.add(10*time.Minute + 10*time.Minute - slowCall/2)
	at := r.now()
	r.land(1, 1)
	require.Equal(t, at.read, r.g.terminal.era.young.start)
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
		require.EqualValues(t, 1, sh.counts.leasesExpired)
	}
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
		"a place":          func(sh *shard) { sh.terminal.room = -1 },
		"a flight's place": func(sh *shard) { f := sh.inFlight.young(); f.makeIndex(); f.index.refs[f.slotOf(0)]++ },
		"a flight's token": func(sh *shard) { sh.inFlight.young().slab[0].token++ },
		"an era":           func(sh *shard) { sh.g.terminal.era.young.alive = false },
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
