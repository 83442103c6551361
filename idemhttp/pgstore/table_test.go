package pgstore

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// TestMigrateFromManyNodes: at once, into a schema that isn't there yet.
func TestMigrateFromManyNodes(t *testing.T) {
	for round := range 5 {
		schema := fmt.Sprintf("%s_%d", pgtest.Schema(t), round)
		pool := pgtest.Pool(t, pgtest.DSN())
		t.Cleanup(func() { _, _ = pool.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE") })
		errs := together(8, func(int) error {
			store, err := New(pool, WithSchema(schema))
			if err != nil {
				return err
			}
			return store.Migrate(t.Context())
		})
		for _, err := range errs {
			assert.NoError(t, err)
		}
	}
}

// TestMigrateOfAnotherTableWaits: the first one has created the schema and not
// committed it yet, so the second one still sees none. Its backend may know of
// none from before, too.
func TestMigrateOfAnotherTableWaits(t *testing.T) {
	schema := pgtest.Schema(t) + "_new"
	pool, other := pgtest.Pool(t, pgtest.DSN()), pgtest.Pool(t, pgtest.DSN(), pgtest.MaxConns(1))
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE") })
	first, err := New(pool, WithSchema(schema), WithTable("one"))
	require.NoError(t, err)
	second, err := New(other, WithSchema(schema), WithTable("two"))
	require.NoError(t, err)
	for range 2 { // the backend remembers the schema to be missing, and all else that it looks up
		require.NoError(t, second.Migrate(t.Context()))
		_, err = pool.Exec(t.Context(), "DROP SCHEMA "+schema+" CASCADE")
		require.NoError(t, err)
		_, err = other.Exec(t.Context(), "SELECT to_regnamespace($1)", schema)
		require.NoError(t, err)
	}
	done := make(chan error, 1)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if err := first.migrate(t.Context(), tx); err != nil {
			return err
		}
		go func() { done <- second.Migrate(context.Background()) }()
		awaitBlockedBy(t, pool, tx.Conn().PgConn().PID())
		return nil
	}))
	assert.NoError(t, <-done)
}

// awaitBlockedBy waits until the server has somebody wait for the backend pid.
func awaitBlockedBy(t *testing.T, pool *pgxpool.Pool, pid uint32) {
	t.Helper()
	require.Eventually(t, func() (waits bool) {
		row := pool.QueryRow(context.Background(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1::int = ANY (pg_blocking_pids(pid)))", pid)
		return row.Scan(&waits) == nil && waits
	}, 10*time.Second, 5*time.Millisecond)
}

func TestMigrateIsIdempotentInEveryMode(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		store, _ := newStore(t, change...)
		c := idemhttp.Claim{ID: idemhttp.ID{1}}
		won, err := store.Claim(t.Context(), c, time.Hour)
		require.NoError(t, err)
		require.True(t, won)
		require.NoError(t, store.Migrate(t.Context()))
		_, found, err := store.Lookup(t.Context(), c.ID)
		require.NoError(t, err)
		assert.True(t, found, "nothing is changed")
	})
}

// TestMigrateNeedsNoRightsOnceDone: who may only use the table may call Migrate.
func TestMigrateNeedsNoRightsOnceDone(t *testing.T) {
	a := newApp(t)
	role := a.schema + "_app"
	a.admin(fmt.Sprintf(`CREATE ROLE %[1]s LOGIN; GRANT USAGE ON SCHEMA %[2]s TO %[1]s;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %[2]s TO %[1]s`, role, a.schema))
	t.Cleanup(func() { a.admin(fmt.Sprintf("DROP OWNED BY %s; DROP ROLE %[1]s", role)) })
	pool := pgtest.Pool(t, pgtest.DSN(), pgtest.Path(a.schema), func(cfg *poolConfig) { cfg.ConnConfig.User = role })
	store, err := New(pool, WithSchema(a.schema))
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	a.store = store
	expectRan(t, send(a.inTx(pay)), 201, "payment 1")
	expectReplay(t, send(a.inTx(pay)), 201, "payment 1")
}

