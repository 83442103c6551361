package idemhttp_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/internal/seam"
)

func public(*http.Request) (idemhttp.Scope, error) { return idemhttp.Public(), nil }

// byValue is a store that can't be compared, so that nesting can't be told.
type byValue struct {
	*idemhttp.MemoryStore
	_ []int
}

func TestNewRefuses(t *testing.T) {
	of := func(*http.Request, []byte) ([]byte, error) { return nil, nil }
	tests := []struct {
		names  string // in the error's text
		store  idemhttp.Store
		name   string
		change func(*idemhttp.Policy)
	}{
		{names: "store is nil", name: "x"},
		{names: "nil *idemhttp.MemoryStore", name: "x", store: (*idemhttp.MemoryStore)(nil)},
		{names: "can't be compared", name: "x", store: byValue{MemoryStore: idemhttp.NewMemoryStore()}},
		{names: `name ""`, store: idemhttp.NewMemoryStore()},
		{names: `name " "`, store: idemhttp.NewMemoryStore(), name: " "},
		{names: "Policy.Scope", change: func(p *idemhttp.Policy) { p.Scope = nil }},
		{names: `Policy.Header "a b"`, change: func(p *idemhttp.Policy) { p.Header = "a b" }},
		{names: `Policy.Methods[1] "post"`, change: func(p *idemhttp.Policy) { p.Methods = []string{"POST", "post"} }},
		{names: `Policy.Methods[0] ""`, change: func(p *idemhttp.Policy) { p.Methods = []string{""} }},
		{names: "Policy.Window -1ns", change: func(p *idemhttp.Policy) { p.Window = -1 }},
		{names: "Policy.ClaimTTL -1s", change: func(p *idemhttp.Policy) { p.ClaimTTL = -time.Second }},
		{names: "Policy.Wait -1ns", change: func(p *idemhttp.Policy) { p.Wait = -1 }},
		{names: "Policy.MaxBody -1", change: func(p *idemhttp.Policy) { p.MaxBody = -1 }},
		{names: "Policy.MaxResponse -5", change: func(p *idemhttp.Policy) { p.MaxResponse = -5 }},
		{names: "Policy.Fingerprint.Of", change: func(p *idemhttp.Policy) { p.Fingerprint.Version = "v" }},
		{names: "Policy.Fingerprint.Version", change: func(p *idemhttp.Policy) { p.Fingerprint.Of = of }},
		{names: `Policy.Headers[0] "a:b"`, change: func(p *idemhttp.Policy) { p.Headers = []string{"a:b"} }},
		{names: `Policy.Headers[1] "set-cookie"`, change: func(p *idemhttp.Policy) { p.Headers = []string{"X-A", "set-cookie"} }},
	}
	for _, never := range []string{"WWW-Authenticate", "Authorization", "Content-Length", "Transfer-Encoding", "Connection", "Date", "Trailer",
		"Set-Cookie2", "Proxy-Authenticate", "proxy-authorization", "Authentication-Info", "Proxy-Authentication-Info", "Clear-Site-Data", "TE", "Proxy-Connection", "Keep-Alive", "Upgrade"} {
		tests = append(tests, tests[len(tests)-1])
		last := &tests[len(tests)-1]
		last.names, last.change = `"`+never+`"`, func(p *idemhttp.Policy) { p.Headers = []string{never} }
	}
	for _, taken := range []string{"Host", "content-length", "Transfer-Encoding", "Trailer", "TE", "connection", "Proxy-Connection", "Keep-Alive", "Upgrade", "Expect"} {
		tests = append(tests, tests[len(tests)-1])
		last := &tests[len(tests)-1]
		last.names, last.change = `Policy.Header "`+taken+`"`, func(p *idemhttp.Policy) { p.Header = taken }
	}
	for _, tt := range tests {
		t.Run(tt.names, func(t *testing.T) {
			p := idemhttp.Policy{Scope: public}
			if tt.change != nil {
				tt.change(&p)
				tt.store, tt.name = idemhttp.NewMemoryStore(), "x"
			}
			e, err := idemhttp.New(tt.store, tt.name, p)
			require.ErrorIs(t, err, idemhttp.ErrInvalidPolicy)
			assert.ErrorContains(t, err, tt.names)
			assert.Nil(t, e)
		})
	}
}

func TestDefaults(t *testing.T) {
	e, err := idemhttp.New(idemhttp.NewMemoryStore(), "x", idemhttp.Policy{Scope: public})
	require.NoError(t, err)
	p := e.Policy(seam.Pass{})
	assert.Equal(t, "Idempotency-Key", p.Header)
	assert.Equal(t, []string{"POST", "PATCH"}, p.Methods)
	assert.Equal(t, 24*time.Hour, p.Window)
	assert.Zero(t, p.ClaimTTL, "not set: no deadline")
	assert.Zero(t, p.Wait)
	assert.EqualValues(t, 1<<20, p.MaxBody)
	assert.EqualValues(t, 1<<20, p.MaxResponse)
	assert.Equal(t, "raw/1", p.Fingerprint.Version)
	assert.Equal(t, "x", e.Name())
	for status := 100; status < 600; status++ {
		want := status/100 == 2 || status == 302 || status == 303
		assert.Equal(t, want, p.Keep(status), "Keep(%d)", status)
	}
}

func TestThePolicyIsCopied(t *testing.T) {
	p := idemhttp.Policy{Scope: public, Methods: []string{"POST"}}
	e, err := idemhttp.New(idemhttp.NewMemoryStore(), "x", p)
	require.NoError(t, err)
	p.Methods[0] = "PUT"
	assert.Equal(t, []string{"POST"}, e.Policy(seam.Pass{}).Methods)
}

func TestANilHandlerPanicsWhenItIsWrapped(t *testing.T) {
	e, err := idemhttp.New(idemhttp.NewMemoryStore(), "x", idemhttp.Policy{Scope: public})
	require.NoError(t, err)
	assert.PanicsWithValue(t, "idemhttp: the handler to deduplicate is nil", func() { e.Deduplicate(nil) })
	assert.PanicsWithValue(t, "idemhttp: the handler to deduplicate is nil", func() { e.DeduplicateWithResponse(nil) })
}

func TestForgetErrors(t *testing.T) {
	ctx := context.Background()
	broken := errors.New("broken")
	store := idemhttp.NewMemoryStore()
	e, err := idemhttp.New(store, "x", idemhttp.Policy{Scope: func(r *http.Request) (idemhttp.Scope, error) {
		if r.Header.Get("X-User") == "" {
			return nil, broken
		}
		return idemhttp.Public(), nil
	}})
	require.NoError(t, err)
	r, err := http.NewRequest(http.MethodPost, "/", http.NoBody)
	require.NoError(t, err)
	assert.ErrorIs(t, e.Forget(ctx, r), broken)
	r.Header.Set("X-User", "ann")
	assert.ErrorContains(t, e.Forget(ctx, r), "no idempotency key")
	r.Header.Set("Idempotency-Key", "a;b")
	assert.ErrorContains(t, e.Forget(ctx, r), "Idempotency-Key")

	r.Header.Set("Idempotency-Key", "k")
	var running error
	h := e.Deduplicate(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { running = e.Forget(ctx, r) }))
	h.ServeHTTP(discard{http.Header{}}, r)
	assert.ErrorIs(t, running, idemhttp.ErrRunning)
	assert.NoError(t, e.Forget(ctx, r))

	done, cancel := context.WithCancel(ctx)
	cancel()
	assert.ErrorIs(t, e.Forget(done, r), context.Canceled)
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header       { return d.h }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
