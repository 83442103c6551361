package pgstore

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	idem "github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

func method(m string) reqChange { return func(r *http.Request) { r.Method = m } }

// nested is an endpoint that claims PUT only, inside one that doesn't claim PUT.
func nested(a *app) http.Handler {
	a.policy.Methods = []string{http.MethodPut}
	inner := a.inTx(pay)
	a.policy.Methods = nil
	outer, err := a.store.Endpoint("outer", a.policy)
	require.NoError(a.t, err)
	return outer.InTxMiddleware(inner)
}

// TestNestedInAnUnguardedEndpointClaims: the outer transaction has no claim that
// would keep the request from running again.
func TestNestedInAnUnguardedEndpointClaims(t *testing.T) {
	a := newApp(t)
	h := nested(a)
	expect(t, send(h, method(http.MethodPut)), 201, "payment 1")
	expect(t, send(h, method(http.MethodPut)), 201, "payment 1")
	assert.EqualValues(t, 1, a.runs.Load())
	assert.Equal(t, 1, a.payments())
	expectProblem(t, send(h, method(http.MethodPut), func(r *http.Request) { r.Header.Del("Idempotency-Key") }), 400, idemhttp.KeyMissing)
}

// TestNestedWithoutAnyClaimJoins: nobody claims a DELETE here.
func TestNestedWithoutAnyClaimJoins(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	h := nested(a)
	expect(t, send(h, method(http.MethodDelete)), 201, "payment 1")
	assert.Equal(t, 1, a.payments())
	assert.Zero(t, a.claims())
}

// TestNestedOnOneConnectionIsRefused: the inner one would wait for the connection
// that the outer one has.
func TestNestedOnOneConnectionIsRefused(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	other, err := New(a.pool, WithSchema(a.schema), WithTable("other"))
	require.NoError(t, err)
	require.NoError(t, other.Migrate(t.Context()))
	inner, err := other.Endpoint("inner", a.policy)
	require.NoError(t, err)
	outer := a.endpoint()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in := in(ctx)

	w := send(outer.InTxMiddleware(inner.InTx(pay)), in)
	expectProblem(t, w, 500, idemhttp.Failed)
	assert.True(t, a.log.has("pool of one connection"))
	w = send(outer.InTxMiddleware(inner.Deduplicate(http.NotFoundHandler())), in)
	expectProblem(t, w, 503, idemhttp.StoreDown)
	w = send(nested(a), method(http.MethodPut), in)
	expectProblem(t, w, 500, idemhttp.Failed)
	assert.NoError(t, ctx.Err())
	assert.Zero(t, a.payments())
}

// TestNestedWaitIsBounded: where all that hold a connection wait for a second
// one, none comes.
func TestNestedWaitIsBounded(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(2))
	assert.Equal(t, 5*time.Second, a.store.patience)
	a.store.patience = time.Millisecond
	other, err := a.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer other.Release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	expectProblem(t, send(nested(a), method(http.MethodPut), in(ctx)), 503, idemhttp.StoreDown)
	assert.NoError(t, ctx.Err())
	assert.True(t, a.log.has("no second connection for an endpoint inside another"))
	assert.Zero(t, a.payments())
}

// onWorkPool is an endpoint on a pool of its own, inside one on the store's pool
// that doesn't claim the request.
func onWorkPool(a *app) http.Handler {
	a.policy.Methods = []string{http.MethodPut}
	work := pgtest.Pool(a.t, pgtest.DSN(), pgtest.Path(a.schema))
	a.opts = []EndpointOption{WithWorkPool(work)}
	inner := a.inTx(pay)
	a.policy.Methods, a.opts = nil, nil
	return a.endpoint().InTxMiddleware(inner)
}

// TestWorkPoolInsideTheStoresPool: its first transaction asks where the claims
// are, on a connection of the pool that the outer one holds.
func TestWorkPoolInsideTheStoresPool(t *testing.T) {
	for conns, c := range map[int32]struct {
		status int
		reason idemhttp.Reason
		log    string
	}{
		1: {500, idemhttp.Failed, "pool of one connection"},
		2: {503, idemhttp.StoreDown, "no second connection for an endpoint inside another"},
	} {
		a := newApp(t, pgtest.MaxConns(conns))
		h := onWorkPool(a)
		a.store.patience = time.Millisecond
		for range conns - 1 {
			conn, err := a.pool.Acquire(t.Context())
			require.NoError(t, err)
			defer conn.Release()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		expectProblem(t, send(h, method(http.MethodPut), in(ctx)), c.status, c.reason)
		assert.NoError(t, ctx.Err())
		assert.True(t, a.log.has(c.log))
		assert.Zero(t, a.runs.Load())
	}
}

// TestConnectionIsFreeAfterTheCommit: what AfterCommit calls may use the pool.
func TestConnectionIsFreeAfterTheCommit(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	expectRan(t, send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		AfterCommit(r.Context(), func(ctx context.Context) error {
			_, _, err := a.store.Lookup(ctx, idemhttp.ID{})
			return err
		})
		return pay(w, r, tx)
	})), 201, "payment 1")
}

