package benchmarks

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/idem-go/idem/benchmarks/internal/ids"
	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// BenchmarkMemory reports what an id costs in heap, the id itself included where a
// peer keeps the caller's string: B/id and objects/id, by the ids it was found to
// hold.
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

// figuresOnly is for benchmarks whose figures are no times. It comes before they are
// reported: the loop forgets what was.
func figuresOnly(b *testing.B) {
	for b.Loop() {
	}
	b.ReportMetric(0, "ns/op") // which is not shown
}

// footprint is what a scene's peer holds of the heap.
type footprint struct{ bytes, objects, ids float64 }

func (f footprint) report(b *testing.B) {
	b.ReportMetric(f.bytes/f.ids, "B/id")
	b.ReportMetric(f.objects/f.ids, "objects/id")
}

// measuredScene is newScene, and what it holds of the heap.
func measuredScene(k peers.Kind, tracked, length int) (*scene, footprint) {
	before := heap()
	s := newScene(k, tracked, length, ids.Repeat{})
	after := heap()
	return s, footprint{
		bytes:   float64(after.HeapAlloc) - float64(before.HeapAlloc),
		objects: float64(after.HeapObjects) - float64(before.HeapObjects),
		ids:     float64(s.held()),
	}
}

// heap is as it is after the second collection: the first one runs finalizers and
// empties pools.
func heap() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// held counts the ids that the peer holds, by a sample if they are many. An id that
// isn't held may be remembered by being asked for, but those are the older ones.
func (s *scene) held() int {
	stride := max(1, s.tracked/10_000)
	held := 0
	for back := 1; back <= s.fed; back += stride {
		if s.peer.Holds(s.stream.Past(back)) {
			held += stride
		}
	}
	return held
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
			b.Run("do=collect", func(b *testing.B) {
				collect(b)
				size.report(b)
			})
			s.spread()
			for _, mode := range modes {
				b.Run("do="+mode.name, func(b *testing.B) { s.measure(b, mode.goroutines, nil) })
			}
		})
	}
}

// collect reports how long a whole collection takes, which is how long it competes
// with the program for cores, and for how long it stops the program meanwhile.
func collect(b *testing.B) {
	const rounds = 5
	var took [rounds]time.Duration
	for i := range took {
		began := time.Now()
		runtime.GC()
		took[i] = time.Since(began)
	}
	var stats debug.GCStats
	debug.ReadGCStats(&stats)
	slices.Sort(took[:])
	figuresOnly(b)
	b.ReportMetric(float64(took[rounds/2].Microseconds())/1000, "ms/collection")
	b.ReportMetric(float64(slices.Max(stats.Pause[:rounds]).Nanoseconds())/1000, "µs-stopped/collection")
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