// TestNamesAreQuoted: a schema and a table whose names would be SQL.
func TestNamesAreQuoted(t *testing.T) {
	schema, table := `x"; DROP TABLE y; --`, `Select "a".b`
	pool := pgtest.Pool(t, pgtest.DSN())
	store, err := New(pool, WithSchema(schema), WithTable(table))
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		assert.NoError(t, err)
	})
	require.NoError(t, store.Migrate(t.Context()))
	var indexes int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_indexes WHERE schemaname = $1 AND tablename = $2", schema, table).Scan(&indexes))
	assert.Equal(t, 2, indexes)
	won, err := store.Claim(t.Context(), idemhttp.Claim{}, time.Hour)
	require.NoError(t, err)
	assert.True(t, won)
}

// TestSearchPathCountsForNothing: the table is always qualified.
func TestSearchPathCountsForNothing(t *testing.T) {
	a := newApp(t)
	decoy := newApp(t)
	a.pool = pgtest.Pool(t, pgtest.DSN(), pgtest.Path(decoy.schema))
	store, err := New(a.pool, WithSchema(a.schema))
	require.NoError(t, err)
	a.store = store
	expectRan(t, send(a.inTx(pay)), 201, "payment 1")
	expectReplay(t, send(a.inTx(pay)), 201, "payment 1")
	assert.Equal(t, 1, a.claims())
	assert.Zero(t, decoy.claims())
}

func TestStoreOptionsAreChecked(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.DSN())
	for want, opts := range map[string][]Option{
		"WithSchema: the name is empty":        {WithSchema("")},
		"WithTable: the name is empty":         {WithTable("")},
		"has 64 bytes, at most 63 are allowed": {WithSchema(strings.Repeat("x", 64))},
		"has 49 bytes, at most 48 are allowed": {WithTable(strings.Repeat("x", 49))},
		"contains a zero byte":                 {WithTable("a\x00b")},
		"WithLogger: the logger is nil":        {WithLogger(nil)},
		"an option is nil":                     {nil},
	} {
		_, err := New(pool, opts...)
		assert.ErrorContains(t, err, want)
	}
	_, err := New(pool, WithSchema(strings.Repeat("x", 63)), WithTable(strings.Repeat("x", 48)))
	assert.NoError(t, err)
	_, err = New(nil)
	assert.ErrorContains(t, err, "the pool is nil")
}

// TestTheNextVersionMayAddColumns: nullable ones, while this one is running.
func TestTheNextVersionMayAddColumns(t *testing.T) {
	a := newApp(t)
	h := a.inTx(pay)
	expectRan(t, send(h), 201, "payment 1")
	a.admin("ALTER TABLE idem_claims ADD COLUMN later text")
	require.NoError(t, a.store.Migrate(t.Context()))
	expectReplay(t, send(h), 201, "payment 1")
	expectRan(t, send(h, key("k2")), 201, "payment 2")
	ok, err := a.store.Claim(t.Context(), idemhttp.Claim{ID: idemhttp.ID{1}}, time.Hour)
	require.NoError(t, err)
	assert.True(t, ok)
}

// TestSQLFileIsWhatMigrateRuns: for the default names as it is.
func TestSQLFileIsWhatMigrateRuns(t *testing.T) {
	file, err := os.ReadFile("schema.sql")
	require.NoError(t, err)
	pool := pgtest.Pool(t, pgtest.DSN())
	store, err := New(pool)
	require.NoError(t, err)
	assert.Equal(t, string(file), store.SQL())
	other, err := New(pool, WithSchema("s"), WithTable("t"))
	require.NoError(t, err)
	assert.Contains(t, other.SQL(), `"s"."t"`)
	assert.Contains(t, other.SQL(), `"t_expires_at_idx"`)
	for _, left := range []string{`"public"`, `"idem_claims`} {
		assert.NotContains(t, other.SQL(), left)
	}
}

func fill(a *app, n int, age string) {
	a.admin(fmt.Sprintf(`INSERT INTO idem_claims (id, token, fingerprint, fingerprint_version, state, expires_at)
		SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), '', '', '', 1, clock_timestamp() - interval '%s' FROM generate_series(1, %d) n`, age, n))
}

