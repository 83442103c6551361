package main

import (
	"math"
	"slices"
	"strings"

	"github.com/idem-go/idem/benchmarks/internal/peers"
)

// peersChart has two bars a peer, serial and parallel.
func (r *results) peersChart() []byte {
	const left, width, pitch, top = 250, 520, 40, 64
	c := &canvas{width: left + width + 130, height: top + pitch*float64(len(peers.All)) + 30}
	modes := []string{"serial", "parallel"}
	highest := 0.0
	for _, k := range peers.All {
		for _, mode := range modes {
			highest = max(highest, r.median(firstSeen("unique", mode, k.Name), "ns/op"))
		}
	}
	c.text(14, 26, "title", "start", "Nanoseconds a call: seen? if not, remember it")
	c.text(14, 44, "small", "start", "100,000 ids of 36 bytes tracked, all new. Dark: one goroutine. Light: 16 a core. At the right, bytes of heap an id.")
	for i, k := range peers.All {
		y := top + pitch*float64(i)
		c.text(left-12, y+20, "", "end", plain(k.Title))
		for m, mode := range modes {
			ns := r.median(firstSeen("unique", mode, k.Name), "ns/op")
			length := width * ns / highest
			c.rect(left, y+float64(m)*15, length, 13, barClass(k.Name, m))
			c.text(left+length+6, y+float64(m)*15+10.5, "small", "start", number(ns))
		}
		c.text(c.width-14, y+20, "small", "end", number(r.median(memory(36, k.Name), "B/id"))+" B")
	}
	return c.svg("Time of a call and bytes an id, the guard beside its peers")
}

func barClass(peer string, mode int) string {
	return map[bool]string{true: "own", false: "bar"}[peer == "idem"] + string(rune('0'+mode))
}

// plain is a title without what it says of itself in brackets, and without Markdown.
func plain(title string) string {
	title, _, _ = strings.Cut(title, " (")
	return strings.ReplaceAll(strings.ReplaceAll(title, "*", ""), "watermill Deduplicator's repository", "watermill Deduplicator")
}

// growthChart has the time of a cycle at the left and the bytes of an id at the right.
func (r *results) growthChart() []byte {
	c := &canvas{width: 980, height: 360}
	r.growthPlot(c, 60, "Nanoseconds a cycle", "ns/op")
	r.growthPlot(c, 550, "Bytes an id", "B/id")
	return c.svg("Time of a cycle and bytes an id from a thousand to four million ids tracked")
}

func (r *results) growthPlot(c *canvas, left float64, title, unit string) {
	xs := make([]float64, len(tracked))
	series := map[string][]float64{"idem": nil, "two-maps": nil}
	highest := 0.0
	for i, n := range tracked {
		xs[i] = float64(n)
		for peer := range series {
			y := r.median(growth(n, peer), unit)
			series[peer] = append(series[peer], y)
			highest = max(highest, y)
		}
	}
	p := r.framed(c, left, highest, xs)
	p.axes(title, "ids tracked", niceStep(p.toY), number, []float64{1e3, 1e4, 1e5, 1e6, 4e6}, short)
	p.series(xs, series["idem"], "s0", "idem")
	p.series(xs, series["two-maps"], "s1", "two maps")
}

func (*results) framed(c *canvas, left, highest float64, xs []float64) *plot {
	if math.IsNaN(highest) || highest == 0 {
		highest = 1 // of a run without these; not shown
	}
	step := niceStep(highest)
	return &plot{canvas: c, left: left, top: 56, width: 340, height: 240, fromX: xs[0], toX: xs[len(xs)-1],
		toY: step * math.Ceil(highest/step)}
}

// horizonChart has a curve a size: flat at half the window up to a rate, then falling.
func horizonChart(curves []curve, rates []float64) []byte {
	c := &canvas{width: 780, height: 400}
	half := peers.Window.Seconds() / 2
	p := &plot{canvas: c, left: 70, top: 56, width: 660, height: 280, fromX: rates[0], toX: slices.Max(rates), toY: half * 1.2}
	p.axes("Horizon: how far back everything is remembered, in seconds (window 5 min)", "new messages a second",
		30, number, []float64{10, 100, 1000, 10_000, 100_000}, short)
	for i, one := range curves {
		ys := make([]float64, len(rates))
		for j, d := range one.horizons {
			ys[j] = d.Seconds()
		}
		p.series(rates, ys, "s"+string(rune('0'+i%3)), "")
		p.nameCurve(rates, ys, half, "s"+string(rune('0'+i%3)), "maxTracked "+thousands(one.tracked))
	}
	return c.svg("How far back a guard remembers, against the rate of new messages")
}

// nameCurve writes beside the first point where a curve has fallen to less than half.
func (p *plot) nameCurve(xs, ys []float64, half float64, class, name string) {
	i := max(0, slices.IndexFunc(ys, func(y float64) bool { return y < 0.55*half }))
	at := p.at(xs[i], ys[i])
	p.text(at.x+10, at.y-6, class, "start", name)
}
