package idemhttptest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

var errDown = errors.New("idemhttptest: the store is down")

// faulty is a store in front of the one under test. Its hooks run instead of the
// call, and may make it; calls are counted and their contexts checked.
type faulty struct {
	idemhttp.Store
	bareOnly bool // Answer fails where there is an answer

	mu     sync.Mutex
	hooks  map[string]func(call func() error) error
	calls  map[string]int
	busy   int // calls in progress
	badCtx []string
}

func newFaulty(s idemhttp.Store) *faulty {
	return &faulty{Store: s, hooks: map[string]func(func() error) error{}, calls: map[string]int{}}
}

// on sets what happens to the calls of a method; nil lets them through.
func (f *faulty) on(method string, hook func(call func() error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hooks[method] = hook
}

func (f *faulty) down(methods ...string) {
	for _, m := range methods {
		f.on(m, func(func() error) error { return errDown })
	}
}

func (f *faulty) up(methods ...string) {
	for _, m := range methods {
		f.on(m, nil)
	}
}

func (f *faulty) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

func (f *faulty) do(ctx context.Context, method string, call func() error) error {
	f.enter(ctx, method)
	defer f.leave()
	f.mu.Lock()
	hook := f.hooks[method]
	f.mu.Unlock()
	if hook != nil {
		return hook(call)
	}
	return call()
}

func (f *faulty) enter(ctx context.Context, method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[method]++
	f.busy++
	deadline, ok := ctx.Deadline()
	if ctx.Err() != nil || !ok || time.Until(deadline) > time.Minute {
		f.badCtx = append(f.badCtx, fmt.Sprintf("%s (error %v, deadline %v)", method, ctx.Err(), ok))
	}
}

func (f *faulty) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy--
}

func (f *faulty) Claim(ctx context.Context, c idemhttp.Claim, ttl time.Duration) (won bool, err error) {
	err = f.do(ctx, "Claim", func() (err error) {
		won, err = f.Store.Claim(ctx, c, ttl)
		return err
	})
	return won, err
}

func (f *faulty) Answer(ctx context.Context, c idemhttp.Claim, resp *idemhttp.Response, ttl time.Duration) error {
	return f.do(ctx, "Answer", func() error {
		if f.bareOnly && resp != nil {
			return errDown
		}
		return f.Store.Answer(ctx, c, resp, ttl)
	})
}

func (f *faulty) Release(ctx context.Context, id idemhttp.ID, token idemhttp.Token) error {
	return f.do(ctx, "Release", func() error { return f.Store.Release(ctx, id, token) })
}

func (f *faulty) Lookup(ctx context.Context, id idemhttp.ID) (rec idemhttp.Record, found bool, err error) {
	err = f.do(ctx, "Lookup", func() (err error) {
		rec, found, err = f.Store.Lookup(ctx, id)
		return err
	})
	return rec, found, err
}
