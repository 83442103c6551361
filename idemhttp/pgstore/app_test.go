package pgstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// app is a service with one endpoint and a table for its work.
type app struct {
	t      testing.TB
	store  *Store
	pool   *pgxpool.Pool
	log    *logText
	schema string
	policy idemhttp.Policy
	opts   []EndpointOption

	runs   atomic.Int64
	events events
}

// newApp makes one on the shared server. Its pool is p, changed.
func newApp(t testing.TB, change ...poolChange) *app {
	t.Helper()
	return newAppAt(t, pgtest.DSN(), pgtest.Schema(t), change...)
}

func newAppAt(t testing.TB, dsn, schema string, change ...poolChange) *app {
	t.Helper()
	a := &app{t: t, schema: schema, log: &logText{}}
	a.pool = pgtest.Pool(t, dsn, append([]poolChange{pgtest.Path(schema)}, change...)...)
	var err error
	a.store, err = New(a.pool, WithSchema(schema), WithLogger(a.log.logger()))
	require.NoError(t, err)
	direct := pgtest.Pool(t, dsn, pgtest.MaxConns(1))
	a.execOn(direct, fmt.Sprintf(`CREATE TABLE %[1]s.payments (id bigint GENERATED ALWAYS AS IDENTITY, note text);
		CREATE TABLE %[1]s.accounts (id int PRIMARY KEY, version int, cents int);
		INSERT INTO %[1]s.accounts VALUES (1, 0, 0)`, schema))
	admin, err := New(direct, WithSchema(schema))
	require.NoError(t, err)
	require.NoError(t, admin.Migrate(t.Context()))
	a.policy = idemhttp.Policy{
		Scope:   func(*http.Request) (idemhttp.Scope, error) { return idemhttp.Public(), nil },
		Logger:  a.log.logger(),
		Observe: a.events.add,
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", a.log)
		}
	})
	return a
}

func (a *app) execOn(pool *pgxpool.Pool, sql string) {
	a.t.Helper()
	_, err := pool.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
	require.NoError(a.t, err)
}

// admin runs SQL on a connection that isn't the app's.
func (a *app) admin(sql string) {
	a.t.Helper()
	conn := a.connect()
	defer conn.Close(context.Background())
	_, err := conn.Exec(context.Background(), sql)
	require.NoError(a.t, err)
}

// connect opens a connection that isn't the app's, in its schema.
func (a *app) connect() *pgx.Conn {
	a.t.Helper()
	cfg, err := pgx.ParseConfig(pgtest.DSN())
	require.NoError(a.t, err)
	cfg.RuntimeParams["search_path"] = a.schema
	conn, err := pgx.ConnectConfig(context.Background(), cfg)
	require.NoError(a.t, err)
	return conn
}

// count asks, past the app's pool, how many rows there are.
func (a *app) count(from string) (n int) {
	a.t.Helper()
	conn := a.connect()
	defer conn.Close(context.Background())
	require.NoError(a.t, conn.QueryRow(context.Background(), "SELECT count(*) FROM "+from).Scan(&n))
	return n
}

func (a *app) payments() int { a.t.Helper(); return a.count("payments") }
func (a *app) claims() int   { a.t.Helper(); return a.count("idem_claims") }
func (a *app) answered() int { a.t.Helper(); return a.count("idem_claims WHERE state = 2") }

func (a *app) endpoint() *Endpoint {
	a.t.Helper()
	e, err := a.store.Endpoint("pay", a.policy, a.opts...)
	require.NoError(a.t, err)
	return e
}

// inTx is the endpoint with fn inside, which is counted.
func (a *app) inTx(fn TxFunc) http.Handler {
	a.t.Helper()
	return a.endpoint().InTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		a.runs.Add(1)
		return fn(w, r.WithContext(context.WithValue(r.Context(), schemaKey{}, a.schema)), tx)
	})
}

type schemaKey struct{}

// sql qualifies the tables of the app that ctx belongs to: pgbouncer passes no
// search path on.
func sql(ctx context.Context, text string) string {
	schema, _ := ctx.Value(schemaKey{}).(string)
	return strings.NewReplacer("payments", schema+".payments", "accounts", schema+".accounts", "idem_claims", schema+".idem_claims").Replace(text)
}

// pay is the usual endpoint: it does its work and answers with its number.
func pay(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	var id int64
	if err := tx.QueryRow(r.Context(), sql(r.Context(), "INSERT INTO payments (note) VALUES ($1) RETURNING id"), r.Header.Get("X-Note")).Scan(&id); err != nil {
		return err
	}
	w.Header().Set("Location", fmt.Sprintf("/payments/%d", id))
	w.Header().Set("X-Own", "loser")
	w.WriteHeader(http.StatusCreated)
	_, err := fmt.Fprintf(w, "payment %d", id)
	return err
}

type reqChange func(*http.Request)

func key(k string) reqChange { return func(r *http.Request) { r.Header.Set("Idempotency-Key", k) } }
func body(s string) reqChange {
	return func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader(s)), int64(len(s)) }
}
func header(name, value string) reqChange {
	return func(r *http.Request) { r.Header.Set(name, value) }
}
func in(ctx context.Context) reqChange {
	return func(r *http.Request) { *r = *r.WithContext(ctx) }
}

// send sends one request to h. A panic of h's ends the test.
func send(h http.Handler, changes ...reqChange) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"cents":5}`))
	r.Header.Set("Idempotency-Key", "k1")
	for _, change := range changes {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func expect(t testing.TB, w *httptest.ResponseRecorder, status int, text string) {
	t.Helper()
	assert.Equal(t, status, w.Code, "body: %s", w.Body)
	assert.Equal(t, text, w.Body.String())
}

func expectRan(t testing.TB, w *httptest.ResponseRecorder, status int, text string) {
	t.Helper()
	expect(t, w, status, text)
	assert.Empty(t, w.Header().Get(idemhttp.HeaderReplayed))
}

func expectReplay(t testing.TB, w *httptest.ResponseRecorder, status int, text string) {
	t.Helper()
	expect(t, w, status, text)
	assert.Equal(t, "true", w.Header().Get(idemhttp.HeaderReplayed))
	assert.Empty(t, w.Header().Get("X-Own"), "a header of the loser's own")
}

func expectProblem(t testing.TB, w *httptest.ResponseRecorder, status int, reason idemhttp.Reason) {
	t.Helper()
	assert.Equal(t, status, w.Code, "body: %s", w.Body)
	assert.Contains(t, w.Body.String(), idemhttp.Refusal{Reason: reason}.Type())
}

// reader is a request's body.
type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

var errTest = errors.New("the endpoint's own error")

// events are what Observe was told.
type events struct {
	kinds [8]atomic.Int64
}

func (e *events) add(ev idemhttp.Event) { e.kinds[ev.Kind].Add(1) }

func (e *events) of(kind idemhttp.EventKind) int64 { return e.kinds[kind].Load() }
