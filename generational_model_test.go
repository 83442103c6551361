package idem

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The model knows nothing of generations: it has a time for each id, and says of
// every answer whether the promises allow it. Where they leave room (between
// W/2 and W, between L and 2L) it takes the guard's answer and goes on from there.
type model struct {
	t        testing.TB
	g        *Generational
	clock    *guardClock
	w, l     time.Duration
	m, h     int
	calm     bool // the clock hardly ever jumps
	ids      []Identity
	terminal map[Identity]*ended
	flying   map[Identity]*begun
	claims   []*begun // all that were ever given
	order    int      // of what became terminal
	last     time.Time
	script   []string // what was done, to be read when it fails
}

// life is a time span as the clock's steps make it: it has lasted as long as the
// clock came forward, and it must end as if it had begun at the earliest reading
// since.
type life struct {
	lasted   time.Duration
	earliest time.Time
}

type ended struct {
	id    Identity
	state State
	or    State // or this, if an older record may have been kept
	life  life
	order int
	past  bool // H others have become terminal since: a size rotation may have cut it
	least life // as life, if an older record may have been kept: the one that goes first
}

type begun struct {
	id      Identity
	claim   Claim
	life    life
	crowded bool // more than H were in flight since
	done    bool // settled, or its lease was seen to have run out
	lapsed  bool
}

func newModel(t testing.TB, rnd *rand.Rand, m int, shards int) *model {
	return newModelWith(t, time.Duration(1+rnd.IntN(40)), time.Duration(1+rnd.IntN(40)), rnd, m, shards)
}

func newModelWith(t testing.TB, w, l time.Duration, rnd *rand.Rand, m int, shards int) *model {
	g, clock := newGuard(t, WithWindow(w), WithLease(l), WithMaxTracked(m))
	if shards > 0 {
		g.shards = make([]atomic.Pointer[shard], shards)
	}
	model := &model{
		t: t, g: g, clock: clock, w: w, l: l, m: m, h: m / 2,
		terminal: map[Identity]*ended{}, flying: map[Identity]*begun{}, last: clock.Now(),
	}
	for i := range 2 + rnd.IntN(3*min(m, 40)+4) {
		id := ID(fmt.Sprint(i))
		switch i % 5 {
		case 3:
			id = IDAt(fmt.Sprint(i), "there")
		case 4:
			id = ID(string(fill(70, 'x')) + fmt.Sprint(i))
		}
		model.ids = append(model.ids, id)
	}
	return model
}

func (m *model) note(format string, args ...any) {
	m.script = append(m.script, fmt.Sprintf("%d: ", m.last.Sub(newGuardClock().now))+fmt.Sprintf(format, args...))
}

func (m *model) check(ok bool, format string, args ...any) {
	m.t.Helper()
	if !ok {
		for _, line := range m.script[max(0, len(m.script)-60):] {
			m.t.Log(line)
		}
		m.t.Fatalf("W=%d L=%d M=%d: "+format, append([]any{m.w, m.l, m.m}, args...)...)
	}
}

// step moves the clock, or not, and does one random thing.
func (m *model) step(rnd *rand.Rand) {
	m.move(rnd)
	id := m.ids[rnd.IntN(len(m.ids))]
	switch rnd.IntN(12) {
	case 0, 1, 2, 3:
		m.tryBegin(id)
	case 4, 5, 6:
		if f := m.flying[id]; f != nil {
			m.settle(f, complete)
		}
	case 7:
		if f := m.flying[id]; f != nil {
			m.settle(f, reject)
		}
	case 8:
		if f := m.flying[id]; f != nil {
			m.settle(f, release)
		}
	case 9:
		if len(m.claims) > 0 {
			m.settle(m.claims[len(m.claims)-1-rnd.IntN(min(8, len(m.claims)))], verb(rnd.IntN(3)))
		}
	case 10:
		m.forget(id)
	case 11:
		m.stats()
	}
}

