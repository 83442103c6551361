package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// results are what the benchmarks have found, pass by pass.
type results struct {
	config  map[string]string               // what the file says of itself: date, commit, cpu
	values  map[string]map[string][]float64 // by a benchmark's name, without prefix and cores, and unit
	asked   int                             // how many figures were asked for
	missing []string                        // those that aren't there
}

// read reads the output of go test -bench, of any number of passes one behind the
// other, with lines "key: value" before.
func read(from io.Reader, name string) (*results, error) {
	r := &results{config: make(map[string]string), values: make(map[string]map[string][]float64)}
	lines := benchfmt.NewReader(from, name)
	for lines.Scan() {
		switch record := lines.Result().(type) {
		case *benchfmt.Result:
			r.add(record)
		case *benchfmt.SyntaxError:
			return nil, fmt.Errorf("report: %w", record)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if len(r.values) == 0 {
		return nil, fmt.Errorf("report: %s has no results of benchmarks", name)
	}
	return r, nil
}

func (r *results) add(result *benchfmt.Result) {
	for _, c := range result.Config {
		r.config[c.Key] = string(c.Value)
	}
	name := nameOf(result.Name)
	if r.values[name] == nil {
		r.values[name] = make(map[string][]float64)
	}
	for _, v := range result.Values {
		value, unit := v.Value, v.Unit
		if v.OrigUnit != "" {
			value, unit = v.OrigValue, v.OrigUnit
		}
		r.values[name][unit] = append(r.values[name][unit], value)
	}
}

// nameOf leaves out how many cores there were.
func nameOf(name benchfmt.Name) string {
	base, parts := name.Parts()
	var b strings.Builder
	b.Write(base)
	for _, part := range parts {
		if part[0] != '-' {
			b.Write(part)
		}
	}
	return b.String()
}

// passes is how many passes there were, at most.
func (r *results) passes() int {
	most := 0
	for _, units := range r.values {
		for _, values := range units {
			most = max(most, len(values))
		}
	}
	return most
}

// all returns the values of a benchmark in a unit, one a pass. What isn't there is
// noted.
func (r *results) all(name, unit string) []float64 {
	values := r.values[name][unit]
	r.asked++
	if len(values) == 0 {
		r.missing = append(r.missing, name+" "+unit)
	}
	return values
}

// median returns the median over the passes, or NaN.
func (r *results) median(name, unit string) float64 { return median(r.all(name, unit)) }

// ratio returns how many times as much as of the base there is of name: the median
// of the ratios within each pass, so that a pass on a busy machine counts as one.
func (r *results) ratio(name, base, unit string) float64 {
	over, under := r.all(name, unit), r.all(base, unit)
	var ratios []float64
	for i := range min(len(over), len(under)) {
		ratios = append(ratios, over[i]/under[i])
	}
	return median(ratios)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}
