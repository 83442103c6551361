package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// about is what the tables were measured on.
func (b *bench) about(ctx context.Context, slice time.Duration, rounds int) (string, error) {
	var server, fsync string
	row := b.pool.QueryRow(ctx, "SELECT current_setting('server_version'), current_setting('fsync')")
	if err := row.Scan(&server, &fsync); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %s, %d CPUs shared by client, service and PostgreSQL %s (fsync %s), load average %s; %s; pool of %d; %d rounds of %v for each cell, taking turns. Medians of the rounds; × is relative to no deduplication in the same round.\n\n",
		time.Now().Format("2 January 2006"), cpuModel(), runtime.NumCPU(), server, fsync, loadAverage(), runtime.Version(), maxConns, rounds, slice), nil
}

func (b *bench) table() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n\n| requests per second (p50, p99) |", b.load.name)
	for _, n := range clientCounts {
		fmt.Fprintf(&out, " clients: %d |", n)
	}
	out.WriteString(" replays, clients: 8 |\n|---|" + strings.Repeat("---|", len(clientCounts)+1) + "\n")
	base := b.variants[0]
	for _, v := range b.variants {
		fmt.Fprintf(&out, "| %s |", v.name)
		for _, n := range clientCounts {
			fmt.Fprintf(&out, " %s", cell(v.results[n]))
			if v != base {
				fmt.Fprintf(&out, ", %.2f×", v.results[n].relative(base.results[n]))
			}
			out.WriteString(" |")
		}
		if v.replays == nil {
			out.WriteString(" – |\n")
			continue
		}
		fmt.Fprintf(&out, " %s |\n", cell(v.replays))
	}
	out.WriteString("\n")
	return out.String()
}

func cell(r *result) string {
	return fmt.Sprintf("%.0f (%s, %s)", r.perSecond(), millis(r.percentile(50)), millis(r.percentile(99)))
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// loadAverage tells whether the machine had other things to do: with the clients
// of this program alone it stays below 10.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// cpuModel is what Linux tells of the processor.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOOS + "/" + runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOOS + "/" + runtime.GOARCH
}
