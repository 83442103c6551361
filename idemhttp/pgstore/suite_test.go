package pgstore

import (
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/idemhttptest"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

type (
	poolConfig = pgxpool.Config
	poolChange = func(*pgxpool.Config)
)

// newStore returns a migrated store in a schema of its own, and its pool, whose
// search path is that schema.
func newStore(t testing.TB, change ...poolChange) (*Store, *pgxpool.Pool) {
	t.Helper()
	schema := pgtest.Schema(t)
	pool := pgtest.Pool(t, pgtest.DSN(), append([]poolChange{pgtest.Path(schema)}, change...)...)
	store, err := New(pool, WithSchema(schema), WithLogger(quiet(t)))
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	return store, pool
}

// ways are all the ways a pool may talk to the server: the five exec modes of
// pgx, and pgbouncer in transaction mode, where statements can't be prepared.
func ways(t *testing.T, run func(t *testing.T, change ...poolChange)) {
	for _, mode := range pgtest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			run(t, pgtest.Mode(mode))
		})
	}
	t.Run("pgbouncer", func(t *testing.T) {
		t.Parallel()
		run(t, viaBouncer(t))
	})
}

func TestStoreConformance(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		store, _ := newStore(t, change...)
		idemhttptest.RunStore(t, idemhttptest.StoreConfig{Open: func(*testing.T) idemhttp.Store { return store }})
	})
}

func TestReleaseModeConformance(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		idemhttptest.RunEndpoint(t, idemhttptest.EndpointConfig{Open: func(t *testing.T) idemhttptest.Builder {
			store, _ := newStore(t, change...)
			return idemhttptest.OnStore(store)
		}})
	})
}

func TestInTxConformance(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		idemhttptest.RunEndpoint(t, idemhttptest.EndpointConfig{
			InTx: true, RunsAlong: true,
			Open: func(t *testing.T) idemhttptest.Builder { return inTxBuilder(t, change) },
		})
	})
}

func TestExclusiveConformance(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		idemhttptest.RunEndpoint(t, idemhttptest.EndpointConfig{
			InTx: true,
			Open: func(t *testing.T) idemhttptest.Builder { return inTxBuilder(t, change, WithExclusive()) },
		})
	})
}

func inTxBuilder(t *testing.T, change []poolChange, opts ...EndpointOption) idemhttptest.Builder {
	store, _ := newStore(t, change...)
	return func(name string, p idemhttp.Policy) (idemhttptest.Subject, error) {
		full, err := store.Endpoint(name, p, opts...)
		if err != nil {
			return idemhttptest.Subject{}, err
		}
		bare, err := store.Endpoint(name, p, append(opts, WithoutResponse())...)
		if err != nil {
			return idemhttptest.Subject{}, err
		}
		return idemhttptest.Subject{
			Full:     func(h http.Handler) http.Handler { return full.InTxMiddleware(h) },
			Bare:     func(h http.Handler) http.Handler { return bare.InTxMiddleware(h) },
			Endpoint: full.Endpoint,
		}, nil
	}
}
