package peers_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/benchmarks/internal/peers"
)

func TestEveryPeerDoesTheJob(t *testing.T) {
	for _, k := range peers.All {
		t.Run(k.Name, func(t *testing.T) {
			p := k.New(1000, 36)
			defer p.Close()
			id := fmt.Sprintf("%036d", 1)
			other := fmt.Sprintf("%036d", 2)
			assert.True(t, p.FirstSeen(id))
			peers.Settle(p)
			assert.False(t, p.FirstSeen(id))
			assert.True(t, p.Holds(id))
			assert.True(t, p.FirstSeen(other))
			assert.False(t, p.FirstSeen(id))
		})
	}
}

func TestNamesAreTheirOwn(t *testing.T) {
	names := make(map[string]bool)
	for _, k := range peers.All {
		assert.False(t, names[k.Name], k.Name)
		names[k.Name] = true
		assert.Equal(t, k.Title, peers.Named(k.Name).Title)
	}
}

// What the table says of the peers is so: who forgets, who holds too much.
func TestWhatPeersRemember(t *testing.T) {
	const n = 10_000
	for _, k := range peers.All {
		t.Run(k.Name, func(t *testing.T) {
			m := peers.Remembers(k, n, 36, 1)
			t.Logf("%+v", m)
			switch k.Name {
			case "idem", "two-maps":
				assert.Equal(t, peers.Memory{Forgot: 0, Held: n}, m)
			case "golang-lru", "ttlcache":
				assert.Equal(t, peers.Memory{Forgot: 0, Held: n}, m, "the newest n are those looked for first")
			case "sync.Map", "xsync", "go-cache", "watermill":
				assert.Equal(t, peers.Memory{Forgot: 0, Held: 4 * n}, m, "nothing bounds them")
			case "ristretto":
				require.Positive(t, m.Forgot, "if it has become exact, say so")
				assert.LessOrEqual(t, m.Held, n+n/10)
			}
		})
	}
}

func TestOneCallWinsWithExactPeers(t *testing.T) {
	for _, k := range peers.All {
		t.Run(k.Name, func(t *testing.T) {
			wrong := peers.Winners(k, 5000, 32)
			t.Logf("%d of 5000 ids were begun by none or by several", wrong)
			if k.Exact {
				assert.Zero(t, wrong)
			}
		})
	}
}
