// Draw writes the drawings of the guides beside them. Run it in docs:
//
//	go run ./draw
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
)

func main() {
	drawings := map[string]func(*canvas){
		"generations.svg":             generations,
		"idempotent-http-release.svg": httpRelease,
		"idempotent-http-tx.svg":      httpInTx,
		"idempotent-http-where.svg":   httpWhere,
	}
	for name, draw := range drawings {
		c := &canvas{}
		draw(c)
		if err := os.WriteFile(name, c.svg(), 0o644); err != nil {
			log.Fatalf("draw: %v", err)
		}
	}
}

// canvas collects the elements of one drawing.
type canvas struct {
	width, height int
	body          bytes.Buffer
}

const style = `
text { font: 13px system-ui, sans-serif; fill: #1f2933 }
.small { font-size: 11px; fill: #52606d }
.axis { stroke: #52606d; stroke-width: 1 }
.grid { stroke: #cbd2d9; stroke-width: 1; stroke-dasharray: 3 3 }
.takes { fill: #2f6f9f }
.consulted { fill: #9fc5e0 }
.on { fill: #ffffff }
.life { stroke: #c05621; stroke-width: 4; stroke-linecap: round }
.dot { fill: #c05621 }
.halo { paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
.title { font-weight: 600 }
.actor { fill: #2f6f9f }
.endpoint { fill: #e3f0fa }
.call { stroke: #1f2933; stroke-width: 1.5 }
.answer { stroke: #1f2933; stroke-width: 1.5; stroke-dasharray: 5 3 }
.tip { fill: #1f2933 }
.life-line { stroke: #cbd2d9; stroke-width: 2 }
.danger { fill: #fde8dc; stroke: #c05621 }
.safe { fill: #e3f4e6; stroke: #2f855a }
.shell { fill: #2f6f9f; fill-opacity: 0.06; stroke: #9fc5e0 }
`

func (c *canvas) svg() []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`,
		c.width, c.height, c.width, c.height)
	fmt.Fprintf(&out, "\n<style>%s</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", style)
	out.Write(c.body.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func (c *canvas) text(x, y int, class, anchor, text string) {
	fmt.Fprintf(&c.body, "<text x=\"%d\" y=\"%d\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, class, anchor, text)
}

func (c *canvas) line(x1, y1, x2, y2 int, class string) {
	fmt.Fprintf(&c.body, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" class=\"%s\"/>\n", x1, y1, x2, y2, class)
}

func (c *canvas) rect(x, y, w, h int, class string) {
	fmt.Fprintf(&c.body, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"%s\"/>\n", x, y, w, h, class)
}

func (c *canvas) dot(x, y int) {
	fmt.Fprintf(&c.body, "<circle cx=\"%d\" cy=\"%d\" r=\"6\" class=\"dot\"/>\n", x, y)
}
