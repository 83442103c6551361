package idemredis

import (
	"context"
	"sync"

	"github.com/idem-go/idem"
)

// settler sees to it that a delivery is settled once, and that nobody waits longer
// than his context for the client, which may take seconds to miss a connection.
type settler struct {
	busy chan struct{} // holds one while a call to Redis is under way

	mu      sync.Mutex // protects what follows
	outcome idem.Outcome
	done    bool // a call succeeded, the outcome is final
}

func newSettler() settler { return settler{busy: make(chan struct{}, 1)} }

// settle calls f unless the delivery is settled.
func (s *settler) settle(ctx context.Context, o idem.Outcome, f func(context.Context) error) error {
	if s.isDone() {
		return nil
	}
	return s.call(ctx, func(ctx context.Context) error {
		if s.isDone() {
			return nil
		}
		s.note(o, false)
		err := f(ctx)
		if err == nil {
			s.note(o, true)
		}
		return err
	})
}

// call runs f, one at a time, and no longer than ctx. One that was left behind
// keeps the others out, so that nothing is settled twice.
func (s *settler) call(ctx context.Context, f func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := await(ctx, func(ctx context.Context) (struct{}, error) {
		defer func() { <-s.busy }()
		return struct{}{}, f(ctx)
	})
	return err
}

// await runs f and waits no longer than ctx: the client looks at it between its
// attempts only.
func await[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		value, err := f(ctx)
		done <- answer{value, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

// note records o before the call, whose end nobody may wait for, and for good if it
// is what Redis was told.
func (s *settler) note(o idem.Outcome, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done || s.outcome == idem.Unsettled {
		s.outcome, s.done = o, done
	}
}

func (s *settler) isDone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

func (s *settler) settled() idem.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outcome
}
