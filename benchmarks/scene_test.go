package benchmarks

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/idem-go/idem/benchmarks/internal/ids"
	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// scene is a peer that already remembers as many ids as it should, and the stream of
// ids that come next.
type scene struct {
	kind    peers.Kind
	tracked int
	length  int
	peer    peers.Peer
	stream  *ids.Stream
	fed     int // new ids the peer has seen
}

func newScene(k peers.Kind, tracked, length int, repeat ids.Repeat) *scene {
	s := &scene{kind: k, tracked: tracked, length: length, stream: ids.NewStream(length, repeat)}
	s.fill()
	return s
}

// fill makes a new peer remember what it should, and to a bounded one adds enough
// for it to be forgetting as fast as it learns. The guard, whose generations turn,
// is first at its ceiling after exactly tracked ids, and again after twice as many,
// when all its storage has been used before.
func (s *scene) fill() {
	s.peer = s.kind.New(s.tracked, s.length)
	s.fed = 0
	switch {
	case s.kind.Name == "idem" || s.kind.Name == "two-maps":
		s.feed(2 * s.tracked)
	case s.kind.Bounded:
		s.feed(s.tracked + s.tracked/4)
	default:
		s.feed(s.tracked)
	}
	peers.Settle(s.peer)
}

func (s *scene) feed(n int) {
	for range n {
		s.peer.FirstSeen(s.stream.Fresh())
	}
	s.fed += n
}

// spread takes the guard to the middle of a generation, where it is on average.
func (s *scene) spread() {
	if s.kind.Name == "idem" || s.kind.Name == "two-maps" {
		s.feed(s.tracked / 4)
	}
}

// renew starts over with a peer that nothing bounds and that holds twice what it
// should, so that it is measured at the size the benchmark is named after.
func (s *scene) renew() {
	if s.kind.Bounded || s.fed < 2*s.tracked {
		return
	}
	s.peer.Close()
	s.fill()
	runtime.GC()
}

// batchSize is how many calls are timed together.
func (s *scene) batchSize() int {
	if testing.Short() {
		return 200
	}
	return min(1<<15, s.tracked)
}

// measure runs batches of the stream through call and reports per id. With
// goroutines above 1 they share each batch.
func (s *scene) measure(b *testing.B, goroutines int, call func(id string) bool) {
	var total cost
	for b.Loop() {
		b.StopTimer()
		s.renew()
		batch := s.stream.Batch(s.batchSize())
		if call == nil { // a renewed peer is another
			total.add(b, batch, goroutines, s.peer.FirstSeen)
		} else {
			total.add(b, batch, goroutines, call)
		}
		s.fed += batch.Unique
	}
	total.report(b)
	if s.kind.Exact && call == nil && goroutines == 1 && total.firsts < total.unique {
		b.Errorf("%d ids were new, %d were said to be", total.unique, total.firsts)
	}
}

// cost is what batches have cost so far.
type cost struct {
	calls, firsts, unique int
	allocs, bytes         uint64
}

// add times one batch. It is called with the timer stopped, and leaves it running.
func (c *cost) add(b *testing.B, batch *ids.Batch, goroutines int, call func(id string) bool) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.StartTimer()
	if goroutines == 1 {
		c.firsts += serial(batch, call)
	} else {
		c.firsts += parallel(batch, goroutines, call)
	}
	b.StopTimer()
	runtime.ReadMemStats(&after)
	b.StartTimer()
	c.calls += batch.Len()
	c.unique += batch.Unique
	c.allocs += after.Mallocs - before.Mallocs
	c.bytes += after.TotalAlloc - before.TotalAlloc
}

// report makes the figures of testing's, which are per batch, per call.
func (c *cost) report(b *testing.B) {
	calls := float64(c.calls)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/calls, "ns/op")
	b.ReportMetric(float64(c.bytes)/calls, "B/op")
	b.ReportMetric(float64(c.allocs)/calls, "allocs/op")
}

func serial(batch *ids.Batch, call func(id string) bool) (firsts int) {
	for i := range batch.Len() {
		if call(batch.At(i)) {
			firsts++
		}
	}
	return firsts
}

// parallel has the goroutines take turns of a few ids each, as workers do that read
// from one connection.
func parallel(batch *ids.Batch, goroutines int, call func(id string) bool) int {
	const turn = 32
	var next, firsts atomic.Int64
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			mine := 0
			for {
				to := int(next.Add(turn))
				for i := to - turn; i < min(to, batch.Len()); i++ {
					if call(batch.At(i)) {
						mine++
					}
				}
				if to >= batch.Len() {
					break
				}
			}
			firsts.Add(int64(mine))
		})
	}
	all.Wait()
	return int(firsts.Load())
}

// perCore is how many goroutines a core has in the parallel benchmarks.
const perCore = 16

// modes are how the calls come.
var modes = []struct {
	name       string
	goroutines int
}{
	{"serial", 1},
	{"parallel", perCore * runtime.GOMAXPROCS(0)},
}
