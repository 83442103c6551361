package pgstore

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"

	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// rewriteTo is a QueryRewriter that makes itself of every text.
type rewriteTo string

func (r rewriteTo) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return string(r), nil, nil
}

type connFunc = func(ctx context.Context, conn *pgxpool.Conn) error

// execute runs texts, and then the last one with its arguments.
func execute(args []any, texts ...string) connFunc {
	return func(ctx context.Context, conn *pgxpool.Conn) (err error) {
		last := len(texts) - 1
		for _, text := range texts[:last] {
			_, _ = conn.Exec(ctx, text)
		}
		_, err = conn.Exec(ctx, texts[last], args...)
		return err
	}
}

// prepare prepares a statement and goes on.
func prepare(name, text string, next connFunc) connFunc {
	return func(ctx context.Context, conn *pgxpool.Conn) error {
		if _, err := conn.Conn().Prepare(context.Background(), name, text); err != nil {
			return err
		}
		return next(ctx, conn)
	}
}

func sendBatch(args []any, text string) connFunc {
	return func(ctx context.Context, conn *pgxpool.Conn) error {
		var b pgx.Batch
		b.Queue(text, args...)
		return conn.SendBatch(ctx, &b).Close()
	}
}

const aRead = "SELECT @n::int"

// hiddenCases are ways to work that the texts given to pgx don't show, and whether
// they leave something committed.
func hiddenCases(schema string) map[string]struct {
	kept bool
	do   connFunc
} {
	insert := "INSERT INTO " + schema + ".payments (note) VALUES ('x')"
	procedure := "DO $$ BEGIN " + insert + "; COMMIT; PERFORM 1/0; END $$"
	rewriter := func(text string) []any { return []any{pgx.QueryExecModeExec, rewriteTo(text)} }
	return map[string]struct {
		kept bool
		do   connFunc
	}{
		"a name of a write":     {true, prepare("select-or-insert", insert, execute(nil, "select-or-insert"))},
		"a name with blanks":    {true, prepare("select or insert", insert, execute(nil, "select or insert"))},
		"a name of a read":      {false, prepare("select it", "SELECT 1", execute(nil, "select it"))},
		"a name of a commit":    {true, prepare("finish", "COMMIT", execute(nil, "BEGIN", insert, "finish"))},
		"a name of a procedure": {true, prepare("proceed", procedure, execute(nil, "proceed"))},
		"a rewritten write":     {true, execute(rewriter(insert), aRead)},
		"a rewritten commit":    {true, execute(rewriter("COMMIT"), "BEGIN", insert, aRead)},
		"a rewritten read":      {false, execute(rewriter("SELECT 1"), "BEGIN", insert, aRead)},
		"a rewritten failure":   {false, execute(rewriter("SELECT 1/0"), aRead)},
		"a rewritten batch":     {true, sendBatch([]any{rewriteTo(insert)}, aRead)},
		"named arguments":       {false, execute([]any{pgx.NamedArgs{"n": 1}}, aRead)},
		"strict ones":           {false, execute([]any{pgx.StrictNamedArgs{"n": 1}}, aRead)},
		"named ones in a batch": {false, sendBatch([]any{pgx.NamedArgs{"n": 1}}, aRead)},
	}
}

func TestHiddenWorkIsNeverReleased(t *testing.T) {
	for _, mode := range pgtest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			a := newApp(t, pgtest.Mode(mode), traced)
			cases := hiddenCases(a.schema)
			if mode != pgx.QueryExecModeSimpleProtocol { // which has no prepared statements in a batch
				c := cases["a name of a write"]
				c.do = prepare("select-in-batch", "INSERT INTO "+a.schema+".payments (note) VALUES ('x')", sendBatch(nil, "select-in-batch"))
				cases["a name in a batch"] = c
			}
			for name, c := range cases {
				assert.Equal(t, c.kept, a.failing(name, func(ctx context.Context, pool *pgxpool.Pool) error {
					return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return c.do(ctx, conn) })
				}), "%s", name)
			}
		})
	}
}

// TestNamesAreRememberedWhereTheyMislead: a statement may be gone, and its name
// another one's, so the worse of the two counts.
func TestNamesAreRememberedWhereTheyMislead(t *testing.T) {
	a := newApp(t)
	conn := a.connect()
	defer conn.Close(context.Background())
	for _, p := range []struct{ name, sql, want string }{
		{"select", "SELECT 1", "select"},
		{"pay", "INSERT INTO payments DEFAULT VALUES", "pay"},
		{"", "COMMIT", ""},
		{"stmtcache_1", "COMMIT", "stmtcache_1"},
		{"COMMIT", "COMMIT", "COMMIT"},
		{"select pay", "INSERT INTO payments DEFAULT VALUES", "INSERT INTO payments DEFAULT VALUES"},
		{"select pay", "INSERT INTO payments DEFAULT VALUES", "INSERT INTO payments DEFAULT VALUES"},
		{"select pay", "SELECT 1", "INSERT INTO payments DEFAULT VALUES"},
		{"select pay", "COMMIT", anything},
	} {
		notePrepared(conn, p.name, p.sql)
		assert.Equal(t, p.want, textOf(conn, p.name), "%s", p.sql)
	}
	assert.True(t, mayCommit(anything, true))
	assert.True(t, commitsInside(anything, true))
}
