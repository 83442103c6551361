package pgstore

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// payThen commits a payment by raw SQL, and does what else the statements say, in
// one message: the server goes on with it whatever becomes of the client.
func payThen(ctx context.Context, tx pgx.Tx, statements string) error {
	_, err := tx.Exec(ctx, sql(ctx, "INSERT INTO payments (note) VALUES ('raw')")+"; COMMIT; "+statements, pgx.QueryExecModeSimpleProtocol)
	return err
}

// rawCommits are endpoints that commit by raw SQL, and leave the connection in a
// state in which no claim could be written on it.
func rawCommits(a *app) map[string]TxFunc {
	return map[string]TxFunc{
		"the connection dies": func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			return payThen(r.Context(), tx, "SELECT pg_terminate_backend(pg_backend_pid())")
		},
		"it dies, and the endpoint panics": func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			panic(payThen(r.Context(), tx, "SELECT pg_terminate_backend(pg_backend_pid())"))
		},
		"it dies, and the caller is turned away": func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_ = payThen(r.Context(), tx, "SELECT pg_terminate_backend(pg_backend_pid())")
			w.WriteHeader(http.StatusForbidden)
			return nil
		},
		"the context ends": func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			go func() { a.awaitPayment(); cancel() }()
			return payThen(ctx, tx, "SELECT pg_sleep(60)")
		},
		"a call is still running": func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			go func() { _ = payThen(context.WithoutCancel(r.Context()), tx, "SELECT pg_sleep(60)") }()
			a.awaitPayment()
			return nil
		},
		"rows are left open": func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			conn := tx.Conn()
			_, err := conn.Exec(r.Context(), sql(r.Context(), "INSERT INTO payments (note) VALUES ('raw')")+"; COMMIT", pgx.QueryExecModeSimpleProtocol)
			require.NoError(a.t, err)
			_, err = conn.Query(r.Context(), "SELECT generate_series(1, 10)")
			return err
		},
		"another role": func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			return payThen(r.Context(), tx, "SET ROLE pg_monitor")
		},
		"read-only": func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			return payThen(r.Context(), tx, "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
		},
	}
}

// awaitPayment waits until there is a payment, as others see it.
func (a *app) awaitPayment() {
	conn := a.connect()
	defer conn.Close(context.Background())
	assert.Eventually(a.t, func() bool {
		var n int
		err := conn.QueryRow(context.Background(), "SELECT count(*) FROM payments").Scan(&n)
		return err == nil && n == 1
	}, 20*time.Second, 5*time.Millisecond)
}

// TestRawCommitIsKeptFromRunningAgain, whatever became of the connection.
func TestRawCommitIsKeptFromRunningAgain(t *testing.T) {
	for name := range rawCommits(nil) {
		t.Run(name, func(t *testing.T) {
			a := newApp(t, pgtest.MaxConns(1))
			h := a.inTx(rawCommits(a)[name])
			func() {
				defer func() { _ = recover() }()
				assert.GreaterOrEqual(t, send(h).Code, 400)
			}()
			for range 2 {
				expectProblem(t, send(a.inTx(pay)), 409, idemhttp.NoAnswer)
			}
			assert.Equal(t, 1, a.payments())
			expectRan(t, send(a.inTx(pay), key("another")), 201, "payment 2")
		})
	}
}

// strayed leaves a call running that pays, sleeps on the server, which nobody tells
// to cancel it, and commits.
func strayed(a *app, seconds float64) (h http.Handler, pid *uint32) {
	pid = new(uint32)
	return a.inTx(func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		*pid = tx.(*managedTx).inner.Conn().PgConn().PID()
		go func() {
			insert := sql(r.Context(), "INSERT INTO payments (note) VALUES ('raw')")
			_, _ = tx.Exec(context.WithoutCancel(r.Context()), fmt.Sprintf("%s; SELECT pg_sleep(%v); COMMIT", insert, seconds), pgx.QueryExecModeSimpleProtocol)
		}()
		a.awaitSleep(*pid)
		return nil
	}), pid
}

// TestCallThatCommitsAMomentLater: it was under way when its connection was cut.
func TestCallThatCommitsAMomentLater(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Addr())
	proxy.DropCancels()
	a := newApp(t, proxy.Use())
	h, _ := strayed(a, 0.4)
	expectProblem(t, send(h), 500, idemhttp.Failed)
	assert.Equal(t, 1, a.payments())
	expectProblem(t, send(a.inTx(pay)), 409, idemhttp.NoAnswer)
	assert.Equal(t, 1, a.payments())
}

