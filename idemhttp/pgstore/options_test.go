package pgstore

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// TestExclusiveRunsOnce: sixty copies at once, one run; whoever isn't refused is
// answered alike.
func TestExclusiveRunsOnce(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, change...)
		a.opts = []EndpointOption{WithExclusive()}
		h := a.inTx(pay)
		for _, w := range together(60, func(int) *httptest.ResponseRecorder { return send(h) }) {
			if w.Code == 409 {
				expectProblem(t, w, 409, idemhttp.InProgress)
				assert.Equal(t, "1", w.Header().Get("Retry-After"))
				continue
			}
			expect(t, w, 201, "payment 1")
		}
		assert.EqualValues(t, 1, a.runs.Load())
		assert.Equal(t, 1, a.payments())
	})
}

// TestExclusiveLooksAgainUnderTheLock: the first one commits, and lets go of the
// lock, between the second one's look-up and its asking for the lock.
func TestExclusiveLooksAgainUnderTheLock(t *testing.T) {
	winner := newApp(t)
	winner.opts = []EndpointOption{WithExclusive()}
	proxy := pgtest.NewProxy(t, pgtest.Addr())
	pool := pgtest.Pool(t, pgtest.DSN(), proxy.Use(), pgtest.Mode(pgx.QueryExecModeExec))
	store, err := New(pool, WithSchema(winner.schema))
	require.NoError(t, err)
	require.NoError(t, pool.Ping(t.Context()))
	second, err := store.Endpoint("pay", winner.policy, WithExclusive())
	require.NoError(t, err)

	looked := make(chan struct{}, 8)
	proxy.OnServer(func(m pgtest.Message) pgtest.Verdict {
		if m.Kind == 'C' && strings.HasPrefix(string(m.Body), "SELECT 0") {
			looked <- struct{}{}
		}
		return pgtest.Pass
	})
	split := false
	proxy.OnClient(func(m pgtest.Message) pgtest.Verdict {
		if m.Kind != 'P' || !strings.Contains(string(m.Body), "commit and chain") {
			return pgtest.Pass
		}
		if !split {
			split = true
			return pgtest.Split
		}
		<-looked
		expectRan(t, send(winner.inTx(pay)), 201, "payment 1")
		return pgtest.Pass
	})
	expectReplay(t, send(second.InTx(func(http.ResponseWriter, *http.Request, pgx.Tx) error {
		t.Error("ran")
		return nil
	})), 201, "payment 1")
}

func TestExclusiveWaits(t *testing.T) {
	a := newApp(t)
	a.opts, a.policy.Wait = []EndpointOption{WithExclusive()}, 20*time.Second
	h := a.inTx(pay)
	for _, w := range together(20, func(int) *httptest.ResponseRecorder { return send(h) }) {
		expect(t, w, 201, "payment 1")
	}
	assert.EqualValues(t, 1, a.runs.Load())
}

// TestExclusiveLockDiesWithItsBackend: nobody is refused for longer than the
// holder lives.
func TestExclusiveLockDiesWithItsBackend(t *testing.T) {
	a := newApp(t)
	a.opts = []EndpointOption{WithExclusive()}
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if r.Header.Get("X-Note") == "dies" {
			expectProblem(t, send(a.inTx(pay)), 409, idemhttp.InProgress)
			expectRan(t, send(a.inTx(pay), key("another")), 201, "payment 1")
			_, err := tx.Exec(r.Context(), "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		}
		return pay(w, r, tx)
	})
	assert.Equal(t, 500, send(h, header("X-Note", "dies")).Code)
	require.Eventually(t, func() bool { return send(h).Code == 201 }, 10*time.Second, 5*time.Millisecond)
	assert.Equal(t, 2, a.payments())
}

// TestRetry: two transactions that can't both be serialized; the one that is
// given up runs again. Without the option it fails.
func TestRetry(t *testing.T) {
	for _, style := range []string{"returned", "swallowed", "unchecked"} {
		for _, retries := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s/%d", style, retries), func(t *testing.T) {
				t.Parallel()
				testRetry(t, style, retries)
			})
		}
	}
}

