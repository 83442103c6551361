package pgstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	idem "github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

func idemID(id string) idem.Identity { return idem.Identity{ID: id} }

func (a *app) inbox(consumer string, opts ...InboxOption) *Inbox {
	a.t.Helper()
	i, err := a.store.Inbox(consumer, opts...)
	require.NoError(a.t, err)
	return i
}

// handle is a handler that writes one row and returns err.
func (a *app) handle(err error) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		a.runs.Add(1)
		if _, err := tx.Exec(ctx, "INSERT INTO "+a.schema+".payments (note) VALUES ('message')"); err != nil {
			return err
		}
		return err
	}
}

func TestInboxRunsOnce(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, change...)
		i := a.inbox("billing")
		for n := range 3 {
			ran, err := i.Do(t.Context(), idemID("m1"), a.handle(nil))
			require.NoError(t, err)
			assert.Equal(t, n == 0, ran)
		}
		assert.Equal(t, 1, a.payments())
		assert.Equal(t, 1, a.claims())

		for _, other := range []struct {
			inbox *Inbox
			id    idem.Identity
		}{
			{i, idemID("m2")}, {a.inbox("shipping"), idemID("m1")}, {i, idem.Identity{ID: "m1", Destination: "q"}},
		} {
			ran, err := other.inbox.Do(t.Context(), other.id, a.handle(nil))
			require.NoError(t, err)
			assert.True(t, ran)
		}
		assert.Equal(t, 4, a.payments())
	})
}

func TestInboxErrorClaimsNothing(t *testing.T) {
	a := newApp(t)
	i := a.inbox("billing")
	for range 2 {
		ran, err := i.Do(t.Context(), idemID("m1"), a.handle(errTest))
		assert.ErrorIs(t, err, errTest)
		assert.False(t, ran)
	}
	ran, err := i.Do(t.Context(), idemID("m1"), func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "SELECT 1/0") // passed over
		return nil
	})
	assert.Error(t, err)
	assert.False(t, ran)
	assert.Panics(t, func() { _, _ = i.Do(t.Context(), idemID("m1"), func(context.Context, pgx.Tx) error { panic("x") }) })
	assert.Zero(t, a.payments())
	assert.Zero(t, a.claims())
	assert.Zero(t, a.pool.Stat().AcquiredConns())
	ran, err = i.Do(t.Context(), idemID("m1"), a.handle(nil))
	assert.NoError(t, err)
	assert.True(t, ran)
}

// TestInboxLoserIsHandled: whoever loses the race has nothing left to do, even
// if its own handler has failed.
func TestInboxLoserIsHandled(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("fails=", fails), func(t *testing.T) {
			a := newApp(t)
			i := a.inbox("billing")
			const n = 4
			var begun sync.WaitGroup
			begun.Add(n)
			var first atomic.Bool
			won := make(chan struct{})
			type result struct {
				ran bool
				err error
			}
			results := together(n, func(int) result {
				ran, err := i.Do(t.Context(), idemID("m1"), func(ctx context.Context, tx pgx.Tx) error {
					begun.Done()
					begun.Wait()
					if !fails {
						return a.handle(nil)(ctx, tx)
					}
					if first.CompareAndSwap(false, true) {
						AfterCommit(ctx, func(context.Context) error { close(won); return nil })
						return a.handle(nil)(ctx, tx)
					}
					<-won
					return errTest
				})
				return result{ran, err}
			})
			ran := 0
			for _, r := range results {
				assert.NoError(t, r.err)
				if r.ran {
					ran++
				}
			}
			assert.Equal(t, 1, ran)
			assert.Equal(t, 1, a.payments())
		})
	}
}

func TestInboxWithoutAnID(t *testing.T) {
	a := newApp(t)
	i := a.inbox("billing")
	for range 2 {
		ran, err := i.Do(t.Context(), idem.Identity{Destination: "q"}, a.handle(nil))
		require.NoError(t, err)
		assert.True(t, ran)
	}
	assert.Equal(t, 2, a.payments())
	assert.Zero(t, a.claims())
	known, err := i.Forget(t.Context(), idem.Identity{})
	assert.NoError(t, err)
	assert.False(t, known)
}

func TestInboxForget(t *testing.T) {
	a := newApp(t)
	i := a.inbox("billing")
	_, err := i.Do(t.Context(), idemID("m1"), a.handle(nil))
	require.NoError(t, err)
	for _, want := range []bool{true, false} {
		known, err := i.Forget(t.Context(), idemID("m1"))
		require.NoError(t, err)
		assert.Equal(t, want, known)
	}
	ran, err := i.Do(t.Context(), idemID("m1"), a.handle(nil))
	require.NoError(t, err)
	assert.True(t, ran)
}

func TestInboxRetention(t *testing.T) {
	a := newApp(t)
	left := func() (seconds float64) {
		conn := a.connect()
		defer conn.Close(context.Background())
		require.NoError(t, conn.QueryRow(t.Context(), "DELETE FROM idem_claims RETURNING extract(epoch FROM expires_at - clock_timestamp())::float8").Scan(&seconds))
		return seconds
	}
	_, err := a.inbox("a").Do(t.Context(), idemID("m1"), a.handle(nil))
	require.NoError(t, err)
	assert.InDelta(t, (7 * 24 * time.Hour).Seconds(), left(), 30)
	_, err = a.inbox("a", WithRetention(time.Hour)).Do(t.Context(), idemID("m1"), a.handle(nil))
	require.NoError(t, err)
	assert.InDelta(t, 3600, left(), 30)

	for want, opt := range map[string]InboxOption{"WithRetention: 0s": WithRetention(0), "option 0 is nil": nil} {
		_, err := a.store.Inbox("a", opt)
		assert.ErrorContains(t, err, want)
	}
	_, err = a.store.Inbox(" ")
	assert.ErrorContains(t, err, "blank")
}

func TestInboxCarriesItsTransaction(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	order := ""
	ran, err := a.inbox("billing").Do(t.Context(), idemID("m1"), func(ctx context.Context, tx pgx.Tx) error {
		got, ok := Tx(ctx)
		assert.True(t, ok)
		assert.Same(t, tx, got)
		assert.ErrorIs(t, tx.Commit(ctx), ErrManagedTx)
		AfterCommit(ctx, func(context.Context) error { order += "after"; return errTest })
		_, err := DB(ctx, a.pool).Exec(ctx, "INSERT INTO payments (note) VALUES ('x')")
		return err
	})
	assert.NoError(t, err, "a committed message is a handled one")
	assert.True(t, ran)
	assert.Equal(t, "after", order)
	assert.True(t, a.log.has(errTest.Error()))

	_, err = a.inbox("billing").Do(t.Context(), idemID("m2"), func(ctx context.Context, tx pgx.Tx) error {
		Fail(ctx, errTest)
		return nil
	})
	assert.ErrorIs(t, err, errTest)
}

func TestInboxRawEndIsClaimed(t *testing.T) {
	a := newApp(t)
	i := a.inbox("billing")
	_, err := i.Do(t.Context(), idemID("m1"), func(ctx context.Context, tx pgx.Tx) error {
		_ = a.handle(nil)(ctx, tx)
		_, err := tx.Exec(ctx, "COMMIT")
		return err
	})
	assert.Error(t, err)
	ran, err := i.Do(t.Context(), idemID("m1"), a.handle(nil))
	assert.NoError(t, err)
	assert.False(t, ran)
	assert.Equal(t, 1, a.payments())
}
