package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

func TestCommitsWorkAndAnswerTogether(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, change...)
		h := a.inTx(pay)
		expectRan(t, send(h), 201, "payment 1")
		for range 3 {
			w := send(h)
			expectReplay(t, w, 201, "payment 1")
			assert.Equal(t, "/payments/1", w.Header().Get("Location"))
		}
		expectRan(t, send(h, key("k2")), 201, "payment 2")
		assert.EqualValues(t, 2, a.runs.Load())
		assert.Equal(t, 2, a.payments())
		assert.Equal(t, 2, a.answered())
	})
}

func TestNoClaimWhileTheEndpointRuns(t *testing.T) {
	a := newApp(t)
	expectRan(t, send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		assert.Zero(t, a.claims())
		var n int
		assert.NoError(t, tx.QueryRow(r.Context(), "SELECT count(*) FROM idem_claims").Scan(&n))
		assert.Zero(t, n, "not in the transaction either")
		return pay(w, r, tx)
	})), 201, "payment 1")
	assert.Equal(t, 1, a.claims())
}

func TestExpiredClaimMakesRoom(t *testing.T) {
	ways(t, func(t *testing.T, change ...poolChange) {
		a := newApp(t, change...)
		h := a.inTx(pay)
		send(h)
		a.admin(expire)
		failing := a.inTx(func(http.ResponseWriter, *http.Request, pgx.Tx) error { return errTest })
		assert.Equal(t, 500, send(failing).Code)
		a.admin("UPDATE idem_claims SET created_at = 'epoch'")
		expectRan(t, send(h), 201, "payment 2")
		expectReplay(t, send(h), 201, "payment 2")
		assert.Zero(t, a.count("idem_claims WHERE created_at = 'epoch'"), "the old row's time")
		a.admin(expire)
		a.opts = []EndpointOption{WithExclusive()}
		expectRan(t, send(a.inTx(pay)), 201, "payment 3")
	})
}

// TestRoomThatIsTakenMeanwhile: what has expired when the request looked is
// another's claim by the time it commits.
func TestRoomThatIsTakenMeanwhile(t *testing.T) {
	a := newApp(t)
	send(a.inTx(pay))
	a.admin(expire)
	w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		a.admin("UPDATE idem_claims SET expires_at = 'infinity', token = decode(repeat('07', length(token)), 'hex')")
		return pay(w, r, tx)
	}))
	expectReplay(t, w, 201, "payment 1")
	assert.Equal(t, 1, a.payments())
}

// TestReaperComesFirst: what has expired when the request looked is gone by the
// time it commits. That is no conflict at any level.
func TestReaperComesFirst(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			a := newApp(t)
			a.opts = []EndpointOption{WithTxOptions(pgx.TxOptions{IsoLevel: level})}
			send(a.inTx(pay))
			a.admin(expire)
			h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				reaped, err := a.store.Reap(r.Context())
				assert.NoError(t, err)
				assert.EqualValues(t, 1, reaped)
				return pay(w, r, tx)
			})
			expectRan(t, send(h), 201, "payment 2")
		})
	}
}

// expire makes all claims expired ones.
const expire = "UPDATE idem_claims SET expires_at = clock_timestamp() - interval '1 microsecond'"

// TestReadOnlyServer: no endpoint runs where its claim couldn't be written.
func TestReadOnlyServer(t *testing.T) {
	a := newApp(t, func(cfg *poolConfig) { cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" })
	expectProblem(t, send(a.inTx(pay)), 503, idemhttp.StoreDown)
	assert.Zero(t, a.runs.Load())
}

// TestExpiryIsTheServersToJudge, and counts from when the claim is written: now()
// in the transaction would count from its begin.
func TestExpiryIsTheServersToJudge(t *testing.T) {
	a := newApp(t)
	a.policy.Window = 3 * time.Second
	send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		_, err := tx.Exec(r.Context(), "SELECT pg_sleep(2.5)")
		return err
	}))
	left := 0.0
	conn := a.connect()
	defer conn.Close(context.Background())
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM idem_claims").Scan(&left))
	assert.Greater(t, left, 0.5)
	assert.LessOrEqual(t, left, 3.0)
}

