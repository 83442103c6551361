package pgstore

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// isCommit reports whether a message of the client is the closing flush's COMMIT.
func isCommit(m pgtest.Message) bool {
	return m.Kind == 'P' && strings.Contains(string(m.Body), "\x00commit\x00")
}

// proxied makes an app whose pool goes through a proxy.
func proxied(t *testing.T, change ...poolChange) (*app, *pgtest.Proxy) {
	proxy := pgtest.NewProxy(t, pgtest.Addr())
	a := newApp(t, append(change, proxy.Use())...)
	require.NoError(t, a.pool.Ping(t.Context()))
	return a, proxy
}

// TestCutBetweenCommitAndItsAnswer: the look-up finds this request's own token,
// which proves the commit, so the answer goes out as if nothing had been.
func TestCutBetweenCommitAndItsAnswer(t *testing.T) {
	for _, mode := range pgtest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			a, proxy := proxied(t, pgtest.Mode(mode))
			var after atomic.Int64
			var running atomic.Bool // the look-up's own COMMIT has been
			proxy.OnServer(func(m pgtest.Message) pgtest.Verdict {
				if running.Load() && m.Kind == 'C' && string(m.Body) == "COMMIT\x00" {
					return pgtest.CutBefore
				}
				return pgtest.Pass
			})
			h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				running.Store(true)
				AfterCommit(r.Context(), func(context.Context) error { after.Add(1); return nil })
				return pay(w, r, tx)
			})
			expectRan(t, send(h), 201, "payment 1")
			assert.EqualValues(t, 1, after.Load())
			proxy.OnServer(nil)
			expectReplay(t, send(h), 201, "payment 1")
			assert.EqualValues(t, 1, a.runs.Load())
		})
	}
}

// TestCutBeforeTheCommitArrives: the closing flush never reaches the server. No
// claim is there, which after a lost connection proves nothing.
func TestCutBeforeTheCommitArrives(t *testing.T) {
	a, proxy := proxied(t)
	proxy.OnClient(func(m pgtest.Message) pgtest.Verdict {
		if isCommit(m) {
			return pgtest.CutBefore
		}
		return pgtest.Pass
	})
	after := false
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		AfterCommit(r.Context(), func(context.Context) error { after = true; return nil })
		return pay(w, r, tx)
	})
	w := send(h)
	expectProblem(t, w, 503, idemhttp.OutcomeUnknown)
	assert.Empty(t, w.Header().Get("X-Own"))
	assert.False(t, after)
	assert.Zero(t, a.payments())
	proxy.OnClient(nil)
	expectRan(t, send(h), 201, "payment 2")
}

// TestCutAnywhere cuts the connection at every single message of a request, from
// either side, and retries as a client would. Whatever happened: one payment, one
// answered claim, and the answer is that payment's.
func TestCutAnywhere(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		for _, side := range []string{"client", "server"} {
			t.Run(mode.String()+"/"+side, func(t *testing.T) {
				t.Parallel()
				a, proxy := proxied(t, pgtest.Mode(mode), pgtest.MaxConns(2))
				for at := range 200 {
					if !a.cutAt(proxy, side, at) {
						require.Greater(t, at, 10, "the request has more messages than that")
						return
					}
				}
				t.Fatal("the request never got through")
			})
		}
	}
}

// cutAt cuts at the n-th message, and reports whether there was one.
func (a *app) cutAt(proxy *pgtest.Proxy, side string, at int) (cut bool) {
	t := a.t
	var seen, cuts atomic.Int64
	hook := func(pgtest.Message) pgtest.Verdict {
		if seen.Add(1) == int64(at)+1 {
			cuts.Add(1)
			return pgtest.CutBefore
		}
		return pgtest.Pass
	}
	h := a.inTx(pay)
	id := fmt.Sprintf("%s-%d", side, at)
	require.NoError(t, a.pool.Ping(context.Background()))
	if side == "client" {
		proxy.OnClient(hook)
	} else {
		proxy.OnServer(hook)
	}
	first := send(h, key(id), header("X-Note", id))
	proxy.OnClient(nil)
	proxy.OnServer(nil)
	paid := a.count("payments WHERE note = '" + id + "'")
	last := first
	for range 3 {
		last = send(h, key(id), header("X-Note", id))
		if last.Code == 201 {
			break
		}
	}
	require.Equal(t, 201, last.Code, "%s: %s", id, last.Body)
	if first.Code == 201 {
		require.Equal(t, first.Body.String(), last.Body.String(), id)
		require.Equal(t, 1, paid, id)
	}
	require.Equal(t, 1, a.count("payments WHERE note = '"+id+"'"), id)
	require.Equal(t, a.payments(), a.answered(), id)
	return cuts.Load() > 0
}

