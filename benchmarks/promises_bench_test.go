package benchmarks

import (
	"testing"

	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// BenchmarkPromises reports no times but faults, counted: of the newest half of the
// ids how many a peer has forgotten, how many times as many as it may it holds, and
// how many of a thousand ids were begun by none or by several when they came at once.
func BenchmarkPromises(b *testing.B) {
	n, rounds := usual(), 20_000
	if testing.Short() {
		rounds = 1000
	}
	for _, k := range peers.All {
		b.Run("peer="+k.Name, func(b *testing.B) {
			m := peers.Remembers(k, n, usualLength, 1)
			wrong := peers.Winners(k, rounds, modes[1].goroutines)
			figuresOnly(b)
			b.ReportMetric(100*float64(m.Forgot)/float64(n/2), "%forgotten")
			b.ReportMetric(float64(m.Held)/float64(n), "x-held")
			b.ReportMetric(1000*float64(wrong)/float64(rounds), "wrong/1000")
		})
	}
}
