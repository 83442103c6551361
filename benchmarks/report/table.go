package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// table is a table of Markdown in the making.
type table struct{ b strings.Builder }

// newTable begins a table whose columns but the first hold figures.
func newTable(columns ...string) *table {
	t := &table{}
	t.row(columns...)
	rules := make([]string, len(columns))
	for i := range rules {
		rules[i] = "--:"
	}
	rules[0] = "---"
	t.row(rules...)
	return t
}

func (t *table) row(cells ...string) {
	fmt.Fprintf(&t.b, "| %s |\n", strings.Join(cells, " | "))
}

func (t *table) String() string { return t.b.String() }

// number writes a figure with as many digits as mean something.
func number(x float64) string {
	switch {
	case math.IsNaN(x):
		return "?"
	case x == 0:
		return "0"
	case math.Abs(x) < 0.95:
		return strconv.FormatFloat(x, 'f', 2, 64)
	case math.Abs(x) < 9.95:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return thousands(int(math.Round(x)))
}

// thousands puts commas in.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// times writes a ratio.
func times(x float64) string { return number(x) + "×" }
