package idemtest_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
)

// plain is the simplest guard that keeps every promise: maps, one lock, a time for
// each entry. It shows that the suite asks for nothing that only Generational does,
// and it is what the deliberately wrong guards are made of: each has one bug, which
// stands where a hasty author would put it.
type plain struct {
	bug    string
	spec   idemtest.Guard
	start  time.Time
	tokens *atomic.Uint64

	mu       sync.Mutex
	flights  map[idem.Identity]*entry
	done     map[idem.Identity]*entry
	aloft    []*entry                 // the flights, oldest first
	settled  []*entry                 // what is done, oldest first
	lapsed   map[uint64]idem.Identity // claims that may come late
	released map[uint64]bool          // for one of the bugs
	hot      map[idem.Identity]int    // for one of the bugs
	original map[idem.Identity]string // for one of the bugs
}

type entry struct {
	key   idem.Identity
	token uint64
	at    time.Time
	state idem.State
	woken chan struct{}
}

var allTokens atomic.Uint64

func newPlain(bug string) func(t *testing.T) idemtest.Guard {
	return func(*testing.T) idemtest.Guard {
		g := &plain{bug: bug, start: time.Now(), tokens: &allTokens,
			flights: map[idem.Identity]*entry{}, done: map[idem.Identity]*entry{}, lapsed: map[uint64]idem.Identity{},
			released: map[uint64]bool{}, hot: map[idem.Identity]int{}, original: map[idem.Identity]string{}}
		if g.has("tokens begin at 1 in each guard") {
			g.tokens = new(atomic.Uint64)
		}
		g.spec = idemtest.Guard{Guard: g, Advance: time.Sleep, Window: 10 * time.Second, Lease: 7 * time.Second, MaxTracked: 128}
		return g.spec
	}
}

func (g *plain) has(bug string) bool { return g.bug == bug }

func (g *plain) key(id idem.Identity) idem.Identity {
	switch g.bug {
	case "joins id and destination":
		return idem.ID(strings.Clone(id.ID + id.Destination))
	case "folds case":
		id.ID = strings.ToLower(id.ID)
	case "mends UTF-8":
		id.ID = strings.ToValidUTF8(id.ID, "\uFFFD")
	case "trims space":
		id.ID = strings.TrimSpace(id.ID)
	case "cuts ids at 256 bytes":
		id.ID = id.ID[:min(len(id.ID), 256)]
	case "ignores the destination":
		id.Destination = ""
	case "keys over the caller's memory":
		return id
	}
	return idem.IDAt(strings.Clone(id.ID), strings.Clone(id.Destination))
}

