package idemhttptest

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

// claimTests are rule 1: the claim.
var claimTests = []releaseTest{
	{"the claim stands before the endpoint runs", testClaimFirst},
	{"two calls and no more", testTwoCalls},
	{"no key, no call", testNoCalls},
	{"a holder that vanishes is tried three times", testVanished},
	{"a holder that vanished once", testVanishedOnce},
	{"an abandoned claim refuses for ClaimTTL and no longer", testAbandoned},
	{"a claim that was written although it failed is found by its token", testUnknownClaimOwn},
	{"a claim that failed against another's is answered from it", testUnknownClaimOther},
	{"a claim that failed is refused and given back", testUnknownClaim},
	{"a store that is down", testStoreDown},
	{"a look-up that fails", testLookupDown},
	{"a store that is down, failing open", testFailOpen},
	{"a held repeat takes over when the first gives back", testWaitTakesOver},
	{"a held repeat gives up", testWaitGivesUp},
	{"a held repeat holds no call of the store", testWaitHoldsNothing},
	{"the endpoint's deadline", testDeadline},
}

func testClaimFirst(g *releaseRig) {
	g.full(g.policy(), func(w http.ResponseWriter, r *http.Request) {
		if g.store.count("Claim") != 1 || g.store.count("Lookup") != 0 {
			g.Error("the endpoint runs without a claim, or after a look-up")
		}
		g.created(w, r)
	})
	g.post().expect(201, "run 1")
}

func testTwoCalls(g *releaseRig) {
	g.full(g.policy(), g.created)
	g.post().expect(201, "run 1")
	g.expectCalls(1, 1, 0, 0)
	g.post().expect(201, "run 1")
	g.expectCalls(2, 1, 0, 1)
}

func (g *releaseRig) expectCalls(claim, answer, release, lookup int) {
	g.Helper()
	want := map[string]int{"Claim": claim, "Answer": answer, "Release": release, "Lookup": lookup}
	for method, n := range want {
		if got := g.store.count(method); got != n {
			g.Errorf("%s was called %d times, want %d", method, got, n)
		}
	}
}

func testNoCalls(g *releaseRig) {
	p := g.policy()
	p.Optional = true
	g.full(p, g.created)
	g.post(withKey()).expect(201, "run 1")
	g.post(withMethod("GET")).expectRan()
	g.post(withKey(`"`)).expectProblem(400, idemhttp.KeyInvalid)
	g.expectCalls(0, 0, 0, 0)
}

func testVanished(g *releaseRig) {
	g.store.on("Claim", func(func() error) error { return nil }) // lost, and nobody is there
	g.full(g.policy(), g.created)
	g.post().expectProblem(409, idemhttp.InProgress)
	g.expectCalls(3, 0, 0, 3)
	g.expectRuns(0)
}

func testVanishedOnce(g *releaseRig) {
	g.store.on("Claim", func(func() error) error {
		g.store.up("Claim")
		return nil
	})
	g.full(g.policy(), g.created)
	g.post().expect(201, "run 1").expectRan()
	g.expectCalls(2, 1, 0, 1)
}

// testAbandoned is a process that dies while the endpoint runs: nobody answers
// and nobody releases.
func testAbandoned(g *releaseRig) {
	p := g.policy()
	p.ClaimTTL = time.Second
	g.store.down("Answer", "Release")
	g.full(p, g.created)
	start := time.Now()
	g.post().expect(201, "run 1")
	g.post().expectProblem(409, idemhttp.InProgress)
	var last answer
	eventually(g.T, "the claim expires", func() bool {
		last = g.post()
		return last.status != 409
	})
	if held := time.Since(start); held < p.ClaimTTL {
		g.Errorf("ran again after %v, before ClaimTTL", held)
	}
	last.expect(201, "run 2")
}

func testUnknownClaimOwn(g *releaseRig) {
	g.store.on("Claim", func(call func() error) error {
		_ = call()
		return errDown
	})
	g.full(g.policy(), g.created)
	g.post().expect(201, "run 1").expectRan()
	g.store.up("Claim")
	g.post().expect(201, "run 1").expectReplayed()
	if g.store.count("Release") != 0 {
		g.Error("its own claim was released")
	}
}

func testUnknownClaimOther(g *releaseRig) {
	g.full(g.policy(), g.created)
	g.post().expect(201, "run 1")
	g.store.down("Claim")
	g.post().expect(201, "run 1").expectReplayed()
	g.post(withBodyOf("x")).expectProblem(422, idemhttp.KeyReused)
	g.expectRuns(1)
}

