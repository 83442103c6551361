package idemhttp

import (
	"bytes"
	"cmp"
	"slices"
	"unicode"
	"unicode/utf8"
)

// member is one member of an object: where its key and its value stand.
type member struct{ start, keyEnd, end int }

// object is one whose members have to be put in order.
type object struct {
	start   int
	members []member
}

// close looks at the members of an object that has been read. Two members with
// one key can be read in two ways.
func (c *canonicalizer) close(start int, members []member) {
	order := func(a, b member) int {
		return bytes.Compare(c.out[a.start:a.keyEnd], c.out[b.start:b.keyEnd])
	}
	if !slices.IsSortedFunc(members, order) {
		members = slices.Clone(members)
		slices.SortFunc(members, order)
		c.objects = append(c.objects, object{start, members})
	}
	c.ambiguous = c.ambiguous || anyTwice(members, order) || c.alikeButForCase(members)
}

// anyTwice reports whether two of the members, which are in order, are equal by it.
func anyTwice(members []member, order func(a, b member) int) bool {
	for i := 1; i < len(members); i++ {
		if order(members[i-1], members[i]) == 0 {
			return true
		}
	}
	return false
}

// alikeButForCase reports whether two of the keys differ in case only: to many
// parsers, Go's among them, that is one key twice.
func (c *canonicalizer) alikeButForCase(members []member) bool {
	if len(members) < 2 || !slices.ContainsFunc(members, c.hasCase) {
		return false
	}
	folded := slices.Clone(members)
	order := func(a, b member) int {
		return compareFolded(c.out[a.start:a.keyEnd], c.out[b.start:b.keyEnd])
	}
	slices.SortFunc(folded, order)
	return anyTwice(folded, order)
}

// hasCase reports whether a key may equal another one but for case, if that one has
// lower-case ASCII letters only.
func (c *canonicalizer) hasCase(m member) bool {
	return slices.ContainsFunc(c.out[m.start:m.keyEnd], func(b byte) bool { return 'A' <= b && b <= 'Z' || b >= utf8.RuneSelf })
}

func compareFolded(a, b []byte) int {
	for len(a) > 0 && len(b) > 0 {
		ra, na := utf8.DecodeRune(a)
		rb, nb := utf8.DecodeRune(b)
		if d := cmp.Compare(leastCase(ra), leastCase(rb)); d != 0 {
			return d
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}

// leastCase is the first of the runes that differ from r in case only, or r.
func leastCase(r rune) rune {
	least := r
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		least = min(least, other)
	}
	return least
}

// sorted returns what was written, with the members of all objects in order.
func (c *canonicalizer) sorted() []byte {
	if len(c.objects) == 0 {
		return c.out
	}
	slices.SortFunc(c.objects, func(a, b object) int { return a.start - b.start })
	return c.copy(make([]byte, 0, len(c.out)), 0, len(c.out))
}

// copy appends what was written from one place to another.
func (c *canonicalizer) copy(to []byte, from, end int) []byte {
	for from < end {
		i, _ := slices.BinarySearchFunc(c.objects, from, func(o object, at int) int { return o.start - at })
		if i == len(c.objects) || c.objects[i].start >= end {
			break
		}
		o := c.objects[i]
		to = append(to, c.out[from:o.start]...)
		to, from = c.copyObject(to, o)
	}
	return append(to, c.out[from:end]...)
}

// copyObject returns where the object ends, too.
func (c *canonicalizer) copyObject(to []byte, o object) ([]byte, int) {
	end, before := 0, byte('{')
	for _, m := range o.members {
		to = append(to, before)
		to = c.copy(to, m.start, m.end)
		end, before = max(end, m.end), ','
	}
	return append(to, '}'), end + 1
}
