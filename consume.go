package idem

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Consume receives what next hands out, with up to workers handlers at once. A
// held duplicate occupies no worker: it is parked, and runs in a worker's place
// when its turn comes. What can be parked is bounded by what the broker leaves
// unsettled.
//
// It calls next from one goroutine, and only while a worker is free. When next
// returns io.EOF, Consume waits for what it has and returns nil. Another error
// of next, or the end of ctx, stops it: nothing new is started, what was taken
// but not begun is given back, and the contexts of running handlers end
// [Receiver.Drain] later. It waits for them, leaves no goroutine behind, and
// returns that error.
//
// Errors of handlers are logged at Warn. A handler that leaves by
// runtime.Goexit costs nothing but itself. A handler's panic stops Consume, and
// is raised again from it when the others have returned.
//
// It panics at once if workers is less than 1 or next is nil.
func (r *Receiver[D]) Consume(ctx context.Context, workers int, next func(context.Context) (D, error)) error {
	r.check()
	switch {
	case workers < 1:
		panic(fmt.Sprintf("idem: Consume with %d workers", workers))
	case next == nil:
		panic("idem: Consume without next")
	}
	c := newCrew(ctx, r, workers)
	defer c.dismiss()
	return c.feed(ctx, next)
}

// crew is the workers of one Consume.
type crew[D Delivery] struct {
	r           *Receiver[D]
	ctx         context.Context // done: nothing new is started
	stop        context.CancelFunc
	handling    context.Context // the handlers'
	endHandling context.CancelFunc
	seats       chan struct{} // holds one for every running worker
	handed      chan D        // for idle workers, each with a seat that is taken
	idle        atomic.Int64  // workers that wait there, or are on their way
	workers     sync.WaitGroup
	drainer     sync.WaitGroup

	mu       sync.Mutex // protects panicked
	panicked any        // the first panic of a handler
}

func newCrew[D Delivery](ctx context.Context, r *Receiver[D], workers int) *crew[D] {
	c := &crew[D]{r: r, seats: make(chan struct{}, workers), handed: make(chan D, min(workers, mostIdle))}
	c.ctx, c.stop = context.WithCancel(ctx)
	c.handling, c.endHandling = context.WithCancel(context.WithoutCancel(ctx))
	c.drainer.Go(c.drain)
	return c
}

// drain ends the handlers' context a while after the stop.
func (c *crew[D]) drain() {
	<-c.ctx.Done()
	rest(c.handling, orDefault(c.r.Drain, defaultDrain))
	c.endHandling()
}

// feed takes deliveries and finds a worker for each, until there is a reason to
// stop. Only the end of the deliveries lets the workers go on at leisure.
func (c *crew[D]) feed(ctx context.Context, next func(context.Context) (D, error)) error {
	ended := false
	defer func() {
		if !ended {
			c.stop()
		}
	}()
	for c.waitForSeat() {
		d, err := next(c.ctx)
		switch {
		case err == nil:
			c.start(d)
		case err == io.EOF: //nolint:errorlint // itself: one that is wrapped tells of a broken connection
			ended = true
			return nil
		case ctx.Err() == nil:
			return err
		}
	}
	return ctx.Err()
}

// waitForSeat waits until a worker is free, and leaves the seat to whoever is
// first: a delivery taken from the broker earlier would grow old in our hands,
// and a seat kept over a call of next would shut out what is parked.
func (c *crew[D]) waitForSeat() bool {
	s := seat{seats: c.seats}
	defer s.leave()
	return s.take(c.ctx)
}

// start gives d to a worker, with a seat, or back.
func (c *crew[D]) start(d D) {
	s := seat{seats: c.seats}
	switch {
	case c.ctx.Err() != nil, !s.tryTake() && !c.seatLater(d, &s):
		c.giveBack(d)
	case c.idle.Load() > 0: // nobody else takes one
		c.idle.Add(-1)
		c.handed <- d // has room for as many as can be idle
	default:
		c.workers.Go(func() { c.work(d) })
	}
}

