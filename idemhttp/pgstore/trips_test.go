package pgstore

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// work is the same statement with and without the feature. It has no arguments,
// so that every exec mode needs one round trip for it.
func work(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, sql(ctx, "INSERT INTO payments (note) VALUES ('x')"))
	return err
}

// TestRoundTripsInTx counts on the wire: in every exec mode the feature costs
// nothing beyond BEGIN and COMMIT, also the first time on a connection.
func TestRoundTripsInTx(t *testing.T) {
	for _, mode := range pgtest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			proxy := pgtest.NewProxy(t, pgtest.Addr())
			a := newApp(t, pgtest.Mode(mode), pgtest.MaxConns(1), proxy.Use())
			testTrips(t, a, proxy)
		})
	}
}

func testTrips(t *testing.T, a *app, proxy *pgtest.Proxy) {
	ctx := context.WithValue(t.Context(), schemaKey{}, a.schema)
	require.NoError(t, a.pool.Ping(ctx)) // connects
	trips := func(do func()) int64 {
		before := proxy.Trips()
		do()
		return proxy.Trips() - before
	}
	plain := trips(func() {
		require.NoError(t, pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error { return work(ctx, tx) }))
	})
	assert.EqualValues(t, 3, plain, "BEGIN, the work, COMMIT")

	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error { return work(r.Context(), tx) })
	for i := range 3 {
		assert.Equal(t, plain, trips(func() { expectRan(t, send(h, key(fmt.Sprint(i))), 200, "") }), "request %d", i)
	}
	a.admin(expire)
	assert.Equal(t, plain, trips(func() { expectRan(t, send(h, key("0")), 200, "") }), "a claim that has expired")
	assert.EqualValues(t, 2, trips(func() { expectReplay(t, send(h, key("0")), 200, "") }), "a replay: look-up with BEGIN, ROLLBACK")

	a.policy.Optional = true
	unguarded := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error { return work(r.Context(), tx) })
	without := func(r *http.Request) { r.Header.Del("Idempotency-Key") }
	assert.Equal(t, plain, trips(func() { expectRan(t, send(unguarded, without), 200, "") }), "without a key")

	failing := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		_ = work(r.Context(), tx)
		return errTest
	})
	assert.Equal(t, plain, trips(func() { assert.Equal(t, 500, send(failing, key("f")).Code) }), "a failure: ROLLBACK with the look-up")

	aborted := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		_, _ = tx.Exec(r.Context(), "SELECT 1/0")
		return nil
	})
	assert.Equal(t, plain, trips(func() { assert.Equal(t, 500, send(aborted, key("a")).Code) }), "aborted and passed over")

	a.opts = []EndpointOption{WithExclusive(), WithPrefetch(func(_ *http.Request, b *pgx.Batch) {
		b.Queue("SELECT 1")
		b.Queue("SELECT $1::int", 2)
	})}
	all := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error { return work(r.Context(), tx) })
	assert.Equal(t, plain, trips(func() { expectRan(t, send(all, key("all")), 200, "") }), "exclusive, with two queries prefetched")
}

// TestRoundTripsReleaseMode: claim and answer, and nothing without a key.
func TestRoundTripsReleaseMode(t *testing.T) {
	for _, mode := range pgtest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			proxy := pgtest.NewProxy(t, pgtest.Addr())
			a := newApp(t, pgtest.Mode(mode), pgtest.MaxConns(1), proxy.Use())
			require.NoError(t, a.pool.Ping(t.Context()))
			a.policy.Optional = true
			status := 201
			h := a.endpoint().DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }))
			trips := func(want int64, what string, changes ...reqChange) {
				t.Helper()
				before := proxy.Trips()
				send(h, changes...)
				assert.Equal(t, want, proxy.Trips()-before, what)
			}
			trips(2, "claim and answer")
			trips(2, "claim and look-up: a replay")
			trips(0, "an optional key that isn't there", func(r *http.Request) { r.Header.Del("Idempotency-Key") })
			status = 500
			trips(2, "claim and release", key("k2"))
		})
	}
}

func TestRoundTripsOfTheInbox(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.Addr())
	a := newApp(t, pgtest.MaxConns(1), proxy.Use())
	require.NoError(t, a.pool.Ping(t.Context()))
	inbox, err := a.store.Inbox("consumer")
	require.NoError(t, err)
	ctx := context.WithValue(t.Context(), schemaKey{}, a.schema)
	before := proxy.Trips()
	ran, err := inbox.Do(ctx, idemID("m1"), func(ctx context.Context, tx pgx.Tx) error { return work(ctx, tx) })
	require.NoError(t, err)
	assert.True(t, ran)
	assert.EqualValues(t, 3, proxy.Trips()-before)
}
