package idemhttp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
)

// The server removes the files of a multipart form it finds in the request it
// has made itself; everybody else is given a copy of it.
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
	u := uploads{t: t, store: store}
	u.post(1, func(_ http.ResponseWriter, r *http.Request) { u.parse(r) })
	u.expectRemoved(1)
}

// The functions of a policy that parse the form: each of them parses it anew.
func TestUploadedFilesOfAPolicyAreRemoved(t *testing.T) {
	u := uploads{t: t, store: idemhttp.NewMemoryStore()}
	u.policy.OnError = func(_ http.ResponseWriter, r *http.Request, _ error) { u.parse(r) }
	u.policy.ReplayCheck = func(r *http.Request) error { u.parse(r); return errors.New("not yours") }
	u.policy.Refuse = func(_ http.ResponseWriter, r *http.Request, _ idemhttp.Refusal) { u.parse(r) }
	again := false
	u.post(3, func(w http.ResponseWriter, r *http.Request) {
		if again {
			u.parse(r)
			return
		}
		again = true
		w.Header().Set("Content-Length", "1") // and nothing written: it has failed
	})
	u.expectRemoved(1 + 1 + 2)
}

// A form that the fingerprint parses is the endpoint's, too.
func TestUploadedFilesOfAFingerprintAreRemoved(t *testing.T) {
	u := uploads{t: t, store: idemhttp.NewMemoryStore()}
	u.policy.Fingerprint.Version = "form/1"
	u.policy.Fingerprint.Of = func(r *http.Request, _ []byte) ([]byte, error) { u.parse(r); return nil, nil }
	u.post(2, func(_ http.ResponseWriter, r *http.Request) { u.parse(r) })
	u.expectRemoved(3)
	assert.Equal(t, u.files[0], u.files[1])
}

// uploads are requests with a file each.
type uploads struct {
	t      *testing.T
	store  idemhttp.Store
	policy idemhttp.Policy
	files  []string // where the parsers have put the file
}

// post sends the request to a server of its own, and returns when that is stopped.
func (u *uploads) post(times int, h http.HandlerFunc) {
	u.policy.Scope, u.policy.MaxBody, u.policy.FailOpen = public, 1<<20, true
	u.policy.Logger = slog.New(slog.DiscardHandler)
	e, err := idemhttp.New(u.store, "up", u.policy)
	require.NoError(u.t, err)
	srv := httptest.NewServer(e.DeduplicateWithResponse(h))
	defer srv.Close() // the requests are over then
	for range times {
		resp, err := http.DefaultClient.Do(u.request(srv.URL))
		require.NoError(u.t, err)
		require.NoError(u.t, resp.Body.Close())
	}
}

func (u *uploads) request(url string) *http.Request {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	require.NoError(u.t, form.SetBoundary("the-same-each-time"))
	part, err := form.CreateFormFile("f", "large")
	require.NoError(u.t, err)
	_, err = part.Write(make([]byte, 100_000))
	require.NoError(u.t, err)
	require.NoError(u.t, form.Close())
	r, err := http.NewRequestWithContext(u.t.Context(), http.MethodPost, url, &body)
	require.NoError(u.t, err)
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Content-Type", form.FormDataContentType())
	return r
}

// parse parses the form, and notes where its file is. Requests come one by one.
func (u *uploads) parse(r *http.Request) {
	if !assert.NoError(u.t, r.ParseMultipartForm(1<<10)) {
		return
	}
	part, err := r.MultipartForm.File["f"][0].Open()
	if !assert.NoError(u.t, err) {
		return
	}
	defer part.Close()
	if file, ok := part.(*os.File); assert.True(u.t, ok, "the form was kept in memory") {
		u.files = append(u.files, file.Name())
	}
}

func (u *uploads) expectRemoved(n int) {
	u.t.Helper()
	assert.Len(u.t, u.files, n)
	for _, name := range u.files {
		assert.NoFileExists(u.t, name)
	}
}
