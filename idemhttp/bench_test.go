package idemhttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
)

// BenchmarkRequest is what the middleware costs, on a store in memory: nothing
// around the handler, no key, the first request of a key, a replay.
func BenchmarkRequest(b *testing.B) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":1,"account":"a1","cents":500}`)
	})
	e, err := idemhttp.New(idemhttp.NewMemoryStore(), "bench", idemhttp.Policy{Scope: public, Optional: true})
	require.NoError(b, err)
	guarded := e.DeduplicateWithResponse(handler)

	b.Run("bare", func(b *testing.B) { request(b, handler, nil) })
	b.Run("no-key", func(b *testing.B) { request(b, guarded, nil) })
	b.Run("first", func(b *testing.B) { request(b, guarded, strconv.Itoa) })
	b.Run("replay", func(b *testing.B) { request(b, guarded, func(int) string { return "the same" }) })
}

func request(b *testing.B, h http.Handler, key func(i int) string) {
	b.ReportAllocs()
	const body = `{"account":"a1","cents":500}`
	for i := 0; b.Loop(); i++ {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
		if key != nil {
			r.Header["Idempotency-Key"] = []string{key(i)}
		}
		h.ServeHTTP(discard{make(http.Header)}, r)
	}
}