// testUnknownClaim: the claim is written, and neither its answer nor a look-up
// gets through.
func testUnknownClaim(g *releaseRig) {
	g.store.on("Claim", func(call func() error) error {
		_ = call()
		return errDown
	})
	g.store.down("Lookup", "Release")
	g.full(g.policy(), g.created)
	g.post().expectProblem(503, idemhttp.StoreDown)
	g.expectRuns(0)
	eventually(g.T, "the release is tried more than once", func() bool { return g.store.count("Release") > 1 })
	g.store.up("Claim", "Lookup")
	g.post().expectProblem(409, idemhttp.InProgress)
	g.store.up("Release")
	eventually(g.T, "the claim is given back", func() bool { return g.post().status == 201 })
	g.expectRuns(1)
}

func testStoreDown(g *releaseRig) {
	g.store.down("Claim", "Lookup", "Answer", "Release")
	p := g.policy()
	var seen eventLog
	p.Observe = seen.add
	g.full(p, g.created)
	g.post().expectProblem(503, idemhttp.StoreDown)
	g.expectRuns(0)
	seen.expect(g.rig, "test StoreError", "test Refused 503 store-down")
	if !g.logs.has(slog.LevelError, "refused") {
		g.Error("a store that is down is not logged as an error")
	}
	g.store.up("Claim", "Lookup", "Answer", "Release")
	g.post().expect(201, "run 1")
}

func testLookupDown(g *releaseRig) {
	g.full(g.policy(), g.created)
	g.post().expect(201, "run 1")
	g.store.down("Lookup")
	g.post().expectProblem(503, idemhttp.StoreDown)
	g.store.up("Lookup")
	g.post().expect(201, "run 1").expectReplayed()
	g.expectRuns(1)
}

func testFailOpen(g *releaseRig) {
	p := g.policy()
	p.FailOpen = true
	var seen eventLog
	p.Observe = seen.add
	g.store.down("Claim", "Lookup")
	g.full(p, g.created)
	g.post().expect(201, "run 1").expectRan()
	g.post().expect(201, "run 2").expectRan()
	g.post(withKey()).expectProblem(400, idemhttp.KeyMissing) // only the store is forgiven
	seen.expect(g.rig, "test StoreError", "test Ran unguarded", "test StoreError", "test Ran unguarded", "test Refused 400 key-missing")
	if !g.logs.has(slog.LevelWarn, "unguarded") {
		g.Error("running unguarded is not logged as a warning")
	}
}

func testWaitTakesOver(g *releaseRig) {
	door := newGate()
	p := g.policy()
	p.Wait = 20 * time.Second
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		if g.runs.Load() == 1 {
			door.pass(r.Context())
			http.Error(w, "try again", http.StatusInternalServerError)
			return
		}
		g.created(w, r)
	})
	var wg sync.WaitGroup
	answers := make([]answer, 2)
	wg.Go(func() { answers[0] = g.post() })
	<-door.entered
	wg.Go(func() { answers[1] = g.post() })
	eventually(g.T, "the repeat is held", func() bool { return g.store.count("Claim") > 2 })
	close(door.open)
	wg.Wait()
	answers[0].expect(500, "try again\n")
	answers[1].expect(201, "run 2").expectRan()
}

// heldFor runs a request that doesn't end, and a repeat of it.
func (g *releaseRig) whileRunning(p idemhttp.Policy, repeat func()) {
	g.Helper()
	door := newGate()
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		door.pass(r.Context())
		g.created(w, r)
	})
	var wg sync.WaitGroup
	wg.Go(func() { g.post().expect(201, "run 1") })
	<-door.entered
	repeat()
	close(door.open)
	wg.Wait()
}

func testWaitGivesUp(g *releaseRig) {
	p := g.policy()
	p.Wait = 150 * time.Millisecond
	g.whileRunning(p, func() {
		start := time.Now()
		g.post().expectProblem(409, idemhttp.InProgress)
		if held := time.Since(start); held < p.Wait {
			g.Errorf("held for %v, want %v at least", held, p.Wait)
		}
	})
	g.expectRuns(1)
}

func testWaitHoldsNothing(g *releaseRig) {
	p := g.policy()
	p.Wait = 20 * time.Second
	door := newGate()
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		door.pass(r.Context())
		g.created(w, r)
	})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { g.post().expect(201, "run 1") })
	}
	<-door.entered
	eventually(g.T, "three are there and none is in the store", func() bool {
		g.store.mu.Lock()
		defer g.store.mu.Unlock()
		return g.store.calls["Claim"] >= 3 && g.store.busy == 0
	})
	close(door.open)
	wg.Wait()
	g.expectRuns(1)
}

func testDeadline(g *releaseRig) {
	p := g.policy()
	p.ClaimTTL = 200 * time.Millisecond
	start := time.Now()
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	})
	g.post().expectProblem(500, idemhttp.Failed)
	if took := time.Since(start); took < p.ClaimTTL {
		g.Errorf("the endpoint's context ended after %v", took)
	}
	g.serve(g.subject("none", g.policy()).Full(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, ok := r.Context().Deadline(); ok {
			g.Error("the endpoint has a deadline although ClaimTTL isn't set")
		}
	})))
	g.post().expect(200, "")
}
