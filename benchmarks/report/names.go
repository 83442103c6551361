package main

import (
	"fmt"

	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// The benchmarks' names, as they are in results.

func firstSeen(load, mode, peer string) string {
	return fmt.Sprintf("FirstSeen/ids=%s/mode=%s/peer=%s", load, mode, peer)
}

func ofLength(length int, mode, peer string) string {
	if length == 36 {
		return firstSeen("unique", mode, peer)
	}
	return fmt.Sprintf("Length/len=%d/mode=%s/peer=%s", length, mode, peer)
}

func memory(length int, peer string) string {
	return fmt.Sprintf("Memory/len=%d/tracked=100000/peer=%s", length, peer)
}

func ofSize(tracked int, mode, peer string) string {
	switch tracked {
	case 100_000:
		return firstSeen("unique", mode, peer)
	case 4_000_000:
		return large(mode, peer)
	default:
		return fmt.Sprintf("Small/tracked=%d/mode=%s/peer=%s", tracked, mode, peer)
	}
}

func large(do, peer string) string { return fmt.Sprintf("Large/peer=%s/do=%s", peer, do) }

func growth(tracked int, peer string) string {
	return fmt.Sprintf("Growth/tracked=%d/peer=%s", tracked, peer)
}

func promises(peer string) string { return "Promises/peer=" + peer }

func call(do string) string { return "Guard/do=" + do }

// rivals are the libraries that bound what they remember and remember what they
// said they did: those the guard is asked to beat.
func rivals() []peers.Kind {
	var kinds []peers.Kind
	for _, k := range peers.All {
		if k.Library && k.Bounded && !k.Drops && k.Name != "idem" {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// tracked are the sizes that BenchmarkGrowth goes through.
var tracked = []int{1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 4_000_000}
