package benchmarks

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/benchmarks/internal/ids"
	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// BenchmarkGuard measures the guard's calls one by one.
func BenchmarkGuard(b *testing.B) {
	b.Run("do=nothing,nil", nilGuard)
	b.Run("do=clock", readClock)
	b.Run("do=TryBegin,seen-just-now", duplicateJustNow)
	b.Run("do=TryBegin,seen-any-time", duplicateAnyTime)
	for _, settle := range []struct {
		name string
		with func(*idem.Generational, idem.Claim)
	}{
		{"Complete", (*idem.Generational).Complete},
		{"Reject", (*idem.Generational).Reject},
		{"Release", (*idem.Generational).Release},
	} {
		for _, mode := range modes {
			b.Run(fmt.Sprintf("do=TryBegin+%s/mode=%s", settle.name, mode.name), func(b *testing.B) {
				s := newScene(peers.Named("idem"), usual(), usualLength, ids.Repeat{})
				g := s.peer.(interface{ Guard() *idem.Generational }).Guard()
				s.measure(b, mode.goroutines, func(id string) bool {
					claim, _ := g.TryBegin(idem.ID(id))
					settle.with(g, claim)
					return true
				})
			})
		}
	}
}

// nilGuard and the duplicates don't use b.Loop, which stores all that a call takes and
// gives: that is more than a nil guard does.
func nilGuard(b *testing.B) {
	var off *idem.Generational
	id := idem.ID("a message's id, as long as most are.")
	b.ReportAllocs()
	for range b.N {
		_, found = off.TryBegin(id)
	}
}

// readClock does what every call of a guard with the standard clock has to do first.
func readClock(b *testing.B) {
	start := time.Now()
	for range b.N {
		elapsed = time.Since(start)
	}
}

var elapsed time.Duration // as found

var found idem.State // written, so that no compiler leaves the call out

// duplicateJustNow asks for one and the same id: all it touches is in the caches.
func duplicateJustNow(b *testing.B) {
	g, stream := fullGuard()
	id := idem.ID(stream.Past(1))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, state := g.TryBegin(id); state != idem.Completed {
			b.Fatal(state)
		}
	}
}

// duplicateAnyTime asks for ids of all that the guard remembers, in no order.
func duplicateAnyTime(b *testing.B) {
	g, stream := fullGuard()
	known := knownIDs(stream, usual()/2)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, state := g.TryBegin(known[i%len(known)]); state != idem.Completed {
			b.Fatal(state)
		}
	}
}

// knownIDs are the last n, in another order, and in the order in which they are asked
// for in memory: what is far away is what the guard keeps, not the text of a message
// that has just come in.
func knownIDs(stream *ids.Stream, n int) []idem.Identity {
	var text strings.Builder
	for i := range n {
		text.WriteString(stream.Past(1 + i*7919%n))
	}
	known := make([]idem.Identity, n)
	for i := range known {
		known[i] = idem.ID(text.String()[i*usualLength : (i+1)*usualLength])
	}
	return known
}

func fullGuard() (*idem.Generational, *ids.Stream) {
	s := newScene(peers.Named("idem"), usual(), usualLength, ids.Repeat{})
	return s.peer.(interface{ Guard() *idem.Generational }).Guard(), s.stream
}
