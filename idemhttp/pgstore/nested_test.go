package pgstore

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
