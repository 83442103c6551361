package idemhttptest

import (
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/internal/mark"
)

// committedTests are rule 4: what is committed is never released.
var committedTests = []releaseTest{
	{"committed work that fails is kept", testCommittedKept},
	{"a commit whose outcome isn't known counts", testCommittingKept},
	{"a commit that is known to have failed doesn't count", testRolledBack},
	{"one commit of several counts", testOneOfSeveral},
	{"committed work that fails refuses for the window, whatever ClaimTTL", testCommittedWindow},
	{"committed work that meets its deadline refuses for the window", testCommittedDeadline},
	{"committed work that succeeds is answered", testCommittedAnswered},
	{"a mark that comes after the release is logged", testLateMark},
	{"a mark outside of a request does nothing", testMarkOutside},
}

// leaving are the ways to fail.
var leaving = map[string]func(http.ResponseWriter, *http.Request){
	"status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	"panic":  func(http.ResponseWriter, *http.Request) { panic("after the commit") },
	"goexit": func(http.ResponseWriter, *http.Request) { runtime.Goexit() },
	"cancel": func(_ http.ResponseWriter, r *http.Request) { cancelSelf(r) },
	"panic after an answer": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		panic("after the commit")
	},
}

// markedThenFails runs an endpoint that marks and then fails, in every way there
// is, and counts how often it runs for two requests.
func (g *releaseRig) markedThenFails(marks func(*http.Request), wantRuns int64) {
	g.Helper()
	for name, leave := range leaving {
		g.runs.Store(0)
		guarded := g.subject("test "+name, g.policy()).Full(g.counted(func(w http.ResponseWriter, r *http.Request) {
			marks(r)
			leave(w, r)
		}))
		g.serve(contained(cancelling(guarded)))
		g.post()
		again := g.post()
		if wantRuns == 1 {
			again.expectProblem(409, idemhttp.NoAnswer)
		}
		g.expectRuns(wantRuns)
		if g.Failed() {
			g.Fatalf("when the endpoint leaves by %s", name)
		}
	}
}

// contained runs a handler in a goroutine of its own, and swallows its panics.
func contained(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		left := make(chan struct{})
		go func() {
			defer close(left)
			defer func() { _ = recover() }()
			next.ServeHTTP(w, r)
		}()
		<-left
	})
}

func testCommittedKept(g *releaseRig) {
	g.markedThenFails(func(r *http.Request) { idemhttp.Committed(r.Context()) }, 1)
	g.markedThenFailsAnew(func(r *http.Request) {
		idemhttp.Committing(r.Context())
		idemhttp.Committed(r.Context())
	}, 1)
	if g.store.count("Release") != 0 {
		g.Error("committed work was released")
	}
	if !g.logs.has(slog.LevelWarn, "after its work was committed") {
		g.Error("a failure after the commit is not logged as a warning")
	}
}

// markedThenFailsAnew is markedThenFails under other claims.
func (g *releaseRig) markedThenFailsAnew(marks func(*http.Request), wantRuns int64) {
	g.Helper()
	fresh := &releaseRig{newRig(g.T, func(name string, p idemhttp.Policy) (Subject, error) { return g.build("anew "+name, p) }), g.store, g.logs}
	fresh.markedThenFails(marks, wantRuns)
}

func testCommittingKept(g *releaseRig) {
	g.markedThenFails(func(r *http.Request) { idemhttp.Committing(r.Context()) }, 1)
}

func testRolledBack(g *releaseRig) {
	g.markedThenFails(func(r *http.Request) {
		idemhttp.Committing(r.Context())
		mark.From(r.Context()).RolledBack()
	}, 2)
}

func testOneOfSeveral(g *releaseRig) {
	g.markedThenFails(func(r *http.Request) {
		m := mark.From(r.Context())
		m.Committing()
		m.Committed()
		m.Committing()
		m.RolledBack()
	}, 1)
	g.markedThenFailsAnew(func(r *http.Request) {
		m := mark.From(r.Context())
		m.Committing()
		m.Committing()
		m.RolledBack()
	}, 1)
}

// brief is a policy whose claims expire soon, and whose window doesn't.
func (g *releaseRig) brief() idemhttp.Policy {
	p := g.policy()
	p.ClaimTTL = 50 * time.Millisecond
	p.Window = time.Second
	return p
}

// expectWindow sends repeats of a request until the endpoint runs again, which
// is when the window is over, and not when ClaimTTL is.
func (g *releaseRig) expectWindow(start time.Time, p idemhttp.Policy) {
	g.Helper()
	g.post().expectProblem(409, idemhttp.NoAnswer)
	eventually(g.T, "the window ends", func() bool {
		g.post()
		return g.runs.Load() > 1
	})
	if held := time.Since(start); held < p.Window {
		g.Errorf("ran again after %v, before the window", held)
	}
}

func testCommittedWindow(g *releaseRig) {
	p := g.brief()
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		idemhttp.Committed(r.Context())
		w.WriteHeader(http.StatusInternalServerError)
	})
	start := time.Now()
	g.post().expect(500, "")
	g.expectWindow(start, p)
}

// testCommittedDeadline commits, and is then ended by ClaimTTL in a slow call.
func testCommittedDeadline(g *releaseRig) {
	p := g.brief()
	g.full(p, func(_ http.ResponseWriter, r *http.Request) {
		idemhttp.Committed(r.Context())
		<-r.Context().Done()
	})
	start := time.Now()
	g.post().expectProblem(500, idemhttp.Failed)
	g.expectWindow(start, p)
}

func testCommittedAnswered(g *releaseRig) {
	g.full(g.policy(), func(w http.ResponseWriter, r *http.Request) {
		idemhttp.Committing(r.Context())
		idemhttp.Committed(r.Context())
		g.created(w, r)
	})
	g.post().expect(201, "run 1")
	g.post().expect(201, "run 1").expectReplayed()
}

func testLateMark(g *releaseRig) {
	for _, marks := range []func(*http.Request){
		func(r *http.Request) { idemhttp.Committed(r.Context()) },
		func(r *http.Request) { idemhttp.Committing(r.Context()) },
	} {
		g.logs.reset()
		var kept *http.Request
		g.full(g.policy(), func(w http.ResponseWriter, r *http.Request) {
			kept = r
			w.WriteHeader(http.StatusInternalServerError)
		})
		g.post().expect(500, "")
		if g.logs.has(slog.LevelError, "released") {
			g.Error("an error was logged before the mark")
		}
		marks(kept)
		if !g.logs.has(slog.LevelError, "after the claim was released") {
			g.Error("a mark after the release is not logged as an error")
		}
	}
	g.logs.reset()
	var kept *http.Request
	g.full(g.policy(), func(w http.ResponseWriter, r *http.Request) {
		kept = r
		g.created(w, r)
	})
	g.post().expectRan()
	idemhttp.Committed(kept.Context())
	if g.logs.has(slog.LevelError, "") {
		g.Error("a mark after the answer is logged as an error")
	}
}

func testMarkOutside(g *releaseRig) {
	idemhttp.Committing(g.Context())
	idemhttp.Committed(g.Context())
	p := g.policy()
	p.Optional = true
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		idemhttp.Committed(r.Context())
		w.WriteHeader(http.StatusInternalServerError)
	})
	g.post(withKey()).expect(500, "")
}