// TestDBFindsTheTransactionOnItsPool, also from inside one on another pool: a write
// past it would survive its rollback, and wait for a connection that it holds.
func TestDBFindsTheTransactionOnItsPool(t *testing.T) {
	a, b := newApp(t, pgtest.MaxConns(1)), newApp(t, pgtest.MaxConns(1))
	inbox := b.inbox("audit")
	for name, write := range map[string]func(context.Context) error{
		"DB": func(ctx context.Context) error {
			_, err := DB(ctx, a.pool).Exec(ctx, "INSERT INTO payments (note) VALUES ('inside')")
			return err
		},
		"Begin": func(ctx context.Context) error {
			tx, err := Begin(ctx, a.pool)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "INSERT INTO payments (note) VALUES ('inside')")
			return errors.Join(err, tx.Commit(ctx))
		},
	} {
		w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
			ran, err := inbox.Do(r.Context(), idem.ID(name), func(ctx context.Context, _ pgx.Tx) error { return write(ctx) })
			assert.True(t, ran)
			return errors.Join(err, errTest)
		}))
		expectProblem(t, w, 500, idemhttp.Failed)
		assert.Zero(t, a.payments(), "%s: rolled back with the rest", name)
	}
}

// TestNestedEndpointJoinsAcrossAnother: the transaction on its pool is two further
// out.
func TestNestedEndpointJoinsAcrossAnother(t *testing.T) {
	a, b := newApp(t, pgtest.MaxConns(1)), newApp(t)
	inbox, inner := b.inbox("audit"), a.inTx(pay)
	expectRan(t, send(a.inTx(func(w http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
		_, err := inbox.Do(r.Context(), idem.ID("1"), func(ctx context.Context, _ pgx.Tx) error {
			inner.ServeHTTP(w, r.WithContext(ctx))
			return nil
		})
		return err
	})), 201, "payment 1")
	assert.Equal(t, 1, a.payments())
	assert.Equal(t, 1, a.answered())
}

// TestAfterTheCommitEverybodyWorksByHimself: the same functions, called from
// AfterCommit, must not find a transaction that is over.
func TestAfterTheCommitEverybodyWorksByHimself(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	inbox := a.inbox("mail")
	for name, write := range map[string]func(context.Context) error{
		"DB": func(ctx context.Context) error {
			_, err := DB(ctx, a.pool).Exec(ctx, "INSERT INTO payments (note) VALUES ('after')")
			return err
		},
		"Begin": func(ctx context.Context) error {
			tx, err := Begin(ctx, a.pool)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "INSERT INTO payments (note) VALUES ('after')")
			return errors.Join(err, tx.Commit(ctx))
		},
		"Inbox": func(ctx context.Context) error {
			_, err := inbox.Do(ctx, idem.ID("1"), func(ctx context.Context, _ pgx.Tx) error {
				_, err := DB(ctx, a.pool).Exec(ctx, "INSERT INTO payments (note) VALUES ('after')")
				return err
			})
			return err
		},
		"InTx": func(ctx context.Context) error {
			w := send(a.inTx(pay), key("another"), in(ctx))
			assert.Equal(t, 201, w.Code, w.Body)
			return nil
		},
	} {
		before := a.payments()
		w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			AfterCommit(r.Context(), func(ctx context.Context) error {
				_, ok := Tx(ctx)
				assert.False(t, ok)
				return write(ctx)
			})
			return pay(w, r, tx)
		}), key(name))
		assert.Equal(t, 201, w.Code, "%s: %s", name, w.Body)
		assert.Equal(t, before+2, a.payments(), name)
	}
}

// TestNestedRollback: the inner endpoint has the transaction rolled back, and the
// outer one knows nothing of it.
func TestNestedRollback(t *testing.T) {
	for name, c := range map[string]struct {
		inner  int // status, 0: none
		status int
	}{
		"without an answer": {0, 500},
		"with its own":      {http.StatusConflict, 409},
		"for show":          {http.StatusOK, 200},
	} {
		t.Run(name, func(t *testing.T) {
			a := newApp(t)
			inner := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				_, err := tx.Exec(r.Context(), "INSERT INTO payments (note) VALUES ('inside')")
				require.NoError(t, err)
				if c.inner != 0 {
					w.WriteHeader(c.inner)
				}
				return ErrRollback
			})
			w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
				inner.ServeHTTP(w, r)
				if c.inner == 0 {
					w.WriteHeader(http.StatusCreated)
				}
				return nil
			}))
			assert.Equal(t, c.status, w.Code, w.Body)
			assert.Zero(t, a.payments())
			assert.Zero(t, a.claims())
		})
	}
}
