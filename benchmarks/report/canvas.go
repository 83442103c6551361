package main

import (
	"bytes"
	"fmt"
)

// canvas collects the elements of one chart. It looks like the drawings of the other
// guides.
type canvas struct {
	width, height float64
	body          bytes.Buffer
}

const style = `
text { font: 13px system-ui, sans-serif; fill: #1f2933 }
.small { font-size: 11px; fill: #52606d }
.title { font-weight: 600 }
.grid { stroke: #e4e7eb; stroke-width: 1 }
.axis { stroke: #52606d; stroke-width: 1 }
.bar0 { fill: #2f6f9f } .bar1 { fill: #9fc5e0 }
.own0 { fill: #c05621 } .own1 { fill: #eaac82 }
polyline { fill: none; stroke-width: 2.5 }
polyline.s0 { stroke: #c05621 } polyline.s1 { stroke: #2f6f9f } polyline.s2 { stroke: #5f8a3c }
circle.s0 { fill: #c05621 } circle.s1 { fill: #2f6f9f } circle.s2 { fill: #5f8a3c }
text.s0 { fill: #c05621 } text.s1 { fill: #2f6f9f } text.s2 { fill: #5f8a3c }
`

// svg returns the chart; label says to who can't see it what it shows.
func (c *canvas) svg(label string) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" aria-label="%s">`,
		c.width, c.height, c.width, c.height, label)
	fmt.Fprintf(&out, "\n<style>%s</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", style)
	out.Write(c.body.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func (c *canvas) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(&c.body, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, class, anchor, text)
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&c.body, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class)
}

func (c *canvas) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(&c.body, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"/>\n", x, y, w, h, class)
}

func (c *canvas) dot(x, y float64, class string) {
	fmt.Fprintf(&c.body, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" class=\"%s\"/>\n", x, y, class)
}

// curve draws a line through points, and a dot at each.
func (c *canvas) curve(points []point, class string) {
	fmt.Fprintf(&c.body, "<polyline class=\"%s\" points=\"", class)
	for _, p := range points {
		fmt.Fprintf(&c.body, "%.1f,%.1f ", p.x, p.y)
	}
	c.body.WriteString("\"/>\n")
	for _, p := range points {
		c.dot(p.x, p.y, class)
	}
}

type point struct{ x, y float64 }
