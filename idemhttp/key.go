package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

const maxKey = 255

var errKeyMissing = errors.New("idemhttp: the request has no idempotency key")

// requestKey reads the key from the header. It is a structured-field string
// ("abc"), as the IETF draft has it, or the same without its quotes, as most
// clients send it.
func requestKey(h http.Header, name string) (string, error) {
	values := h.Values(name)
	switch len(values) {
	case 0:
		return "", errKeyMissing
	case 1:
		return parseKey(name, values[0])
	default:
		return "", fmt.Errorf("the header %s was sent %d times", name, len(values))
	}
}

func parseKey(name, value string) (string, error) {
	key := strings.Trim(value, " \t")
	if strings.HasPrefix(key, `"`) {
		var err error
		if key, err = unquote(key); err != nil {
			return "", fmt.Errorf("the header %s %w", name, err)
		}
	} else if i := strings.IndexAny(key, `",;`); i >= 0 {
		// A comma may be two headers that a proxy has joined.
		return "", fmt.Errorf("the header %s has a %q outside quotes: it must be one string without parameters", name, key[i])
	}
	switch {
	case strings.Trim(key, " \t") == "":
		return "", fmt.Errorf("the header %s is blank", name)
	case len(key) > maxKey:
		return "", fmt.Errorf("the header %s has %d bytes: at most %d are allowed", name, len(key), maxKey)
	case strings.ContainsFunc(key, isControl):
		return "", fmt.Errorf("the header %s has a control character", name)
	}
	return key, nil
}

// unquote reads a structured-field string, which must be all there is.
func unquote(s string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			if i != len(s)-1 {
				return "", errors.New("has something behind the closing quote: it must be one string without parameters")
			}
			return key.String(), nil
		case '\\':
			i++
			if i == len(s) || (s[i] != '"' && s[i] != '\\') {
				return "", errors.New(`has a backslash that is not in front of a quote or a backslash`)
			}
			key.WriteByte(s[i])
		default:
			key.WriteByte(c)
		}
	}
	return "", errors.New("has no closing quote")
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }
