package idemhttptest

import (
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/idem-go/idem/idemhttp"
)

// giveBackTests are rules 3 and 5: the release.
var giveBackTests = []releaseTest{
	{"the claim is given back before the answer is sent", testReleasedFirst},
	{"a release that fails is tried again, and hides nothing", testReleaseDown},
	{"a release that fails doesn't hide a panic", testReleaseDownPanic},
	{"a client that hangs up doesn't end the store's calls", testDetached},
}

func testReleasedFirst(g *releaseRig) {
	sent := false
	g.store.on("Release", func(call func() error) error {
		if sent {
			g.Error("the answer was sent before the claim was given back")
		}
		return call()
	})
	g.fullInside(g.policy(), func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(watched{w, &sent}, r) })
	}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	g.post().expect(400, "")
	g.expectCalls(1, 0, 1, 0)
}

func testReleaseDown(g *releaseRig) {
	g.store.down("Release")
	g.full(g.policy(), func(w http.ResponseWriter, r *http.Request) {
		if g.runs.Load() == 1 {
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "the first failure")
			return
		}
		g.created(w, r)
	})
	g.post().expect(418, "the first failure")
	g.post().expectProblem(409, idemhttp.InProgress)
	eventually(g.T, "the release is tried again", func() bool { return g.store.count("Release") > 1 })
	g.store.up("Release")
	eventually(g.T, "the claim is given back", func() bool { return g.post().status == 201 })
	g.expectRuns(2)
	if !g.logs.has(slog.LevelWarn, "not released") {
		g.Error("a release that failed is not logged as a warning")
	}
}

func testReleaseDownPanic(g *releaseRig) {
	var got atomic.Value
	g.store.down("Release")
	g.fullInside(g.policy(), recovering(&got), func(http.ResponseWriter, *http.Request) { panic("the original") })
	g.post().expect(500, "")
	if got.Load() != "the original" {
		g.Errorf("the panic went on with %v", got.Load())
	}
	g.store.up("Release")
	eventually(g.T, "the claim is given back", func() bool { return g.post().status == 500 })
}

func testDetached(g *releaseRig) {
	// The context is done when answer and release are called; RunRelease checks
	// every call's context.
	g.fullInside(g.policy(), cancelling, func(w http.ResponseWriter, r *http.Request) {
		cancelSelf(r)
		if r.Header.Get("X-Fail") != "" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		g.created(w, r)
	})
	g.post(failNow).expect(500, "")
	g.post().expect(201, "run 2").expectRan()
	g.post().expect(201, "run 2").expectReplayed()
	g.expectCalls(3, 1, 1, 1)
}
