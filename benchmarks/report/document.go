package main

import (
	"fmt"
	"strings"
)

// A block of the document is what stands between two lines of comment:
//
//	<!-- bench: NAME -->
//	<!-- bench: end -->
//
// All else in it is written by hand.
const (
	blockBegin = "<!-- bench: %s -->\n"
	blockEnd   = "<!-- bench: end -->\n"
)

// rewrite returns the document with the text of each block replaced. Each must be
// there, once.
func rewrite(document string, blocks []block) (string, error) {
	for _, b := range blocks {
		begin := fmt.Sprintf(blockBegin, b.name)
		if n := strings.Count(document, begin); n != 1 {
			return "", fmt.Errorf("report: the document has %d lines %q, not 1", n, strings.TrimSpace(begin))
		}
		before, rest, _ := strings.Cut(document, begin)
		old, after, ended := strings.Cut(rest, blockEnd)
		if !ended || strings.Contains(old, "<!-- bench:") {
			return "", fmt.Errorf("report: block %q of the document has no end", b.name)
		}
		document = before + begin + b.text + blockEnd + after
	}
	return document, nil
}

// block is a named part of the document that a program writes.
type block struct {
	name, text string
	empty      bool // nothing that it says was measured
}
