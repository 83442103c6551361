package pgstore

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