func (m *model) move(rnd *rand.Rand) {
	switch n := rnd.IntN(1000); {
	case n < 600, n >= 900 && m.calm && rnd.IntN(40) > 0:
		return
	case n < 900:
		m.clock.add(time.Duration(1 + rnd.IntN(3)))
	case n < 960:
		m.clock.add(time.Duration(rnd.IntN(int(2 * m.w))))
	case n < 985:
		m.clock.add(-time.Duration(1 + rnd.IntN(int(2*m.w))))
	case n < 990:
		m.clock.add(-time.Hour)
	case n < 995:
		m.clock.add(time.Duration(rnd.IntN(int(3 * m.l))))
	case n < 997:
		m.clock.set(farthest)
	case n < 998:
		m.clock.set(time.Time{})
	default:
		m.clock.set(newGuardClock().now)
	}
}

// see takes a reading, as the guard does in the call that comes with it.
func (m *model) see() {
	now := m.clock.Now()
	d := max(0, now.Sub(m.last))
	m.last = now
	for _, e := range m.terminal {
		e.life.see(now, d)
		e.least.see(now, d)
	}
	for _, f := range m.flying {
		f.life.see(now, d)
	}
}

func (l *life) see(now time.Time, d time.Duration) {
	if l.lasted += d; l.lasted < 0 {
		l.lasted = math.MaxInt64
	}
	if now.Before(l.earliest) {
		l.earliest = now
	}
}

func (m *model) life() life { return life{earliest: m.last} }

// over says that l must have ended.
func (l life) over(now time.Time, bound time.Duration) bool { return now.Sub(l.earliest) >= bound }

// mustKnow says that the guard must remember e.
func (m *model) mustKnow(e *ended) bool { return !e.past && e.least.lasted < halfOf(m.w) }

// pass notes which ids are not of the newest H any more.
func (m *model) pass() {
	for _, e := range m.terminal {
		newer := 0
		for _, other := range m.terminal {
			newer += count(other.order > e.order)
		}
		e.past = e.past || newer >= m.h
	}
}

func (m *model) mustForget(e *ended) bool { return e.life.over(m.last, m.w) }

func (m *model) mustFly(f *begun) bool   { return !f.crowded && f.life.lasted < m.l }
func (m *model) mustLapse(f *begun) bool { return f.life.over(m.last, twice(m.l)) }

func (m *model) tryBegin(id Identity) {
	m.see()
	claim, state := m.g.TryBegin(id)
	m.note("TryBegin(%.9v) = %v", id, state)
	m.learn(id, state)
	if state != Begun {
		m.check(claim == Claim{}, "a claim with %v", state)
		return
	}
	m.check(claim.Token() != 0, "no token")
	f := &begun{id: id, claim: claim, life: m.life()}
	m.flying[id] = f
	m.claims = append(m.claims, f)
	if len(m.flying) > m.h {
		for _, f := range m.flying {
			f.crowded = true
		}
	}
}

// learn checks what a look answered, and takes it for true.
func (m *model) learn(id Identity, state State) {
	m.t.Helper()
	e, f := m.terminal[id], m.flying[id]
	switch state {
	case Completed, Rejected:
		m.check(e != nil, "%v was never terminal, or is forgotten", id)
		m.check(e.state == state || e.or == state, "%v is %v or %v, not %v", id, e.state, e.or, state)
		e.state, e.or = state, state
		m.check(!m.mustForget(e), "%v is remembered beyond W", id)
		return
	case InFlight:
		m.check(f != nil, "%v is not in flight", id)
		m.check(!m.mustLapse(f), "%v is in flight beyond 2L", id)
	case Begun:
		if f != nil {
			m.check(!m.mustFly(f), "%v is not in flight any more", id)
			f.done, f.lapsed = true, true
			delete(m.flying, id)
		}
	}
	if e != nil {
		m.check(!m.mustKnow(e), "%v is forgotten", id)
		delete(m.terminal, id)
	}
}

