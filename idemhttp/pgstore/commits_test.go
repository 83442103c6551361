package pgstore

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

func traced(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = Tracer(nil) }

// failing runs do in release mode and then fails, and reports whether the claim
// was kept.
func (a *app) failing(name string, do func(ctx context.Context, pool *pgxpool.Pool) error) (kept bool) {
	a.t.Helper()
	h := a.endpoint().DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := do(r.Context(), a.pool); err != nil {
			a.t.Logf("%s: %v", name, err)
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	assert.Equal(a.t, 500, send(h, key(name)).Code)
	w := send(h, key(name))
	if w.Code == 409 {
		expectProblem(a.t, w, 409, idemhttp.NoAnswer)
		assert.Empty(a.t, w.Header().Get("Retry-After"))
		return true
	}
	assert.Equal(a.t, 500, w.Code)
	return false
}

// commitCases are ways to work, and whether they leave something committed.
func commitCases(schema string) map[string]struct {
	kept bool
	do   func(context.Context, *pgxpool.Pool) error
} {
	exec := func(texts ...string) func(context.Context, *pgxpool.Pool) error {
		return func(ctx context.Context, pool *pgxpool.Pool) (err error) {
			conn, err := pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			for _, text := range texts {
				_, err = conn.Exec(ctx, sql(context.WithValue(ctx, schemaKey{}, schema), text))
			}
			return err
		}
	}
	batch := func(texts ...string) func(context.Context, *pgxpool.Pool) error {
		return func(ctx context.Context, pool *pgxpool.Pool) error {
			var b pgx.Batch
			for _, text := range texts {
				b.Queue(sql(context.WithValue(ctx, schemaKey{}, schema), text))
			}
			return pool.SendBatch(ctx, &b).Close()
		}
	}
	const insert = "INSERT INTO payments (note) VALUES ('x')"
	return map[string]struct {
		kept bool
		do   func(context.Context, *pgxpool.Pool) error
	}{
		"a read":                {false, exec("SELECT * FROM payments")},
		"a read with a lock":    {false, exec("SELECT * FROM accounts FOR UPDATE")},
		"a write":               {true, exec(insert)},
		"a write behind blanks": {true, exec("\n -- a note\n /* and */ " + insert)},
		"a write of nothing":    {true, exec("UPDATE payments SET note = 'y' WHERE id = -1")},
		"a write that fails":    {false, exec("INSERT INTO payments (id) VALUES (1)")},
		"a write in a CTE":      {true, exec("WITH w AS (INSERT INTO payments (note) VALUES ('x') RETURNING 1) SELECT * FROM w")},
		"several statements":    {true, exec("SELECT 1; " + insert + "; SELECT 2")},
		"a commit midst fail":   {true, exec("BEGIN; " + insert + "; COMMIT; SELECT 1/0")},
		"commit and begin":      {true, exec("BEGIN", insert, "COMMIT; BEGIN", "ROLLBACK")},
		"commit and rollback":   {true, exec("BEGIN; " + insert + "; COMMIT; BEGIN; ROLLBACK")},
		"a nested comment":      {true, exec("BEGIN", insert, "/* /* */ */ COMMIT")},
		"a procedure that ends": {true, exec("DO $$ BEGIN INSERT INTO payments (note) VALUES ('x'); COMMIT; PERFORM 1/0; END $$")},
		"several that fail":     {false, exec(insert + "; SELECT 1/0")},
		"WITH and INTO":         {true, exec("WITH q AS (SELECT 1 AS n) SELECT * INTO TEMP TABLE idem_with FROM q")},
		"SELECT INTO":           {true, exec("SELECT 1 AS n INTO TEMP TABLE idem_into")},
		"a commit":              {true, exec("BEGIN", insert, "COMMIT")},
		"a commit by END":       {true, exec("BEGIN", insert, "END")},
		"a commit and chain":    {true, exec("BEGIN", insert, "COMMIT AND CHAIN", "ROLLBACK")},
		"a rollback":            {false, exec("BEGIN", insert, "ROLLBACK")},
		"a commit that fails":   {false, exec("BEGIN", "SELECT 1/0", "COMMIT")},
		"a transaction left":    {false, exec("BEGIN", insert, "SELECT CASE WHEN true THEN 1 END")},
		"a deferred constraint": {false, exec("BEGIN", "CREATE TEMP TABLE idem_d (n int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP", "INSERT INTO idem_d VALUES (1), (1)", "COMMIT")},
		"a batch that reads":    {false, batch("SELECT 1", "SELECT 2")},
		"a batch that writes":   {true, batch("SELECT 1", insert)},
		"a batch that fails":    {false, batch(insert, "SELECT 1/0")},
		"a batch that commits":  {true, batch("BEGIN", insert, "COMMIT", "SELECT 1/0")},
		"a copy": {true, func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.CopyFrom(ctx, pgx.Identifier{schema, "payments"}, []string{"note"}, pgx.CopyFromRows([][]any{{"x"}}))
			return err
		}},
		"Begin and Commit": {true, func(ctx context.Context, pool *pgxpool.Pool) error {
			tx, err := Begin(ctx, pool)
			if err != nil {
				return err
			}
			defer tx.Rollback(ctx)
			return tx.Commit(context.Background())
		}},
		"Begin and Rollback": {false, func(ctx context.Context, pool *pgxpool.Pool) error {
			tx, err := Begin(ctx, pool)
			if err != nil {
				return err
			}
			return tx.Rollback(ctx)
		}},
		"Begin fail Commit": {false, func(ctx context.Context, pool *pgxpool.Pool) error {
			tx, err := Begin(ctx, pool)
			if err != nil {
				return err
			}
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return tx.Commit(ctx)
		}},
		"Begin Rollback Commit": {false, func(ctx context.Context, pool *pgxpool.Pool) error {
			tx, err := Begin(ctx, pool)
			if err != nil {
				return err
			}
			_ = tx.Rollback(ctx)
			return tx.Commit(ctx)
		}},
		"by hand": {true, func(ctx context.Context, _ *pgxpool.Pool) error { idemhttp.Committed(ctx); return nil }},
	}
}

