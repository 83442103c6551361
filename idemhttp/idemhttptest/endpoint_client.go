package idemhttptest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

// clientTests are the answers that aren't refusals.
var clientTests = []endpointTest{
	{"the same again is replayed", testReplay},
	{"a replay has the headers that are kept", testReplayHeaders},
	{"statuses that are kept are replayed", testKeptStatuses},
	{"statuses that are not kept run again", testNotKept},
	{"Keep decides instead of the default", testKeep},
	{"a quoted key is the same key", testQuotedKey},
	{"a key of another caller is another key", testScopes},
	{"a key of another endpoint is another key", testNames},
	{"an optional key may be missing", testOptional},
	{"other methods pass through", testMethods},
	{"the key's header can be another", testHeader},
	{"an answer expires with the window", testWindow},
	{"a forgotten request runs again", testForget},
	{"an inner endpoint on the same store passes through", testNested},
	{"a repeat of a running request", testRunning},
	{"a held repeat is replayed", testWait},
	{"sixty copies at once", testStorm},
	{"the endpoint reads the body from its start", testBodyReadable},
	{"CanonicalJSON finds equal what is equal", testCanonical},
	{"unanswered repeats have a type of their own", testBare},
}

func testReplay(g *rig, _ EndpointConfig) {
	g.full(policy(), g.created)
	g.post().expect(201, "run 1").expectRan()
	for range 3 {
		g.post().expect(201, "run 1").expectReplayed().expectHeader("Location", "/things/1")
	}
	g.expectRuns(1)
	g.post(withKey("k2")).expect(201, "run 2").expectRan()
}

func testReplayHeaders(g *rig, _ EndpointConfig) {
	kept := map[string]string{
		"Content-Type": "text/csv", "Content-Language": "fr", "Content-Encoding": "br",
		"Content-Disposition": "attachment", "Location": "/a", "Content-Location": "/b", "Etag": `"1"`,
		"Last-Modified": "Tue, 03 Mar 2026 10:00:00 GMT", "Link": "</c>", "Cache-Control": "no-cache",
		"X-Content-Type-Options": "nosniff", "X-Extra": "kept too",
	}
	dropped := map[string]string{"Set-Cookie": "secret=1", "Www-Authenticate": "Basic", "X-Other": "no", "Authorization": "x"}
	p := policy()
	p.Headers = []string{"x-extra"}
	g.full(p, func(w http.ResponseWriter, _ *http.Request) {
		for _, set := range []map[string]string{kept, dropped} {
			for k, v := range set {
				w.Header().Set(k, v)
			}
		}
		w.Header().Add("Link", "</d>")
		_, _ = io.WriteString(w, "a,b")
	})
	for i := range 3 {
		a := g.post().expect(200, "a,b")
		for k, v := range kept {
			a.expectHeader(k, v)
		}
		if got := a.header.Values("Link"); len(got) != 2 {
			g.Errorf("Link is %q, want both values", got)
		}
		for k, v := range dropped {
			if i > 0 {
				v = ""
			}
			a.expectHeader(k, v)
		}
	}
	g.expectRuns(1)
}

func testKeptStatuses(g *rig, _ EndpointConfig) {
	for _, status := range []int{200, 201, 202, 203, 204, 205, 206, 299, 302, 303} {
		g.againEndsIn(policy(), status, 1)
	}
}

func testNotKept(g *rig, _ EndpointConfig) {
	for _, status := range []int{300, 301, 304, 307, 308, 400, 401, 403, 404, 409, 422, 429, 500, 503, 599} {
		g.againEndsIn(policy(), status, 3)
	}
}

func testKeep(g *rig, _ EndpointConfig) {
	p := policy()
	p.Keep = func(status int) bool { return status == 404 }
	g.againEndsIn(p, 404, 1)
	g.againEndsIn(p, 200, 3)
}

// againEndsIn sends one request three times and counts the runs.
func (g *rig) againEndsIn(p idemhttp.Policy, status int, runs int64) {
	g.Helper()
	body := "done"
	if status == 204 || status == 304 {
		body = ""
	}
	g.runs.Store(0)
	guarded := g.subject(fmt.Sprintf("status-%d", status), p)
	g.serve(guarded.Full(g.counted(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})))
	for range 3 {
		g.post().expect(status, body)
	}
	g.expectRuns(runs)
}

func testQuotedKey(g *rig, _ EndpointConfig) {
	g.full(policy(), g.created)
	for i, key := range []string{"abc", `"abc"`, `  abc `, ` "abc"	`} {
		if a := g.post(withKey(key)); i > 0 {
			a.expectReplayed()
		}
	}
	g.expectRuns(1)
	g.post(withKey(`"ABC"`)).expect(201, "run 2").expectRan()
	g.post(withKey(`"a\\c"`)).expect(201, "run 3").expectRan()
	g.post(withKey(`a\c`)).expect(201, "run 3").expectReplayed()
}

