package idemhttp

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/idem-go/idem/idemhttp/internal/httpbuf"
	"github.com/idem-go/idem/idemhttp/internal/seam"
)

// Exchange is one request on its way through an [Endpoint]. It is for this
// repository's packages that settle requests in a way of their own; nothing else
// can get one. See package internal/seam.
type Exchange struct {
	// Request is what the endpoint is given: its body can be read from the start.
	// See Unread for who reads it more than once.
	Request *http.Request
	// Guarded is false where the endpoint runs without a claim.
	Guarded bool
	// Claim is this request's row, with a token of its own. Zero if not Guarded.
	Claim Claim

	endpoint *Endpoint
	w        http.ResponseWriter
	original *http.Request
	body     []byte // as it was read; nil where there is none
}

// Open decides everything about a request that needs no store: method, nesting,
// scope, key, body, fingerprint, in this order. ok is false where it has refused
// the request.
func (e *Endpoint) Open(_ seam.Pass, w http.ResponseWriter, r *http.Request) (x *Exchange, ok bool) {
	return e.open(w, r)
}

func (e *Endpoint) open(w http.ResponseWriter, r *http.Request) (*Exchange, bool) {
	x := &Exchange{Request: r, endpoint: e, w: w, original: r}
	if !slices.Contains(e.policy.Methods, method(r)) || claimedOn(r.Context(), e.store) {
		return x, true
	}
	id, err := e.identify(r)
	if err != nil {
		return x.openWithout(err)
	}
	sum, reason, err := x.readAll()
	if err != nil {
		x.Refuse(reason, err)
		return nil, false
	}
	x.Guarded = true
	x.Claim = Claim{ID: id, Token: newToken(), Sum: sum}
	return x, true
}

// readAll reads the body and takes its fingerprint. The reason is that of the
// error.
func (x *Exchange) readAll() (sum Sum, reason Reason, err error) {
	x.body, reason, err = readBody(x.w, x.Request, x.endpoint.policy.MaxBody)
	if err != nil {
		return sum, reason, err
	}
	x.Request = x.Unread(x.Request.Context())
	sum, err = x.endpoint.policy.Fingerprint.sum(x.Request, x.body)
	x.rewind() // Of may have read it
	x.HandBackForm(x.Request)
	return sum, NoFingerprint, err
}

// openWithout goes on, or doesn't, with a request that can't be identified.
func (x *Exchange) openWithout(err error) (*Exchange, bool) {
	switch {
	case errors.Is(err, errKeyMissing) && x.endpoint.policy.Optional:
		return x, true
	case errors.Is(err, errKeyMissing):
		x.Refuse(KeyMissing, fmt.Errorf("the header %s is missing", x.endpoint.policy.Header))
	case errors.Is(err, errNoScope):
		x.Refuse(NoScope, err)
	default:
		x.Refuse(KeyInvalid, err)
	}
	return nil, false
}

// identify is scope, then key.
func (e *Endpoint) identify(r *http.Request) (ID, error) {
	scope, err := e.policy.Scope(r)
	if err != nil {
		return ID{}, fmt.Errorf("%w: %w", errNoScope, err)
	}
	if err := scope.check(); err != nil {
		return ID{}, err
	}
	key, err := requestKey(r.Header, e.policy.Header)
	if err != nil {
		return ID{}, err
	}
	return storageID(e.name, scope, key), nil
}

func newToken() Token {
	var t Token
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// readBody reads the whole body, which is nil where there is none. The reason
// is that of the error.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, Reason, error) {
	if parsedAsForm(r) {
		return nil, BodyConsumed, errors.New("idemhttp: the body was parsed as a form before the endpoint")
	}
	if r.ContentLength > limit {
		return nil, BodyTooLarge, tooLarge(limit)
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, BodyConsumed, checkLeft(nil, r.ContentLength)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, BodyTooLarge, tooLarge(over.Limit)
	case err != nil:
		return nil, BodyUnreadable, fmt.Errorf("idemhttp: reading the body: %w", err)
	}
	return body, BodyConsumed, checkLeft(body, r.ContentLength)
}

// checkLeft notices that somebody else has had a part of the body: one that was
// cut short is an error when it is read. Of a chunked one the length isn't known.
func checkLeft(body []byte, length int64) error {
	if int64(len(body)) < length {
		return fmt.Errorf("idemhttp: only %d of the body's %d bytes were left for the endpoint", len(body), length)
	}
	return nil
}

func tooLarge(limit int64) error { return fmt.Errorf("the body is larger than %d bytes", limit) }

// parsedAsForm tells whether ParseForm or its relatives have read the body.
func parsedAsForm(r *http.Request) bool {
	if r.MultipartForm != nil {
		return true
	}
	ct, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return r.PostForm != nil && strings.EqualFold(strings.TrimSpace(ct), "application/x-www-form-urlencoded")
}

// Unread is a copy of the request, with ctx, and with its body to be read from
// the start: as often as it is asked for where the request is Guarded. The body of
// another one isn't kept, and the copy shares it.
func (x *Exchange) Unread(ctx context.Context) *http.Request {
	r := x.Request.WithContext(ctx) // a shallow copy
	if x.body != nil {
		r.Body = io.NopCloser(bytes.NewReader(x.body))
	}
	return r
}

// rewind is Unread for a request that is a copy already.
func (x *Exchange) rewind() {
	if x.body != nil {
		x.Request.Body = io.NopCloser(bytes.NewReader(x.body))
	}
}

type claimedKey struct{}

// Context marks ctx as that of a request with a claim on the endpoint's store,
// so that middleware further in lets it through.
func (x *Exchange) Context(ctx context.Context) context.Context {
	outer, _ := ctx.Value(claimedKey{}).([]Store)
	return context.WithValue(ctx, claimedKey{}, append(slices.Clip(outer), x.endpoint.store))
}

func claimedOn(ctx context.Context, s Store) bool {
	stores, _ := ctx.Value(claimedKey{}).([]Store)
	return slices.Contains(stores, s)
}

// Buffer returns a buffer in front of the response. A strict one doesn't hold
// more than MaxResponse.
func (x *Exchange) Buffer(strict bool) *httpbuf.Buffer {
	return httpbuf.New(x.w, x.Request.Method, x.endpoint.policy.MaxResponse, strict)
}

// Response is what is stored of the buffered response.
func (x *Exchange) Response(b *httpbuf.Buffer) *Response {
	return &Response{Status: b.Status(), Header: keep(b.Sent(), x.endpoint.stored), Body: b.Body()}
}

// HandBackForm sees to the files of a form that was parsed from r, a copy of the
// request, by somebody who is done with it. The server removes those of one form, in
// the request it has made itself; those of another are removed now.
func (x *Exchange) HandBackForm(r *http.Request) {
	switch form := r.MultipartForm; {
	case form == nil, form == x.original.MultipartForm:
	case x.original.MultipartForm == nil:
		x.original.MultipartForm = form
	default:
		_ = form.RemoveAll()
	}
}
