package idem

import (
	"context"
	"log/slog"
	"time"
)

// keeper calls Extend in the background, until it is stopped or a lease has
// passed: a handler that hangs must not hold its message for ever. A nil keeper
// is for a delivery that needs none.
type keeper struct {
	cancel   context.CancelFunc
	done     chan struct{} // closed when the last call of Extend has returned
	panicked any           // what it panicked with; read after done
}

// keepAlive starts a keeper, if the delivery is an Extender.
func (t *turn[D]) keepAlive() *keeper {
	e, ok := any(t.d).(Extender)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), leaseOf(t.guard))
	k := &keeper{cancel: cancel, done: make(chan struct{})}
	go k.run(ctx, func(ctx context.Context) time.Duration { return t.extend(ctx, e) })
	return k
}

// leaseOf is how long guard keeps a claim in flight, at the least. Of a guard from
// elsewhere it isn't known: the default.
func leaseOf(guard IdempotencyGuard) time.Duration {
	if g, ok := guard.(*Generational); ok && !g.off() {
		return g.inFlight.half
	}
	return defaultLease
}

func (k *keeper) run(ctx context.Context, extend func(context.Context) time.Duration) {
	defer close(k.done)
	defer func() { k.panicked = recover() }()
	for ctx.Err() == nil {
		next := extend(ctx)
		if next <= 0 {
			return
		}
		rest(ctx, next)
	}
}

// extend calls e once and returns when to call again.
func (t *turn[D]) extend(ctx context.Context, e Extender) time.Duration {
	if t.d.Settled() != Unsettled {
		return 0
	}
	next, err := e.Extend(ctx)
	if err != nil && ctx.Err() == nil {
		t.log(slog.LevelWarn, "idem: asking the broker for more time failed", slog.Any("error", err))
	}
	return next
}

// stop ends the calls of Extend, and returns when none is running any more: one
// that came after a settling verb could undo it. It may be called twice.
func (k *keeper) stop() {
	if k != nil {
		k.cancel()
		<-k.done
	}
}

// raise lets a panic of Extend go on, once stopped, as if the delivery's own
// goroutine had called it.
func (k *keeper) raise() {
	if k != nil && k.panicked != nil {
		panic(k.panicked)
	}
}
