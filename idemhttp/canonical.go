package idemhttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

// CanonicalJSON is a [Fingerprint] for JSON bodies: the order of keys, white
// space, the spelling of strings ("\u00e9" or "é") and of numbers (1.50 or
// 15e-1) don't count. Numbers are compared exactly, whatever their size.
//
// A body that isn't JSON, or that two parsers could read differently (a key
// twice in one object, invalid UTF-8, half a surrogate pair), counts byte for
// byte.
func CanonicalJSON() Fingerprint {
	return Fingerprint{Version: "json/1", Of: func(_ *http.Request, body []byte) ([]byte, error) {
		if canonical, ok := canonicalJSON(body); ok {
			return append([]byte("json:"), canonical...), nil
		}
		return append([]byte("raw:"), body...), nil
	}}
}

var errAmbiguous = errors.New("idemhttp: the JSON can be read in two ways")

func canonicalJSON(body []byte) ([]byte, bool) {
	if !utf8.Valid(body) || !json.Valid(body) { // Valid also bounds the nesting
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	c := canonicalizer{dec: dec}
	if err := c.value(); err != nil {
		return nil, false
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, false
	}
	return c.out, true
}

type canonicalizer struct {
	dec *json.Decoder
	out []byte
}

func (c *canonicalizer) value() error {
	tok, err := c.dec.Token()
	if err != nil {
		return err
	}
	switch tok := tok.(type) {
	case json.Delim:
		if tok == '[' {
			return c.array()
		}
		return c.object()
	case string:
		return c.string(tok)
	case json.Number:
		c.out = append(c.out, canonicalNumber(string(tok))...)
	case bool:
		c.out = append(c.out, map[bool]string{true: "true", false: "false"}[tok]...)
	default:
		c.out = append(c.out, "null"...)
	}
	return nil
}

func (c *canonicalizer) string(s string) error {
	if strings.ContainsRune(s, utf8.RuneError) {
		return errAmbiguous // it may stand for half a surrogate pair
	}
	quoted, err := json.Marshal(s)
	c.out = append(c.out, quoted...)
	return err
}

func (c *canonicalizer) array() error {
	c.out = append(c.out, '[')
	for c.dec.More() {
		if err := c.value(); err != nil {
			return err
		}
		c.out = append(c.out, ',')
	}
	c.out = append(c.out, ']')
	_, err := c.dec.Token()
	return err
}

// member is one "key":value of an object, as it stands in the output.
type member struct {
	key  string
	text []byte
}

func (c *canonicalizer) object() error {
	outer := c.out
	var members []member
	for c.dec.More() {
		m, err := c.member()
		if err != nil {
			return err
		}
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
	c.out = append(outer, '{')
	for i, m := range members {
		if i > 0 && m.key == members[i-1].key {
			return errAmbiguous
		}
		c.out = append(append(c.out, m.text...), ',')
	}
	c.out = append(c.out, '}')
	_, err := c.dec.Token()
	return err
}

func (c *canonicalizer) member() (member, error) {
	tok, err := c.dec.Token()
	if err != nil {
		return member{}, err
	}
	key := tok.(string) // Valid has seen to it
	c.out = nil
	if err := c.string(key); err != nil {
		return member{}, err
	}
	c.out = append(c.out, ':')
	err = c.value()
	return member{key: key, text: c.out}, err
}

// canonicalNumber writes a JSON number as its digits and an exponent, neither
// leading nor trailing zeros: 1.50 is 15e-1. No float is involved, so that large
// numbers that differ stay different.
func canonicalNumber(text string) string {
	sign := ""
	if rest, negative := strings.CutPrefix(text, "-"); negative {
		sign, text = "-", rest
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return sign + "0"
	}
	short := strings.TrimRight(digits, "0")
	exp := new(big.Int)
	if len(exponent) > maxExponentDigits {
		return sign + text // reading it would cost the square of its length
	}
	exp.SetString(cmpOr(exponent, "0"), 10)
	exp.Add(exp, big.NewInt(int64(len(digits)-len(short)-len(fraction))))
	return sign + short + "e" + exp.String()
}

const maxExponentDigits = 64