// settle uses the counters to tell a claim in flight from a late one, and checks
// that either may be.
func (m *model) settle(f *begun, v verb) {
	m.see()
	before := m.g.Stats()
	verbsInOrder[v](m.g, f.claim)
	after := m.g.Stats()
	counted := (after.Completed + after.Rejected + after.Released) - (before.Completed + before.Rejected + before.Released)
	late := after.LateSettles - before.LateSettles
	m.note("verb %d of %.9v (token %x): counted %d, late %d", v, f.id, f.claim.token, counted, late)
	switch {
	case f.done && !f.lapsed:
		m.check(before == after, "a settled claim changed something: %+v to %+v", before, after)
		return
	case counted == 1:
		m.check(!f.done && !m.mustLapse(f), "counted after its lease")
		m.land(f)
	case late == 1:
		m.check(f.lapsed || !m.mustFly(f), "late within its lease")
		m.land(f)
	default:
		// Of lapsed claims a guard knows the youngest alone.
		m.check(f.lapsed || !m.mustFly(f), "a claim in flight changed nothing")
		m.check(before == after, "neither counted nor late, yet something changed")
		m.check(m.lapsedAfter(f) >= max(1, m.h/len(m.g.shards)), "a late claim is not known though few came after")
		f.done, f.lapsed = true, false
		m.land(f)
		return
	}
	m.check(counted+late == 1, "counted %d and late %d", counted, late)
	f.done, f.lapsed = true, false
	switch {
	case v == complete:
		m.record(f.id, Completed)
	case v == reject && counted == 1:
		m.record(f.id, Rejected)
	}
	m.look(f.id)
}

func (m *model) land(f *begun) {
	if m.flying[f.id] == f {
		delete(m.flying, f.id)
	}
}

// lapsedAfter is how many other claims may have run out of lease since f was begun.
func (m *model) lapsedAfter(f *begun) int {
	n := 0
	for _, other := range m.claims {
		if other != f {
			n++
		}
	}
	return n
}

var verbsInOrder = [...]func(*Generational, Claim){(*Generational).Complete, (*Generational).Reject, (*Generational).Release}

// record makes an id terminal in the model. If it is so already it may keep its
// time, unless the guard has forgotten it by now.
func (m *model) record(id Identity, state State) {
	m.order++
	e := &ended{id: id, state: state, or: state, life: m.life(), least: m.life(), order: m.order}
	if old := m.terminal[id]; old != nil && !m.mustForget(old) && (old.state == Completed || old.state == state) {
		e.or, e.least, e.order, e.past = old.state, old.least, old.order, old.past
		if m.mustKnow(old) {
			e.state, e.life = old.state, old.life // it is there, so its time is not prolonged
		}
	}
	m.terminal[id] = e
	m.pass()
}

// look asks without changing anything. What is InFlight is another's claim.
func (m *model) look(id Identity) {
	claim, state := m.g.TryBegin(id)
	m.g.Release(claim)
	m.note("look(%.9v) = %v", id, state)
	m.learn(id, state)
}

func (m *model) forget(id Identity) {
	m.see()
	e, f := m.terminal[id], m.flying[id]
	forgotten := m.g.Forget(id)
	m.note("Forget(%.9v) = %v", id, forgotten)
	if forgotten {
		m.check(e != nil && !m.mustForget(e), "forgot what wasn't there")
		m.check(f == nil || !m.mustFly(f), "forgot what is in flight")
		delete(m.terminal, id)
	} else {
		m.check(e == nil || f != nil || !m.mustKnow(e), "did not forget what is there")
		if f == nil {
			delete(m.terminal, id)
		}
	}
}