// TestCallThatMayStillCommit: nobody waits for long, and nobody says it is undone.
func TestCallThatMayStillCommit(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Addr())
	proxy.DropCancels()
	a := newApp(t, proxy.Use())
	h, pid := strayed(a, 60)
	w := send(h)
	a.admin(fmt.Sprintf("SELECT pg_terminate_backend(%d)", *pid))
	expectProblem(t, w, 503, idemhttp.OutcomeUnknown)
}

// TestRawCommitThatNobodyCanClaim: the pool is closed by then.
func TestRawCommitThatNobodyCanClaim(t *testing.T) {
	a := newApp(t)
	closed := make(chan struct{})
	w := send(a.inTx(func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		go func() { a.pool.Close(); close(closed) }() // which waits for this connection
		require.Eventually(t, func() bool { return a.pool.Ping(r.Context()) != nil }, 10*time.Second, time.Millisecond)
		return payThen(r.Context(), tx, "SELECT 1")
	}))
	expectProblem(t, w, 500, idemhttp.Failed)
	assert.True(t, a.log.has("could not be claimed"))
	<-closed
}

// TestRunningStatementIsCancelled: it would keep its locks, and commit in the end.
func TestRunningStatementIsCancelled(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	w := send(a.inTx(func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		pid := tx.(*managedTx).inner.Conn().PgConn().PID()
		go func() {
			insert := sql(r.Context(), "INSERT INTO payments (note) VALUES ('stray')")
			_, _ = tx.Exec(context.Background(), insert+"; SELECT pg_sleep(60); COMMIT", pgx.QueryExecModeSimpleProtocol)
		}()
		a.awaitSleep(pid)
		return nil
	}))
	expectProblem(t, w, 500, idemhttp.Failed)
	assert.Zero(t, a.count("pg_stat_activity WHERE query LIKE '%''stray''%pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()"))
	assert.Zero(t, a.payments())
	expectRan(t, send(a.inTx(pay)), 201, "payment 2")
}

// stuckSource is rows to copy that never come.
type stuckSource struct{ until <-chan struct{} }

func (s stuckSource) Next() bool             { <-s.until; return false }
func (s stuckSource) Values() ([]any, error) { return nil, nil }
func (s stuckSource) Err() error             { return nil }

// TestCallThatNeverReturnsKeepsNoPlace: it waits for something of its own, so that
// nothing on the connection wakes it.
func TestCallThatNeverReturnsKeepsNoPlace(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	until, copying := make(chan struct{}), make(chan struct{})
	w := send(a.inTx(func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		go func() {
			defer close(copying)
			_, _ = tx.CopyFrom(context.Background(), pgx.Identifier{a.schema, "payments"}, []string{"note"}, stuckSource{until})
		}()
		a.awaitQuery(tx.(*managedTx).inner.Conn().PgConn().PID(), "copy")
		return nil
	}))
	expectProblem(t, w, 500, idemhttp.Failed)
	expectRan(t, send(a.inTx(pay), in(ctx)), 201, "payment 1")
	close(until)
	<-copying
}

// TestRoleIsWhatItWas for whoever gets the connection next, also after a request
// without a claim.
func TestRoleIsWhatItWas(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, append(change, pgtest.MaxConns(1))...)
		a.policy.Optional = true
		h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			err := pay(w, r, tx)
			_, _ = tx.Exec(r.Context(), "SET ROLE pg_monitor")
			return err
		})
		assert.Equal(t, 201, send(h, func(r *http.Request) { r.Header.Del("Idempotency-Key") }).Code)
		var role string
		require.NoError(t, a.pool.QueryRow(t.Context(), "SELECT current_setting('role')").Scan(&role))
		assert.Equal(t, "none", role)
	})
}

// TestStatementTimeoutOfTheEndpointsIsItsOwn: the claim's INSERT takes longer.
func TestStatementTimeoutOfTheEndpointsIsItsOwn(t *testing.T) {
	a := newApp(t)
	a.admin(`CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.5); RETURN NEW; END'`)
	a.admin(`CREATE TRIGGER take BEFORE INSERT ON idem_claims FOR EACH ROW EXECUTE FUNCTION take()`)
	w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if _, err := tx.Exec(r.Context(), "SET LOCAL statement_timeout = '1s'"); err != nil {
			return err
		}
		return pay(w, r, tx)
	}))
	expectRan(t, w, 201, "payment 1")
	assert.Equal(t, 1, a.answered())
}

// TestPrefetchThatEndsTheTransaction: the endpoint would work outside of it.
func TestPrefetchThatEndsTheTransaction(t *testing.T) {
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		a := newApp(t)
		a.opts = []EndpointOption{WithPrefetch(func(_ *http.Request, b *pgx.Batch) { b.Queue(end) })}
		expectProblem(t, send(a.inTx(pay)), 500, idemhttp.Failed)
		assert.Zero(t, a.runs.Load(), end)
		assert.Zero(t, a.payments())
	}
}
