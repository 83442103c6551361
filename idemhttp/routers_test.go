package idemhttp_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

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

// The server removes the files of a multipart form it finds in the request it
// has made itself; the endpoint is given a copy of it.
func TestUploadedFilesAreRemoved(t *testing.T) {
	t.Run("guarded", func(t *testing.T) { testUpload(t, idemhttp.NewMemoryStore()) })
	t.Run("store down, running unguarded", func(t *testing.T) { testUpload(t, claimless{idemhttp.NewMemoryStore()}) })
}

// claimless is a store that is down for requests.
type claimless struct{ *idemhttp.MemoryStore }

func (claimless) Claim(context.Context, idemhttp.Claim, time.Duration) (bool, error) {
	return false, io.ErrClosedPipe
}

func (claimless) Lookup(context.Context, idemhttp.ID) (idemhttp.Record, bool, error) {
	return idemhttp.Record{}, false, io.ErrClosedPipe
}

func testUpload(t *testing.T, store idemhttp.Store) {
	name := make(chan string, 1)
	e, err := idemhttp.New(store, "up", idemhttp.Policy{Scope: public, MaxBody: 1 << 20, FailOpen: true})
	require.NoError(t, err)
	srv := httptest.NewServer(e.DeduplicateWithResponse(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if !assert.NoError(t, r.ParseMultipartForm(1<<10)) {
			return
		}
		part, err := r.MultipartForm.File["f"][0].Open()
		if !assert.NoError(t, err) {
			return
		}
		defer part.Close()
		file, ok := part.(*os.File)
		if !assert.True(t, ok, "the form was kept in memory") {
			return
		}
		name <- file.Name()
	})))
	defer srv.Close()

	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "large")
	require.NoError(t, err)
	_, err = part.Write(make([]byte, 100_000))
	require.NoError(t, err)
	require.NoError(t, form.Close())
	r, err := http.NewRequest(http.MethodPost, srv.URL, &body)
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	srv.Close() // the request is over
	assert.NoFileExists(t, <-name)
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
