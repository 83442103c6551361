package idem

import (
	"errors"
	"fmt"
	"reflect"
	"time"
)

// The defaults of the options.
const (
	defaultWindow     = 5 * time.Minute
	defaultMaxTracked = 100_000
	defaultLease      = time.Hour
)

// ErrInvalidOption is wrapped by every error that refuses an option. The text
// names the option, the value and the bound.
var ErrInvalidOption = errors.New("idem: invalid option")

// Clock tells the time. The standard clock is used where [WithClock] is left
// out. The Clock and the Mock of github.com/benbjohnson/clock fit.
//
// A guard reads it at most once a call and never under a lock. It keeps the
// monotonic reading, if there is one.
type Clock interface{ Now() time.Time }

// Option sets one property of a guard. A zero value is refused, not defaulted:
// leaving the option out is how one gets the default.
type Option interface{ apply(c *config) error }

type config struct {
	window     time.Duration
	maxTracked int
	lease      time.Duration // 0: not given, see leaseOrDefault
	identity   MessageIdentity
	clock      Clock // nil: the standard one
}

func defaultConfig() config {
	return config{window: defaultWindow, maxTracked: defaultMaxTracked}
}

// with returns c with opts on top of it.
func (c config) with(opts []Option) (config, error) {
	for i, opt := range opts {
		if opt == nil {
			return config{}, fmt.Errorf("%w: option %d of %d is nil", ErrInvalidOption, i+1, len(opts))
		}
		if err := opt.apply(&c); err != nil {
			return config{}, err
		}
	}
	return c, nil
}

// leaseOrDefault is the lease, which follows the window where it isn't given.
func (c config) leaseOrDefault() time.Duration {
	if c.lease > 0 {
		return c.lease
	}
	return max(defaultLease, c.window)
}

type optionFunc func(c *config) error

func (f optionFunc) apply(c *config) error { return f(c) }

// WithWindow sets how long a settled id is remembered: for at least half of d
// and at most d. The default is 5 minutes. It must be greater than 0; any
// positive duration works.
func WithWindow(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("%w: WithWindow(%v): the window must be greater than 0", ErrInvalidOption, d)
		}
		c.window = d
		return nil
	})
}

// WithMaxTracked sets the most ids a guard remembers as settled, and the most
// it holds in flight: n of each. The newest half of n settled ids is always
// remembered. The default is 100,000. It must be at least 2.
func WithMaxTracked(n int) Option {
	return optionFunc(func(c *config) error {
		if n < 2 {
			return fmt.Errorf("%w: WithMaxTracked(%d): maxTracked must be at least 2", ErrInvalidOption, n)
		}
		c.maxTracked = n
		return nil
	})
}

// WithLease sets how long a begun id stays in flight when nobody settles it:
// for at least d and at most twice d. It stops a leak; it is no deadline for a
// handler. The default is 1 hour, or the window where that is longer. It must
// be greater than 0.
func WithLease(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("%w: WithLease(%v): the lease must be greater than 0", ErrInvalidOption, d)
		}
		c.lease = d
		return nil
	})
}

// WithMessageIdentity sets what makes two deliveries the same message. The
// default is [IDAndDestination]. It must be one of the constants.
func WithMessageIdentity(m MessageIdentity) Option {
	return optionFunc(func(c *config) error {
		if m > IDOnly {
			return fmt.Errorf("%w: WithMessageIdentity(%v): must be IDAndDestination or IDOnly", ErrInvalidOption, m)
		}
		c.identity = m
		return nil
	})
}

// WithClock sets the clock. The default is the standard one. It must not be nil.
func WithClock(clock Clock) Option {
	return optionFunc(func(c *config) error {
		if isNil(clock) {
			return fmt.Errorf("%w: WithClock(%T(nil)): the clock must not be nil", ErrInvalidOption, clock)
		}
		c.clock = clock
		return nil
	})
}

// isNil also sees a nil pointer or function that hides in an interface: a mock
// that was declared and never made would panic at the first delivery otherwise.
func isNil(clock Clock) bool {
	if clock == nil {
		return true
	}
	v := reflect.ValueOf(clock)
	return (v.Kind() == reflect.Pointer || v.Kind() == reflect.Func) && v.IsNil()
}
