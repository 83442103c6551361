package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/benchmarks/internal/peers"
)

var update = flag.Bool("update", false, "write the golden files anew")

// output is what go test prints: passes, each with these lines.
func output(passes ...[]string) string {
	var b strings.Builder
	b.WriteString("date: 2026-01-02\ncommit: abc1234\ngo: go1.26.8\ncores: 2\n")
	for _, lines := range passes {
		b.WriteString("goos: linux\ngoarch: amd64\npkg: example\ncpu: A Core\n")
		for _, line := range lines {
			fmt.Fprintf(&b, "Benchmark%s\n", line)
		}
		b.WriteString("PASS\nok  \texample\t1.0s\n")
	}
	return b.String()
}

func parsed(t *testing.T, passes ...[]string) *results {
	r, err := read(strings.NewReader(output(passes...)), "bench.out")
	require.NoError(t, err)
	return r
}

// complete is a run of all benchmarks, with figures made up from where they stand.
func complete() []string {
	var lines []string
	add := func(name string, units ...string) {
		line := fmt.Sprintf("%s-2 10", name)
		for i, unit := range units {
			line += fmt.Sprintf(" %d %s", 10+(len(lines)*7+i*3)%90, unit)
		}
		lines = append(lines, line)
	}
	cost := []string{"ns/op", "B/op", "allocs/op"}
	for _, k := range peers.All {
		for _, mode := range []string{"serial", "parallel"} {
			for _, load := range []string{"unique", "1-percent", "50-percent", "storm"} {
				add(firstSeen(load, mode, k.Name), cost...)
			}
			add(ofLength(16, mode, k.Name), cost...)
			add(ofLength(200, mode, k.Name), cost...)
			add(ofSize(10_000, mode, k.Name), cost...)
		}
		add(large("serial", k.Name), append(cost, "B/id", "ms/collection", "µs-stopped/collection")...)
		add(large("parallel", k.Name), cost...)
		for _, length := range []int{16, 36, 200} {
			add(memory(length, k.Name), "B/id", "objects/id")
		}
		add(promises(k.Name), "%forgotten", "x-held", "wrong/1000")
	}
	for _, do := range []string{"nothing,nil", "clock", "TryBegin,seen-just-now", "TryBegin,seen-any-time"} {
		add(call(do), cost...)
	}
	for _, verb := range []string{"Complete", "Reject", "Release"} {
		for _, mode := range []string{"serial", "parallel"} {
			add(call("TryBegin+"+verb+"/mode="+mode), cost...)
		}
	}
	for _, n := range tracked {
		add(growth(n, "idem"), "ns/op", "B/id")
		add(growth(n, "two-maps"), "ns/op", "B/id")
	}
	return lines
}

func madeUpCurves() []curve {
	curves := []curve{{tracked: 10_000}, {tracked: 100_000}, {tracked: 1_000_000}}
	for i := range curves {
		for _, rate := range horizonRates {
			s := min(150, float64(curves[i].tracked)/2/rate)
			curves[i].horizons = append(curves[i].horizons, time.Duration(s*float64(time.Second)))
		}
	}
	return curves
}

func TestReadKeepsPassesApart(t *testing.T) {
	r := parsed(t,
		[]string{"X/peer=a-2 10 100 ns/op", "X/peer=b-2 10 300 ns/op 0 allocs/op"},
		[]string{"X/peer=a-2 10 1000 ns/op", "X/peer=b-2 10 1000 ns/op 0 allocs/op"},
		[]string{"X/peer=a-2 10 200 ns/op", "X/peer=b-2 10 400 ns/op 0 allocs/op"})
	assert.Equal(t, []float64{100, 1000, 200}, r.all("X/peer=a", "ns/op"))
	assert.InDelta(t, 200, r.median("X/peer=a", "ns/op"), 0)
	assert.InDelta(t, 2, r.ratio("X/peer=b", "X/peer=a", "ns/op"), 0, "of 3, 1 and 2: a bad pass is bad for both")
	assert.Zero(t, r.median("X/peer=b", "allocs/op"))
	assert.Equal(t, 3, r.passes())
	assert.Empty(t, r.missing)
	assert.Equal(t, "A Core", r.config["cpu"])
	assert.True(t, math.IsNaN(r.median("X/peer=c", "ns/op")))
	assert.Equal(t, []string{"X/peer=c ns/op"}, r.missing)
}

func TestReadRefusesWhatIsNoRun(t *testing.T) {
	for _, text := range []string{"", "PASS\n", "BenchmarkX-2 10 fast ns/op\n"} {
		_, err := read(strings.NewReader(text), "bench.out")
		require.ErrorContains(t, err, "report: ", text)
	}
	_, err := read(failing{}, "bench.out")
	require.ErrorIs(t, err, errDisk)
}

var errDisk = errors.New("disk on fire")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errDisk }

func TestMedian(t *testing.T) {
	assert.InDelta(t, 2, median([]float64{3, 1, 2}), 0)
	assert.InDelta(t, 2.5, median([]float64{4, 1, 2, 3}), 0)
	assert.True(t, math.IsNaN(median(nil)))
}

func TestNumbers(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.284: "0.28", 0.96: "1.0", 2.54: "2.5", 9.96: "10", 232.4: "232", 1494: "1,494", 4e6: "4,000,000", -1500: "-1,500"} {
		assert.Equal(t, want, number(x))
	}
	assert.Equal(t, "?", number(math.NaN()))
	assert.Equal(t, "3.4×", times(3.42))
	for d, want := range map[time.Duration]string{150 * time.Second: "2m30s", 12_345 * time.Millisecond: "12s", 1234 * time.Millisecond: "1.2s", 49_951 * time.Microsecond: "50ms"} {
		assert.Equal(t, want, span(d))
	}
}

