package idemhttptest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/idem-go/idem/idemhttp"
)

// failureTests are about endpoints that don't return as they should.
var failureTests = []endpointTest{
	{"a panic goes on with its own value and keeps nothing", testPanic},
	{"an abort goes on and keeps nothing", testAbort},
	{"Goexit keeps nothing", testGoexit},
	{"an error status goes out although the endpoint panics", testErrorThenPanic},
	{"an endpoint that wrote nothing and was cancelled has failed", testCancelled},
	{"a client that hangs up", testHangUp},
	{"OnError writes the failures", testOnError},
}

// failing serves an endpoint that fails while X-Fail is sent, after it has
// written a 201. The first attempt must leave nothing behind.
func (g *rig) failing(fail func(), outer func(http.Handler) http.Handler) {
	g.Helper()
	g.fullInside(policy(), outer, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Left", "behind")
		g.created(w, r)
		if r.Header.Get("X-Fail") != "" {
			fail()
		}
	})
}

// thenRuns: the failed attempt is followed by one that runs, and is replayed.
func (g *rig) thenRuns() {
	g.Helper()
	g.post().expect(201, "run 2").expectRan()
	g.post().expect(201, "run 2").expectReplayed()
	g.expectRuns(2)
}

// recovering is a middleware that answers a panic with 500, as most routers'.
func recovering(got *atomic.Value) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if v := recover(); v != nil {
					got.Store(v)
					w.WriteHeader(http.StatusInternalServerError)
				}
			}()
			next.ServeHTTP(w, r)
		})
	}
}

var failNow = withHeaderOf("X-Fail", "1")

func testPanic(g *rig, _ EndpointConfig) {
	var got atomic.Value
	own := errors.New("own value")
	g.failing(func() { panic(own) }, recovering(&got))
	g.post(failNow).expect(500, "").expectHeader("X-Left", "").expectHeader("Location", "")
	if got.Load() != any(own) {
		g.Errorf("the panic went on with %v", got.Load())
	}
	g.thenRuns()
}

func testAbort(g *rig, _ EndpointConfig) {
	g.failing(func() { panic(http.ErrAbortHandler) }, nil)
	g.post(failNow).expectNoAnswer()
	g.thenRuns()
}

func testGoexit(g *rig, _ EndpointConfig) {
	// net/http doesn't survive a Goexit of its own goroutine.
	g.failing(runtime.Goexit, contained)
	g.post(failNow).expect(200, "").expectHeader("X-Left", "")
	g.thenRuns()
}

func testErrorThenPanic(g *rig, _ EndpointConfig) {
	var got atomic.Value
	g.fullInside(policy(), recovering(&got), func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Fail") == "" {
			g.created(w, r)
			return
		}
		w.Header().Set("X-Why", "own")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "own words")
		panic("and then")
	})
	g.post(failNow).expect(409, "own words").expectHeader("X-Why", "own")
	if got.Load() != "and then" {
		g.Errorf("the panic went on with %v", got.Load())
	}
	g.thenRuns()
}

// cancelling makes the request's context end when the endpoint asks for it.
func cancelling(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		ctx = context.WithValue(ctx, cancelKey{}, cancel)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

type cancelKey struct{}

func cancelSelf(r *http.Request) { r.Context().Value(cancelKey{}).(context.CancelFunc)() }

func testCancelled(g *rig, _ EndpointConfig) {
	g.fullInside(policy(), cancelling, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Fail") != "" {
			w.Header().Set("X-Left", "behind")
			cancelSelf(r)
			return
		}
		g.created(w, r)
	})
	g.post(failNow).expectProblem(500, idemhttp.Failed).expectHeader("X-Left", "")
	g.thenRuns()
}

func testHangUp(g *rig, _ EndpointConfig) {
	// The client is gone by the time the endpoint has done its work: the answer
	// must be there for the retry all the same.
	done := make(chan struct{})
	outer := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Fail") != "" {
				defer close(done)
			}
			next.ServeHTTP(w, r)
		})
	}
	ctx, hangUp := context.WithCancel(g.Context())
	defer hangUp()
	g.fullInside(policy(), outer, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Fail") != "" {
			hangUp()
			<-r.Context().Done()
		}
		g.created(w, r)
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.srv.URL+"/things", strings.NewReader(`{"n":1}`))
	if err != nil {
		g.Fatal(err)
	}
	withKey("k1")(req)
	asUser("ann")(req)
	failNow(req)
	g.do(req).expectNoAnswer()
	<-done
	g.post().expect(201, "run 1").expectReplayed()
	g.expectRuns(1)
}

func testOnError(g *rig, _ EndpointConfig) {
	p := policy()
	p.OnError = func(w http.ResponseWriter, r *http.Request, err error) {
		if r == nil || !errors.Is(err, context.Canceled) {
			g.Errorf("OnError was given %v", err)
		}
		w.WriteHeader(599)
	}
	guarded := g.subject("test", p).Full(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { cancelSelf(r) }))
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodPost, "/things", strings.NewReader("x"))
	withKey("k1")(req)
	asUser("ann")(req)
	cancelling(guarded).ServeHTTP(rec, req)
	if rec.Code != 599 {
		g.Errorf("got %d, want what OnError wrote", rec.Code)
	}
}