func testScopes(g *rig, _ EndpointConfig) {
	g.full(policy(), g.created)
	g.post(asUser("ann")).expect(201, "run 1")
	g.post(asUser("bob")).expect(201, "run 2").expectRan()
	g.post(asUser("ann")).expect(201, "run 1").expectReplayed()
}

func testNames(g *rig, _ EndpointConfig) {
	mux := http.NewServeMux()
	mux.Handle("/a", g.subject("a", policy()).Full(g.counted(g.created)))
	mux.Handle("/b", g.subject("b", policy()).Full(g.counted(g.created)))
	g.serve(mux)
	g.post(withPath("/a")).expect(201, "run 1")
	g.post(withPath("/b")).expect(201, "run 2").expectRan()
	g.post(withPath("/a")).expect(201, "run 1").expectReplayed()
}

func testOptional(g *rig, _ EndpointConfig) {
	p := policy()
	p.Optional = true
	g.full(p, g.created)
	g.post(withKey()).expect(201, "run 1").expectRan()
	g.post(withKey()).expect(201, "run 2").expectRan()
	g.post().expect(201, "run 3").expectRan()
	g.post().expect(201, "run 3").expectReplayed()
	g.post(withKey("")).expectProblem(400, idemhttp.KeyInvalid)
	g.post(withKey("a", "b")).expectProblem(400, idemhttp.KeyInvalid)
	g.expectRuns(3)
}

func testMethods(g *rig, _ EndpointConfig) {
	g.full(policy(), g.created)
	for i, m := range []string{"GET", "PUT", "DELETE", "OPTIONS"} {
		g.post(withMethod(m)).expectRan()
		g.post(withMethod(m), withKey()).expectRan()
		g.expectRuns(int64(2*i + 2))
	}
	g.post(withMethod("PATCH")).expectRan()
	g.post(withMethod("PATCH")).expectReplayed()
	p := policy()
	p.Methods = []string{"PUT"}
	g.serve(g.subject("put", p).Full(g.counted(g.created)))
	g.post(withMethod("PUT")).expectRan()
	g.post(withMethod("PUT")).expectReplayed()
	g.post().expectRan()
	g.post().expectRan()
}

func testHeader(g *rig, _ EndpointConfig) {
	p := policy()
	p.Header = "X-Request-Id"
	g.full(p, g.created)
	g.post().expectProblem(400, idemhttp.KeyMissing)
	g.post(withHeaderOf("X-Request-Id", "1")).expect(201, "run 1").expectRan()
	g.post(withHeaderOf("X-Request-Id", "1")).expect(201, "run 1").expectReplayed()
}

func testWindow(g *rig, _ EndpointConfig) {
	p := policy()
	p.Window = 300 * time.Millisecond
	g.full(p, g.created)
	start := time.Now()
	g.post().expect(201, "run 1")
	eventually(g.T, "the answer expires", func() bool {
		g.post()
		return g.runs.Load() > 1
	})
	if kept := time.Since(start); kept < p.Window {
		g.Errorf("ran again after %v, want %v at least", kept, p.Window)
	}
}

func testForget(g *rig, _ EndpointConfig) {
	s := g.subject("test", policy())
	g.serve(s.Full(g.counted(g.created)))
	g.post().expect(201, "run 1")
	req, err := http.NewRequest(http.MethodGet, "/", nil) // only scope and key count
	if err != nil {
		g.Fatal(err)
	}
	if err := s.Endpoint.Forget(g.Context(), req); err == nil {
		g.Error("Forget of a request without scope and key returned no error")
	}
	asUser("ann")(req)
	withKey("k1")(req)
	for range 2 {
		if err := s.Endpoint.Forget(g.Context(), req); err != nil {
			g.Errorf("Forget: %v", err)
		}
	}
	g.post().expect(201, "run 2").expectRan()
	g.post().expect(201, "run 2").expectReplayed()
}

func testNested(g *rig, _ EndpointConfig) {
	inner := g.subject("inner", policy()).Full(g.counted(g.created))
	outer := g.subject("outer", policy()).Full(inner)
	mux := http.NewServeMux()
	mux.Handle("/outer", outer)
	mux.Handle("/inner", inner)
	g.serve(mux)
	g.post(withPath("/outer")).expect(201, "run 1").expectRan()
	g.post(withPath("/outer")).expect(201, "run 1").expectReplayed()
	// The inner one has claimed nothing.
	g.post(withPath("/inner")).expect(201, "run 2").expectRan()
}

