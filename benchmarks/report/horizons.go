package main

import (
	"time"

	"github.com/idem-go/idem/benchmarks/internal/horizon"
	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// What the picture behind the tuning guide shows.
var (
	horizonTracked = []int{10_000, 100_000, 1_000_000}
	horizonRates   = []float64{10, 20, 33, 50, 100, 200, 333, 500, 1000, 2000, 3333, 5000, 10_000, 20_000, 50_000, 100_000}
)

// curve is how far back a guard of one size remembers at each of the rates.
type curve struct {
	tracked  int
	horizons []time.Duration
}

// horizons asks real guards, on a clock of their own: no machine is too slow for
// these figures.
func horizons(tracked []int, rates []float64) ([]curve, error) {
	curves := make([]curve, 0, len(tracked))
	for _, n := range tracked {
		c := curve{tracked: n}
		for _, rate := range rates {
			d, err := horizon.At(n, peers.Window, rate)
			if err != nil {
				return nil, err
			}
			c.horizons = append(c.horizons, d)
		}
		curves = append(curves, c)
	}
	return curves, nil
}

// horizonTable has a row a rate and a column a size.
func horizonTable(curves []curve, rates []float64) string {
	columns := []string{"new messages a second"}
	for _, c := range curves {
		columns = append(columns, "maxTracked "+thousands(c.tracked))
	}
	t := newTable(columns...)
	for i, rate := range rates {
		row := []string{number(rate)}
		for _, c := range curves {
			row = append(row, span(c.horizons[i]))
		}
		t.row(row...)
	}
	return t.String()
}

// span writes a duration to about two digits.
func span(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, 100 * time.Millisecond, 10 * time.Millisecond, time.Millisecond} {
		if d >= 9*unit {
			return d.Round(unit).String()
		}
	}
	return d.String()
}