// stats checks the gauges against all that must and all that may be there.
func (m *model) stats() {
	m.see()
	s := m.g.Stats()
	m.note("Stats() = %+v", s)
	must, may := 0, 0
	for _, e := range m.terminal {
		must += count(m.mustKnow(e))
		may += count(!m.mustForget(e))
	}
	m.check(must <= s.Tracked && s.Tracked <= min(may, m.m), "%d tracked: at least %d, at most %d", s.Tracked, must, min(may, m.m))
	must, may = 0, 0
	for _, f := range m.flying {
		must += count(m.mustFly(f))
		may += count(!m.mustLapse(f))
	}
	m.check(must <= s.InFlight && s.InFlight <= min(may, m.m), "%d in flight: at least %d, at most %d", s.InFlight, must, min(may, m.m))
	m.check(s.Horizon >= 0 && s.Horizon <= halfOf(m.w), "horizon %d", s.Horizon)
	requireBalance(m.t, s)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestModelAgreesWithTheGuard(t *testing.T) {
	runs, steps := 100, 600
	if raceEnabled || testing.Short() {
		runs = 25
	}
	for _, m := range []int{2, 3, 4, 5, 7, 16, manyShards} {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) {
			if m == manyShards {
				runs /= 10
			}
			for seed := range runs {
				rnd := rand.New(rand.NewPCG(uint64(seed), uint64(m)))
				model := newModel(t, rnd, m, 0)
				model.ids = model.ids[:min(100, len(model.ids))]
				for range steps {
					model.step(rnd)
				}
				model.stats()
			}
		})
	}
}

func TestModelAgreesWithAGuardOfFewIdsAndManyShards(t *testing.T) {
	// No guard is made so: here the shards lag behind each other all the time.
	runs := 60
	if raceEnabled || testing.Short() {
		runs = 15
	}
	for _, m := range []int{4, 7, 16} {
		for _, shards := range []int{2, 8, 64} {
			for seed := range runs {
				rnd := rand.New(rand.NewPCG(uint64(seed), uint64(m*shards)))
				model := newModel(t, rnd, m, shards)
				for range 500 {
					model.step(rnd)
				}
				model.stats()
			}
		}
	}
}

func TestModelAgreesWithAGuardOfManyIdsInOneShard(t *testing.T) {
	// Time goes slowly here: there are many flights at once, and texts in many chunks.
	runs := 10
	if raceEnabled || testing.Short() {
		runs = 3
	}
	flights, chunks := 0, 0
	for seed := range runs {
		rnd := rand.New(rand.NewPCG(uint64(seed), 17))
		w, l := time.Duration(500+rnd.IntN(2000)), time.Duration(500+rnd.IntN(2000))
		model := newModelWith(t, w, l, rnd, 300+rnd.IntN(700), 1)
		model.calm = true
		for i := range 600 {
			model.ids = append(model.ids, IDAt(fmt.Sprint(i), string(fill(50+i%20, 'y'))))
		}
		for range 6000 {
			model.step(rnd)
			if sh := model.g.shards[0].Load(); sh != nil {
				flights, chunks = max(flights, sh.inFlight.young().len()), max(chunks, sh.terminal.young().arena.used)
			}
		}
		model.stats()
	}
	require.Greater(t, flights, 4*fewFlights)
	require.Greater(t, chunks, 1)
}

func TestModelNoticesAnImpatientGuard(t *testing.T) {
	// The model itself: a guard with a shorter window, or a longer one, must fail.
	for name, spoil := range map[string]func(*Generational){
		"window too short": func(g *Generational) { g.terminal.half /= 2; g.terminal.life /= 2 },
		"window too long":  func(g *Generational) { g.terminal.life *= 2 },
		"lease too short":  func(g *Generational) { g.inFlight.half /= 2; g.inFlight.life /= 2 },
		"lease too long":   func(g *Generational) { g.inFlight.life *= 2 },
		"too many":         func(g *Generational) { g.terminal.limit++ },
		"too few":          func(g *Generational) { g.terminal.limit -= 2 },
		"too many flights": func(g *Generational) { g.inFlight.limit++ },
		"too few flights":  func(g *Generational) { g.inFlight.limit -= 2 },
	} {
		noticed := false
		for seed := 0; seed < 200 && !noticed; seed++ {
			rnd := rand.New(rand.NewPCG(uint64(seed), 1))
			failed := &recorder{TB: t}
			model := newModel(t, rnd, 8, 0)
			model.t = failed
			if model.w < 4 || model.l < 4 {
				continue
			}
			spoil(model.g)
			noticed = func() (noticed bool) {
				defer func() { noticed = recover() != nil }()
				for range 600 {
					model.step(rnd)
				}
				return false
			}()
			require.Equal(t, failed.failed, noticed, "a panic that is no failure")
		}
		require.True(t, noticed, name)
	}
}