// TestRepeatIsKnownAtEveryLevel: a run counter, as the commit would hide a
// look-up that is missing.
func TestRepeatIsKnownAtEveryLevel(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			a := newApp(t, pgtest.MaxConns(1))
			a.opts = []EndpointOption{WithTxOptions(pgx.TxOptions{IsoLevel: level})}
			h := a.inTx(pay)
			expectRan(t, send(h), 201, "payment 1")
			expectReplay(t, send(h), 201, "payment 1")
			a.admin(expire)
			expectRan(t, send(h), 201, "payment 2")
			expectReplay(t, send(h), 201, "payment 2")
			assert.EqualValues(t, 2, a.runs.Load())
		})
	}
}

// TestDefaultLevelChanges: what a connection's transactions were so far is no
// promise.
func TestDefaultLevelChanges(t *testing.T) {
	a := newApp(t, pgtest.MaxConns(1))
	h := a.inTx(pay)
	expectRan(t, send(h), 201, "payment 1")
	for _, level := range []string{"serializable", "read committed", "repeatable read"} {
		_, err := a.pool.Exec(t.Context(), "SET default_transaction_isolation = '"+level+"'")
		require.NoError(t, err)
		expectReplay(t, send(h), 201, "payment 1")
		assert.Equal(t, 201, send(h, key(level)).Code)
		expectReplay(t, send(h), 201, "payment 1")
	}
	assert.EqualValues(t, 4, a.runs.Load())
}

// TestSerializableKeysDontMeet: a look-up inside the transaction would make every
// two of these abort one another.
func TestSerializableKeysDontMeet(t *testing.T) {
	t.Run("by option", func(t *testing.T) {
		a := newApp(t, pgtest.MaxConns(serializables))
		a.opts = []EndpointOption{WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})}
		testSerializable(t, a)
	})
	t.Run("by default", func(t *testing.T) {
		testSerializable(t, newApp(t, pgtest.MaxConns(serializables), func(cfg *poolConfig) {
			cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		}))
	})
	t.Run("expired", func(t *testing.T) { // as after a window's length, when all come again
		a := newApp(t, pgtest.MaxConns(serializables))
		a.opts = []EndpointOption{WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})}
		testSerializable(t, a)
		a.admin(expire)
		testSerializable(t, a)
	})
}

const serializables = 20

func testSerializable(t *testing.T, a *app) {
	var all sync.WaitGroup
	all.Add(serializables)
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		all.Done()
		all.Wait() // every transaction has begun and looked before the first one writes
		w.WriteHeader(http.StatusCreated)
		return nil
	})
	answers := together(serializables, func(i int) *httptest.ResponseRecorder { return send(h, key(fmt.Sprint("k", i))) })
	for _, w := range answers {
		assert.Equal(t, 201, w.Code, w.Body)
	}
	assert.Equal(t, serializables, a.answered())
}

// together calls f n times at once.
func together[T any](n int, f func(i int) T) []T {
	results := make([]T, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { results[i] = f(i) })
	}
	wg.Wait()
	return results
}

// TestLoserIsAnsweredFromTheWinner: on the key, on an expired claim of that key
// that is to give way, and on a version conflict, at each isolation level, however
// the endpoint reports that it has lost.
func TestLoserIsAnsweredFromTheWinner(t *testing.T) {
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	for _, level := range levels {
		for _, conflict := range []string{"key", "expired", "version"} {
			for _, style := range []string{"returned", "swallowed", "unchecked"} {
				t.Run(fmt.Sprintf("%s/%s/%s", level, conflict, style), func(t *testing.T) {
					t.Parallel()
					testLoser(t, level, conflict, style)
				})
			}
		}
	}
}

// TestLoserWhereTheDatabaseIsStrict: the look-ups are then serializable as well,
// and may be given up for their timing.
func TestLoserWhereTheDatabaseIsStrict(t *testing.T) {
	strict := func(cfg *poolConfig) {
		cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	}
	for range 5 {
		testLoserOf(t, newApp(t, strict), 8, "key", "returned")
	}
}

func testLoser(t *testing.T, level pgx.TxIsoLevel, conflict, style string) {
	a := newApp(t)
	a.opts = []EndpointOption{WithTxOptions(pgx.TxOptions{IsoLevel: level})}
	testLoserOf(t, a, 3, conflict, style)
}

