package idemtest

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem"
)

const (
	racers = 8
	rounds = 200
)

// oneWinner has everybody begin the same id at the same time.
func (r *guardRig) oneWinner() {
	for range rounds {
		id := r.id()
		for life := range 2 {
			claims := r.race(id)
			if len(claims) != 1 {
				r.t.Fatalf("%d of %d concurrent TryBegin of one id are %v, want 1", len(claims), racers, idem.Begun)
			}
			settleVerbs[2-life].call(r.IdempotencyGuard, claims[0]) // Release, then Reject
		}
		if claims := r.race(id); len(claims) > 0 {
			r.t.Fatalf("%d of %d concurrent TryBegin of a rejected id are %v, want none", len(claims), racers, idem.Begun)
		}
	}
}

// race returns the claims of the winners.
func (r *guardRig) race(id idem.Identity) (claims []idem.Claim) {
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		start = make(chan struct{})
	)
	for range racers {
		wg.Go(func() {
			<-start
			if c, s := r.TryBegin(id); s == idem.Begun {
				mu.Lock()
				defer mu.Unlock()
				claims = append(claims, c)
			}
		})
	}
	close(start)
	wg.Wait()
	return claims
}

// sights is what onlookers saw of an id that was being settled.
type sights struct {
	gaps  atomic.Int64 // it was unknown for a moment
	stale atomic.Int64 // it was in flight after the verb had returned
}

// onlook looks at an id all the time while it is settled, sooner or later.
func (r *guardRig) onlook(round int, seen *sights) {
	v := settleVerbs[round%2] // Complete or Reject
	id := r.id()
	c := r.begin(id)
	var (
		wg       sync.WaitGroup
		returned atomic.Bool
	)
	for range 3 {
		wg.Go(func() {
			for last := false; !last; {
				last = returned.Load()
				switch r.look(id) {
				case idem.Begun:
					seen.gaps.Add(1)
				case idem.InFlight:
					if last {
						seen.stale.Add(1)
					}
				}
				runtime.Gosched()
			}
		})
	}
	for range round % 16 {
		runtime.Gosched()
	}
	v.call(r.IdempotencyGuard, c)
	returned.Store(true)
	wg.Wait()
}

// noGap: between in flight and settled there is no moment in which the message
// would run again.
func (r *guardRig) noGap() {
	var seen sights
	for i := range rounds {
		r.onlook(i, &seen)
	}
	if n := seen.gaps.Load(); n > 0 {
		r.t.Fatalf("an id was unknown %d times while it was being completed or rejected", n)
	}
}

// visible: when a verb has returned, every goroutine sees what it did.
func (r *guardRig) visible() {
	var seen sights
	for i := range rounds {
		r.onlook(i, &seen)
	}
	if n := seen.stale.Load(); n > 0 {
		r.t.Fatalf("an id was in flight %d times after Complete or Reject had returned", n)
	}
}

// witness is what really goes on with one id in the hammer.
type witness struct {
	id     idem.Identity
	owners atomic.Int64
	done   atomic.Bool
}

// anvil is where the hammer hits: few ids at a time, for there to be a crowd. One
// that is completed makes room for another.
type anvil struct {
	slots [3]atomic.Pointer[witness]

	mu  sync.Mutex
	all []*witness
}

func (a *anvil) put(slot int, id idem.Identity) {
	w := &witness{id: id}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, w)
	a.slots[slot].Store(w)
}

// hammer has workers and waiters do everything at once. Each knows what it may see.
func (r *guardRig) hammer() {
	var a anvil
	for slot := range a.slots {
		a.put(slot, r.id())
	}
	var wg sync.WaitGroup
	for range racers {
		wg.Go(func() { r.worker(&a) })
		wg.Go(func() { r.waiter(&a) })
	}
	wg.Wait()
	for _, w := range a.all {
		want := idem.Begun
		if w.done.Load() {
			want = idem.Completed
		}
		r.found(w.id, want, "when all is over")
	}
}

// worker begins ids and settles them. Most claims it releases, so that there is a
// next life; what is completed must never begin again.
func (r *guardRig) worker(a *anvil) {
	for i := range rounds {
		slot := rand.IntN(len(a.slots))
		w := a.slots[slot].Load()
		done := w.done.Load()
		c, s := r.TryBegin(w.id)
		if done && s != idem.Completed {
			r.t.Errorf("TryBegin is %v after Complete has returned, want %v", s, idem.Completed)
			return
		}
		if s != idem.Begun {
			runtime.Gosched()
			continue
		}
		if n := w.owners.Add(1); n != 1 {
			r.t.Errorf("an id has %d owners at once, want 1", n)
			return
		}
		runtime.Gosched()
		w.owners.Add(-1)
		if i%100 < 99 {
			r.giveUp(c)
			continue
		}
		r.Complete(c)
		w.done.Store(true)
		a.put(slot, r.id())
		r.Reject(c)
	}
}

// giveUp releases a claim from two goroutines, and then does what a careless caller
// might.
func (r *guardRig) giveUp(c idem.Claim) {
	var wg sync.WaitGroup
	wg.Go(func() { r.Release(c) })
	r.Release(c)
	wg.Wait()
	r.Complete(c)
}

// waiter waits, for as long as a worker takes or shorter.
func (r *guardRig) waiter(a *anvil) {
	for i := range rounds {
		w := a.slots[i%len(a.slots)].Load()
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Duration(i%3)*time.Millisecond)
		if err := r.Wait(ctx, w.id); err != nil && ctx.Err() == nil {
			r.t.Errorf("Wait: %v, although its context is not done", err)
		}
		cancel()
	}
}