func testRetry(t *testing.T, style string, retries int) {
	a := newApp(t)
	a.opts = []EndpointOption{WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable}), WithRetry(retries)}
	var once sync.Once
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		AfterCommit(r.Context(), func(context.Context) error { a.events.kinds[7].Add(1); return nil })
		if _, err := tx.Exec(r.Context(), "SELECT version FROM accounts WHERE id = 1"); err != nil {
			return err
		}
		once.Do(func() { a.admin("UPDATE " + a.schema + ".accounts SET version = version + 1 WHERE id = 1") })
		sent := make([]byte, 100)
		n, _ := r.Body.Read(sent)
		assert.Equal(t, `{"cents":5}`, string(sent[:n]))
		_, err := tx.Exec(r.Context(), "UPDATE accounts SET cents = cents + 5 WHERE id = 1")
		if err != nil && style == "swallowed" {
			http.Error(w, "conflict", http.StatusConflict)
			return nil
		}
		return swallow(joinPay(err, w, r, tx), style)
	})
	w := send(h)
	if retries == 0 {
		assert.Contains(t, []int{409, 500}, w.Code)
		assert.Zero(t, a.claims())
		assert.EqualValues(t, 1, a.runs.Load())
		return
	}
	assert.Equal(t, 201, w.Code, w.Body)
	assert.EqualValues(t, 2, a.runs.Load())
	assert.Equal(t, 1, a.count("accounts WHERE cents = 5"))
	assert.Equal(t, 1, a.payments())
	assert.EqualValues(t, 1, a.events.kinds[7].Load(), "AfterCommit of the run that was committed")
}

func joinPay(err error, w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	if err != nil {
		return err
	}
	return pay(w, r, tx)
}

func TestRetryIsBoundedAndForClass40Only(t *testing.T) {
	a := newApp(t)
	a.opts = []EndpointOption{WithRetry(3)}
	code := "40001"
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		_, err := tx.Exec(r.Context(), "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '"+code+"'; END $$")
		return err
	})
	assert.Equal(t, 500, send(h).Code)
	assert.EqualValues(t, 4, a.runs.Load())
	code = "23505"
	assert.Equal(t, 500, send(h).Code)
	assert.EqualValues(t, 5, a.runs.Load())
}

func TestPrefetch(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, change...)
		table := a.schema + ".accounts"
		a.opts = []EndpointOption{WithPrefetch(func(r *http.Request, b *pgx.Batch) {
			b.Queue("SELECT id, cents FROM "+table+" WHERE id = $1", 1)
			b.Queue("SELECT n, NULL::text, ARRAY[n, n] FROM generate_series(1, @most) n", pgx.NamedArgs{"most": 3})
		})}
		expectRan(t, send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			type account struct{ ID, Cents int }
			for range 2 { // they can be read again
				acc, err := pgx.CollectExactlyOneRow(Prefetched(r.Context(), 0), pgx.RowToStructByName[account])
				require.NoError(t, err)
				assert.Equal(t, account{1, 0}, acc)
			}
			rows := Prefetched(r.Context(), 1)
			n := 0
			for rows.Next() {
				n++
				values, err := rows.Values()
				require.NoError(t, err)
				assert.Equal(t, []any{int32(n), nil, []any{int32(n), int32(n)}}, values)
				var got int
				var none *string
				var list []int
				require.NoError(t, rows.Scan(&got, &none, &list))
				assert.Equal(t, []int{n, n}, list)
			}
			require.NoError(t, rows.Err())
			assert.Equal(t, 3, n)
			assert.Equal(t, "SELECT 3", rows.CommandTag().String())
			assert.Error(t, Prefetched(r.Context(), 2).Err())
			assert.Error(t, Prefetched(t.Context(), 0).Err())
			return pay(w, r, tx)
		})), 201, "payment 1")
		expectReplay(t, send(a.inTx(pay)), 201, "payment 1")
	})
}

func TestPrefetchThatFails(t *testing.T) {
	for name, arg := range map[string]any{"on the server": 0, "to be encoded": func() {}} {
		a := newApp(t)
		a.opts = []EndpointOption{WithPrefetch(func(_ *http.Request, b *pgx.Batch) { b.Queue("SELECT 1 / $1::int", arg) })}
		expectProblem(t, send(a.inTx(pay)), 500, idemhttp.Failed)
		assert.Zero(t, a.runs.Load(), name)
		assert.Zero(t, a.claims())
		assert.True(t, a.log.has("prefetch: query 0"), "%s: %s", name, a.log)
	}
}

