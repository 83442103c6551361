package main

import (
	"fmt"
	"math"
)

// plot is a pair of axes on a canvas: x is logarithmic, y is not.
type plot struct {
	*canvas
	left, top, width, height float64
	fromX, toX               float64
	toY                      float64
}

// at is the place of a value.
func (p *plot) at(x, y float64) point {
	across := (math.Log(x) - math.Log(p.fromX)) / (math.Log(p.toX) - math.Log(p.fromX))
	return point{p.left + across*p.width, p.top + p.height*(1-y/p.toY)}
}

// axes draws the frame, a line at every step of y and a label at every x given.
func (p *plot) axes(title, below string, step float64, labelY func(float64) string, xs []float64, labelX func(float64) string) {
	p.text(p.left, p.top-16, "title", "start", title)
	for y := 0.0; y <= p.toY*1.0001; y += step {
		at := p.at(p.fromX, y)
		p.line(p.left, at.y, p.left+p.width, at.y, "grid")
		p.text(p.left-8, at.y+4, "small", "end", labelY(y))
	}
	for _, x := range xs {
		at := p.at(x, 0)
		p.line(at.x, at.y, at.x, at.y+5, "axis")
		p.text(at.x, at.y+18, "small", "middle", labelX(x))
	}
	p.line(p.left, p.top+p.height, p.left+p.width, p.top+p.height, "axis")
	p.text(p.left+p.width/2, p.top+p.height+38, "small", "middle", below)
}

// series draws one curve and writes its name at the end of it.
func (p *plot) series(xs, ys []float64, class, name string) {
	points := make([]point, len(xs))
	for i := range xs {
		points[i] = p.at(xs[i], ys[i])
	}
	p.curve(points, class)
	last := points[len(points)-1]
	p.text(last.x+8, last.y+4, class, "start", name)
}

// niceStep divides an axis up to highest into four to eight round steps.
func niceStep(highest float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(highest)))
	for highest/step < 4 {
		step /= 2
	}
	return step
}

// short writes a count as 1k, 4M.
func short(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%gM", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%gk", x/1e3)
	}
	return fmt.Sprint(x)
}
