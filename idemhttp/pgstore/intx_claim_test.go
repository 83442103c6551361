package pgstore

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// TestRolesAreResetForTheClaim: the endpoint may work under another role that
// has no right to the claims, and the connection has its own again afterwards.
func TestRolesAreResetForTheClaim(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, append(change, pgtest.MaxConns(1))...)
		role := a.schema + "_tenant"
		a.admin(fmt.Sprintf("CREATE ROLE %s; GRANT USAGE ON SCHEMA %s TO %[1]s; GRANT INSERT ON payments TO %[1]s", role, a.schema))
		t.Cleanup(func() { a.admin(fmt.Sprintf("DROP OWNED BY %s; DROP ROLE %[1]s", role)) })
		for i, local := range []string{"LOCAL", "SESSION"} {
			h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				if _, err := tx.Exec(r.Context(), "SET "+local+" ROLE "+role); err != nil {
					return err
				}
				_, err := tx.Exec(r.Context(), sql(r.Context(), "INSERT INTO payments (note) VALUES ('as tenant')"))
				w.WriteHeader(http.StatusCreated)
				return err
			})
			expectRan(t, send(h, key(local)), 201, "")
			assert.Equal(t, i+1, a.answered())
			var now string
			require.NoError(t, a.pool.QueryRow(t.Context(), "SELECT current_user").Scan(&now))
			assert.NotEqual(t, role, now, "after SET %s ROLE", local)
		}
	})
}

// TestWaitForTheWinnerEndsIn409: somebody else's INSERT of the same claim hangs.
func TestWaitForTheWinnerEndsIn409(t *testing.T) {
	a := newApp(t)
	id := claimID(t, a)
	other := a.connect()
	defer other.Close(context.Background())
	_, err := other.Exec(t.Context(), "BEGIN")
	require.NoError(t, err)
	_, err = other.Exec(t.Context(), `INSERT INTO idem_claims (id, token, fingerprint, fingerprint_version, state, expires_at)
		VALUES ($1, '', '', '', 1, 'infinity')`, id[:])
	require.NoError(t, err)
	w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if _, err := tx.Exec(r.Context(), "SET LOCAL statement_timeout = '200ms'"); err != nil {
			return err
		}
		return pay(w, r, tx)
	}))
	expectProblem(t, w, 409, idemhttp.InProgress)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	assert.Zero(t, a.payments())
}

// TestWaitForTheWinnerIsBounded, also where the endpoint sets no limit.
func TestWaitForTheWinnerIsBounded(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	id := claimID(t, a)
	other := a.connect()
	defer other.Close(context.Background())
	_, err := other.Exec(t.Context(), fmt.Sprintf(`BEGIN; INSERT INTO idem_claims (id, token, fingerprint, fingerprint_version, state, expires_at)
		VALUES ('\x%x', '', '', '', 1, 'infinity')`, id))
	require.NoError(t, err)
	begun := time.Now()
	expectProblem(t, send(a.inTx(pay)), 409, idemhttp.InProgress)
	assert.InDelta(t, claimWait.Seconds(), time.Since(begun).Seconds(), 4)
	assert.Zero(t, a.payments())
}

// TestWithoutAKey: in a transaction all the same, which an error that was passed
// over leaves with nothing to commit.
func TestWithoutAKey(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, change...)
		a.policy.Optional = true
		without := func(r *http.Request) { r.Header.Del("Idempotency-Key") }
		for _, c := range []struct {
			after  string
			status int
		}{{"SELECT 1", 201}, {"SELECT 1/0", 500}, {"COMMIT", 500}, {"ROLLBACK", 500}} {
			h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				err := pay(w, r, tx)
				_, _ = tx.Exec(r.Context(), c.after)
				return err
			})
			assert.Equal(t, c.status, send(h, without).Code, c.after)
		}
		assert.Equal(t, 2, a.payments(), "the first, and the one committed by hand")
		assert.Zero(t, a.claims())
		failing := a.inTx(func(http.ResponseWriter, *http.Request, pgx.Tx) error { return errTest })
		expectProblem(t, send(failing, without), 500, idemhttp.Failed)
		assert.Equal(t, 405, send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return nil
		}), func(r *http.Request) { r.Method = http.MethodGet }).Code)
	})
}

// claimID finds out the id of the usual request, by running it once.
func claimID(t *testing.T, a *app) (id idemhttp.ID) {
	t.Helper()
	require.Equal(t, 200, send(a.inTx(func(http.ResponseWriter, *http.Request, pgx.Tx) error { return nil })).Code)
	conn := a.connect()
	defer conn.Close(context.Background())
	var raw []byte
	require.NoError(t, conn.QueryRow(t.Context(), "DELETE FROM idem_claims RETURNING id").Scan(&raw))
	copy(id[:], raw)
	return id
}

func TestOneConnectionIsEnough(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, append(change, pgtest.MaxConns(1))...)
		h := a.inTx(pay)
		answers := together(8, func(i int) *httptest.ResponseRecorder { return send(h, key(fmt.Sprint("k", i%4))) })
		for _, w := range answers {
			assert.Equal(t, 201, w.Code, w.Body)
		}
		assert.Equal(t, 4, a.payments())
		failing := a.inTx(func(http.ResponseWriter, *http.Request, pgx.Tx) error { return errTest })
		assert.Equal(t, 500, send(failing, key("fails")).Code)
	})
}

// probe is a client's connection that looks at the pool when it is written to.
type probe struct {
	*httptest.ResponseRecorder
	look func()
}

func (p probe) WriteHeader(code int) {
	p.look()
	p.ResponseRecorder.WriteHeader(code)
}

// TestConnectionIsHeldForTheWorkOnly: the body is read before a connection is
// taken, and it is back before the client is written to: slow clients hold none.
func TestConnectionIsHeldForTheWorkOnly(t *testing.T) {
	a := newApp(t)
	idle := func() { assert.Zero(t, a.pool.Stat().AcquiredConns()) }
	serve := func(h http.Handler) {
		r := httptest.NewRequest(http.MethodPost, "/payments", reader(func(p []byte) (int, error) {
			idle()
			return 0, io.EOF
		}))
		r.Header.Set("Idempotency-Key", "k1")
		h.ServeHTTP(probe{httptest.NewRecorder(), idle}, r)
	}
	serve(a.inTx(func(http.ResponseWriter, *http.Request, pgx.Tx) error { return errTest }))
	serve(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		AfterCommit(r.Context(), func(context.Context) error { idle(); return nil })
		return pay(w, r, tx)
	}))
	serve(a.inTx(pay))
	assert.EqualValues(t, 2, a.runs.Load())
}

func TestModesShareTheTable(t *testing.T) {
	a := newApp(t)
	e := a.endpoint()
	released := e.DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("released"))
	}))
	expectRan(t, send(released), 201, "released")
	expectReplay(t, send(a.inTx(pay)), 201, "released")
	expectRan(t, send(a.inTx(pay), key("k2")), 201, "payment 1")
	expectReplay(t, send(released, key("k2")), 201, "payment 1")

	running := e.DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		expectProblem(t, send(a.inTx(pay), key("k3")), 409, idemhttp.InProgress)
		expectProblem(t, send(a.inTx(pay), key("k3"), body("other")), 422, idemhttp.KeyReused)
		w.WriteHeader(http.StatusNoContent)
	}))
	assert.Equal(t, 204, send(running, key("k3")).Code)
	expectReplay(t, send(a.inTx(pay), key("k3")), 204, "")
	assert.EqualValues(t, 1, a.runs.Load())
}

func TestMissingTableIs503AndNamesMigrate(t *testing.T) {
	a := newApp(t)
	a.admin("DROP TABLE idem_claims")
	expectProblem(t, send(a.inTx(pay)), 503, idemhttp.StoreDown)
	released := a.endpoint().Deduplicate(http.NotFoundHandler())
	expectProblem(t, send(released), 503, idemhttp.StoreDown)
	lines := strings.Split(strings.TrimSpace(a.log.String()), "\n")
	require.Len(t, lines, 2)
	for _, line := range lines {
		assert.Contains(t, line, "Store.Migrate")
	}
	assert.Zero(t, a.runs.Load())
}