// gate is a handler that answers when it is told to.
type gate struct {
	entered chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (d *gate) pass(ctx context.Context) {
	d.entered <- struct{}{}
	select {
	case <-d.open:
	case <-ctx.Done():
	}
}

func testRunning(g *rig, cfg EndpointConfig) {
	door := newGate()
	g.full(policy(), func(w http.ResponseWriter, r *http.Request) {
		door.pass(r.Context())
		g.created(w, r)
	})
	var wg sync.WaitGroup
	answers := make([]answer, 2)
	wg.Go(func() { answers[0] = g.post() })
	<-door.entered
	if cfg.RunsAlong {
		wg.Go(func() { answers[1] = g.post() })
		<-door.entered
	} else {
		answers[1] = g.post()
		answers[1].expectProblem(409, idemhttp.InProgress)
		if !cfg.InTx { // nothing is written before the commit: the other is refused, whatever it is
			g.post(withBodyOf("other")).expectProblem(422, idemhttp.KeyReused)
		}
	}
	close(door.open)
	wg.Wait()
	if cfg.RunsAlong {
		g.expectOneWinner(answers)
		g.expectRuns(2)
	} else {
		answers[0].expect(201, "run 1").expectRan()
		g.expectRuns(1)
	}
	g.post().expectReplayed()
	g.post(withBodyOf("other")).expectProblem(422, idemhttp.KeyReused)
}

// expectOneWinner: all were answered alike, and one of them ran.
func (g *rig) expectOneWinner(answers []answer) {
	g.Helper()
	ran := 0
	for _, a := range answers {
		a.expect(201, answers[0].body)
		if a.header.Get(idemhttp.HeaderReplayed) == "" {
			ran++
		}
	}
	if ran != 1 {
		g.Errorf("%d answers are not replays, want 1", ran)
	}
}

func testWait(g *rig, cfg EndpointConfig) {
	if cfg.RunsAlong {
		g.Skip("repeats aren't held in this mode: they run along")
	}
	door := newGate()
	p := policy()
	p.Wait = 20 * time.Second
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		door.pass(r.Context())
		g.created(w, r)
	})
	var wg sync.WaitGroup
	answers := make([]answer, 4)
	wg.Go(func() { answers[0] = g.post() })
	<-door.entered
	refused := make(chan struct{}, len(answers))
	for i := range answers[1:] {
		wg.Go(func() {
			answers[i+1] = g.post()
			refused <- struct{}{}
		})
	}
	if !cfg.InTx {
		g.post(withBodyOf("other")).expectProblem(422, idemhttp.KeyReused) // at once
	}
	select {
	case <-refused:
		g.Error("a repeat was answered while the first is running")
	case <-time.After(200 * time.Millisecond): // long enough for one that isn't held
	}
	close(door.open)
	wg.Wait()
	g.expectOneWinner(answers)
	g.expectRuns(1)
}

// testStorm sends sixty copies. Where one runs at a time it runs until all the
// others are answered, or another has got in.
func testStorm(g *rig, cfg EndpointConfig) {
	door := newGate()
	g.full(policy(), func(w http.ResponseWriter, r *http.Request) {
		if !cfg.RunsAlong {
			door.pass(r.Context())
		}
		g.created(w, r)
	})
	answers := make([]answer, 60)
	var answered atomic.Int64
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			answers[i] = g.post()
			answered.Add(1)
		})
	}
	if !cfg.RunsAlong {
		eventually(g.T, "all others are answered", func() bool { return answered.Load() == 59 || g.runs.Load() > 1 })
	}
	close(door.open)
	wg.Wait()
	if cfg.RunsAlong {
		g.expectOneWinner(answers)
		return
	}
	var ran []answer
	for _, a := range answers {
		if a.status == 409 {
			a.expectProblem(409, idemhttp.InProgress)
		} else {
			ran = append(ran, a)
		}
	}
	g.expectOneWinner(ran)
	g.expectRuns(1)
}

func testBodyReadable(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(w, r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	g.post(withBodyOf("what was sent")).expect(200, "what was sent")
	g.post(withKey("k2"), withBodyOf("")).expect(200, "")
	chunked := func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader("in pieces")), -1
	}
	g.post(withKey("k3"), chunked).expect(200, "in pieces").expectRan()
	g.post(withKey("k3"), chunked).expect(200, "in pieces").expectReplayed()
	g.post(withKey("k3"), withBodyOf("in pieces")).expect(200, "in pieces").expectReplayed()
}

func testCanonical(g *rig, _ EndpointConfig) {
	p := policy()
	p.Fingerprint = idemhttp.CanonicalJSON()
	g.full(p, g.created)
	g.post(withBodyOf(`{"a":1,"b":[true,null]}`)).expect(201, "run 1")
	g.post(withBodyOf(` {"b":[true,null], "a":1.0} `)).expect(201, "run 1").expectReplayed()
	g.post(withBodyOf(`{"a":1,"b":[null,true]}`)).expectProblem(422, idemhttp.KeyReused)
}

func testBare(g *rig, _ EndpointConfig) {
	g.serve(g.subject("test", policy()).Bare(g.counted(g.created)))
	g.post().expect(201, "run 1").expectHeader("Location", "/things/1")
	g.post().expectProblem(409, idemhttp.NoAnswer)
	g.post(withBodyOf("other")).expectProblem(422, idemhttp.KeyReused)
	g.expectRuns(1)
}