func TestCommittedWorkIsNeverReleased(t *testing.T) {
	for _, mode := range pgtest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			a := newApp(t, pgtest.Mode(mode), traced)
			for name, c := range commitCases(a.schema) {
				assert.Equal(t, c.kept, a.failing(name, c.do), "%s", name)
			}
		})
	}
}

// TestTriggersWriteElsewhere: the tag counts no row, and one is there.
func TestTriggersWriteElsewhere(t *testing.T) {
	a := newApp(t, traced)
	a.admin(`CREATE TABLE part (note text)`)
	a.admin(`CREATE FUNCTION route() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO part VALUES (NEW.note); RETURN NULL; END $$`)
	a.admin(`CREATE TRIGGER route BEFORE INSERT ON payments FOR EACH ROW EXECUTE FUNCTION route()`)
	assert.True(t, a.failing("trigger", func(ctx context.Context, pool *pgxpool.Pool) error {
		tag, err := pool.Exec(ctx, "INSERT INTO payments (note) VALUES ($1)", "x")
		assert.Zero(t, tag.RowsAffected())
		return err
	}))
	assert.Equal(t, 1, a.count("part"))
}

// TestProcedureInABatch: it has committed, and what comes behind it fails.
func TestProcedureInABatch(t *testing.T) {
	a := newApp(t, traced)
	a.admin(`CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO payments (note) VALUES ('x'); COMMIT; END $$`)
	assert.True(t, a.failing("call", func(ctx context.Context, pool *pgxpool.Pool) error {
		var b pgx.Batch
		b.Queue("CALL work()")
		b.Queue("SELECT 1/0")
		return pool.SendBatch(ctx, &b).Close()
	}))
	assert.Equal(t, 1, a.payments())
}

