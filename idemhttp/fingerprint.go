package idemhttp

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"net/http"
	"strings"
)

// Fingerprint says which requests with the same key are the same request. The
// method, the path and the query always count; Of says what else does. The zero
// value is the raw body.
type Fingerprint struct {
	// Version names this way of fingerprinting. Change it whenever Of changes:
	// claims of another version are then not compared, instead of refused.
	Version string
	// Of returns what counts of a request's body, which is given to it whole. It
	// may look at the rest of the request, too, but must not change it. An error
	// refuses the request (400). It may be called from many goroutines at once.
	Of func(r *http.Request, body []byte) ([]byte, error)
}

func rawBody() Fingerprint {
	return Fingerprint{Version: "raw/1", Of: func(_ *http.Request, body []byte) ([]byte, error) { return body, nil }}
}

func (f Fingerprint) sum(r *http.Request, body []byte) (Sum, error) {
	content, err := f.Of(r, body)
	if err != nil {
		return Sum{}, err
	}
	h := sha256.New()
	writeField(h, method(r))
	writeField(h, sentPath(r))
	writeField(h, r.URL.RawQuery)
	writeField(h, content)
	s := Sum{Version: f.Version}
	h.Sum(s.Hash[:0])
	return s, nil
}

func writeField[T string | []byte](h hash.Hash, s T) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	h.Write([]byte(s))
}

func method(r *http.Request) string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// sentPath is the path as the client sent it. r.URL.Path won't do: it has lost
// what http.StripPrefix and mounted routers took off, and two resources would
// look alike.
func sentPath(r *http.Request) string {
	target := r.RequestURI
	if target == "" { // not made by a server
		return r.URL.EscapedPath()
	}
	target, _, _ = strings.Cut(target, "?")
	if scheme, rest, ok := strings.Cut(target, "://"); ok && !strings.Contains(scheme, "/") {
		slash := strings.IndexByte(rest, '/')
		if slash < 0 {
			return "/"
		}
		return rest[slash:]
	}
	return target
}
