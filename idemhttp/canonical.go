package idemhttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strconv"
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
	root, err := readValue(dec)
	if err != nil {
		return nil, false
	}
	return root.append(make([]byte, 0, len(body))), true
}

// jsonValue is a tree, written only once it is complete: text that is copied up
// through every level would cost a hostile body's depth times its size.
type jsonValue struct {
	text  string // a scalar, as it is written
	open  string // "[" or "{" of what has items
	items []jsonItem
}

type jsonItem struct {
	key   string // quoted; empty in an array
	value jsonValue
}

func (v jsonValue) append(out []byte) []byte {
	if v.open == "" {
		return append(out, v.text...)
	}
	out = append(out, v.open...)
	for i, item := range v.items {
		if i > 0 {
			out = append(out, ',')
		}
		if item.key != "" {
			out = append(append(out, item.key...), ':')
		}
		out = item.value.append(out)
	}
	return append(out, map[string]byte{"[": ']', "{": '}'}[v.open])
}

// readValue reads one value of valid JSON.
func readValue(dec *json.Decoder) (jsonValue, error) {
	tok, err := dec.Token()
	if err != nil {
		return jsonValue{}, err
	}
	switch tok := tok.(type) {
	case json.Delim:
		return readItems(dec, tok)
	case string:
		text, err := canonicalString(tok)
		return jsonValue{text: text}, err
	case json.Number:
		return jsonValue{text: canonicalNumber(string(tok))}, nil
	case bool:
		return jsonValue{text: strconv.FormatBool(tok)}, nil
	default:
		return jsonValue{text: "null"}, nil
	}
}

func readItems(dec *json.Decoder, open json.Delim) (jsonValue, error) {
	v := jsonValue{open: open.String()}
	for dec.More() {
		item, err := readItem(dec, open == '{')
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
	}
	if _, err := dec.Token(); err != nil { // the closing one
		return v, err
	}
	if open == '{' {
		return v, v.sortKeys()
	}
	return v, nil
}

func readItem(dec *json.Decoder, keyed bool) (item jsonItem, err error) {
	if keyed {
		tok, err := dec.Token()
		if err != nil {
			return item, err
		}
		if item.key, err = canonicalString(fmt.Sprint(tok)); err != nil {
			return item, err
		}
	}
	item.value, err = readValue(dec)
	return item, err
}

func (v jsonValue) sortKeys() error {
	slices.SortFunc(v.items, func(a, b jsonItem) int { return strings.Compare(a.key, b.key) })
	for i := 1; i < len(v.items); i++ {
		if v.items[i].key == v.items[i-1].key {
			return errAmbiguous
		}
	}
	return nil
}

func canonicalString(s string) (string, error) {
	if strings.ContainsRune(s, utf8.RuneError) {
		return "", errAmbiguous // it may stand for half a surrogate pair
	}
	quoted, err := json.Marshal(s)
	return string(quoted), err
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
