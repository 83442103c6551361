package httpbuf

import (
	"net/http"
	"strconv"
	"strings"
)

// bodyAllowed is net/http's rule for which statuses have a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// declaredLength is the Content-Length that the endpoint set itself. One that
// isn't a number is dropped, as net/http does.
func declaredLength(h http.Header) int64 {
	text := h.Get("Content-Length")
	if text == "" {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 0 {
		h.Del("Content-Length")
		return -1
	}
	return n
}
