package idem

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// mapGuard is what one would write by hand: two Go maps under one mutex. It has
// no window and no claims, and its bound is a swap of maps.
type mapGuard struct {
	mu       sync.Mutex
	inFlight map[string]struct{}
	young    map[string]struct{}
	old      map[string]struct{}
	half     int
}

func newMapGuard(maxTracked int) *mapGuard {
	return &mapGuard{
		inFlight: map[string]struct{}{}, young: map[string]struct{}{}, old: map[string]struct{}{}, half: maxTracked / 2,
	}
}

func (g *mapGuard) tryBegin(id string) State {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.young[id]; ok {
		return Completed
	}
	if _, ok := g.old[id]; ok {
		return Completed
	}
	if _, ok := g.inFlight[id]; ok {
		return InFlight
	}
	g.inFlight[id] = struct{}{}
	return Begun
}

func (g *mapGuard) complete(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.inFlight, id)
	if len(g.young) >= g.half {
		clear(g.old)
		g.young, g.old = g.old, g.young
	}
	g.young[id] = struct{}{}
}

func (g *mapGuard) release(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.inFlight, id)
}

// benchIds are more than fit, so that a cycle through them meets no duplicate.
func benchIds(maxTracked int) []Identity {
	ids := make([]Identity, 4*maxTracked)
	for i := range ids {
		ids[i] = number(i)
	}
	return ids
}

var benchSizes = []int{10_000, 100_000}

func benchGuard(b testing.TB, maxTracked int) *Generational {
	g, err := NewGenerational(WithMaxTracked(maxTracked))
	if err != nil {
		b.Fatal(err)
	}
	return g
}

// BenchmarkCycle is TryBegin and Complete of an id that is new.
func BenchmarkCycle(b *testing.B) {
	for _, m := range benchSizes {
		ids := benchIds(m)
		b.Run(fmt.Sprintf("guard=idem/tracked=%d", m), func(b *testing.B) {
			g := benchGuard(b, m)
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % len(ids) {
				c, _ := g.TryBegin(ids[i])
				g.Complete(c)
			}
		})
		b.Run(fmt.Sprintf("guard=maps/tracked=%d", m), func(b *testing.B) {
			g := newMapGuard(m)
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % len(ids) {
				g.tryBegin(ids[i].ID)
				g.complete(ids[i].ID)
			}
		})
	}
}

// BenchmarkCycleParallel is the same from 16 goroutines a core, each with ids of
// its own.
func BenchmarkCycleParallel(b *testing.B) {
	const m = 100_000
	ids := benchIds(m)
	var mu sync.Mutex
	start := 0
	own := func() int {
		mu.Lock()
		defer mu.Unlock()
		start = (start + 9973) % len(ids)
		return start
	}
	b.Run("guard=idem", func(b *testing.B) {
		g := benchGuard(b, m)
		b.SetParallelism(16)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := own(); pb.Next(); i = (i + 1) % len(ids) {
				c, _ := g.TryBegin(ids[i])
				g.Complete(c)
			}
		})
	})
	b.Run("guard=maps", func(b *testing.B) {
		g := newMapGuard(m)
		b.SetParallelism(16)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := own(); pb.Next(); i = (i + 1) % len(ids) {
				if g.tryBegin(ids[i].ID) == Begun {
					g.complete(ids[i].ID)
				}
			}
		})
	})
}

// BenchmarkCycleAmidWork is the cycle in a program that does something else before
// each call, and leaves nothing of the guard's memory in a core's own caches.
func BenchmarkCycleAmidWork(b *testing.B) {
	const m = 100_000
	ids := benchIds(m)
	g := benchGuard(b, m)
	for _, id := range ids[:2*m] {
		c, _ := g.TryBegin(id)
		g.Complete(c)
	}
	elsewhere := make([]byte, 4<<20)
	work := func() {
		for i := 0; i < len(elsewhere); i += cacheLine {
			elsewhere[i]++
		}
	}
	var took time.Duration
	for n := range b.N {
		id := ids[(2*m+n)%len(ids)]
		work()
		elsewhere[0] += id.ID[0] + id.ID[len(id.ID)-1] // a message that has just come is in the caches
		start := time.Now()
		c, _ := g.TryBegin(id)
		took += time.Since(start)
		work()
		start = time.Now()
		g.Complete(c)
		took += time.Since(start)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/op")
}

// BenchmarkRelease is TryBegin and Release.
func BenchmarkRelease(b *testing.B) {
	ids := benchIds(1000)
	b.Run("guard=idem", func(b *testing.B) {
		g := benchGuard(b, 100_000)
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 1) % len(ids) {
			c, _ := g.TryBegin(ids[i])
			g.Release(c)
		}
	})
	b.Run("guard=maps", func(b *testing.B) {
		g := newMapGuard(100_000)
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 1) % len(ids) {
			g.tryBegin(ids[i].ID)
			g.release(ids[i].ID)
		}
	})
}

// BenchmarkDuplicate is TryBegin of an id that is completed.
func BenchmarkDuplicate(b *testing.B) {
	const m = 100_000
	ids := benchIds(m)[:m/2]
	b.Run("guard=idem", func(b *testing.B) {
		g := benchGuard(b, m)
		for _, id := range ids {
			c, _ := g.TryBegin(id)
			g.Complete(c)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 1) % len(ids) {
			g.TryBegin(ids[i])
		}
	})
	b.Run("guard=maps", func(b *testing.B) {
		g := newMapGuard(m)
		for _, id := range ids {
			g.complete(id.ID)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 1) % len(ids) {
			g.tryBegin(ids[i].ID)
		}
	})
}

// BenchmarkSizes is the cycle with ids of other lengths.
func BenchmarkSizes(b *testing.B) {
	for _, n := range []int{16, 36, 64, 65, 200} {
		b.Run(fmt.Sprintf("bytes=%d", n), func(b *testing.B) {
			ids := make([]Identity, 50_000)
			for i := range ids {
				ids[i] = ID(fmt.Sprintf("%0*d", n, i))
			}
			g := benchGuard(b, 10_000)
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % len(ids) {
				c, _ := g.TryBegin(ids[i])
				g.Complete(c)
			}
		})
	}
}

// BenchmarkNil is TryBegin of a guard that is off.
func BenchmarkNil(b *testing.B) {
	var g *Generational
	id := number(1)
	b.ReportAllocs()
	for b.Loop() {
		g.TryBegin(id)
	}
}
