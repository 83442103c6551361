package idemhttptest

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

// rig is one endpoint behind a real server.
type rig struct {
	*testing.T
	build Builder
	srv   *httptest.Server
	runs  atomic.Int64 // of the handler
}

func newRig(t *testing.T, build Builder) *rig { return &rig{T: t, build: build} }

// policy is a valid one: the user in X-User is the scope.
func policy() idemhttp.Policy {
	return idemhttp.Policy{Scope: userScope, Logger: slog.New(slog.DiscardHandler)}
}

func userScope(r *http.Request) (idemhttp.Scope, error) {
	return idemhttp.Scope{{Name: "user", Value: r.Header.Get("X-User")}}, nil
}

func (g *rig) subject(name string, p idemhttp.Policy) Subject {
	g.Helper()
	s, err := g.build(name, p)
	if err != nil {
		g.Fatalf("the endpoint can't be built: %v", err)
	}
	return s
}

// full serves h, counted, deduplicated with its response.
func (g *rig) full(p idemhttp.Policy, h http.HandlerFunc) { g.Helper(); g.fullInside(p, nil, h) }

// fullInside is full with a middleware around it.
func (g *rig) fullInside(p idemhttp.Policy, outer func(http.Handler) http.Handler, h http.HandlerFunc) {
	g.Helper()
	guarded := g.subject("test", p).Full(g.counted(h))
	if outer != nil {
		guarded = outer(guarded)
	}
	g.serve(guarded)
}

func (g *rig) counted(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.runs.Add(1)
		h(w, r)
	})
}

func (g *rig) serve(h http.Handler) {
	g.srv = httptest.NewUnstartedServer(h)
	g.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	g.srv.Start()
	g.Cleanup(g.srv.Close)
}

func (g *rig) expectRuns(want int64) {
	g.Helper()
	if got := g.runs.Load(); got != want {
		g.Errorf("the endpoint ran %d times, want %d", got, want)
	}
}

// answer is what a client got.
type answer struct {
	g       *rig
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // of the transport; the rest is then empty
}

type reqOption func(*http.Request)

func withKey(keys ...string) reqOption {
	return func(r *http.Request) { r.Header["Idempotency-Key"] = keys }
}
func asUser(name string) reqOption { return func(r *http.Request) { r.Header.Set("X-User", name) } }
func withBodyOf(s string) reqOption {
	return func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(s)), int64(len(s))
	}
}
func withMethod(m string) reqOption { return func(r *http.Request) { r.Method = m } }
func withHeaderOf(k, v string) reqOption {
	return func(r *http.Request) { r.Header.Set(k, v) }
}
func withPath(p string) reqOption {
	return func(r *http.Request) {
		u, err := r.URL.Parse(p)
		if err != nil {
			panic(err)
		}
		r.URL = u
	}
}

// post sends a request with a key, a user and a body, unless changed.
func (g *rig) post(opts ...reqOption) answer {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.srv.URL+"/things", strings.NewReader(`{"n":1}`))
	if err != nil {
		g.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k1")
	req.Header.Set("X-User", "ann")
	for _, opt := range opts {
		opt(req)
	}
	return g.do(req)
}

func (g *rig) do(req *http.Request) answer {
	client := &http.Client{
		Transport:     g.srv.Client().Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{g: g, err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{g: g, status: resp.StatusCode, header: resp.Header, trailer: resp.Trailer, body: string(body), err: err}
}

func (a answer) expect(status int, body string) answer {
	a.g.Helper()
	if a.err != nil || a.status != status || a.body != body {
		a.g.Errorf("got %d %q, error %v; want %d %q", a.status, a.body, a.err, status, body)
	}
	return a
}

func (a answer) expectHeader(name, want string) answer {
	a.g.Helper()
	if got := a.header.Get(name); got != want {
		a.g.Errorf("header %s is %q, want %q", name, got, want)
	}
	return a
}

func (a answer) expectRan() answer {
	a.g.Helper()
	return a.expectHeader(idemhttp.HeaderReplayed, "")
}

func (a answer) expectReplayed() answer {
	a.g.Helper()
	return a.expectHeader(idemhttp.HeaderReplayed, "true")
}

// expectProblem checks the status, the type and the form of a refusal.
func (a answer) expectProblem(status int, reason idemhttp.Reason) answer {
	a.g.Helper()
	var p struct {
		Type, Title string
		Status      int
	}
	err := json.Unmarshal([]byte(a.body), &p)
	want := idemhttp.Refusal{Reason: reason}
	if a.err != nil || err != nil || a.status != status || p.Status != status || p.Type != want.Type() || p.Title == "" {
		a.g.Errorf("got %d %q, error %v; want a problem %d of type %s", a.status, a.body, a.err, status, want.Type())
	}
	a.expectHeader("Content-Type", "application/problem+json")
	a.expectRan()
	wantRetry := ""
	if reason == idemhttp.InProgress {
		wantRetry = "1"
	}
	return a.expectHeader("Retry-After", wantRetry)
}

// expectNoAnswer: the connection ended instead.
func (a answer) expectNoAnswer() {
	a.g.Helper()
	if a.err == nil {
		a.g.Errorf("got %d %q, want the connection to end", a.status, a.body)
	}
}

// created answers 201 and a number that grows with each run.
func (g *rig) created(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Location", "/things/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, g.nth())
}

func (g *rig) nth() string {
	return "run " + string('0'+rune(g.runs.Load()%10))
}

// eventually waits for what another goroutine is about to do.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(20 * time.Second); ; {
		if cond() {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never came true: %s", what)
		}
	}
}
