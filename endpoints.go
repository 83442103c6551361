package idem

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// Mode says how an endpoint settles its messages.
type Mode uint8

const (
	// Native endpoints settle with the broker and keep nothing: a guard is for them.
	Native Mode = iota
	// Durable endpoints have an inbox on disk that does this already.
	Durable
	// Local endpoints are queues in this process: nothing is redelivered there.
	Local
)

// String returns the name of the constant, or "Mode(n)" for a value that has
// none.
func (m Mode) String() string { return enumName("Mode", uint8(m), "Native", "Durable", "Local") }

// Endpoint is where messages come from: a queue, a subscription, a consumer
// group. Its name tells it from the others of the process.
type Endpoint struct {
	Name string
	Mode Mode
}

// ErrLocalEndpoint is what a guard for a Local endpoint is refused with.
var ErrLocalEndpoint = errors.New("idem: a local endpoint has no redelivery to guard against")

// Endpoints is the policy for all listeners of a process, and keeps their
// guards. A guard belongs to the endpoint, not to the receiver: the same name
// gives the same guard, before and after a receiver is rebuilt, which is when a
// broker redelivers. Make one with [NewEndpoints]; the zero Endpoints has the
// default policy. All methods may be called from any number of goroutines.
type Endpoints struct {
	policy config

	mu    sync.Mutex // protects known
	known map[string]*registered
}

type registered struct {
	mode   Mode
	config config
	guard  *Generational // nil for a Durable endpoint
}

// NewEndpoints makes a policy of the options, which it validates as
// [NewGenerational] does.
func NewEndpoints(opts ...Option) (*Endpoints, error) {
	policy, err := defaultConfig().with(opts)
	if err != nil {
		return nil, err
	}
	return &Endpoints{policy: policy, known: make(map[string]*registered)}, nil
}

// Guard returns the endpoint's guard. Its first call fixes the mode and the
// options, which come on top of the policy's. A later call takes what is fixed:
// one that gives another mode, window, maxTracked, lease or identity is an error
// that wraps [ErrInvalidOption]. Clocks are not compared.
//
// For a Durable endpoint the guard is nil, which is off, and a warning says so
// once. A Local one is refused with [ErrLocalEndpoint]. An empty name and an
// unknown mode are errors that wrap ErrInvalidOption.
func (e *Endpoints) Guard(ep Endpoint, opts ...Option) (*Generational, error) {
	if err := ep.check(); err != nil {
		return nil, err
	}
	known, isNew, err := e.register(ep, opts)
	if err != nil {
		return nil, err
	}
	if isNew && ep.Mode == Durable {
		slog.Warn("idem: endpoint is durable, its inbox drops duplicates already: no guard", slog.String("endpoint", ep.Name))
	}
	return known.guard, nil
}

func (ep Endpoint) check() error {
	switch {
	case ep.Name == "":
		return fmt.Errorf("%w: Endpoint.Name is empty: a guard belongs to a name", ErrInvalidOption)
	case ep.Mode == Local:
		return fmt.Errorf("endpoint %q: %w", ep.Name, ErrLocalEndpoint)
	case ep.Mode > Local:
		return fmt.Errorf("%w: endpoint %q: Mode must be Native, Durable or Local, not %v", ErrInvalidOption, ep.Name, ep.Mode)
	}
	return nil
}

// register returns what is known of the endpoint, and whether it is new.
func (e *Endpoints) register(ep Endpoint, opts []Option) (known *registered, isNew bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known == nil { // a zero Endpoints
		e.policy, e.known = defaultConfig(), make(map[string]*registered)
	}
	if known = e.known[ep.Name]; known != nil {
		return known, false, known.agrees(ep, opts)
	}
	c, err := e.policy.with(opts)
	if err != nil {
		return nil, false, fmt.Errorf("endpoint %q: %w", ep.Name, err)
	}
	known = &registered{mode: ep.Mode, config: c}
	if ep.Mode == Native {
		known.guard = newGenerational(c)
	}
	e.known[ep.Name] = known
	return known, true, nil
}

// agrees says whether a later call asks for what is fixed.
func (r *registered) agrees(ep Endpoint, opts []Option) error {
	if ep.Mode != r.mode {
		return fmt.Errorf("%w: endpoint %q: Mode is fixed at %v, not %v", ErrInvalidOption, ep.Name, r.mode, ep.Mode)
	}
	asked, err := r.config.with(opts)
	if err != nil {
		return fmt.Errorf("endpoint %q: %w", ep.Name, err)
	}
	if name, fixed, got := r.config.differs(asked); name != "" {
		return fmt.Errorf("%w: endpoint %q: %s is fixed at %v, not %v", ErrInvalidOption, ep.Name, name, fixed, got)
	}
	return nil
}

// differs returns the first option that asked has otherwise, if there is one.
func (c config) differs(asked config) (name string, fixed, got any) {
	switch {
	case c.window != asked.window:
		return "WithWindow", c.window, asked.window
	case c.maxTracked != asked.maxTracked:
		return "WithMaxTracked", c.maxTracked, asked.maxTracked
	case c.leaseOrDefault() != asked.leaseOrDefault():
		return "WithLease", c.leaseOrDefault(), asked.leaseOrDefault()
	case c.identity != asked.identity:
		return "WithMessageIdentity", c.identity, asked.identity
	}
	return "", nil, nil
}

// All returns the guards and their endpoints' names, in the order of the names.
// Durable endpoints have none. What is registered meanwhile may be missing.
func (e *Endpoints) All() iter.Seq2[string, *Generational] {
	return func(yield func(string, *Generational) bool) {
		guards := e.guards()
		for _, name := range slices.Sorted(maps.Keys(guards)) {
			if !yield(name, guards[name]) {
				return
			}
		}
	}
}

// guards is a copy: the loop's body runs without the lock.
func (e *Endpoints) guards() map[string]*Generational {
	e.mu.Lock()
	defer e.mu.Unlock()
	guards := make(map[string]*Generational, len(e.known))
	for name, known := range e.known {
		if known.guard != nil {
			guards[name] = known.guard
		}
	}
	return guards
}