func TestWhatMayCommit(t *testing.T) {
	for _, c := range []struct {
		sql             string
		outside, inside bool
	}{
		{"", false, false},
		{"SELECT 1;", false, false},
		{"-- name: Get :one\nSELECT 1", false, false},
		{"INSERT INTO t VALUES (1);", true, false},
		{"COMMIT;", true, true},
		{"PREPARE TRANSACTION 'x'", true, true},
		{"PREPARE p AS SELECT 1", false, false},
		{"/* /* */ */ COMMIT", true, true},
		{"/* /* */ SELECT 1 */ COMMIT", true, true},
		{"-- x\rCOMMIT", true, true},
		{"/* ; */ SELECT 1", false, false},
		{"SELECT 1; /* ;SELECT */ COMMIT", true, true},
		{"SELECT 1; -- ;SELECT \nCOMMIT", true, true},
		{"\vCOMMIT", true, true},
		{"/* without an end", false, false},
		{"WITH q AS (SELECT 1) SELECT * FROM q", false, false},
		{"WITH q AS (SELECT 1) SELECT * INTO t FROM q", true, false},
		{"EXPLAIN SELECT 1", false, false},
		{"EXPLAIN ANALYZE EXECUTE p", true, false},
		{"EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1", true, false},
	} {
		assert.Equal(t, c.outside, mayCommit(c.sql, false), "outside: %q", c.sql)
		assert.Equal(t, c.inside, mayCommit(c.sql, true), "inside: %q", c.sql)
	}
}

// TestBeginNeedsNoTracer: it tells of its commit by itself.
func TestBeginNeedsNoTracer(t *testing.T) {
	a := newApp(t)
	for name, c := range commitCases(a.schema) {
		if name[:5] == "Begin" {
			assert.Equal(t, c.kept, a.failing(name, c.do), "%s", name)
		}
	}
}

func TestBeginOutsideOfARequest(t *testing.T) {
	a := newApp(t)
	tx, err := Begin(t.Context(), a.pool)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	_, marked := tx.(*markedTx)
	assert.False(t, marked)
}

func TestBeginInsideIsASavepoint(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, outer pgx.Tx) error {
		tx, err := Begin(r.Context(), a.pool)
		require.NoError(t, err)
		require.NoError(t, pay(w, r, tx))
		require.NoError(t, tx.Commit(r.Context()))
		assert.Zero(t, a.payments())
		return nil
	}))
	expectRan(t, w, 201, "payment 1")
	assert.Equal(t, 1, a.payments())
}

// TestOuterMiddlewareHearsOfTheCommit: claim-and-release on another store, around
// an endpoint in a transaction that fails after its commit.
func TestOuterMiddlewareHearsOfTheCommit(t *testing.T) {
	a, outer := newApp(t), newApp(t)
	for name, c := range map[string]struct {
		fn     TxFunc
		status int
	}{
		"fails after its commit": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			AfterCommit(r.Context(), func(context.Context) error { return errTest })
			return pay(w, r, tx)
		}, 409},
		"fails before it": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			return errTest
		}, 500},
		"can't commit": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), "CREATE TEMP TABLE idem_d (n int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP; INSERT INTO idem_d VALUES (1), (1)")
			return err
		}, 500},
	} {
		h := outer.endpoint().DeduplicateWithResponse(a.inTx(c.fn))
		assert.Equal(t, 500, send(h, key(name)).Code, name)
		assert.NoError(t, a.endpoint().Forget(t.Context(), requestWith(name)))
		assert.Equal(t, c.status, send(h, key(name)).Code, name)
	}
}

func requestWith(k string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/payments", http.NoBody)
	r.Header.Set("Idempotency-Key", k)
	return r
}

// TestCommitOfUnknownOutcomeCountsAsCommitted: cut between COMMIT and its answer.
func TestCommitOfUnknownOutcomeCountsAsCommitted(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, pool *pgxpool.Pool) error{
		"Begin": func(ctx context.Context, pool *pgxpool.Pool) error {
			tx, err := Begin(ctx, pool)
			if err != nil {
				return err
			}
			return tx.Commit(ctx)
		},
		"Tracer": func(ctx context.Context, pool *pgxpool.Pool) error {
			return pgx.BeginFunc(ctx, pool, func(pgx.Tx) error { return nil })
		},
	} {
		a := newApp(t)
		proxy := pgtest.NewProxy(t, pgtest.Addr())
		work := pgtest.Pool(t, pgtest.DSN(), proxy.Use(), traced)
		proxy.OnClient(func(m pgtest.Message) pgtest.Verdict {
			if m.Kind == 'Q' && string(m.Body[:6]) == "commit" {
				return pgtest.CutBefore
			}
			return pgtest.Pass
		})
		kept := a.failing(name, func(ctx context.Context, _ *pgxpool.Pool) error { return do(ctx, work) })
		assert.True(t, kept, name)
	}
}

