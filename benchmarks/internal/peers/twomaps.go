package peers

import (
	"sync"
	"time"
)

// twoMaps is the guard's idea in its plainest form, as one would write it in an
// afternoon: two Go maps of strings for what is done, swapped whole, one for what is
// in flight, one mutex. It has no claims, no lease, no rejected ids, no waiting, and
// keeps the caller's strings. It shows what the guard's storage and shards are worth.
var twoMaps = Kind{
	Name: "two-maps", Title: "two Go maps, one mutex (TryBegin + Complete)", Bounded: true, Exact: true,
	New: func(n, _ int) Peer { return newTwoMaps(n) },
}

type twoMapsPeer struct {
	limit int
	epoch time.Time

	mu       sync.Mutex // protects all that follows
	young    map[string]struct{}
	old      map[string]struct{}
	inFlight map[string]struct{}
	began    time.Duration // when the young one's first id landed, since epoch
}

func newTwoMaps(n int) *twoMapsPeer {
	return &twoMapsPeer{
		limit:    n / 2,
		epoch:    time.Now(),
		young:    make(map[string]struct{}),
		old:      make(map[string]struct{}),
		inFlight: make(map[string]struct{}),
	}
}

func (p *twoMapsPeer) FirstSeen(id string) bool {
	if !p.tryBegin(id) {
		return false
	}
	p.complete(id)
	return true
}

func (p *twoMapsPeer) tryBegin(id string) bool {
	now := time.Since(p.epoch)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn(now)
	if p.knows(id) {
		return false
	}
	p.inFlight[id] = struct{}{}
	return true
}

func (p *twoMapsPeer) complete(id string) {
	now := time.Since(p.epoch)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn(now)
	if len(p.young) == 0 {
		p.began = now
	}
	delete(p.inFlight, id)
	p.young[id] = struct{}{}
}

// turn makes the young map the old one when it is full or half a window old. The
// one before is cleared and used again, which keeps its memory.
func (p *twoMapsPeer) turn(now time.Duration) {
	if len(p.young) == 0 || len(p.young) < p.limit && now-p.began < Window/2 {
		return
	}
	clear(p.old)
	p.young, p.old = p.old, p.young
}

func (p *twoMapsPeer) knows(id string) bool {
	if _, ok := p.young[id]; ok {
		return true
	}
	if _, ok := p.old[id]; ok {
		return true
	}
	_, ok := p.inFlight[id]
	return ok
}

func (p *twoMapsPeer) Holds(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.knows(id)
}

func (*twoMapsPeer) Close() {}
