package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

func TestManagedTxRefusesToEnd(t *testing.T) {
	a := newApp(t)
	expectRan(t, send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		assert.ErrorIs(t, tx.Commit(r.Context()), ErrManagedTx)
		assert.ErrorIs(t, tx.Rollback(r.Context()), ErrManagedTx)
		var b pgx.Batch
		b.BeginTx(pgx.TxOptions{})
		assert.ErrorIs(t, tx.SendBatch(r.Context(), &b).Close(), ErrManagedTx)
		return pay(w, r, tx)
	})), 201, "payment 1")
	assert.Equal(t, 1, a.payments())
}

func TestSavepointsAreTheEndpointsOwn(t *testing.T) {
	a := newApp(t)
	expectRan(t, send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		ctx := r.Context()
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO payments (note) VALUES ('undone')")
			return errors.Join(err, errTest)
		})
		assert.ErrorIs(t, err, errTest)
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return pay(w, r, tx) })
		})
	})), 201, "payment 2")
	assert.Equal(t, 1, a.payments())
}

// TestAllThatWasHandedOutEnds: whatever the endpoint kept of its transaction is
// closed when it has returned, before the connection serves anybody else.
func TestAllThatWasHandedOutEnds(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	ctx := context.Background()
	var (
		kept, nested pgx.Tx
		rows         pgx.Rows
		batch        pgx.BatchResults
		row          pgx.Row
	)
	expectRan(t, send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) (err error) {
		kept = tx
		nested, err = tx.Begin(ctx)
		require.NoError(t, err)
		rows, err = tx.Query(ctx, "SELECT 1")
		require.NoError(t, err)
		rows.Close()
		var b pgx.Batch
		b.Queue("SELECT 1")
		batch = tx.SendBatch(ctx, &b)
		require.NoError(t, batch.Close())
		row = tx.QueryRow(ctx, "SELECT 1")
		require.NoError(t, row.Scan(new(int)))
		return pay(w, r, tx)
	})), 201, "payment 1")

	for _, tx := range []pgx.Tx{kept, nested} {
		_, execErr := tx.Exec(ctx, "INSERT INTO payments (note) VALUES ('late')")
		_, queryErr := tx.Query(ctx, "SELECT 1")
		_, copyErr := tx.CopyFrom(ctx, pgx.Identifier{"payments"}, []string{"note"}, pgx.CopyFromRows([][]any{{"late"}}))
		_, prepareErr := tx.Prepare(ctx, "late", "SELECT 1")
		_, beginErr := tx.Begin(ctx)
		var b pgx.Batch
		b.Queue("SELECT 1")
		objects := tx.LargeObjects()
		_, largeErr := objects.Create(ctx, 0)
		for i, err := range []error{
			execErr, queryErr, copyErr, prepareErr, beginErr, largeErr, tx.Commit(ctx), tx.Rollback(ctx),
			tx.QueryRow(ctx, "SELECT 1").Scan(new(int)), tx.SendBatch(ctx, &b).Close(),
		} {
			assert.ErrorIs(t, err, pgx.ErrTxClosed, "call %d", i)
		}
		assert.Nil(t, tx.Conn())
	}
	assert.False(t, rows.Next())
	assert.ErrorIs(t, rows.Err(), pgx.ErrTxClosed)
	assert.ErrorIs(t, rows.Scan(new(int)), pgx.ErrTxClosed)
	assert.ErrorIs(t, row.Scan(new(int)), pgx.ErrTxClosed)
	_, err := batch.Exec()
	assert.ErrorIs(t, err, pgx.ErrTxClosed)
	assert.ErrorIs(t, batch.Close(), pgx.ErrTxClosed)
	assert.Equal(t, 1, a.payments())
}