// seatLater waits with d for a seat: something parked has taken the one there was,
// while next was at work. The broker is asked for more time meanwhile.
func (c *crew[D]) seatLater(d D, s *seat) bool {
	t := turn[D]{r: c.r, ctx: c.ctx, d: d, guard: off}
	k := t.keepAlive()
	taken := s.take(c.ctx)
	k.stop()
	if k != nil && k.panicked != nil {
		c.note(k.panicked) // from here on nobody needs the seat
		return false
	}
	return taken
}

// giveBack is for a delivery that was taken and can't be begun. The guard has
// not heard of it.
func (c *crew[D]) giveBack(d D) {
	t := turn[D]{r: c.r, ctx: c.ctx, d: d, guard: off}
	defer func() {
		if !t.spent { // the logger panicked
			t.abandon()
		}
	}()
	_ = t.drop(Requeue, nil, slog.LevelDebug, "idem: stopping, giving a delivery back") // logged there
}

// work is a worker's life, one delivery after the other. A new goroutine for each
// would begin with a small stack each time, and growing that costs more than the
// guard does.
func (c *crew[D]) work(d D) {
	for ok := true; ok && c.serve(d); {
		d, ok = <-c.handed
	}
}

// serve is a worker's turn with one delivery, and says whether it is to wait for
// another. One whose handler panics or leaves by Goexit is not.
func (c *crew[D]) serve(d D) (stays bool) {
	s := &seat{seats: c.seats, taken: true}
	defer s.leave() // once it counts as idle: who takes the seat finds a worker
	defer c.catch()
	_, _ = c.r.receive(c.ctx, c.handling, d, s) // which logs what fails
	return c.rests()
}

// mostIdle is how many workers may wait for work, at the most: after a storm the
// others go.
const mostIdle = 1024

// rests counts a worker as idle, unless there are enough. It never counts one that
// goes, not for a moment either: start would leave a delivery for it.
func (c *crew[D]) rests() bool {
	for n := c.idle.Load(); n < int64(cap(c.handed)); n = c.idle.Load() {
		if c.idle.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// catch notes a panic. Goexit, which is no panic, passes.
func (c *crew[D]) catch() {
	if v := recover(); v != nil {
		c.note(v)
	}
}

// note keeps a panic for Consume to raise, and stops the others.
func (c *crew[D]) note(v any) {
	c.mu.Lock()
	if c.panicked == nil {
		c.panicked = v
	}
	c.mu.Unlock()
	c.stop()
	defer func() { _ = recover() }() // the logger's own: the first panic is the one to raise
	c.r.logger().Error("idem: handler panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
}

// dismiss waits for the workers, and raises what one of them panicked with.
func (c *crew[D]) dismiss() {
	close(c.handed)
	c.workers.Wait()
	c.stop()
	c.endHandling()
	c.drainer.Wait()
	if c.panicked != nil {
		panic(c.panicked)
	}
}

// seat is a worker's place, to be left while there is nothing to work on. A nil
// seat is for those who need none.
type seat struct {
	seats chan struct{}
	taken bool
}

// take waits for a place, and says whether there was one before ctx ended.
func (s *seat) take(ctx context.Context) bool {
	switch {
	case ctx.Err() != nil:
		return false
	case s == nil:
		return true
	}
	select {
	case s.seats <- struct{}{}:
		s.taken = true
		return true
	case <-ctx.Done():
		return false
	}
}

// tryTake is take for who has something else to do than to wait.
func (s *seat) tryTake() bool {
	select {
	case s.seats <- struct{}{}:
		s.taken = true
	default:
	}
	return s.taken
}

// leave gives the place up, if there is one.
func (s *seat) leave() {
	if s != nil && s.taken {
		s.taken = false
		<-s.seats
	}
}