func (g *plain) TryBegin(id idem.Identity) (idem.Claim, idem.State) {
	if id.ID == "" && !g.has("tracks the empty id") {
		return idem.Claim{}, idem.Begun
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.key(id)
	g.expire()
	if g.has("expires after the look-up") {
		defer g.expireDone()
	}
	if s := g.state(k); s != idem.Begun {
		g.hot[k]++
		return idem.Claim{}, s
	}
	if g.has("checks, then acts") {
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
	}
	if g.has("refuses the newest") && len(g.aloft) >= g.spec.MaxTracked {
		return idem.Claim{}, idem.InFlight
	}
	return g.takeOff(k, id), idem.Begun
}

// state looks, and expires nothing.
func (g *plain) state(k idem.Identity) idem.State {
	if d := g.done[k]; d != nil {
		if g.has("a look prolongs") {
			d.at = time.Now()
		}
		if g.has("hot ids are cached") && g.hot[k] > 10 {
			g.hot[k] = -1000 // once
			return idem.InFlight
		}
		if d.state == idem.Rejected && g.has("rejected is completed") {
			return idem.Completed
		}
		return d.state
	}
	if g.flights[k] != nil {
		return idem.InFlight
	}
	return idem.Begun
}

func (g *plain) takeOff(k, id idem.Identity) idem.Claim {
	token := g.tokens.Add(1)
	f := &entry{key: k, token: token, at: time.Now(), woken: make(chan struct{})}
	g.flights[k], g.aloft, g.hot[k] = f, append(g.aloft, f), 0
	if g.has("renews all leases") {
		for _, other := range g.aloft {
			other.at = f.at
		}
	}
	if g.has("holds on to the payload") {
		g.original[k] = id.ID
	}
	g.makeRoom()
	if g.has("claims lack the destination") {
		id.Destination = ""
	}
	return idem.NewClaim(id, token)
}

// makeRoom keeps to the ceilings.
func (g *plain) makeRoom() {
	most := g.spec.MaxTracked
	flights, done := most, most
	switch g.bug {
	case "no ceiling in flight":
		flights = 1 << 30
	case "a quarter in flight":
		flights = most / 4
	case "no ceiling":
		done = 1 << 30
	case "a quarter remembered":
		done = most / 4
	case "cleared when full":
		if len(g.settled) > most {
			done = 1
		}
	case "one budget":
		done = max(0, most-len(g.aloft))
	case "one budget, for those in flight":
		flights = max(1, most-len(g.settled))
	}
	for len(g.aloft) > flights {
		g.land(g.aloft[0], true)
	}
	for len(g.settled) > done {
		g.forget(g.settled[0])
	}
}

func (g *plain) land(f *entry, lapsed bool) {
	delete(g.flights, f.key)
	g.aloft = slices.DeleteFunc(g.aloft, func(e *entry) bool { return e == f })
	if lapsed {
		g.lapsed[f.token] = f.key
	}
}

func (g *plain) forget(d *entry) {
	if g.done[d.key] == d {
		delete(g.done, d.key)
	}
	g.settled = slices.Delete(g.settled, slices.Index(g.settled, d), slices.Index(g.settled, d)+1)
}

func (g *plain) expireDone() {
	for len(g.settled) > 0 && g.over(g.settled[0], time.Now()) {
		g.forget(g.settled[0])
	}
}

func (g *plain) expire() {
	if !g.has("expires after the look-up") {
		g.expireDone()
	}
	lease := g.spec.Lease * 3 / 2
	switch g.bug {
	case "a short lease":
		lease = g.spec.Lease - 2
	case "an endless lease":
		return
	}
	for len(g.aloft) > 0 && time.Since(g.aloft[0].at) >= lease {
		g.land(g.aloft[0], true)
	}
}

func (g *plain) over(d *entry, now time.Time) bool {
	half := g.spec.Window / 2
	switch g.bug {
	case "a short window":
		return now.Sub(d.at) >= half-2
	case "a long window":
		return now.Sub(d.at) >= g.spec.Window*3/2
	case "rejected ids stay":
		return d.state == idem.Completed && now.Sub(d.at) >= half
	case "cleared on a schedule":
		return now.Sub(g.start)/half != d.at.Sub(g.start)/half
	}
	return now.Sub(d.at) >= g.spec.Window*3/4
}

func (g *plain) Wait(ctx context.Context, id idem.Identity) error {
	for first := true; ; first = false {
		g.mu.Lock()
		g.expire()
		k := g.key(id)
		f := g.flights[k]
		inFlight := f != nil && g.state(k) == idem.InFlight
		g.mu.Unlock()
		if id.ID == "" || !inFlight {
			if first && g.has("Wait sleeps first") {
				time.Sleep(time.Millisecond)
			}
			return nil
		}
		if err, over := g.wait(ctx, f); err != nil || over {
			return err
		}
	}
}

// wait is one turn of Wait. The bugs may have it end all of it.
func (g *plain) wait(ctx context.Context, f *entry) (err error, over bool) {
	done, poll := ctx.Done(), time.After(time.Second)
	switch g.bug {
	case "Wait ignores its context":
		done = nil
	case "Wait never looks again":
		poll = nil
	}
	select {
	case <-f.woken:
		return nil, false
	case <-poll:
		return nil, g.has("Wait ends after a second")
	case <-done:
		if g.has("Wait has an error of its own") {
			return errors.New("gave up"), true
		}
		if g.has("who gives up waiting releases") {
			g.mu.Lock()
			g.land(f, false)
			g.mu.Unlock()
		}
		return ctx.Err(), true
	}
}

func (g *plain) Complete(c idem.Claim) { g.settle(c, idem.Completed) }
func (g *plain) Reject(c idem.Claim)   { g.settle(c, idem.Rejected) }
func (g *plain) Release(c idem.Claim)  { g.settle(c, idem.Begun) }

func (g *plain) settle(c idem.Claim, s idem.State) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expire()
	f := g.find(c)
	if f == nil {
		g.unknown(c, s)
		return
	}
	if g.has("checks a claim, then settles its id") {
		g.mu.Unlock()
		for range rand.IntN(10) {
			runtime.Gosched()
		}
		g.mu.Lock()
		if f = g.flights[f.key]; f == nil {
			return
		}
	}
	g.land(f, false)
	if s == idem.Begun {
		g.released[c.Token()] = true
	}
	if g.has("a gap while settling") {
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
	}
	g.record(f.key, c.Token(), s)
	g.wake(f, s)
}

