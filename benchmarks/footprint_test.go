package benchmarks

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/idem-go/idem/benchmarks/internal/ids"
	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// footprint is what a scene's peer is to the heap.
type footprint struct {
	bytes, objects, ids float64

	collection time.Duration // how long the collector needs for it all
	stopped    time.Duration // how long the program stood still meanwhile, at most
}

// report reports by the ids that the peer was found to hold.
func (f footprint) report(b *testing.B) {
	b.ReportMetric(f.bytes/f.ids, "B/id")
	b.ReportMetric(f.objects/f.ids, "objects/id")
}

func (f footprint) reportCollector(b *testing.B) {
	b.ReportMetric(float64(f.collection.Microseconds())/1000, "ms/collection")
	b.ReportMetric(float64(f.stopped.Nanoseconds())/1000, "µs-stopped/collection")
}

// measuredScene is newScene, and what it is to the heap. It is filled without the
// collector, which would look through a heap of four million ids again and again.
func measuredScene(k peers.Kind, tracked, length int) (*scene, footprint) {
	before, _ := collect()
	percent := debug.SetGCPercent(-1)
	s := newScene(k, tracked, length, ids.Repeat{})
	debug.SetGCPercent(percent)
	after, took := collect()
	return s, footprint{
		bytes:      float64(after.HeapAlloc) - float64(before.HeapAlloc),
		objects:    float64(after.HeapObjects) - float64(before.HeapObjects),
		ids:        float64(s.held()),
		collection: took,
		stopped:    longestStop(),
	}
}

// collections are as many as it takes: the first one runs finalizers and empties
// pools.
const collections = 3

// collect returns the heap as it is after a few collections, and how long one takes.
func collect() (m runtime.MemStats, took time.Duration) {
	var each [collections]time.Duration
	for i := range each {
		began := time.Now()
		runtime.GC()
		each[i] = time.Since(began)
	}
	runtime.ReadMemStats(&m)
	slices.Sort(each[:])
	return m, each[collections/2]
}

// longestStop is that of the last collections.
func longestStop() time.Duration {
	var stats debug.GCStats
	debug.ReadGCStats(&stats)
	return slices.Max(stats.Pause[:collections])
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
