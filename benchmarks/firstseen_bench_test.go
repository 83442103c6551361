package benchmarks

import (
	"fmt"
	"testing"

	"github.com/idem-go/idem/benchmarks/internal/ids"
	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// What is measured if a benchmark doesn't say otherwise.
const (
	usualTracked = 100_000
	usualLength  = 36
)

// usual is usualTracked, or what a run that only looks whether all is well can do.
func usual() int {
	if testing.Short() {
		return 1000
	}
	return usualTracked
}

// BenchmarkFirstSeen compares the peers on streams with more and more duplicates.
// Peers of one kind of load run next to each other, so that a machine that is busy
// for a while is busy for all of them.
func BenchmarkFirstSeen(b *testing.B) {
	reach := usual() / 8 // far enough to be cold, near enough for all to hold it
	for _, load := range []struct {
		name   string
		repeat ids.Repeat
	}{
		{"unique", ids.Repeat{}},
		{"1-percent", ids.Repeat{Percent: 1, Reach: reach}},
		{"50-percent", ids.Repeat{Percent: 50, Reach: reach}},
		{"storm", ids.Repeat{Storm: 1000}},
	} {
		compare(b, "ids="+load.name, usual(), usualLength, load.repeat)
	}
}

// BenchmarkLength compares the peers on ids as short as a number and as long as a
// URL. Those of usual length are in BenchmarkFirstSeen.
func BenchmarkLength(b *testing.B) {
	for _, length := range []int{16, 200} {
		compare(b, fmt.Sprintf("len=%d", length), usual(), length, ids.Repeat{})
	}
}

// BenchmarkSmall compares the peers with few ids to remember.
func BenchmarkSmall(b *testing.B) {
	tracked := min(10_000, usual())
	compare(b, fmt.Sprintf("tracked=%d", tracked), tracked, usualLength, ids.Repeat{})
}

// compare runs one load on every peer, serial and parallel.
func compare(b *testing.B, name string, tracked, length int, repeat ids.Repeat) {
	for _, mode := range modes {
		for _, k := range peers.All {
			b.Run(fmt.Sprintf("%s/mode=%s/peer=%s", name, mode.name, k.Name), func(b *testing.B) {
				s := newScene(k, tracked, length, repeat)
				defer s.peer.Close()
				s.measure(b, mode.goroutines, nil)
			})
		}
	}
}
