package pgstore

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// sent is what the body of send's request is, unless a test changes it.
const sent = `{"cents":5}`

func readAll(t *testing.T, r *http.Request) string {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	assert.NoError(t, err)
	return string(text)
}

// TestPrefetchReadsTheBody: it and each run of the endpoint have it whole.
func TestPrefetchReadsTheBody(t *testing.T) {
	for _, retries := range []int{0, 2} {
		a := newApp(t)
		asked := 0
		a.opts = []EndpointOption{WithRetry(retries), WithPrefetch(func(r *http.Request, b *pgx.Batch) {
			asked++
			assert.Equal(t, sent, readAll(t, r))
			b.Queue("SELECT 1")
		})}
		send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			assert.Equal(t, sent, readAll(t, r))
			return &pgconn.PgError{Code: "40001"}
		}))
		assert.EqualValues(t, 1+retries, a.runs.Load())
		assert.Equal(t, 1+retries, asked)
	}
}

// TestPrefetchOfAHeldRepeat: each look for its turn asks again.
func TestPrefetchOfAHeldRepeat(t *testing.T) {
	a := newApp(t)
	a.policy.Wait = time.Minute
	var asked atomic.Int64
	running, goOn := make(chan struct{}), make(chan struct{})
	a.opts = []EndpointOption{WithExclusive(), WithPrefetch(func(r *http.Request, b *pgx.Batch) {
		assert.Equal(t, sent, readAll(t, r))
		if asked.Add(1) == 4 { // the first request's, and three of the repeat's
			close(goOn)
		}
	})}
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		close(running)
		<-goOn
		return pay(w, r, tx)
	})
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- send(h) }()
	<-running
	expectReplay(t, send(h), 201, "payment 1")
	expectRan(t, <-first, 201, "payment 1")
}

// TestPrefetchOfAnUnclaimedRequest: its body isn't kept, so the function takes it
// from the endpoint; a form that it parses they both have.
func TestPrefetchOfAnUnclaimedRequest(t *testing.T) {
	a := newApp(t)
	a.policy.Optional = true
	bare := func(r *http.Request) { r.Header.Del("Idempotency-Key") }
	a.opts = []EndpointOption{WithPrefetch(func(r *http.Request, b *pgx.Batch) { assert.Equal(t, sent, readAll(t, r)) })}
	assert.Equal(t, 200, send(a.inTx(func(_ http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
		assert.Empty(t, readAll(t, r))
		return nil
	}), bare).Code)

	form := header("Content-Type", "application/x-www-form-urlencoded")
	a.opts = []EndpointOption{WithPrefetch(func(r *http.Request, b *pgx.Batch) { assert.Equal(t, "5", r.PostFormValue("cents")) })}
	h := a.inTx(func(_ http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
		assert.Equal(t, "5", r.PostFormValue("cents"))
		return nil
	})
	require.Equal(t, 200, send(h, bare, form, body("cents=5")).Code)
	require.Equal(t, 200, send(h, form, body("cents=5")).Code)
}

// TestPrefetchThatChains: the endpoint would work in another transaction. What was
// committed so isn't done again; what was rolled back may be.
func TestPrefetchThatChains(t *testing.T) {
	for statement, again := range map[string]idemhttp.Reason{
		"ROLLBACK AND CHAIN": idemhttp.Failed, "COMMIT AND CHAIN": idemhttp.NoAnswer,
		"ABORT": idemhttp.Failed, "END": idemhttp.NoAnswer,
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			a := newApp(t, pgtest.MaxConns(1))
			a.opts = []EndpointOption{WithPrefetch(func(_ *http.Request, b *pgx.Batch) { b.Queue(statement) })}
			h := a.inTx(pay)
			expectProblem(t, send(h), 500, idemhttp.Failed)
			assert.Contains(t, send(h).Body.String(), idemhttp.Refusal{Reason: again}.Type())
			assert.Zero(t, a.runs.Load())
			assert.Zero(t, a.payments())
			assert.True(t, a.log.has("prefetch: query 0"))
		})
	}
}

// upload is a request with a file that is too large to be parsed into memory.
func upload(t *testing.T) *http.Request {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, err := form.CreateFormFile("f", "f")
	require.NoError(t, err)
	_, err = file.Write(make([]byte, 100<<10))
	require.NoError(t, err)
	require.NoError(t, form.Close())
	r := httptest.NewRequest(http.MethodPost, "/payments", &body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Idempotency-Key", "k1")
	return r
}

// openFile parses the form as far as that hasn't been done, and opens its file.
func openFile(t *testing.T, r *http.Request) {
	t.Helper()
	if !assert.NoError(t, r.ParseMultipartForm(1<<10)) {
		return
	}
	file, err := r.MultipartForm.File["f"][0].Open()
	if assert.NoError(t, err) {
		assert.IsType(t, &os.File{}, file)
		assert.NoError(t, file.Close())
	}
}

// filesIn counts what is left of forms. Tests of forms have a TMPDIR of their own.
func filesIn(t *testing.T, dir string) int {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	return len(left)
}

// failTwice is an endpoint that opens the file and runs three times.
func failTwice(t *testing.T, a *app) http.Handler {
	return a.endpoint().InTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		openFile(t, r)
		if a.runs.Add(1) < 3 {
			return &pgconn.PgError{Code: "40001"}
		}
		return nil
	})
}

// TestFormsOfAllRuns: each run has a file of its own, and the server, which
// removes those of the form it knows of, is left the last one's.
func TestFormsOfAllRuns(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	a := newApp(t)
	a.opts = []EndpointOption{WithRetry(2), WithPrefetch(func(r *http.Request, _ *pgx.Batch) { openFile(t, r) })}
	w, r := httptest.NewRecorder(), upload(t)
	failTwice(t, a).ServeHTTP(w, r)
	expectRan(t, w, 200, "")
	assert.EqualValues(t, 3, a.runs.Load())
	assert.Equal(t, 1, filesIn(t, dir))
	require.NotNil(t, r.MultipartForm)
	require.NoError(t, r.MultipartForm.RemoveAll())
	assert.Zero(t, filesIn(t, dir))
}

// TestFormOfTheFingerprint is parsed once, before all runs.
func TestFormOfTheFingerprint(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	a := newApp(t)
	a.policy.Fingerprint = idemhttp.Fingerprint{Version: "form", Of: func(r *http.Request, _ []byte) ([]byte, error) {
		openFile(t, r)
		return nil, nil
	}}
	a.opts = []EndpointOption{WithRetry(2), WithPrefetch(func(r *http.Request, _ *pgx.Batch) { openFile(t, r) })}
	w, r := httptest.NewRecorder(), upload(t)
	failTwice(t, a).ServeHTTP(w, r)
	expectRan(t, w, 200, "")
	require.NotNil(t, r.MultipartForm)
	require.NoError(t, r.MultipartForm.RemoveAll())
	assert.Zero(t, filesIn(t, dir))
}