func TestWorkPoolOfTheSameDatabase(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	work := pgtest.Pool(t, pgtest.DSN(), pgtest.Path(a.schema), pgtest.MaxConns(1))
	a.opts = []EndpointOption{WithWorkPool(work)}
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		assert.Zero(t, a.claims(), "in the transaction, not up front")
		assert.Equal(t, DBTX(tx.(*managedTx)), DB(r.Context(), work))
		assert.Equal(t, DBTX(a.pool), DB(r.Context(), a.pool))
		return pay(w, r, tx)
	})
	expectRan(t, send(h), 201, "payment 1")
	expectReplay(t, send(h), 201, "payment 1")
	assert.False(t, a.log.has("another database"))
}

// TestWorkPoolsAreKnownPerStore: two stores, in schemas of their own, may share
// a pool.
func TestWorkPoolsAreKnownPerStore(t *testing.T) {
	a, b := newApp(t), newApp(t)
	work := pgtest.Pool(t, pgtest.DSN())
	for _, x := range []*app{a, b} {
		x.opts = []EndpointOption{WithWorkPool(work)}
		expectRan(t, send(x.inTx(pay)), 201, "payment 1")
		expectReplay(t, send(x.inTx(pay)), 201, "payment 1")
	}
	assert.Equal(t, 1, a.claims())
	assert.Equal(t, 1, b.claims())
}

// otherDatabase makes a database on the shared server.
func otherDatabase(t *testing.T) string {
	t.Helper()
	admin := pgtest.Pool(t, pgtest.DSN(), pgtest.MaxConns(1))
	name := "idem_test_other_" + fmt.Sprint(time.Now().UnixNano())
	_, err := admin.Exec(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = admin.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
	return name
}

func database(name string) poolChange {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.Database = name }
}

// TestWorkPoolElsewhere: the claim can't be in the transaction, so it is taken up
// front, and a commit is heard of.
func TestWorkPoolElsewhere(t *testing.T) {
	a := newApp(t)
	work := pgtest.Pool(t, pgtest.DSN(), database(otherDatabase(t)))
	_, err := work.Exec(t.Context(), "CREATE TABLE work (note text)")
	require.NoError(t, err)
	a.opts = []EndpointOption{WithWorkPool(work)}
	do := func(after error) TxFunc {
		return func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			assert.Equal(t, 1, a.claims(), "claimed up front")
			_, err := tx.Exec(r.Context(), "INSERT INTO work VALUES ('x')")
			require.NoError(t, err)
			w.WriteHeader(http.StatusCreated)
			return after
		}
	}
	works := func() (n int) {
		require.NoError(t, work.QueryRow(t.Context(), "SELECT count(*) FROM work").Scan(&n))
		return n
	}
	assert.Equal(t, 500, send(a.inTx(do(errTest))).Code)
	assert.Zero(t, works())
	expectRan(t, send(a.inTx(do(nil))), 201, "")
	expectReplay(t, send(a.inTx(do(nil))), 201, "")
	assert.Equal(t, 1, works())
	assert.True(t, a.log.has("another database"))
	assert.True(t, a.log.has("endpoint=pay"))

	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		AfterCommit(r.Context(), func(context.Context) error { return errTest })
		_, err := tx.Exec(r.Context(), "INSERT INTO work VALUES ('x')")
		return err
	})
	assert.Equal(t, 500, send(h, key("k2")).Code)
	expectProblem(t, send(h, key("k2")), 409, idemhttp.NoAnswer)
	assert.Equal(t, 2, works())

	a.opts = append(a.opts, WithRetry(2)) // the claim isn't InTx's there, and neither is the body
	a.runs.Store(0)
	h = a.inTx(func(http.ResponseWriter, *http.Request, pgx.Tx) error { return &pgconn.PgError{Code: "40001"} })
	assert.Equal(t, 500, send(h, key("k3")).Code)
	assert.EqualValues(t, 1, a.runs.Load())
	assert.Equal(t, 500, send(h, key("k3"), body(""), func(r *http.Request) { r.Body = http.NoBody }).Code)
	assert.EqualValues(t, 4, a.runs.Load())
}

