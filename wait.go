package idem

import (
	"context"
	"time"
)

// lookAgainAfter is how long a waiter trusts that somebody wakes it. A lease
// that runs out wakes nobody, and an injected clock has no timers.
const lookAgainAfter = time.Second

// waits are the rooms of those who wait for a claim to be settled, by hash: a
// collision costs a look, no more.
type waits map[uint64]*room

// room is where the waiters for one hash wait. Its counter is the shard's to
// protect.
type room struct {
	woken  chan struct{}
	guests int
}

func (w *waits) enter(hash uint64) *room {
	r := (*w)[hash]
	if r == nil {
		r = &room{woken: make(chan struct{})}
		if *w == nil {
			*w = make(waits)
		}
		(*w)[hash] = r
	}
	r.guests++
	return r
}

// leave is for a guest, woken or not.
func (w *waits) leave(hash uint64, r *room) {
	if r.guests--; r.guests == 0 && (*w)[hash] == r {
		w.close(hash)
	}
}

// close takes a room away. The last one takes the map along, which would keep
// the size it once had.
func (w *waits) close(hash uint64) {
	delete(*w, hash)
	if len(*w) == 0 {
		*w = nil
	}
}

// wake sends everybody to look again. Who has to wait longer takes a new room.
func (w *waits) wake(hash uint64) {
	if len(*w) == 0 {
		return
	}
	if r := (*w)[hash]; r != nil {
		close(r.woken)
		w.close(hash)
	}
}

// wait returns nil when it is time to look again, or ctx's error.
func (r *room) wait(ctx context.Context) error {
	timer := time.NewTimer(lookAgainAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.woken:
		return nil
	case <-timer.C:
		return nil
	}
}