// TestStrayGoroutineNeverReachesTheNextRequest: with one connection, a goroutine
// that goes on writing would write into the next request's transaction.
func TestStrayGoroutineNeverReachesTheNextRequest(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	strayed := make(chan error, 1)
	next := make(chan struct{})
	expectRan(t, send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		go func() {
			<-next
			_, err := tx.Exec(context.Background(), "INSERT INTO payments (note) VALUES ('stray')")
			strayed <- err
		}()
		return pay(w, r, tx)
	})), 201, "payment 1")
	expectRan(t, send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		close(next)
		assert.ErrorIs(t, <-strayed, pgx.ErrTxClosed)
		return pay(w, r, tx)
	}), key("k2")), 201, "payment 2")
	assert.Zero(t, a.count("payments WHERE note = 'stray'"))
}

// TestCallStillRunning: the request fails, its connection is closed, and nothing
// of it is kept.
func TestCallStillRunning(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(2))
	strayed := make(chan error, 1)
	w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		pid := tx.(*managedTx).inner.Conn().PgConn().PID()
		go func() {
			_, err := tx.Exec(context.Background(), "SELECT pg_sleep(60)")
			strayed <- err
		}()
		a.awaitQuery(pid, "pg_sleep")
		w.WriteHeader(http.StatusCreated)
		return nil
	}))
	assert.Equal(t, 500, w.Code)
	select {
	case err := <-strayed:
		assert.Error(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the stray call was not cut")
	}
	assert.Zero(t, a.claims())
	require.Eventually(t, func() bool { return a.pool.Stat().AcquiredConns() == 0 }, 10*time.Second, time.Millisecond)
	expectRan(t, send(a.inTx(pay)), 201, "payment 1")
}

// awaitQuery waits until a backend is busy with a query.
func (a *app) awaitQuery(pid uint32, text string) {
	a.awaitActivity("pid = $1 AND state = 'active' AND query LIKE '%' || $2 || '%'", pid, text)
}

// awaitSleep waits until a backend is in pg_sleep.
func (a *app) awaitSleep(pid uint32) {
	a.awaitActivity("pid = $1 AND wait_event = 'PgSleep'", pid)
}

func (a *app) awaitActivity(condition string, args ...any) {
	conn := a.connect()
	defer conn.Close(context.Background())
	require.Eventually(a.t, func() bool {
		var n int
		err := conn.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE "+condition, args...).Scan(&n)
		return err == nil && n == 1
	}, 20*time.Second, 5*time.Millisecond)
}

func TestRowsLeftOpenFail(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	for i, leave := range []func(ctx context.Context, tx pgx.Tx){
		func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Query(ctx, "SELECT generate_series(1, 10)") },
		func(ctx context.Context, tx pgx.Tx) { tx.QueryRow(ctx, "SELECT 1") },
		func(ctx context.Context, tx pgx.Tx) {
			var b pgx.Batch
			b.Queue("SELECT 1")
			tx.SendBatch(ctx, &b)
		},
	} {
		w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			err := pay(w, r, tx)
			leave(r.Context(), tx)
			return err
		}))
		assert.Equal(t, 500, w.Code, "case %d", i)
		assert.Zero(t, a.payments())
		assert.Zero(t, a.claims())
	}
}

// TestExposedConnectionIsNotReused: who has the connection itself can't be
// stopped, so nobody else gets it.
func TestExposedConnectionIsNotReused(t *testing.T) {
	for name, expose := range map[string]func(pgx.Tx){
		"Conn":         func(tx pgx.Tx) { tx.Conn() },
		"LargeObjects": func(tx pgx.Tx) { tx.LargeObjects() },
		"Rows.Conn": func(tx pgx.Tx) {
			rows, _ := tx.Query(context.Background(), "SELECT 1")
			rows.Conn()
			rows.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newApp(t, pgtest.MaxConns(1))
			var pids [3]uint32
			for i := range pids {
				h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
					pids[i] = tx.(*managedTx).inner.Conn().PgConn().PID()
					if i == 1 {
						expose(tx)
					}
					return pay(w, r, tx)
				})
				assert.Equal(t, 201, send(h, key(fmt.Sprint(i))).Code)
			}
			assert.Equal(t, pids[0], pids[1])
			assert.NotEqual(t, pids[1], pids[2])
			assert.Equal(t, 3, a.payments())
		})
	}
}

