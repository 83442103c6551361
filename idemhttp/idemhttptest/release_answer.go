package idemhttptest

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

// answerTests are rules 2, 6 and 7: the answer.
var answerTests = []releaseTest{
	{"the answer is stored before it is sent", testStoredFirst},
	{"an answer that can't be stored is sent all the same", testAnswerDown},
	{"an endpoint that outlives its claim is answered", testOutlives},
	{"an endpoint that outlives its claim doesn't touch the next one's", testOutlivesTakenOver},
	{"an answer that is late, after its claim has expired, is stored", testAnswerLate},
	{"an answer that is too late doesn't touch the next one's", testAnswerTooLate},
	{"an answer that is never taken leaves its claim", testAnswerNeverTaken},
	{"a response over the limit refuses for the window, whatever ClaimTTL", testTooLargeWindow},
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
	eventually(g.T, "the answer is stored", func() bool { return g.post().status == 201 })
	g.post().expect(201, "run 1").expectReplayed()
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

// testAnswerLate: the store comes back when the claim has expired, in the midst
// of the third attempt; the second one is late already, and makes two calls.
func testAnswerLate(g *releaseRig) {
	p := g.policy()
	p.ClaimTTL = 50 * time.Millisecond
	var calls atomic.Int64
	stored := make(chan struct{})
	g.store.on("Answer", func(call func() error) error {
		if calls.Add(1) < 4 {
			return errDown
		}
		defer close(stored)
		return call()
	})
	g.full(p, g.created)
	g.post().expect(201, "run 1")
	select {
	case <-stored:
	case <-time.After(20 * time.Second):
		g.Fatal("the answer is never stored")
	}
	g.post().expect(201, "run 1").expectReplayed()
	g.expectRuns(1)
}

// testAnswerTooLate: another request has taken over meanwhile.
func testAnswerTooLate(g *releaseRig) {
	p := g.policy()
	p.ClaimTTL = 300 * time.Millisecond
	g.store.down("Answer")
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		if g.runs.Load() == 2 {
			g.store.up("Answer")
		}
		g.created(w, r)
	})
	g.post().expect(201, "run 1")
	eventually(g.T, "the claim expires and is taken over", func() bool { return g.post().status == 201 })
	eventually(g.T, "the first one gives up", func() bool { return g.logs.has(slog.LevelError, "outlived its claim") })
	g.post().expect(201, "run 2").expectReplayed()
	g.expectRuns(2)
}

// testAnswerNeverTaken: the store takes the claim, and not this answer.
func testAnswerNeverTaken(g *releaseRig) {
	p := g.policy()
	p.ClaimTTL = time.Second
	g.store.bareOnly = true
	g.full(p, g.created)
	g.post().expect(201, "run 1")
	g.post().expectProblem(409, idemhttp.InProgress)
	eventually(g.T, "the claim is kept without the answer", func() bool { return g.post().header.Get("Retry-After") == "" })
	g.post().expectProblem(409, idemhttp.NoAnswer)
	g.expectRuns(1)
}

func testTooLargeWindow(g *releaseRig) {
	p := g.brief()
	p.MaxResponse = 1
	g.full(p, g.created)
	start := time.Now()
	g.post().expect(201, "run 1")
	g.expectWindow(start, p)
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
