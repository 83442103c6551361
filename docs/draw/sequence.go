package main

import "fmt"

// sequence draws who says what to whom, downwards.
type sequence struct {
	*canvas
	columns []int
	y       int
	from    int // where the lifelines begin
}

const (
	seqTop  = 34
	seqStep = 36
)

// newSequence starts a drawing with these actors, one column each.
func newSequence(c *canvas, width int, actors ...string) *sequence {
	s := &sequence{canvas: c, y: seqTop + 34, from: seqTop + 8}
	c.width = width
	gap := (width - 160) / (len(actors) - 1)
	for i, name := range actors {
		x := 80 + i*gap
		s.columns = append(s.columns, x)
		c.rect(x-66, seqTop-22, 132, 30, "actor")
		c.text(x, seqTop-2, "on", "middle", name)
	}
	return s
}

// says draws an arrow from one actor to another. Answers are dashed.
func (s *sequence) says(from, to int, text string) { s.arrow(from, to, text, "call") }

func (s *sequence) answers(from, to int, text string) { s.arrow(from, to, text, "answer") }

func (s *sequence) arrow(from, to int, text, class string) {
	x1, x2 := s.columns[from], s.columns[to]
	s.line(x1, s.y, x2, s.y, class)
	tip := 8
	if x2 > x1 {
		tip = -8
	}
	fmt.Fprintf(&s.body, "<polygon points=\"%d,%d %d,%d %d,%d\" class=\"tip\"/>\n", x2, s.y, x2+tip, s.y-4, x2+tip, s.y+4)
	s.text((x1+x2)/2, s.y-8, "halo", "middle", text)
	s.y += seqStep
}

// note says something about one actor, beside its lifeline.
func (s *sequence) note(at int, class string, lines ...string) {
	x := s.columns[at]
	width := 0
	for _, l := range lines {
		width = max(width, 6*len(l)+20)
	}
	x = min(x, s.width-14-width/2)
	s.rect(x-width/2, s.y-20, width, 18*len(lines)+8, class)
	for i, l := range lines {
		s.text(x, s.y-3+18*i, "small", "middle", l)
	}
	s.y += 18*len(lines) + 22
}

// part begins a part of the scene with a rule and a title.
func (s *sequence) part(title string) {
	s.y += 2
	s.line(14, s.y-14, s.width-14, s.y-14, "grid")
	s.text(18, s.y+4, "title", "start", title)
	s.y += seqStep
}

// done draws the lifelines, behind all else, and ends the drawing.
func (s *sequence) done() {
	s.height = s.y + 4
	front := s.body.String()
	s.body.Reset()
	for _, x := range s.columns {
		s.line(x, s.from, x, s.height-14, "life-line")
	}
	s.body.WriteString(front)
}
