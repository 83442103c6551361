package main

import (
	"fmt"
	"strings"

	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// stamp says when, where and of what the figures are.
func (r *results) stamp() string {
	c := r.config
	return fmt.Sprintf("Measured %s on %s, %s cores, %s/%s, with %s at commit %s: medians of %d interleaved passes.\n",
		c["date"], strings.TrimSpace(c["cpu"]), c["cores"], c["goos"], c["goarch"], c["go"], c["commit"], r.passes())
}

// usual is the first table: all peers on the usual load.
func (r *results) usual() string {
	t := newTable("100,000 tracked, 36 bytes, all new", "serial, ns", "idem is faster", "parallel, ns", "idem is faster", "bytes an id", "allocations")
	for _, k := range peers.All {
		serial, parallel := firstSeen("unique", "serial", k.Name), firstSeen("unique", "parallel", k.Name)
		t.row(k.Title,
			number(r.median(serial, "ns/op")), r.faster(serial, firstSeen("unique", "serial", "idem")),
			number(r.median(parallel, "ns/op")), r.faster(parallel, firstSeen("unique", "parallel", "idem")),
			number(r.median(memory(36, k.Name), "B/id")), number(r.median(serial, "allocs/op")))
	}
	return t.String()
}

// faster is how many times as long as the guard another takes.
func (r *results) faster(name, guard string) string {
	if name == guard {
		return ""
	}
	return times(r.ratio(name, guard, "ns/op"))
}

// loads is the table of streams with duplicates.
func (r *results) loads() string {
	t := newTable("ns a call: serial / parallel", "all new", "1 % duplicates", "50 % duplicates", "each 1,000 times")
	for _, k := range peers.All {
		row := []string{k.Title}
		for _, load := range []string{"unique", "1-percent", "50-percent", "storm"} {
			row = append(row, r.both(firstSeen(load, "serial", k.Name), firstSeen(load, "parallel", k.Name)))
		}
		t.row(row...)
	}
	return t.String()
}

func (r *results) both(serial, parallel string) string {
	return number(r.median(serial, "ns/op")) + " / " + number(r.median(parallel, "ns/op"))
}

// lengths is the table of ids of several lengths.
func (r *results) lengths() string {
	t := newTable("ns a call: serial / parallel", "16 bytes", "36 bytes", "200 bytes", "memory of 16", "of 36", "of 200")
	for _, k := range peers.All {
		row := []string{k.Title}
		for _, length := range []int{16, 36, 200} {
			row = append(row, r.both(ofLength(length, "serial", k.Name), ofLength(length, "parallel", k.Name)))
		}
		for _, length := range []int{16, 36, 200} {
			row = append(row, number(r.median(memory(length, k.Name), "B/id")))
		}
		t.row(row...)
	}
	return t.String()
}

// sizes is the table of how much is remembered.
func (r *results) sizes() string {
	t := newTable("ns a call: serial / parallel", "10,000 tracked", "100,000", "4,000,000", "bytes an id", "a collection, ms", "stopped for, µs")
	for _, k := range peers.All {
		row := []string{k.Title}
		for _, size := range []int{10_000, 100_000, 4_000_000} {
			row = append(row, r.both(ofSize(size, "serial", k.Name), ofSize(size, "parallel", k.Name)))
		}
		for _, unit := range []string{"B/id", "ms/collection", "µs-stopped/collection"} {
			row = append(row, number(r.median(large("serial", k.Name), unit)))
		}
		t.row(row...)
	}
	return t.String()
}

// faults is the table of what peers forget, hold too long, or begin twice.
func (r *results) faults() string {
	t := newTable("100,000 to be tracked, 400,000 came", "forgotten of the newest 50,000", "held, of 100,000", "not begun exactly once, of 1,000")
	for _, k := range peers.All {
		t.row(k.Title,
			number(r.median(promises(k.Name), "%forgotten"))+" %",
			number(100*r.median(promises(k.Name), "x-held"))+" %",
			number(r.median(promises(k.Name), "wrong/1000")))
	}
	return t.String()
}

// calls is the table of the guard's own calls.
func (r *results) calls() string {
	t := newTable("call", "serial, ns", "parallel, ns", "allocations")
	for _, one := range []struct{ title, do string }{
		{"TryBegin on a nil guard", "nothing,nil"},
		{"the clock's monotonic reading, which every other call begins with", "clock"},
		{"TryBegin, the duplicate of one and the same message", "TryBegin,seen-just-now"},
		{"TryBegin, a duplicate of any message remembered", "TryBegin,seen-any-time"},
	} {
		t.row(one.title, number(r.median(call(one.do), "ns/op")), "", number(r.median(call(one.do), "allocs/op")))
	}
	for _, verb := range []string{"Complete", "Reject", "Release"} {
		serial, parallel := call("TryBegin+"+verb+"/mode=serial"), call("TryBegin+"+verb+"/mode=parallel")
		t.row("TryBegin + "+verb, number(r.median(serial, "ns/op")), number(r.median(parallel, "ns/op")), number(r.median(serial, "allocs/op")))
	}
	return t.String()
}

// growing is the table behind the chart of growth.
func (r *results) growing() string {
	t := newTable("tracked", "idem, ns a cycle", "two Go maps", "idem, bytes an id", "two Go maps")
	for _, n := range tracked {
		t.row(thousands(n),
			number(r.median(growth(n, "idem"), "ns/op")), number(r.median(growth(n, "two-maps"), "ns/op")),
			number(r.median(growth(n, "idem"), "B/id")), number(r.median(growth(n, "two-maps"), "B/id")))
	}
	return t.String()
}
