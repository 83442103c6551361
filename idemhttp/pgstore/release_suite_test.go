package pgstore

import (
	"testing"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/idemhttptest"
)

// TestReleaseRules is claim-and-release with the store failing at the worst
// moments: the numbered rules, one by one.
func TestReleaseRules(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		idemhttptest.RunRelease(t, func(t *testing.T) idemhttp.Store {
			store, _ := newStore(t, change...)
			return store
		})
	})
}