func testLoserOf(t *testing.T, a *app, n int, conflict, style string) {
	if conflict == "expired" {
		send(a.endpoint().InTx(func(http.ResponseWriter, *http.Request, pgx.Tx) error { return nil }))
		a.admin(expire)
	}
	var begun sync.WaitGroup
	begun.Add(n)
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if _, err := tx.Exec(r.Context(), "SELECT version FROM accounts"); err != nil { // takes the snapshot
			return err
		}
		begun.Done()
		begun.Wait()
		if conflict == "version" {
			tag, err := tx.Exec(r.Context(), "UPDATE accounts SET version = version + 1 WHERE id = 1 AND version = 0")
			if err == nil && tag.RowsAffected() == 0 {
				err = errTest // how READ COMMITTED tells of it
			}
			switch {
			case err == nil, style == "unchecked":
			case style == "swallowed":
				w.Header().Set("X-Own", "loser")
				http.Error(w, "conflict", http.StatusConflict)
				return nil
			default:
				return err
			}
		}
		return swallow(pay(w, r, tx), style)
	})
	answers := together(n, func(int) *httptest.ResponseRecorder { return send(h) })
	ran := 0
	for _, w := range answers {
		assert.Equal(t, 201, w.Code, w.Body)
		assert.Equal(t, answers[0].Body.String(), w.Body.String())
		if w.Header().Get(idemhttp.HeaderReplayed) == "" {
			ran++
		} else {
			assert.Empty(t, w.Header().Get("X-Own"), "a header of the loser's own")
		}
	}
	assert.Equal(t, 1, ran, "answers that aren't replays")
	assert.Equal(t, 1, a.payments())
	assert.Equal(t, 1, a.answered())
	assert.EqualValues(t, n, a.runs.Load())
	assert.EqualValues(t, n-1, a.events.of(idemhttp.EventLostRace))
}

func swallow(err error, style string) error {
	if style == "unchecked" {
		return nil
	}
	return err
}

func TestLoserWithAnotherRequestGets422(t *testing.T) {
	a := newApp(t)
	var begun sync.WaitGroup
	begun.Add(2)
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		begun.Done()
		begun.Wait()
		return pay(w, r, tx)
	})
	answers := together(2, func(i int) *httptest.ResponseRecorder { return send(h, body(fmt.Sprint(i))) })
	codes := []int{answers[0].Code, answers[1].Code}
	assert.ElementsMatch(t, []int{201, 422}, codes)
	assert.Equal(t, 1, a.payments())
}

// TestOriginalFailures: nobody has won, so the endpoint's own failure goes out.
func TestOriginalFailures(t *testing.T) {
	cases := map[string]struct {
		fn     TxFunc
		status int
		body   string // "": a problem
	}{
		"error returned": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error { return errTest }, 500, ""},
		"error after a 201": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			return errors.Join(pay(w, r, tx), errTest)
		}, 500, ""},
		"error after a status of its own": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			w.WriteHeader(http.StatusTeapot)
			return errTest
		}, 418, ""},
		"a status that isn't kept": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			w.WriteHeader(http.StatusNotFound)
			_, err := w.Write([]byte("no account"))
			return err
		}, 404, "no account"},
		"aborted and passed over": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_, _ = tx.Exec(r.Context(), "SELECT 1/0")
			w.WriteHeader(http.StatusCreated)
			return nil
		}, 500, ""},
		"rolled back on purpose": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_ = pay(w, r, tx)
			return ErrRollback
		}, 201, "payment 1"},
		"a deferred constraint": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), `CREATE TEMP TABLE d (n int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP`)
			if err == nil {
				_, err = tx.Exec(r.Context(), `INSERT INTO d VALUES (1), (1)`)
			}
			w.WriteHeader(http.StatusCreated)
			return err
		}, 500, ""},
		"failed through Fail": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			Fail(r.Context(), errTest)
			Fail(r.Context(), errors.New("a later one"))
			return pay(w, r, tx)
		}, 500, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ways(t, func(t *testing.T, change ...poolChange) {
				a := newApp(t, change...)
				h := a.inTx(c.fn)
				for run := range 2 { // nothing is kept: it runs again
					w := send(h)
					assert.Equal(t, c.status, w.Code, w.Body)
					if c.body != "" && run == 0 {
						assert.Equal(t, c.body, w.Body.String())
					}
					assert.EqualValues(t, run+1, a.runs.Load())
				}
				assert.Zero(t, a.payments())
				assert.Zero(t, a.claims())
				next := fmt.Sprintf("payment %d", lastID(a)+1)
				expectRan(t, send(a.inTx(pay)), 201, next)
			})
		})
	}
}

