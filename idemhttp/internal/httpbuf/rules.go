package httpbuf

import (
	"net/http"
	"strconv"
)

// bodyAllowed is net/http's rule for which statuses have a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// declareLength reads the Content-Length that the endpoint set itself. One that
// isn't a number stays for the real writer to deal with.
func (b *Buffer) declareLength() {
	b.length = declaredLength(b.live)
	if b.length < 0 {
		b.live.Del("Content-Length")
	}
}

// declaredLength is the Content-Length in h, -1 if there is none.
func declaredLength(h http.Header) int64 {
	if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		return n
	}
	return -1
}