func TestReapWorksInBatches(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, change...)
		fill(a, 2*reapBatch+1, "1 second")
		expectRan(t, send(a.inTx(pay)), 201, "payment 1")
		n, err := a.store.Reap(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 2*reapBatch+1, n)
		assert.Equal(t, 1, a.claims())
	})
}

// TestReapSkipsWhatIsLocked, rather than to wait.
func TestReapSkipsWhatIsLocked(t *testing.T) {
	a := newApp(t)
	fill(a, 3, "1 second")
	conn := a.connect()
	defer conn.Close(context.Background())
	_, err := conn.Exec(t.Context(), "BEGIN; SELECT * FROM idem_claims LIMIT 1 FOR UPDATE")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n, err := a.store.Reap(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 2, n)
}

// TestReapUsesTheIndex: a volatile clock would make it a sequential scan.
func TestReapUsesTheIndex(t *testing.T) {
	a := newApp(t)
	fill(a, 20_000, "-1 hour")
	a.admin("ANALYZE idem_claims")
	conn := a.connect()
	defer conn.Close(context.Background())
	plan := strings.Replace(a.store.sql.reap.sql, "$1", "1000", 1)
	rows, err := conn.Query(t.Context(), "EXPLAIN "+plan)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	text := strings.Join(lines, "\n")
	assert.Contains(t, text, "idem_claims_expires_at_idx")
	assert.NotContains(t, text, "Seq Scan on idem_claims")
}

func TestRunReaper(t *testing.T) {
	a := newApp(t)
	assert.ErrorContains(t, a.store.RunReaper(t.Context(), 0), "above 0")
	fill(a, 10, "1 second")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.store.RunReaper(ctx, 5*time.Millisecond) }()
	require.Eventually(t, func() bool { return a.claims() == 0 }, 10*time.Second, 5*time.Millisecond)
	fill(a, 10, "1 second")
	require.Eventually(t, func() bool { return a.claims() == 0 }, 10*time.Second, 5*time.Millisecond)
	a.admin("ALTER TABLE idem_claims RENAME TO away")
	require.Eventually(t, func() bool { return a.log.has("expired claims could not be deleted") }, 10*time.Second, 5*time.Millisecond)
	cancel()
	assert.ErrorIs(t, <-done, context.Canceled)
}

// TestOnlyDurationsAreSent: expiry is told by the server's clock alone, so nodes
// whose clocks differ agree.
func TestOnlyDurationsAreSent(t *testing.T) {
	a := newApp(t)
	for _, stmt := range []*statement{a.store.sql.claim, a.store.sql.answer, a.store.sql.insert, a.store.sql.replace} {
		assert.Contains(t, stmt.sql, "clock_timestamp() + $1 * interval '1 microsecond'")
	}
	for _, stmt := range []*statement{a.store.sql.expire, a.store.sql.lookup, a.store.sql.fresh, a.store.sql.holder, a.store.sql.forget} {
		assert.Contains(t, stmt.sql, "clock_timestamp()")
	}
	assert.Equal(t, int8Param(1), microseconds(1))
	assert.Equal(t, int8Param(1), microseconds(time.Microsecond))
	assert.Equal(t, int8Param(2), microseconds(time.Microsecond+1))
	assert.Equal(t, int8Param(3_600_000_000), microseconds(time.Hour))
}

// TestDamagedRows: whatever is in the table is no reason to panic.
func TestDamagedRows(t *testing.T) {
	a := newApp(t)
	id := claimID(t, a)
	for name, set := range map[string]string{
		"token":        "token = 'x'",
		"fingerprint":  "fingerprint = 'x'",
		"state":        "state = 77",
		"no status":    "status = NULL",
		"headers":      `headers = '\x05aabb'`,
		"huge lengths": `headers = '\xffffffffffffffffff01aa'`,
		"odd headers":  `headers = '\x0161'`,
	} {
		send(a.inTx(pay))
		a.admin("UPDATE idem_claims SET " + set)
		_, _, err := a.store.Lookup(t.Context(), id)
		assert.Error(t, err, name)
		expectProblem(t, send(a.inTx(pay)), 503, idemhttp.StoreDown)
		a.admin("DELETE FROM idem_claims")
	}
}
