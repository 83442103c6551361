package peers

import (
	"sync"
	"sync/atomic"

	"github.com/idem-go/idem/benchmarks/internal/ids"
)

// Memory is what a peer was found to remember, counted id by id.
type Memory struct {
	Forgot int // of the newest n/2 ids
	Held   int // of all ids there were
}

// Remembers gives a new peer 4n ids, one after the other, and counts. A guard for n
// ids must hold the newest n/2 and may hold n. Every stride-th id is asked for and
// stands for its neighbours.
func Remembers(k Kind, n, length, stride int) Memory {
	p := k.New(n, length)
	defer p.Close()
	s := ids.NewStream(length, ids.Repeat{})
	for range 4 * n {
		p.FirstSeen(s.Fresh())
	}
	Settle(p)
	var m Memory
	for back := 1; back <= 4*n; back += stride {
		switch holds := p.Holds(s.Past(back)); {
		case holds:
			m.Held += stride
		case back <= n/2:
			m.Forgot += stride
		}
	}
	return m
}

// Winners lets many goroutines at once ask a new peer for the same ids, each id many
// times, and returns for how many ids not exactly one got true.
func Winners(k Kind, rounds, goroutines int) int {
	const each = 64
	p := k.New(4*rounds, 36) // a goroutine may be late, and should find its id all the same
	defer p.Close()
	batch := ids.NewStream(36, ids.Repeat{}).Batch(rounds)
	won := make([]atomic.Int32, rounds)
	var call atomic.Int64
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for {
				i := int(call.Add(1)-1) / each
				if i >= rounds {
					return
				}
				if p.FirstSeen(batch.At(i)) {
					won[i].Add(1)
				}
			}
		})
	}
	all.Wait()
	wrong := 0
	for i := range won {
		if won[i].Load() != 1 {
			wrong++
		}
	}
	return wrong
}
