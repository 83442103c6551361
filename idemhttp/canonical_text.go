package idemhttp

import (
	"bytes"
	"math/big"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// text reads a string and writes it as encoding/json does.
func (c *canonicalizer) text() {
	c.take() // the quote
	for c.in[0] != '"' {
		r := c.character()
		// It may stand for half a surrogate pair.
		c.ambiguous = c.ambiguous || r == utf8.RuneError
		c.out = appendCharacter(c.out, r)
	}
	c.take()
}

// character reads one character of a string, escaped or not.
func (c *canonicalizer) character() rune {
	if c.in[0] != '\\' {
		r, n := utf8.DecodeRune(c.in)
		c.in = c.in[n:]
		return r
	}
	b := c.in[1]
	if b == 'u' {
		return c.escaped()
	}
	c.in = c.in[2:]
	if i := bytes.IndexByte([]byte("bfnrt"), b); i >= 0 {
		return rune("\b\f\n\r\t"[i])
	}
	return rune(b)
}

// escaped reads \u and four digits, twice where it is a surrogate pair.
func (c *canonicalizer) escaped() rune {
	r := hex4(c.in[2:6])
	c.in = c.in[6:]
	if !utf16.IsSurrogate(r) {
		return r
	}
	if len(c.in) < 6 || c.in[0] != '\\' || c.in[1] != 'u' {
		return utf8.RuneError
	}
	r = utf16.DecodeRune(r, hex4(c.in[2:6]))
	if r != utf8.RuneError {
		c.in = c.in[6:]
	}
	return r
}

// hex4 reads four hexadecimal digits.
func hex4(digits []byte) (r rune) {
	for _, d := range digits {
		r = r<<4 | rune(d&0xf)
		if d >= 'A' { // a letter of either case
			r += 9
		}
	}
	return r
}

func appendCharacter(out []byte, r rune) []byte {
	switch {
	case r == '"' || r == '\\':
		return append(out, '\\', byte(r))
	case r < ' ':
		return appendControl(out, r)
	case r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029':
		return appendEscape(out, r)
	}
	return utf8.AppendRune(out, r)
}

func appendControl(out []byte, r rune) []byte {
	if i := bytes.IndexByte([]byte("\b\f\n\r\t"), byte(r)); i >= 0 {
		return append(out, '\\', "bfnrt"[i])
	}
	return appendEscape(out, r)
}

func appendEscape(out []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	return append(out, '\\', 'u', hex[r>>12&0xf], hex[r>>8&0xf], hex[r>>4&0xf], hex[r&0xf])
}

const maxExponentDigits = 64

// appendNumber writes a JSON number as its digits and an exponent, neither
// leading nor trailing zeros: 1.50 is 15e-1. No float is involved, so that large
// numbers that differ stay different.
func appendNumber(out, text []byte) []byte {
	if text[0] == '-' {
		out, text = append(out, '-'), text[1:]
	}
	mantissa, exponent := text, []byte(nil)
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		mantissa, exponent = text[:i], text[i+1:]
	}
	whole, fraction, _ := bytes.Cut(mantissa, []byte("."))
	start := len(out)
	out = append(append(out, whole...), fraction...)
	digits := bytes.TrimLeft(out[start:], "0")
	if len(digits) == 0 {
		return append(out[:start], '0')
	}
	if len(exponent) > maxExponentDigits {
		return append(out[:start], text...) // reading it would cost the square of its length
	}
	short := bytes.TrimRight(digits, "0")
	shift := len(digits) - len(short) - len(fraction)
	out = append(append(out[:start], short...), 'e')
	return appendExponent(out, exponent, int64(shift))
}

// appendExponent writes an exponent, which may be empty, and is moved by shift.
func appendExponent(out, exponent []byte, shift int64) []byte {
	if len(exponent) == 0 {
		return strconv.AppendInt(out, shift, 10)
	}
	const fits = 17 // with the shift, too
	if len(exponent) <= fits {
		n, _ := strconv.ParseInt(string(exponent), 10, 64) // digits and a sign: no error
		return strconv.AppendInt(out, n+shift, 10)
	}
	exp := new(big.Int)
	exp.SetString(string(exponent), 10)
	return exp.Add(exp, big.NewInt(shift)).Append(out, 10)
}
