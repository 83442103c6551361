package idemhttp

import (
	"encoding/json"
	"net/http"
	"unicode/utf8"
)

// CanonicalJSON is a [Fingerprint] for JSON bodies: the order of keys, white
// space, the spelling of strings ("\u00e9" or "é") and of numbers (1.50 or
// 15e-1) don't count. Numbers are compared exactly, whatever their size, but
// for exponents of more than 64 digits; -0 isn't 0.
//
// A body that isn't JSON, or that two parsers could read differently (a key
// twice in one object, also in another case, invalid UTF-8, half a surrogate
// pair), counts byte for byte.
//
// While it is made it takes memory of some twenty times the body at most: that
// is for many small members in the wrong order.
func CanonicalJSON() Fingerprint {
	return Fingerprint{Version: "json/1", Of: func(_ *http.Request, body []byte) ([]byte, error) {
		if canonical, ok := canonicalJSON(body); ok {
			return canonical, nil
		}
		return append([]byte("raw:"), body...), nil
	}}
}

const canonicalPrefix = "json:"

func canonicalJSON(body []byte) ([]byte, bool) {
	if !utf8.Valid(body) || !json.Valid(body) { // Valid also bounds the nesting
		return nil, false
	}
	c := canonicalizer{in: body, out: make([]byte, 0, len(body)+len(body)/4+64)}
	c.out = append(c.out, canonicalPrefix...)
	c.value()
	if c.ambiguous {
		return nil, false
	}
	return c.sorted(), true
}

// canonicalizer writes valid JSON anew, in the order in which it stands. The
// members of objects are put in order after it, all at once: to do it object by
// object would cost a hostile body's depth times its size.
type canonicalizer struct {
	in        []byte // what is left of the body
	out       []byte
	open      []member // of the objects that are being read
	objects   []object // those that are out of order
	ambiguous bool
}

func (c *canonicalizer) space() {
	for len(c.in) > 0 && (c.in[0] == ' ' || c.in[0] == '\t' || c.in[0] == '\n' || c.in[0] == '\r') {
		c.in = c.in[1:]
	}
}

// take copies one byte.
func (c *canonicalizer) take() {
	c.out = append(c.out, c.in[0])
	c.in = c.in[1:]
}

func (c *canonicalizer) value() {
	c.space()
	switch c.in[0] {
	case '[':
		c.items(']', c.value)
	case '{':
		c.object()
	case '"':
		c.text()
	default:
		c.scalar()
	}
	c.space()
}

// items reads what stands between brackets.
func (c *canonicalizer) items(end byte, item func()) {
	c.take()
	for c.space(); c.in[0] != end; {
		item()
		if c.in[0] == ',' {
			c.take()
		}
	}
	c.take()
}

func (c *canonicalizer) object() {
	start, first := len(c.out), len(c.open)
	c.items('}', c.member)
	c.close(start, c.open[first:])
	c.open = c.open[:first]
}

func (c *canonicalizer) member() {
	c.space()
	m := member{start: len(c.out)}
	c.text()
	m.keyEnd = len(c.out)
	c.space()
	c.take() // the colon
	c.value()
	m.end = len(c.out)
	c.open = append(c.open, m)
}

// scalar is a number, true, false or null.
func (c *canonicalizer) scalar() {
	n := 0
	for n < len(c.in) && isScalar(c.in[n]) {
		n++
	}
	text := c.in[:n]
	c.in = c.in[n:]
	if text[0] == '-' || '0' <= text[0] && text[0] <= '9' {
		c.out = appendNumber(c.out, text)
		return
	}
	c.out = append(c.out, text...)
}

func isScalar(b byte) bool {
	return 'a' <= b && b <= 'z' || '0' <= b && b <= '9' || b == '-' || b == '+' || b == '.' || b == 'E'
}