// lastID is the sequence's position, which rollbacks don't set back.
func lastID(a *app) (n int64) {
	conn := a.connect()
	defer conn.Close(context.Background())
	err := conn.QueryRow(context.Background(), "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('payments', 'id')), 0)").Scan(&n)
	require.NoError(a.t, err)
	return n
}

// TestEveryEndLooksUp: whatever makes the loser fail, it is answered from the
// winner; but not who was turned away, and not who panicked.
func TestEveryEndLooksUp(t *testing.T) {
	status := func(code int) TxFunc {
		return func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			w.WriteHeader(code)
			return nil
		}
	}
	cases := map[string]struct {
		fn      TxFunc
		replays bool
		status  int
	}{
		"error":           {func(http.ResponseWriter, *http.Request, pgx.Tx) error { return errTest }, true, 201},
		"ErrRollback":     {func(http.ResponseWriter, *http.Request, pgx.Tx) error { return ErrRollback }, true, 201},
		"status not kept": {status(404), true, 201},
		"aborted": {func(_ http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_, _ = tx.Exec(r.Context(), "SELECT 1/0")
			return nil
		}, true, 201},
		"over-size": {func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_, err := w.Write(make([]byte, 2000))
			return err
		}, true, 201},
		"401": {status(401), false, 401},
		"403": {status(403), false, 403},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newApp(t)
			a.policy.MaxResponse = 1000
			winner := a.inTx(pay)
			w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
				expectRan(t, send(winner), 201, "payment 1")
				return c.fn(w, r, tx)
			}))
			assert.Equal(t, c.status, w.Code, w.Body)
			if c.replays {
				expectReplay(t, w, 201, "payment 1")
			}
			assert.Equal(t, 1, a.payments())
		})
	}
}

func TestPanicGoesOnAndKeepsNothing(t *testing.T) {
	for _, value := range []any{"boom", http.ErrAbortHandler} {
		a := newApp(t)
		h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			_ = pay(w, r, tx)
			panic(value)
		})
		assert.PanicsWithValue(t, value, func() { send(h) })
		assert.Zero(t, a.payments())
		assert.Zero(t, a.claims())
		assert.Zero(t, a.pool.Stat().AcquiredConns())
		expectRan(t, send(a.inTx(pay)), 201, "payment 2")
	}
}

func TestGoexitKeepsNothing(t *testing.T) {
	a := newApp(t)
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		_ = pay(w, r, tx)
		(&testing.T{}).SkipNow() // runtime.Goexit
		return nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		send(h)
	}()
	<-done
	assert.Zero(t, a.payments())
	assert.Zero(t, a.claims())
	assert.Zero(t, a.pool.Stat().AcquiredConns())
}

func TestOversizeFailsBeforeTheCommit(t *testing.T) {
	a := newApp(t)
	a.policy.MaxResponse = 10
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		_ = pay(w, r, tx)
		_, _ = w.Write([]byte(strings.Repeat("x", 10))) // unchecked
		return nil
	})
	assert.Equal(t, 500, send(h).Code)
	assert.Zero(t, a.payments())
	assert.Zero(t, a.claims())
}

func TestContextDoneAndNothingWritten(t *testing.T) {
	a := newApp(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := send(a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		cancel()
		return nil
	}), in(ctx))
	assert.Equal(t, 500, w.Code)
	assert.Zero(t, a.claims())
}

// TestCallerHangsUp: the work is done by then, and so the claim is written: the
// caller that hung up is the one that retries.
func TestCallerHangsUp(t *testing.T) {
	a := newApp(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		defer cancel()
		return pay(w, r, tx)
	})
	expectRan(t, send(h, in(ctx)), 201, "payment 1")
	expectReplay(t, send(a.inTx(pay)), 201, "payment 1")
	assert.Equal(t, 1, a.payments())
}
