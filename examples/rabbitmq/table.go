package main

import (
	"fmt"
	"io"
)

// printTable prints the runs of all modes side by side.
func printTable(w io.Writer, s settings, results []totals) {
	fmt.Fprintf(w, "%d messages, every tenth published twice; %d cuts; %g of the runs fail; prefetch %d, %d workers\n\n",
		s.messages, s.cuts, s.fail, prefetch, workers)
	fmt.Fprintf(w, "%-24s", "")
	for _, m := range modes {
		fmt.Fprintf(w, "%20v", m)
	}
	fmt.Fprintln(w)
	for _, row := range []struct {
		name  string
		value func(totals) int
	}{
		{"handled", func(t totals) int { return t.handled }},
		{"ran again, though done", func(t totals) int { return t.runsAgain }},
		{"ran beside itself", func(t totals) int { return t.concurrent }},
		{"suppressed", func(t totals) int { return t.suppressed }},
		{"redelivered", func(t totals) int { return t.redelivered }},
		{"lost: never done", func(t totals) int { return t.lost }},
	} {
		fmt.Fprintf(w, "%-24s", row.name)
		for _, t := range results {
			fmt.Fprintf(w, "%20d", row.value(t))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}
