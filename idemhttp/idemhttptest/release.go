package idemhttptest

import (
	"testing"

	"github.com/idem-go/idem/idemhttp"
)

// releaseRig is a rig for claim-and-release, over a store that can be made to
// fail.
type releaseRig struct {
	*rig
	store *faulty
	logs  *logRecorder
}

type releaseTest struct {
	name string
	run  func(*releaseRig)
}

// RunRelease tests claim-and-release on a store: open returns one that nothing
// else uses meanwhile.
func RunRelease(t *testing.T, open func(t *testing.T) idemhttp.Store) {
	t.Helper()
	for _, group := range [][]releaseTest{claimTests, answerTests, giveBackTests, committedTests} {
		for _, test := range group {
			t.Run(test.name, func(t *testing.T) {
				store := newFaulty(open(t))
				g := &releaseRig{newRig(t, OnStore(store)), store, new(logRecorder)}
				test.run(g)
				store.mu.Lock()
				defer store.mu.Unlock()
				if len(store.badCtx) > 0 {
					t.Errorf("store calls whose context isn't detached with a time limit: %v", store.badCtx)
				}
			})
		}
	}
}

// policy is one whose log can be looked at.
func (g *releaseRig) policy() idemhttp.Policy {
	p := policy()
	p.Logger = g.logs.logger()
	return p
}
