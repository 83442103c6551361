package idemhttp

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
)

// Endpoint deduplicates the requests to one endpoint. Make it with [New]. It may
// be used by any number of goroutines, and for several routes, which then share
// their keys.
type Endpoint struct {
	store  Store
	name   string
	policy Policy
	stored []string // names of the response headers that are stored

	backlog backlog // what the store hasn't taken yet
}

// New returns an endpoint that keeps its claims in store.
//
// The name is part of every claim's id: a string picked once and kept, such as
// "create-payment". It doesn't follow from the route, so that routes can be
// renamed; two endpoints with one name on one store share their keys.
//
// The error wraps [ErrInvalidPolicy] and names what is wrong.
func New(store Store, name string, p Policy) (*Endpoint, error) {
	if err := checkStore(store); err != nil {
		return nil, err
	}
	if strings.TrimSpace(name) == "" {
		return nil, invalid("name %q is blank: an endpoint needs a stable name", name)
	}
	p, err := p.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Endpoint{store: store, name: name, policy: p, stored: storedHeaders(p.Headers)}, nil
}

func checkStore(s Store) error {
	v := reflect.ValueOf(s)
	switch {
	case s == nil:
		return invalid("store is nil: NewMemoryStore keeps claims in this process")
	case v.Kind() == reflect.Pointer && v.IsNil():
		return invalid("store is a nil %T", s)
	case !v.Comparable():
		return invalid("store is a %T, which can't be compared: pass a pointer", s)
	}
	return nil
}

// Name returns the name given to New.
func (e *Endpoint) Name() string { return e.name }

// ErrRunning is returned by [Endpoint.Forget] for a request that is running, as
// far as the store knows.
var ErrRunning = errors.New("idemhttp: the request is still running")

// Forget makes the request unknown again: the next one with its key runs. Only
// the scope and the key of r count, not its method or body. A request that isn't
// known is no error; one that is running stays claimed: [ErrRunning].
func (e *Endpoint) Forget(ctx context.Context, r *http.Request) error {
	id, err := e.identify(r)
	if err != nil {
		return err
	}
	gone, err := e.store.Forget(ctx, id)
	if gone || err != nil {
		return err
	}
	_, found, err := e.store.Lookup(ctx, id)
	if err == nil && found {
		return ErrRunning
	}
	return err
}

// Deduplicate runs next once per key, and refuses repeats with 409. It stores
// nothing of the answer.
func (e *Endpoint) Deduplicate(next http.Handler) http.Handler {
	return e.middleware(next, withoutResponse)
}

// DeduplicateWithResponse runs next once per key, and answers repeats with what
// the first one was answered.
func (e *Endpoint) DeduplicateWithResponse(next http.Handler) http.Handler {
	return e.middleware(next, withResponse)
}

// whatToStore says what a claim is answered with.
type whatToStore bool

const (
	withoutResponse whatToStore = false
	withResponse    whatToStore = true
)

func (e *Endpoint) middleware(next http.Handler, what whatToStore) http.Handler {
	if next == nil {
		panic("idemhttp: the handler to deduplicate is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x, ok := e.open(w, r)
		if !ok {
			return
		}
		if !x.Guarded {
			x.runUnguarded(next)
			return
		}
		(&release{Exchange: x, what: what}).serve(next)
	})
}

// runUnguarded lets the endpoint write to the client directly.
func (x *Exchange) runUnguarded(next http.Handler) {
	defer x.HandBackForm(x.Request)
	next.ServeHTTP(x.w, x.Request)
	x.Observe(Event{Kind: EventRan, Unguarded: true})
}
