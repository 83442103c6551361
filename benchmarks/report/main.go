// Report turns what the benchmarks have found into docs/performance.md and the charts
// beside it. It is run in the repository's top folder, by `make bench`:
//
//	go run ./benchmarks/report bench.out
//
// Of a run of some benchmarks only it prints the tables, as far as they go, and leaves
// the document alone.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	log.SetFlags(0)
	docs := flag.String("docs", "docs", "the folder of performance.md")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: report [-docs folder] bench.out")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *docs, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(file, docs string, out io.Writer) error {
	from, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer from.Close()
	r, err := read(from, file)
	if err != nil {
		return err
	}
	curves, err := horizons(horizonTracked, horizonRates)
	if err != nil {
		return err
	}
	return r.publish(curves, docs, out)
}

// publish writes the document and the charts, or prints what there is if that isn't
// all.
func (r *results) publish(curves []curve, docs string, out io.Writer) error {
	blocks := r.blocks(curves)
	charts := map[string][]byte{
		"performance-peers.svg":   r.peersChart(),
		"performance-growth.svg":  r.growthChart(),
		"performance-horizon.svg": horizonChart(curves, horizonRates),
	}
	if len(r.missing) > 0 {
		return r.print(blocks, out)
	}
	if err := rewriteFile(filepath.Join(docs, "performance.md"), blocks); err != nil {
		return err
	}
	for name, svg := range charts {
		if err := os.WriteFile(filepath.Join(docs, name), svg, 0o644); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

// blocks are all that programs write in the document.
func (r *results) blocks(curves []curve) []block {
	var blocks []block
	for _, one := range []struct {
		name string
		text func() string
	}{
		{"stamp", r.stamp},
		{"goals", r.goals},
		{"peers", r.usual},
		{"faults", r.faults},
		{"loads", r.loads},
		{"lengths", r.lengths},
		{"sizes", r.sizes},
		{"calls", r.calls},
		{"growth", r.growing},
		{"horizon", func() string { return horizonTable(curves, horizonRates) }},
	} {
		asked, missing := r.asked, len(r.missing)
		b := block{name: one.name, text: one.text()}
		b.empty = r.asked > asked && r.asked-asked == len(r.missing)-missing
		blocks = append(blocks, b)
	}
	return blocks
}

// print is for a run of some of the benchmarks.
func (r *results) print(blocks []block, out io.Writer) error {
	for _, b := range blocks {
		if !b.empty {
			fmt.Fprintf(out, "%s\n\n%s\n", b.name, b.text)
		}
	}
	slices.Sort(r.missing)
	missing := slices.Compact(r.missing)
	_, err := fmt.Fprintf(out, "The document is as it was: %d results are not in the file, %s the first of them.\n", len(missing), missing[0])
	return err
}

func rewriteFile(name string, blocks []block) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	text, err := rewrite(string(old), blocks)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
