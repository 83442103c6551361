package idemhttp_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
)

func endpoint(t *testing.T) *idemhttp.Endpoint {
	t.Helper()
	e, err := idemhttp.New(idemhttp.NewMemoryStore(), "order", idemhttp.Policy{Scope: public, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return e
}

func send(h http.Handler, key, path string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, strings.NewReader("body"))
	r.Header.Set("Idempotency-Key", key)
	h.ServeHTTP(w, r)
	return w
}

// checkRouter sends each of two requests twice: the path's parameter reaches the
// endpoint, and each has its own answer.
func checkRouter(t *testing.T, h http.Handler) {
	t.Helper()
	for _, id := range []string{"1", "2"} {
		first, second := send(h, "key-"+id, "/orders/"+id), send(h, "key-"+id, "/orders/"+id)
		assert.Equal(t, "order "+id, first.Body.String())
		assert.Empty(t, first.Header().Get("Idempotent-Replayed"))
		assert.Equal(t, "order "+id, second.Body.String())
		assert.Equal(t, "true", second.Header().Get("Idempotent-Replayed"))
	}
	assert.Equal(t, 422, send(h, "key-1", "/orders/2").Code)
}

func TestServeMux(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", endpoint(t).DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "order "+r.PathValue("id"))
	})))
	checkRouter(t, mux)
}

func TestAroundAServeMux(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "order "+r.PathValue("id"))
	})
	checkRouter(t, endpoint(t).DeduplicateWithResponse(mux))
}

func TestChi(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "order "+chi.URLParam(r, "id")) }
	t.Run("With", func(t *testing.T) {
		r := chi.NewRouter()
		r.Use(middleware.RequestID, middleware.Recoverer)
		r.With(endpoint(t).DeduplicateWithResponse).Post("/orders/{id}", handler)
		checkRouter(t, r)
	})
	t.Run("Group", func(t *testing.T) {
		r := chi.NewRouter()
		r.Group(func(r chi.Router) {
			r.Use(endpoint(t).DeduplicateWithResponse)
			r.Post("/orders/{id}", handler)
		})
		checkRouter(t, r)
	})
	t.Run("Mount", func(t *testing.T) {
		sub := chi.NewRouter()
		sub.With(endpoint(t).DeduplicateWithResponse).Post("/{id}", handler)
		r := chi.NewRouter()
		r.Mount("/orders", sub)
		checkRouter(t, r)
	})
}

func TestARouteThatIsMissingIsNotStored(t *testing.T) {
	mux := http.NewServeMux()
	h := endpoint(t).DeduplicateWithResponse(mux)
	assert.Equal(t, 404, send(h, "k", "/orders/1").Code)
	mux.HandleFunc("/orders/1", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	assert.Equal(t, 201, send(h, "k", "/orders/1").Code)
}

func TestHeadHasNoBodyToFallShort(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "3")
		w.WriteHeader(http.StatusOK)
	})
	for method, status := range map[string]int{http.MethodHead: 200, http.MethodPut: 500} {
		e, err := idemhttp.New(idemhttp.NewMemoryStore(), "x", idemhttp.Policy{
			Scope: public, Methods: []string{method}, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		w, r := httptest.NewRecorder(), httptest.NewRequest(method, "/", http.NoBody)
		r.Header.Set("Idempotency-Key", "k")
		e.DeduplicateWithResponse(h).ServeHTTP(w, r)
		assert.Equal(t, status, w.Code, method)
	}
}