// find returns the flight that c settles, nil if there is none.
func (g *plain) find(c idem.Claim) *entry {
	if c.Token() == 0 {
		if g.has("the zero Claim settles the last") && len(g.aloft) > 0 {
			return g.aloft[len(g.aloft)-1]
		}
		return nil
	}
	if g.has("finds claims by id") {
		if f := g.flights[g.key(c.Identity())]; f != nil && f.token == c.Token() {
			return f
		}
		return nil
	}
	for _, f := range g.aloft {
		if f.token == c.Token() {
			return f
		}
	}
	return nil
}

// unknown is a claim that is not in flight.
func (g *plain) unknown(c idem.Claim, s idem.State) {
	k := g.key(c.Identity())
	d, f := g.done[k], g.flights[k]
	switch {
	case g.has("a second Release forgets") && d != nil && d.token == c.Token() && s == idem.Begun:
		g.forget(d)
	case g.has("the last verb counts") && d != nil && d.token == c.Token() && s != idem.Begun:
		d.state = s
	case g.has("Complete after Release records") && s == idem.Completed && g.released[c.Token()] && f == nil && d == nil:
		g.record(k, c.Token(), s)
	case g.has("a repeated Complete prolongs") && d != nil && d.token == c.Token():
		d.at = time.Now()
	case g.has("a repeated Complete takes room") && d != nil && d.token == c.Token() && s == idem.Completed:
		g.settled = append(g.settled, &entry{key: k, at: time.Now()})
		g.makeRoom()
	case g.has("released claims settle by id") && g.released[c.Token()] && f != nil:
		g.land(f, false)
		g.record(k, c.Token(), s)
	default:
		if k, ok := g.lapsed[c.Token()]; ok {
			g.late(c, k, s)
		}
	}
}

func (g *plain) late(c idem.Claim, k idem.Identity, s idem.State) {
	f := g.flights[k]
	switch {
	case g.has("a late Release releases") && s == idem.Begun && f != nil:
		g.land(f, false)
		g.wake(f, s)
	case g.has("a late Reject records") && s == idem.Rejected && g.done[k] == nil:
		g.record(k, c.Token(), s)
	case s == idem.Completed && !g.has("a late Complete is ignored"):
		if f != nil && g.has("a late Complete respects the owner") {
			return
		}
		g.record(k, c.Token(), s)
		delete(g.lapsed, c.Token())
		if f != nil && !g.has("a late Complete wakes nobody") {
			close(f.woken)
			f.woken = make(chan struct{})
		}
	}
}

// record makes an id terminal. Completed outranks rejected.
func (g *plain) record(k idem.Identity, token uint64, s idem.State) {
	old := g.done[k]
	if s == idem.Begun {
		if old != nil && g.has("any Release forgets") {
			g.forget(old)
		}
		return
	}
	if old != nil {
		if old.state == idem.Completed && !g.has("the last owner counts") {
			return
		}
		g.forget(old)
	}
	d := &entry{key: k, token: token, at: time.Now(), state: s}
	g.done[k], g.settled = d, append(g.settled, d)
	g.makeRoom()
}

func (g *plain) wake(f *entry, s idem.State) {
	switch {
	case g.has("Complete wakes nobody") && s == idem.Completed:
	case g.has("Reject wakes nobody") && s == idem.Rejected:
	case g.has("Release wakes nobody") && s == idem.Begun:
	case g.has("one waiter is woken"):
		select {
		case f.woken <- struct{}{}:
		default:
		}
	default:
		close(f.woken)
	}
}