// TestWorkPoolUnknownAtFirst: the database is down when the endpoint is made.
func TestWorkPoolUnknownAtFirst(t *testing.T) {
	a := newApp(t)
	proxy := pgtest.NewProxy(t, pgtest.Addr())
	proxy.SetDown(true)
	work := pgtest.Pool(t, pgtest.DSN(), pgtest.Path(a.schema), proxy.Use())
	a.opts = []EndpointOption{WithWorkPool(work)}
	e := a.endpoint()
	e.site.memory = 10 * time.Millisecond
	h := e.InTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		return pay(w, r.WithContext(context.WithValue(r.Context(), schemaKey{}, a.schema)), tx)
	})
	expectProblem(t, send(h), 503, idemhttp.StoreDown)
	proxy.SetDown(false)
	require.Eventually(t, func() bool { return send(h).Code == 201 }, 10*time.Second, time.Millisecond)
	expectReplay(t, send(h), 201, "payment 1")
}

// TestWorkPoolThatMoved: the pool led to the right database when it was asked,
// and leads elsewhere by the first transaction. A claim written there would
// never be read back.
func TestWorkPoolThatMoved(t *testing.T) {
	a := newApp(t)
	other := otherDatabase(t)
	moved := false
	work := pgtest.Pool(t, pgtest.DSN(), func(cfg *pgxpool.Config) {
		cfg.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
			if moved {
				cc.Database = other
			}
			return nil
		}
	})
	a.opts = []EndpointOption{WithWorkPool(work)}
	h := a.inTx(pay)
	elsewhere := pgtest.Pool(t, pgtest.DSN(), database(other))
	store, err := New(elsewhere, WithSchema(a.schema))
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	moved = true
	work.Reset()
	expectProblem(t, send(h), 503, idemhttp.StoreDown)
	assert.Zero(t, a.runs.Load())
	assert.True(t, a.log.has("another database than the claims"), a.log.String())
	moved = false
	work.Reset()
	expectRan(t, send(h), 201, "payment 1")
}

func TestOptionsAreChecked(t *testing.T) {
	a := newApp(t)
	for want, opt := range map[string]EndpointOption{
		"option 0 is nil":                   nil,
		`AccessMode "read only"`:            WithTxOptions(pgx.TxOptions{AccessMode: pgx.ReadOnly}),
		`BeginQuery "x"`:                    WithTxOptions(pgx.TxOptions{BeginQuery: "x"}),
		`CommitQuery "y"`:                   WithTxOptions(pgx.TxOptions{CommitQuery: "y"}),
		`IsoLevel "chaos"`:                  WithTxOptions(pgx.TxOptions{IsoLevel: "chaos"}),
		`DeferrableMode "later"`:            WithTxOptions(pgx.TxOptions{DeferrableMode: "later"}),
		"WithRetry: -1":                     WithRetry(-1),
		"WithPrefetch: the function is nil": WithPrefetch(nil),
		"WithWorkPool: the pool is nil":     WithWorkPool(nil),
	} {
		_, err := a.store.Endpoint("pay", a.policy, opt)
		assert.ErrorIs(t, err, idemhttp.ErrInvalidPolicy)
		assert.ErrorContains(t, err, want)
	}
	_, err := a.store.Endpoint(" ", a.policy)
	assert.ErrorIs(t, err, idemhttp.ErrInvalidPolicy)
	_, err = a.store.Endpoint("pay", idemhttp.Policy{})
	assert.ErrorIs(t, err, idemhttp.ErrInvalidPolicy)
	assert.Panics(t, func() { a.endpoint().InTx(nil) })
	assert.Panics(t, func() { a.endpoint().InTxMiddleware(nil) })
}

func TestTxOptionsReachTheServer(t *testing.T) {
	a := newApp(t)
	for level, want := range map[pgx.TxIsoLevel]string{"": "read committed", pgx.Serializable: "serializable", pgx.RepeatableRead: "repeatable read"} {
		a.opts = []EndpointOption{WithTxOptions(pgx.TxOptions{IsoLevel: level, AccessMode: pgx.ReadWrite, DeferrableMode: pgx.Deferrable})}
		send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			var got, deferrable string
			require.NoError(t, tx.QueryRow(r.Context(), "SELECT current_setting('transaction_isolation'), current_setting('transaction_deferrable')").Scan(&got, &deferrable))
			assert.Equal(t, want, got)
			assert.Equal(t, "on", deferrable)
			return nil
		}), key("k"+want))
	}
	assert.EqualValues(t, 3, a.runs.Load())
}

