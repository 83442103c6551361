package main

import (
	"fmt"
	"math"
)

// goals is the table of the numbers that were asked for, and what was reached.
func (r *results) goals() string {
	t := newTable("asked for", "reached", "")
	most := func(title string, limit, got float64, unit string) {
		t.row(fmt.Sprintf("%s: at most %s%s", title, number(limit), unit), number(got)+unit, verdict(got, got <= limit))
	}
	least := func(title string, limit float64, mode string) {
		ratio, rival := r.closest(mode)
		t.row(fmt.Sprintf("%s: at least %s as fast as the fastest bounded library", title, times(limit)),
			fmt.Sprintf("%s (%s)", times(ratio), rival), verdict(ratio, ratio >= limit))
	}
	least("TryBegin + Complete, serial", 4, "serial")
	least("TryBegin + Complete, 16 goroutines a core", 1.5, "parallel")
	most("memory at the ceiling, 36-byte ids", 56, max(r.median(memory(36, "idem"), "B/id"), r.median(large("serial", "idem"), "B/id")), " bytes an id")
	most("allocations in steady state, Complete, Reject and Release", 0, r.allocations(), "")
	most("TryBegin of a duplicate", 60, r.median(call("TryBegin,seen-just-now"), "ns/op"), " ns")
	t.row("– of these, to read the clock", number(r.median(call("clock"), "ns/op"))+" ns", "")
	most("TryBegin of a nil guard", 2, r.median(call("nothing,nil"), "ns/op"), " ns")
	most("a cycle with 4 million tracked, by one with 10,000", 3, r.ratio(growth(4_000_000, "idem"), growth(10_000, "idem"), "ns/op"), "×")
	return t.String()
}

func verdict(got float64, reached bool) string {
	switch {
	case math.IsNaN(got):
		return "?"
	case reached:
		return "yes"
	}
	return "**no**"
}

// closest returns the rival that comes closest to the guard, and how many times as
// long it takes.
func (r *results) closest(mode string) (ratio float64, rival string) {
	ratio, rival = math.NaN(), "none"
	for _, k := range rivals() {
		x := r.ratio(firstSeen("unique", mode, k.Name), firstSeen("unique", mode, "idem"), "ns/op")
		if x < ratio || math.IsNaN(ratio) && !math.IsNaN(x) {
			ratio, rival = x, k.Name
		}
	}
	return ratio, rival
}

func (r *results) allocations() float64 {
	most := 0.0
	for _, verb := range []string{"Complete", "Reject", "Release"} {
		for _, mode := range []string{"serial", "parallel"} {
			most = max(most, r.median(call("TryBegin+"+verb+"/mode="+mode), "allocs/op"))
		}
	}
	return most
}
