package idemhttptest

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

// answerTests are rules 2, 6 and 7: the answer.
var answerTests = []releaseTest{
	{"the answer is stored before it is sent", testStoredFirst},
	{"an answer that can't be stored is sent all the same", testAnswerDown},
	{"an endpoint that outlives its claim is answered", testOutlives},
	{"an endpoint that outlives its claim doesn't touch the next one's", testOutlivesTakenOver},
	{"a response over the limit refuses for ClaimTTL and no longer", testTooLargeTTL},
	{"without a response the window counts", testBareWindow},
}

func testStoredFirst(g *releaseRig) {
	sent := false
	g.store.on("Answer", func(call func() error) error {
		if sent {
			g.Error("the response was sent before it was stored")
		}
		return call()
	})
	g.fullInside(g.policy(), func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(watched{w, &sent}, r) })
	}, g.created)
	g.post().expect(201, "run 1")
}

func testAnswerDown(g *releaseRig) {
	g.store.down("Answer")
	p := g.policy()
	var seen eventLog
	p.Observe = seen.add
	g.full(p, g.created)
	g.post().expect(201, "run 1")
	for range 2 {
		g.post().expectProblem(409, idemhttp.InProgress)
	}
	g.store.up("Answer")
	g.post().expectProblem(409, idemhttp.InProgress)
	g.expectRuns(1)
	if !g.logs.has(slog.LevelWarn, "not stored") {
		g.Error("an answer that wasn't stored is not logged as a warning")
	}
	if len(seen.seen) < 2 || seen.seen[0] != "test StoreError" || seen.seen[1] != "test Ran 201" {
		g.Errorf("events are %q", seen.seen)
	}
}

// outliving serves an endpoint whose first run ignores its deadline.
func (g *releaseRig) outliving(door *gate) {
	p := g.policy()
	p.ClaimTTL = 100 * time.Millisecond
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		if g.runs.Load() == 1 {
			body := g.nth()
			door.entered <- struct{}{}
			<-door.open
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(body))
			return
		}
		g.created(w, r)
	})
}

func testOutlives(g *releaseRig) {
	door := newGate()
	g.outliving(door)
	time.AfterFunc(300*time.Millisecond, func() { close(door.open) }) // the claim expires meanwhile
	g.post().expect(201, "run 1")
	g.post().expect(201, "run 1").expectReplayed()
	g.expectRuns(1)
}

func testOutlivesTakenOver(g *releaseRig) {
	door := newGate()
	g.outliving(door)
	var wg sync.WaitGroup
	wg.Go(func() { g.post().expect(201, "run 1").expectRan() })
	<-door.entered
	eventually(g.T, "the claim expires and is taken over", func() bool { return g.post().status == 201 })
	close(door.open)
	wg.Wait()
	g.post().expect(201, "run 2").expectReplayed()
	g.expectRuns(2)
	if !g.logs.has(slog.LevelError, "outlived its claim") {
		g.Error("an endpoint that outlived its claim is not logged as an error")
	}
}

func testTooLargeTTL(g *releaseRig) {
	p := g.policy()
	p.MaxResponse = 1
	p.ClaimTTL = time.Second
	p.Window = time.Hour
	g.full(p, g.created)
	g.post().expect(201, "run 1")
	g.post().expectProblem(409, idemhttp.NoAnswer)
	eventually(g.T, "the claim expires", func() bool { return g.post().status == 201 })
	g.expectRuns(2)
}

func testBareWindow(g *releaseRig) {
	p := g.policy()
	p.MaxResponse = 1 // nothing is stored: it doesn't count
	p.ClaimTTL = 50 * time.Millisecond
	p.Window = 400 * time.Millisecond
	bare := g.subject("test", p).Bare(g.counted(g.created))
	start := time.Now()
	ask := func() int {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/things", strings.NewReader("x"))
		withKey("k1")(r)
		asUser("ann")(r)
		bare.ServeHTTP(w, r)
		return w.Code
	}
	if code := ask(); code != 201 {
		g.Errorf("got %d", code)
	}
	eventually(g.T, "the claim expires", func() bool { return ask() == 201 })
	if kept := time.Since(start); kept < p.Window {
		g.Errorf("ran again after %v, before the window", kept)
	}
}