// TestTracerPassesOn: what was there before still hears everything.
func TestTracerPassesOn(t *testing.T) {
	a := newApp(t)
	next := &recorder{}
	pool := pgtest.Pool(t, pgtest.DSN(), pgtest.Path(a.schema), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = Tracer(next) })
	ctx := t.Context()
	_, err := pool.Exec(ctx, "SELECT $1::int", 1)
	require.NoError(t, err)
	var b pgx.Batch
	b.Queue("SELECT 1")
	require.NoError(t, pool.SendBatch(ctx, &b).Close())
	_, err = pool.CopyFrom(ctx, pgx.Identifier{"payments"}, []string{"note"}, pgx.CopyFromRows([][]any{{"x"}}))
	require.NoError(t, err)
	assert.Equal(t, []string{
		"acquire", "connect", "connected", "acquired", "query", "prepare", "prepared", "queried", "release",
		"acquire", "acquired", "batch", "batch query", "batched", "release",
		"acquire", "acquired", "copy", "prepare", "prepared", "copied", "release",
	}, next.compact())
}

type recorder struct {
	mu    sync.Mutex // connections are opened and given back by goroutines of the pool's
	heard []string
}

func (r *recorder) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = append(r.heard, what)
}

// compact leaves out what pgx prepares for a batch.
func (r *recorder) compact() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := false
	for _, what := range r.heard {
		batch = batch && what != "batched" || what == "batch"
		if batch && (what == "prepare" || what == "prepared") {
			continue
		}
		out = append(out, what)
	}
	return out
}

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	r.note("query")
	return ctx
}
func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {
	r.note("queried")
}
func (r *recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	r.note("batch")
	return ctx
}
func (r *recorder) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	r.note("batch query")
}
func (r *recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {
	r.note("batched")
}
func (r *recorder) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	r.note("copy")
	return ctx
}
func (r *recorder) TraceCopyFromEnd(context.Context, *pgx.Conn, pgx.TraceCopyFromEndData) {
	r.note("copied")
}
func (r *recorder) TracePrepareStart(ctx context.Context, _ *pgx.Conn, _ pgx.TracePrepareStartData) context.Context {
	r.note("prepare")
	return ctx
}
func (r *recorder) TracePrepareEnd(context.Context, *pgx.Conn, pgx.TracePrepareEndData) {
	r.note("prepared")
}
func (r *recorder) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	r.note("connect")
	return ctx
}
func (r *recorder) TraceConnectEnd(context.Context, pgx.TraceConnectEndData) { r.note("connected") }
func (r *recorder) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	r.note("acquire")
	return ctx
}
func (r *recorder) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {
	r.note("acquired")
}
func (r *recorder) TraceRelease(*pgxpool.Pool, pgxpool.TraceReleaseData) { r.note("release") }

// TestReleaseModeSurvivesALostClaim: the INSERT's answer is lost; whose claim it
// is, is told by the token.
func TestReleaseModeSurvivesALostClaim(t *testing.T) {
	a := newApp(t)
	proxy := pgtest.NewProxy(t, pgtest.Addr())
	pool := pgtest.Pool(t, pgtest.DSN(), proxy.Use())
	store, err := New(pool, WithSchema(a.schema), WithLogger(a.log.logger()))
	require.NoError(t, err)
	require.NoError(t, pool.Ping(t.Context()))
	a.store = store
	cut := true
	proxy.OnServer(func(m pgtest.Message) pgtest.Verdict {
		if cut && m.Kind == 'C' && string(m.Body[:6]) == "INSERT" {
			cut = false
			return pgtest.CutBefore
		}
		return pgtest.Pass
	})
	h := a.endpoint().DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.runs.Add(1)
		w.WriteHeader(http.StatusCreated)
	}))
	first := send(h)
	second := send(h)
	expectRan(t, first, 201, "")
	expectReplay(t, second, 201, "")
	assert.EqualValues(t, 1, a.runs.Load())
}