// TestCutAnywhereInReleaseMode: no work twice. A claim may be left, which refuses
// until ClaimTTL is over, and not longer.
func TestCutAnywhereInReleaseMode(t *testing.T) {
	a, proxy := proxied(t, pgtest.MaxConns(2))
	a.policy.ClaimTTL = 3 * time.Second
	work := pgtest.Pool(t, pgtest.DSN(), pgtest.Path(a.schema))
	h := a.endpoint().DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, err := Begin(r.Context(), work)
		if err == nil {
			defer tx.Rollback(context.WithoutCancel(r.Context()))
			if _, err = tx.Exec(r.Context(), "INSERT INTO payments (note) VALUES ($1)", r.Header.Get("X-Note")); err == nil {
				err = tx.Commit(r.Context())
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	for _, side := range []string{"client", "server"} {
		for at, more := 0, true; more && at < 100; at++ {
			id := fmt.Sprintf("%s-%d", side, at)
			more = a.cutReleaseAt(proxy, h, side, id, at)
		}
	}
}

func (a *app) cutReleaseAt(proxy *pgtest.Proxy, h http.Handler, side, id string, at int) bool {
	t := a.t
	require.NoError(t, a.pool.Ping(context.Background()))
	var seen atomic.Int64
	hook := func(pgtest.Message) pgtest.Verdict {
		if seen.Add(1) == int64(at)+1 {
			return pgtest.CutBefore
		}
		return pgtest.Pass
	}
	if side == "client" {
		proxy.OnClient(hook)
	} else {
		proxy.OnServer(hook)
	}
	codes := []int{send(h, key(id), header("X-Note", id)).Code}
	proxy.OnClient(nil)
	proxy.OnServer(nil)
	done := func() bool {
		codes = append(codes, send(h, key(id), header("X-Note", id)).Code)
		n := a.count("payments WHERE note = '" + id + "'")
		require.LessOrEqual(t, n, 1, "%s: %v", id, codes)
		return n == 1
	}
	require.Eventually(t, done, 10*time.Second, 20*time.Millisecond, "%s: %v", id, &codes)
	return seen.Load() > int64(at)
}

// TestConnectionsThatDiedInThePool: after a restart all of a pool's connections
// are dead. A request takes the next one, as nothing was done on the first.
func TestConnectionsThatDiedInThePool(t *testing.T) {
	a, proxy := proxied(t, pgtest.MaxConns(8))
	h := a.inTx(pay)
	var all sync.WaitGroup
	all.Add(8)
	warm := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		all.Done()
		all.Wait()
		return errTest
	})
	together(8, func(i int) int { return send(warm, key(fmt.Sprint(i))).Code })
	require.EqualValues(t, 8, a.pool.Stat().TotalConns())
	proxy.CutAll()
	expectRan(t, send(h), 201, "payment 1")
}

func TestStoreIsDown(t *testing.T) {
	a, proxy := proxied(t)
	h := a.inTx(pay)
	expectRan(t, send(h), 201, "payment 1")
	proxy.SetDown(true)
	expectProblem(t, send(h), 503, idemhttp.StoreDown)
	plain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	expectProblem(t, send(a.endpoint().Deduplicate(plain)), 503, idemhttp.StoreDown)
	a.policy.FailOpen = true
	assert.Equal(t, 204, send(a.endpoint().Deduplicate(plain)).Code)
	expectProblem(t, send(a.inTx(pay)), 503, idemhttp.StoreDown)
	proxy.SetDown(false)
	expectReplay(t, send(h), 201, "payment 1")
}

// TestConnectionDiesInTheEndpoint: the COMMIT was never sent, so the failure is
// the endpoint's own, and the retry runs.
func TestConnectionDiesInTheEndpoint(t *testing.T) {
	for _, style := range []string{"returned", "unchecked"} {
		a := newApp(t)
		h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			if err := pay(w, r, tx); err != nil || a.runs.Load() > 1 {
				return err
			}
			_, err := tx.Exec(r.Context(), "SELECT pg_terminate_backend(pg_backend_pid())")
			return swallow(err, style)
		})
		assert.Equal(t, 500, send(h).Code)
		assert.Zero(t, a.payments())
		expectRan(t, send(h), 201, "payment 2")
		assert.Equal(t, 1, a.answered())
	}
}