func TestLargeObjectsWork(t *testing.T) {
	a := newApp(t)
	var oid uint32
	w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) (err error) {
		objects := tx.LargeObjects()
		oid, err = objects.Create(r.Context(), 0)
		return err
	}))
	require.Equal(t, 200, w.Code, w.Body)
	a.admin(fmt.Sprintf("SELECT lo_unlink(%d)", oid))
}

// TestEndedByRawSQL: the endpoint ends its transaction with a statement. Work
// that was committed so must not run again; work that wasn't may.
func TestEndedByRawSQL(t *testing.T) {
	cases := []struct {
		sql       string
		committed bool
	}{
		{"COMMIT", true},
		{"COMMIT AND CHAIN", true},
		{"ROLLBACK", false},
		{"ROLLBACK AND CHAIN", false},
		{"COMMIT; BEGIN", true},
		{"ROLLBACK; BEGIN", false},
	}
	for _, c := range cases {
		for _, after := range []string{"returns", "fails", "panics"} {
			t.Run(c.sql+"/"+after, func(t *testing.T) {
				t.Parallel()
				ways(t, func(t *testing.T, change ...poolChange) { testRawEnd(t, c.sql, c.committed, after, change) })
			})
		}
	}
}

func testRawEnd(t *testing.T, statement string, isCommitted bool, after string, change []poolChange) {
	a := newApp(t, change...)
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if err := pay(w, r, tx); err != nil {
			return err
		}
		_, err := tx.Exec(r.Context(), statement)
		require.NoError(t, err)
		if statement == "COMMIT" || statement == "ROLLBACK" {
			_, err := tx.Exec(r.Context(), sql(r.Context(), "INSERT INTO payments (note) VALUES ('outside')"))
			assert.ErrorIs(t, err, ErrManagedTx)
		}
		switch after {
		case "fails":
			return errTest
		case "panics":
			panic(after)
		}
		return nil
	})
	if after == "panics" {
		assert.Panics(t, func() { send(h) })
	} else {
		expectProblem(t, send(h), 500, idemhttp.Failed)
	}
	if isCommitted {
		assert.Equal(t, 1, a.payments())
		w := send(a.inTx(pay))
		expectProblem(t, w, 409, idemhttp.NoAnswer)
		assert.Empty(t, w.Header().Get("Retry-After"))
		assert.Equal(t, 1, a.payments())
		return
	}
	assert.Zero(t, a.payments())
	expectRan(t, send(a.inTx(pay)), 201, "payment 2")
}

func TestAfterCommit(t *testing.T) {
	a := newApp(t)
	var order []string
	var detached error
	ctx, cancel := context.WithCancel(t.Context())
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		AfterCommit(r.Context(), func(ctx context.Context) error {
			assert.Equal(t, 1, a.payments(), "it is committed by now")
			cancel()
			detached = ctx.Err()
			order = append(order, "first")
			AfterCommit(ctx, func(context.Context) error { order = append(order, "at once"); return nil })
			return nil
		})
		AfterCommit(r.Context(), func(context.Context) error { order = append(order, "second"); return nil })
		return pay(w, r, tx)
	})
	expectRan(t, send(h, in(ctx)), 201, "payment 1")
	expectReplay(t, send(h), 201, "payment 1")
	assert.Equal(t, []string{"first", "at once", "second"}, order)
	assert.NoError(t, detached)
}

func TestAfterCommitFailsIsReportedAndReplayed(t *testing.T) {
	a := newApp(t)
	var ran atomic.Int64
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		for range 2 {
			AfterCommit(r.Context(), func(context.Context) error { ran.Add(1); return errTest })
		}
		return pay(w, r, tx)
	})
	expectProblem(t, send(h), 500, idemhttp.Failed)
	assert.True(t, a.log.has(errTest.Error()))
	expectReplay(t, send(h), 201, "payment 1")
	assert.EqualValues(t, 2, ran.Load(), "all of them, once")
}

