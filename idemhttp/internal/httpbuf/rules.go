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
	text := b.live.Get("Content-Length")
	if text == "" {
		return
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		b.length = n
	} else {
		b.live.Del("Content-Length")
	}
}
