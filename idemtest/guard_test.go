package idemtest_test

import (
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
)

func TestGenerational(t *testing.T) {
	sizes := map[string]int{"small": 64, "odd": 65, "sharded": 5000}
	for name, most := range sizes {
		t.Run(name, func(t *testing.T) { idemtest.TestGuard(t, generational(t, most, idem.IDAndDestination)) })
	}
	t.Run("IDOnly", func(t *testing.T) { idemtest.TestGuard(t, generational(t, 64, idem.IDOnly)) })
}

func generational(_ *testing.T, most int, identity idem.MessageIdentity) func(t *testing.T) idemtest.Guard {
	return func(t *testing.T) idemtest.Guard {
		const window, lease = 10*time.Second + 1, 7 * time.Second
		g, err := idem.NewGenerational(idem.WithWindow(window), idem.WithLease(lease),
			idem.WithMaxTracked(most), idem.WithMessageIdentity(identity))
		if err != nil {
			t.Fatal(err)
		}
		return idemtest.Guard{
			Guard: g, Advance: time.Sleep, Window: window, Lease: lease, MaxTracked: most, MessageIdentity: identity,
		}
	}
}
