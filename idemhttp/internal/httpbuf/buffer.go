// Package httpbuf holds a response back until its fate is settled.
package httpbuf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"
)

// ErrTooLarge is what Write returns, and Err, when a strict buffer's limit is
// passed.
var ErrTooLarge = errors.New("idemhttp: the response is larger than MaxResponse")

var errSwitching = errors.New("idemhttp: an idempotent endpoint can't switch protocols (101)")

// Buffer is an http.ResponseWriter that keeps what net/http would send. Nothing
// reaches the real writer before Send, no header either.
//
// It has neither Flush nor Hijack nor Unwrap: a flush through to the real writer
// would send a status before the work is committed. http.ResponseController
// answers http.ErrNotSupported for them. Deadlines and full duplex it forwards.
//
// Like any ResponseWriter it is used by one goroutine at a time.
type Buffer struct {
	real   http.ResponseWriter
	limit  int64
	strict bool
	head   bool // of a HEAD request: no body is sent

	live   http.Header // what Header returns
	sent   http.Header // live, as it was at the first WriteHeader
	status int         // 0: nothing written yet
	length int64       // the declared Content-Length, -1: none
	tried  int64       // bytes that Write was given, also those it refused
	body   bytes.Buffer
	err    error
}

// New returns a buffer in front of w, for a request with that method. The headers
// that w already has are there for the endpoint to see and to change. A strict buffer refuses to hold more
// than limit bytes; another one only remembers that there were more.
func New(w http.ResponseWriter, method string, limit int64, strict bool) *Buffer {
	live := w.Header().Clone()
	if live == nil {
		live = make(http.Header)
	}
	return &Buffer{real: w, limit: limit, strict: strict, head: method == http.MethodHead, live: live, length: -1}
}

// Header returns the headers to be sent. Changes after the first WriteHeader
// count for trailers only.
func (b *Buffer) Header() http.Header { return b.live }

// WriteHeader sets the status, once. An informational status (1xx) is dropped:
// nothing is sent before the fate of the response is settled. 101 makes the
// request fail, and a code outside 100 to 999 panics, as in net/http.
func (b *Buffer) WriteHeader(code int) {
	if code < 100 || code > 999 {
		panic(fmt.Sprintf("idemhttp: invalid WriteHeader code %v", code))
	}
	switch {
	case b.status != 0:
	case code == http.StatusSwitchingProtocols:
		_ = b.fail(errSwitching)
	case code >= 200:
		b.status = code
		b.sent = b.live.Clone()
		b.declareLength()
	}
}

// Write adds to the body.
func (b *Buffer) Write(p []byte) (int, error) {
	if err := b.room(len(p)); err != nil {
		return 0, err
	}
	return b.body.Write(p)
}

// WriteString is Write without the copy.
func (b *Buffer) WriteString(s string) (int, error) {
	if err := b.room(len(s)); err != nil {
		return 0, err
	}
	return b.body.WriteString(s)
}

func (b *Buffer) room(n int) error {
	if b.err != nil {
		return b.err
	}
	if b.status == 0 {
		b.WriteHeader(http.StatusOK)
	}
	if n == 0 {
		return nil
	}
	if !bodyAllowed(b.status) {
		return http.ErrBodyNotAllowed
	}
	b.tried += int64(n)
	switch {
	case b.length >= 0 && b.tried > b.length:
		return http.ErrContentLength
	case b.strict && b.tried > b.limit:
		return b.fail(fmt.Errorf("%w (%d bytes)", ErrTooLarge, b.limit))
	}
	return nil
}

func (b *Buffer) fail(err error) error {
	if b.err == nil {
		b.err = err
	}
	return err
}

// SetReadDeadline forwards to the real writer, for http.ResponseController.
func (b *Buffer) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(b.real).SetReadDeadline(t)
}

// SetWriteDeadline forwards to the real writer, for http.ResponseController.
func (b *Buffer) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(b.real).SetWriteDeadline(t)
}

// EnableFullDuplex forwards to the real writer, for http.ResponseController.
func (b *Buffer) EnableFullDuplex() error {
	return http.NewResponseController(b.real).EnableFullDuplex()
}

// Wrote tells whether the endpoint has written a status or a body.
func (b *Buffer) Wrote() bool { return b.status != 0 }

// Status is what the client would see: 200 where nothing was written.
func (b *Buffer) Status() int {
	if b.status == 0 {
		return http.StatusOK
	}
	return b.status
}

// Err says why the buffer can't be sent: over the limit, or 101. Nil if it can.
func (b *Buffer) Err() error { return b.err }

// TooLarge tells whether the body has passed the limit.
func (b *Buffer) TooLarge() bool {
	return int64(b.body.Len()) > b.limit || errors.Is(b.err, ErrTooLarge)
}

// Failed tells what makes an endpoint that has returned a failed one: Err, or
// nothing written while ctx, its context, is done, or fewer bytes than it has
// declared, which net/http doesn't send as an answer either: it cuts the
// connection. Nil if it hasn't failed.
func (b *Buffer) Failed(ctx context.Context) error {
	switch {
	case b.err != nil:
		return b.err
	case b.status == 0 && ctx.Err() != nil:
		return fmt.Errorf("idemhttp: the endpoint wrote nothing: %w", context.Cause(ctx))
	}
	return b.short()
}

// short is an error where the body ends before the length that was declared, also
// where nothing was written at all.
func (b *Buffer) short() error {
	if b.head || !bodyAllowed(b.Status()) {
		return nil
	}
	length, wrote := b.length, int64(b.body.Len())
	if b.status == 0 {
		length = declaredLength(b.live)
	}
	if wrote < length {
		return fmt.Errorf("idemhttp: the endpoint declared a Content-Length of %d and wrote %d bytes", length, wrote)
	}
	return nil
}

// Body returns what was written so far. It is the buffer's own memory.
func (b *Buffer) Body() []byte { return b.body.Bytes() }

// Sent returns the headers that Send sends, with the Content-Type that net/http
// would have found by looking at the body. They are not to be changed.
func (b *Buffer) Sent() http.Header {
	h := b.sent
	if h == nil {
		h = b.live
	}
	_, typed := h["Content-Type"]
	if typed || h.Get("Content-Encoding") != "" || h.Get("Transfer-Encoding") != "" || b.body.Len() == 0 {
		return h
	}
	h = h.Clone()
	h.Set("Content-Type", http.DetectContentType(b.body.Bytes()))
	return h
}

// Send writes the response to the real writer.
func (b *Buffer) Send() error {
	h := b.real.Header()
	sent := b.Sent()
	clear(h)
	for k, v := range sent {
		h[k] = v
	}
	if b.status != 0 {
		b.real.WriteHeader(b.status)
	}
	if b.body.Len() > 0 {
		if _, err := b.real.Write(b.body.Bytes()); err != nil {
			return err
		}
	}
	b.sendTrailers(h, sent)
	return nil
}

// sendTrailers leaves in the real header what is declared as a trailer, or marked
// as one, as it is now and no longer as it was at the first WriteHeader: net/http
// sends these behind the body.
func (b *Buffer) sendTrailers(real, sent http.Header) {
	for _, line := range sent["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			delete(real, name)
			if v, ok := b.live[name]; ok {
				real[name] = v
			}
		}
	}
	marked := func(name string, _ []string) bool { return strings.HasPrefix(name, http.TrailerPrefix) }
	maps.DeleteFunc(real, marked)
	for name, v := range b.live {
		if marked(name, v) {
			real[name] = v
		}
	}
}