func TestClaimTTLIsTheEndpointsDeadline(t *testing.T) {
	a := newApp(t)
	a.policy.ClaimTTL = 50 * time.Millisecond
	w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		<-r.Context().Done()
		return context.Cause(r.Context())
	}))
	assert.Equal(t, 500, w.Code)
	assert.True(t, a.log.has("ClaimTTL (50ms)"))
}

// TestExclusiveLockThatFails: for a reason of its own, such as no memory for it.
func TestExclusiveLockThatFails(t *testing.T) {
	schema := pgtest.Schema(t)
	a := newAppAt(t, pgtest.DSN(), schema, pgtest.Path(schema+",pg_catalog")) // its function comes first
	a.admin("CREATE FUNCTION " + schema + `.pg_try_advisory_xact_lock(bigint) RETURNS bool LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'no room for a lock' USING ERRCODE = '53200'; END $$`)
	a.opts = []EndpointOption{WithExclusive()}
	h := a.inTx(pay)
	expectProblem(t, send(h), 503, idemhttp.StoreDown)
	assert.Zero(t, a.runs.Load())
	assert.True(t, a.log.has("no room for a lock"))
}

// TestRetryWithoutAClaim: the body of such a request isn't kept, so only one
// without a body runs again.
func TestRetryWithoutAClaim(t *testing.T) {
	a := newApp(t)
	a.policy.Optional = true
	a.opts = []EndpointOption{WithRetry(2)}
	h := a.inTx(func(http.ResponseWriter, *http.Request, pgx.Tx) error { return &pgconn.PgError{Code: "40001"} })
	bare := func(r *http.Request) { r.Header.Del("Idempotency-Key") }
	assert.Equal(t, 500, send(h, bare).Code)
	assert.EqualValues(t, 1, a.runs.Load())
	assert.Equal(t, 500, send(h, bare, func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 }).Code)
	assert.EqualValues(t, 4, a.runs.Load())
}

// panics is an argument that can't be encoded.
type panics struct{}

func (panics) Value() (driver.Value, error) { panic("no value") }

// TestPrefetchThatPanics gives its connection back.
func TestPrefetchThatPanics(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	a.opts = []EndpointOption{WithPrefetch(func(_ *http.Request, b *pgx.Batch) { b.Queue("SELECT $1", panics{}) })}
	assert.PanicsWithValue(t, "no value", func() { send(a.inTx(pay)) })
	assert.Zero(t, a.pool.Stat().AcquiredConns())
	a.opts = nil
	expectRan(t, send(a.inTx(pay)), 201, "payment 1")
}

// TestWorkPoolThatHangs: one question is asked for all requests, nobody waits for
// it longer than their own context, and a failure is remembered for a while.
func TestWorkPoolThatHangs(t *testing.T) {
	a := newApp(t)
	var asked atomic.Int64
	hang := make(chan struct{})
	work := pgtest.Pool(t, pgtest.DSN(), func(cfg *pgxpool.Config) {
		cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if asked.Add(1) > 1 { // the first is the endpoint's making
				<-hang
			}
			return errTest
		}
	})
	a.opts = []EndpointOption{WithWorkPool(work)}
	e := a.endpoint()
	e.site.memory = time.Hour
	h := e.InTx(pay)
	gone, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { expectProblem(t, send(h), 503, idemhttp.StoreDown) })
	}
	require.Eventually(t, func() bool { return asked.Load() == 2 }, 10*time.Second, time.Millisecond)
	cancel()
	expectProblem(t, send(h, in(gone)), 503, idemhttp.StoreDown)
	e.site.mu.Lock()
	assert.NotNil(t, e.site.asking, "the question still hangs")
	e.site.mu.Unlock()
	close(hang)
	all.Wait()
	expectProblem(t, send(h), 503, idemhttp.StoreDown)
	assert.EqualValues(t, 2, asked.Load())
	assert.True(t, a.log.has(errTest.Error()))
}
