package benchmarks

import (
	"fmt"
	"testing"

	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// BenchmarkMemory reports what an id costs in heap, the id itself included where a
// peer keeps the caller's string.
func BenchmarkMemory(b *testing.B) {
	for _, length := range []int{16, 36, 200} {
		for _, k := range peers.All {
			b.Run(fmt.Sprintf("len=%d/tracked=%d/peer=%s", length, usual(), k.Name), func(b *testing.B) {
				s, size := measuredScene(k, usual(), length)
				defer s.peer.Close()
				figuresOnly(b)
				size.report(b)
			})
		}
	}
}

// BenchmarkLarge compares the peers with four million ids to remember: calls, memory
// and what the collector has to do. Each peer is filled once for all of it.
func BenchmarkLarge(b *testing.B) {
	if testing.Short() {
		return
	}
	for _, k := range peers.All {
		b.Run("peer="+k.Name, func(b *testing.B) {
			s, size := measuredScene(k, 4_000_000, usualLength)
			defer s.peer.Close()
			s.spread()
			b.Run("do=serial", func(b *testing.B) {
				s.measure(b, 1, nil)
				size.report(b)
				size.reportCollector(b)
			})
			b.Run("do=parallel", func(b *testing.B) { s.measure(b, modes[1].goroutines, nil) })
		})
	}
}

// BenchmarkGrowth follows the guard, and its plainest form, from a thousand ids to
// four million.
func BenchmarkGrowth(b *testing.B) {
	for _, tracked := range []int{1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 4_000_000} {
		if testing.Short() && tracked > 3000 {
			return
		}
		for _, name := range []string{"idem", "two-maps"} {
			b.Run(fmt.Sprintf("tracked=%d/peer=%s", tracked, name), func(b *testing.B) {
				s, size := measuredScene(peers.Named(name), tracked, usualLength)
				defer s.peer.Close()
				s.spread()
				s.measure(b, 1, nil)
				size.report(b)
			})
		}
	}
}

// figuresOnly is for benchmarks whose figures are no times. It comes before they are
// reported: the loop forgets what was.
func figuresOnly(b *testing.B) {
	for b.Loop() {
	}
	b.ReportMetric(0, "ns/op") // which is not shown
}
