package idemhttp

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/idem-go/idem/idemhttp/internal/seam"
)

// The defaults of a policy.
const (
	DefaultHeader = "Idempotency-Key"
	DefaultWindow = 24 * time.Hour
	DefaultMax    = 1 << 20 // of MaxBody and MaxResponse, in bytes
)

// ErrInvalidPolicy is wrapped by every error that refuses a store, a name or a
// policy. The text names the field and the value.
var ErrInvalidPolicy = errors.New("idemhttp: invalid policy")

// Policy is how an endpoint treats its requests. Zero values are defaults, but
// for Scope, which must be given. It is copied by [New]; functions in it are
// called from many goroutines at once.
type Policy struct {
	// Scope says who asks, so that nobody is given another's answer: usually the
	// authenticated user. An error, an empty scope or an empty part refuses the
	// request with 401. Required; [Public] is there for endpoints without users.
	Scope func(*http.Request) (Scope, error)

	// Optional lets a request without a key run unguarded. A blank key is
	// refused all the same.
	Optional bool

	// Header is the request header with the key. Default "Idempotency-Key".
	Header string

	// Methods are the methods that are deduplicated; requests with others run
	// unguarded. Default POST and PATCH.
	Methods []string

	// Window is how long an answer is kept, and how long work that is done
	// without one isn't run again. Default 24 hours.
	Window time.Duration

	// ClaimTTL is how long a claim refuses repeats whose request was never heard
	// of again: what a process that died leaves behind. Work that is known to be
	// done refuses them for Window. Default Window. Where it is set, it is
	// also the deadline of the endpoint's context, so that an endpoint which
	// heeds its context never outlives its claim.
	ClaimTTL time.Duration

	// Wait is how long a repeat is held while the first request runs, before it
	// is answered 409. It holds no connection of the store's. Default 0.
	Wait time.Duration

	// MaxBody is the most bytes of a request's body. It is held in memory.
	// Default 1 MiB.
	MaxBody int64

	// MaxResponse is the most bytes of a response's body that are stored. A larger
	// response reaches the client, but repeats are answered 409; inside a
	// transaction it fails the request before anything is committed. Default 1 MiB.
	MaxResponse int64

	// Fingerprint says which requests are the same. Default: method, path, query
	// and the raw body. See also [CanonicalJSON].
	Fingerprint Fingerprint

	// Keep says which answers are stored, by status. Any other answer reaches the
	// client and releases the claim, so that a repeat runs. Default 2xx, 302 and
	// 303: a 301, 307 or 308 comes from a router, not from the endpoint.
	Keep func(status int) bool

	// Headers are response headers to be stored besides Content-Type,
	// Content-Language, Content-Encoding, Content-Disposition, Location,
	// Content-Location, ETag, Last-Modified, Link, Cache-Control and
	// X-Content-Type-Options. Those that belong to one caller or one connection
	// (Set-Cookie and its like) are refused.
	Headers []string

	// ReplayCheck is asked before a stored answer is sent: may this caller still
	// see it? It can read the body from the start. An error answers 403. Default:
	// yes.
	ReplayCheck func(*http.Request) error

	// Refuse writes the answer to a refused request. Default [WriteProblem].
	Refuse func(http.ResponseWriter, *http.Request, Refusal)

	// OnError writes the answer to a failed request. Default: a 500 problem that
	// says nothing of the error, which is logged.
	OnError func(http.ResponseWriter, *http.Request, error)

	// FailOpen runs requests unguarded while the store can't be reached, where
	// they would be refused with 503. Not inside a transaction.
	FailOpen bool

	// Observe is told what happened, for counting. Default: nothing.
	Observe func(Event)

	// Logger is where warnings go. Default slog.Default, as it is at each call.
	Logger *slog.Logger
}

// withDefaults returns p with the defaults filled in, or an error that names the
// field.
func (p Policy) withDefaults() (Policy, error) {
	p.Header = cmp.Or(p.Header, DefaultHeader)
	p.Methods = slices.Clone(p.Methods)
	if len(p.Methods) == 0 {
		p.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	p.Window = cmp.Or(p.Window, DefaultWindow)
	p.MaxBody = cmp.Or(p.MaxBody, DefaultMax)
	p.MaxResponse = cmp.Or(p.MaxResponse, DefaultMax)
	if p.Fingerprint.Version == "" && p.Fingerprint.Of == nil {
		p.Fingerprint = rawBody()
	}
	if p.Keep == nil {
		p.Keep = keepDefault
	}
	return p, p.check()
}

func (p Policy) check() error {
	switch {
	case p.Scope == nil:
		return invalid("Policy.Scope is nil: it must say who may share a key (Public() for everybody)")
	case !isToken(p.Header):
		return invalid("Policy.Header %q is no header name", p.Header)
	case neverKeys[textproto.CanonicalMIMEHeaderKey(p.Header)]:
		return invalid("Policy.Header %q can't hold a key: HTTP has a meaning for it", p.Header)
	case p.Window < 0:
		return invalid("Policy.Window %v must not be negative", p.Window)
	case p.ClaimTTL < 0:
		return invalid("Policy.ClaimTTL %v must not be negative", p.ClaimTTL)
	case p.Wait < 0:
		return invalid("Policy.Wait %v must not be negative", p.Wait)
	case p.MaxBody < 0:
		return invalid("Policy.MaxBody %d must not be negative", p.MaxBody)
	case p.MaxResponse < 0:
		return invalid("Policy.MaxResponse %d must not be negative", p.MaxResponse)
	case p.Fingerprint.Of == nil:
		return invalid("Policy.Fingerprint.Of is nil, with the Version %q", p.Fingerprint.Version)
	case p.Fingerprint.Version == "":
		return invalid("Policy.Fingerprint.Version is empty: a way of fingerprinting must be named")
	}
	return errors.Join(checkMethods(p.Methods), checkHeaders(p.Headers))
}

func checkMethods(methods []string) error {
	for i, m := range methods {
		if !isToken(m) || m != strings.ToUpper(m) {
			return invalid("Policy.Methods[%d] %q is no method: upper case, as net/http has them", i, m)
		}
	}
	return nil
}

func checkHeaders(headers []string) error {
	for i, h := range headers {
		if !isToken(h) {
			return invalid("Policy.Headers[%d] %q is no header name", i, h)
		}
		if neverStored[textproto.CanonicalMIMEHeaderKey(h)] {
			return invalid("Policy.Headers[%d] %q belongs to one caller or one connection and is never stored", i, h)
		}
	}
	return nil
}

// invalid makes an error that wraps ErrInvalidPolicy.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalidPolicy}, args...)...)
}

// isToken tells whether s is a token as HTTP has it: a method or a header name.
func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return true
}

func keepDefault(status int) bool {
	return status >= 200 && status <= 299 || status == http.StatusFound || status == http.StatusSeeOther
}

// claimTTL is ClaimTTL, which follows the window where it isn't given.
func (p Policy) claimTTL() time.Duration { return cmp.Or(p.ClaimTTL, p.Window) }

func (p Policy) logger() *slog.Logger {
	if p.Logger != nil {
		return p.Logger
	}
	return slog.Default()
}

// Policy returns the endpoint's policy with the defaults filled in. It is for
// this repository's packages, as its argument can't be named elsewhere.
func (e *Endpoint) Policy(seam.Pass) Policy { return e.policy }