func TestAfterCommitThatPanicsKeepsNothingFromRunning(t *testing.T) {
	a := newApp(t)
	ran := 0
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		AfterCommit(r.Context(), func(context.Context) error { panic("out of tea") })
		AfterCommit(r.Context(), func(context.Context) error { ran++; return nil })
		AfterCommit(r.Context(), func(context.Context) error { ran++; return nil })
		return pay(w, r, tx)
	})
	assert.PanicsWithValue(t, "out of tea", func() { send(h) })
	assert.Equal(t, 2, ran)
	assert.EqualValues(t, 1, a.events.of(idemhttp.EventRan), "it did run")
	expectReplay(t, send(h), 201, "payment 1")
}

func TestAfterCommitNeverWithoutACommit(t *testing.T) {
	a := newApp(t)
	for _, fail := range []error{errTest, ErrRollback} {
		send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			AfterCommit(r.Context(), func(context.Context) error { t.Error("ran"); return nil })
			return fail
		}))
	}
	ran := false
	AfterCommit(t.Context(), func(context.Context) error { ran = true; return nil })
	assert.True(t, ran, "outside of a transaction it runs at once")
}

// TestFailingWrite: the client is gone, the work isn't.
func TestFailingWrite(t *testing.T) {
	a := newApp(t)
	r := httptest.NewRequest(http.MethodPost, "/payments", http.NoBody)
	r.Header.Set("Idempotency-Key", "k1")
	a.inTx(pay).ServeHTTP(deafWriter{httptest.NewRecorder()}, r)
	assert.True(t, a.log.has("could not be sent"))
	expectReplay(t, send(a.inTx(pay), body("")), 201, "payment 1")
}

type deafWriter struct{ *httptest.ResponseRecorder }

func (deafWriter) Write([]byte) (int, error)       { return 0, errTest }
func (deafWriter) WriteString(string) (int, error) { return 0, errTest }

func TestMiddlewareFindsItsTransaction(t *testing.T) {
	a := newApp(t)
	e := a.endpoint()
	h := e.InTxMiddleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, ok := Tx(r.Context())
		assert.True(t, ok)
		if err := pay(w, r.WithContext(context.WithValue(r.Context(), schemaKey{}, a.schema)), tx); err != nil {
			Fail(r.Context(), err)
		}
		_, err := DB(r.Context(), a.pool).Exec(r.Context(), "INSERT INTO payments (note) VALUES ('by DB')")
		assert.NoError(t, err)
		if r.Header.Get("X-Note") == "fail" {
			Fail(r.Context(), nil)
			Fail(r.Context(), errTest)
		}
	}))
	expectProblem(t, send(h, header("X-Note", "fail")), 500, idemhttp.Failed)
	assert.Zero(t, a.payments())
	expectRan(t, send(h), 201, "payment 3")
	assert.Equal(t, 2, a.payments())
	_, ok := Tx(t.Context())
	assert.False(t, ok)
	Fail(t.Context(), errTest) // nothing to fail
	assert.Equal(t, DBTX(a.pool), DB(t.Context(), a.pool))
}

func TestDBOfAnotherPoolIsThatPool(t *testing.T) {
	a := newApp(t)
	other := pgtest.Pool(t, pgtest.DSN())
	send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		assert.Equal(t, DBTX(other), DB(r.Context(), other))
		assert.Equal(t, DBTX(tx.(*managedTx)), DB(r.Context(), a.pool))
		return nil
	}))
}

func TestNestedEndpointJoins(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	inner, err := a.store.Endpoint("inner", a.policy)
	require.NoError(t, err)
	for _, fails := range []bool{true, false} {
		h := a.inTx(func(w http.ResponseWriter, r *http.Request, outer pgx.Tx) error {
			inner.InTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				assert.Same(t, outer, tx)
				if err := pay(w, r, tx); err != nil || !fails {
					return err
				}
				return errTest
			})(w, r)
			return nil
		})
		w := send(h)
		if fails {
			expectProblem(t, w, 500, idemhttp.Failed)
			assert.Zero(t, a.payments())
		} else {
			expectRan(t, w, 201, "payment 2")
		}
	}
	assert.Equal(t, 1, a.claims(), "one for the outer endpoint")
}