// The fastest rival is that of the ratios within the passes, and neither ristretto,
// the plain maps nor who is bounded by nothing is one.
func TestGoalsNameTheClosestRival(t *testing.T) {
	slow := func(peer string, ns int) string {
		return fmt.Sprintf("%s-2 10 %d ns/op", firstSeen("unique", "serial", peer), ns)
	}
	lines := []string{slow("idem", 100), slow("two-maps", 150), slow("ristretto", 110), slow("sync.Map", 120), slow("watermill", 130), slow("go-cache", 90),
		slow("otter", 600), slow("bigcache", 500), slow("freecache", 410), slow("ttlcache", 900), slow("golang-lru", 800)}
	ratio, rival := parsed(t, lines).closest("serial")
	assert.InDelta(t, 4.1, ratio, 1e-9)
	assert.Equal(t, "freecache", rival)
	assert.Contains(t, parsed(t, lines).goals(), "| 4.1× (freecache) | yes |")
	lines[8] = slow("freecache", 399)
	assert.Contains(t, parsed(t, lines).goals(), "| 4.0× (freecache) | **no** |")
}

func TestReportIsAsItWas(t *testing.T) {
	docs := t.TempDir()
	frame, err := os.ReadFile("../../docs/performance.md")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(docs, "performance.md"), frame, 0o600))
	var printed bytes.Buffer
	require.NoError(t, parsed(t, complete()).publish(madeUpCurves(), docs, &printed))
	require.Empty(t, printed.String(), "nothing was missing")

	var all strings.Builder
	text, err := os.ReadFile(filepath.Join(docs, "performance.md"))
	require.NoError(t, err)
	for _, b := range blocksOf(string(text)) {
		fmt.Fprintf(&all, "=== %s\n%s", b.name, b.text)
	}
	golden(t, "blocks.golden", []byte(all.String()))
	for _, chart := range []string{"peers", "growth", "horizon"} {
		svg, err := os.ReadFile(filepath.Join(docs, "performance-"+chart+".svg"))
		require.NoError(t, err)
		golden(t, chart+".svg", svg)
		wellFormed(t, svg)
	}
	assert.Equal(t, outside(string(frame)), outside(string(text)), "what is written by hand is not touched")
}

// blocksOf and outside read a document in another way than rewrite does.
func blocksOf(document string) (blocks []block) {
	for _, piece := range strings.Split(document, "<!-- bench: ")[1:] {
		if name, text, _ := strings.Cut(piece, " -->\n"); name != "end" {
			blocks = append(blocks, block{name: name, text: text})
		}
	}
	return blocks
}

func outside(document string) (lines []string) {
	inside := false
	for line := range strings.Lines(document) {
		if strings.HasPrefix(line, "<!-- bench: ") {
			inside = !strings.HasPrefix(line, "<!-- bench: end")
		}
		if !inside {
			lines = append(lines, line)
		}
	}
	return lines
}

func golden(t *testing.T, name string, got []byte) {
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(file, got, 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got), "%s; go test ./report -update writes it anew", name)
}

func wellFormed(t *testing.T, svg []byte) {
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

func TestAPartOfARunLeavesTheDocumentAlone(t *testing.T) {
	var printed bytes.Buffer
	r := parsed(t, complete()[:8])
	require.NoError(t, r.publish(madeUpCurves(), filepath.Join(t.TempDir(), "none"), &printed))
	assert.Contains(t, printed.String(), "The document is as it was")
	assert.Contains(t, printed.String(), "each 1,000 times", "the table there is a part of")
	assert.NotContains(t, printed.String(), "TryBegin + Release", "a table there is nothing of")
	assert.Contains(t, printed.String(), "?× (none) | ? |", "no verdict without a figure")
}

func TestRewriteWantsEachBlockOnce(t *testing.T) {
	const text = "a\n<!-- bench: x -->\nold\n<!-- bench: end -->\nb\n"
	got, err := rewrite(text, []block{{name: "x", text: "new\n"}})
	require.NoError(t, err)
	assert.Equal(t, "a\n<!-- bench: x -->\nnew\n<!-- bench: end -->\nb\n", got)
	for name, document := range map[string]string{
		"none":           "a\n",
		"two":            text + text,
		"without an end": "<!-- bench: x -->\nold\n",
		"the next one's": "<!-- bench: x -->\nold\n<!-- bench: y -->\n<!-- bench: end -->\n",
	} {
		_, err := rewrite(document, []block{{name: "x", text: "new\n"}})
		require.ErrorContains(t, err, "report: ", name)
	}
}

func TestHorizonsComeFromTheGuard(t *testing.T) {
	curves, err := horizons([]int{100}, []float64{0.1, 10})
	require.NoError(t, err)
	assert.Equal(t, peers.Window/2, curves[0].horizons[0])
	assert.InEpsilon(t, 5*time.Second, curves[0].horizons[1], 0.05)
	_, err = horizons([]int{1}, []float64{10})
	require.Error(t, err)
}

func TestRunSaysWhatIsWrong(t *testing.T) {
	require.ErrorContains(t, run("testdata/none.out", "docs", io.Discard), "report: open testdata/none.out")
}
