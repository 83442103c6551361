package main

// The layout of the drawing of the generations, in pixels.
const (
	left  = 150 // where time 0 is
	half  = 150 // half a window
	bar   = 26
	pitch = 44
	top   = 56
)

// generations shows three generations of ids, and the lives of ids that land
// early, just before a rotation and just after it.
func generations(c *canvas) {
	c.width, c.height = left+5*half+20, 374
	timeAxis(c)
	for n := range 3 {
		drawGeneration(c, n)
	}
	drawLife(c, 3, 12, 1, "a, lands early", "remembered for nearly W")
	drawLife(c, 4, half-12, 1, "b, before a rotation", "for a little more than W/2")
	drawLife(c, 5, half+12, 2, "c, just after it", "for nearly W")
	legend(c)
}

func timeAxis(c *canvas) {
	for i, label := range []string{"0", "W/2", "W", "3W/2", "2W", "5W/2"} {
		x := left + i*half
		c.line(x, top-18, x, top+6*pitch, "grid")
		c.text(x, top-26, "small", "middle", label)
	}
	c.line(left, top-18, left+5*half, top-18, "axis")
}

func drawGeneration(c *canvas, n int) {
	x, y := left+n*half, top+n*pitch
	c.text(left-14, y+18, "", "end", "generation "+string(rune('1'+n)))
	c.rect(x, y, half, bar, "takes")
	c.text(x+half/2, y+18, "on", "middle", "takes ids")
	c.rect(x+half, y, half, bar, "consulted")
	c.text(x+half+half/2, y+18, "", "middle", "is consulted")
	c.text(x+2*half+8, y+18, "small", "start", "gone")
}

// drawLife draws an id that lands in generation n.
func drawLife(c *canvas, row, landed, n int, name, note string) {
	x, y := left+landed, top+row*pitch+13
	c.text(left-14, y+5, "", "end", name)
	end := left + (n+1)*half
	c.line(x, y, end, y, "life")
	c.dot(x, y)
	c.text(end+12, y+5, "small", "start", note)
}

func legend(c *canvas) {
	y := top + 6*pitch + 26
	c.text(left, y, "small", "start",
		"A generation begins with the first id that lands in it. It closes after W/2, or when it holds half of maxTracked.")
	c.text(left, y+18, "small", "start",
		"At W after its start it is gone, however late the next call comes. W is the window.")
}
