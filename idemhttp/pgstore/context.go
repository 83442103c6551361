package pgstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// txState is what the context of a managed transaction carries.
type txState struct {
	store *Store
	pool  *pgxpool.Pool
	ses   *session
	outer *txState // of a transaction further out, on another pool or store

	mu        sync.Mutex // protects what follows; never held during a call
	failure   error
	after     []func(context.Context) error
	over      bool // the transaction has ended
	committed bool
}

type stateKey struct{}

func (st *txState) in(ctx context.Context) context.Context {
	st.outer = stateFrom(ctx)
	return context.WithValue(ctx, stateKey{}, st)
}

func stateFrom(ctx context.Context) *txState {
	st, _ := ctx.Value(stateKey{}).(*txState)
	return st
}

// holdsOne reports whether a transaction that ctx is inside of occupies a
// connection of pool.
func holdsOne(ctx context.Context, pool *pgxpool.Pool) bool {
	for st := stateFrom(ctx); st != nil; st = st.outer {
		if st.pool == pool && st.underWay() {
			return true
		}
	}
	return false
}

func (st *txState) underWay() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.over
}

func (st *txState) isCommitted() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.committed
}

// current is the innermost transaction that ctx is inside of, on pool if that isn't
// nil. One that has been committed counts no more: who goes on after it works by
// himself. One that was rolled back counts, and refuses him.
func current(ctx context.Context, pool *pgxpool.Pool) *txState {
	for st := stateFrom(ctx); st != nil; st = st.outer {
		if (pool == nil || st.pool == pool) && !st.isCommitted() {
			return st
		}
	}
	return nil
}

// Tx returns the transaction of the request or message that ctx belongs to:
// under InTx, InTxMiddleware and Inbox.Do. Elsewhere, and after the commit, ok is
// false.
func Tx(ctx context.Context) (tx pgx.Tx, ok bool) {
	st := current(ctx, nil)
	if st == nil {
		return nil, false
	}
	return st.ses.tx, true
}

// Fail makes the request that ctx belongs to fail with err once its handler has
// returned: its transaction is rolled back. It is how a plain http.Handler under
// InTxMiddleware returns an error. The first error counts; nil counts for
// nothing, and so does a call from outside of such a request.
func Fail(ctx context.Context, err error) {
	if st := stateFrom(ctx); st != nil {
		st.fail(err)
	}
}

func (st *txState) fail(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.failure == nil {
		st.failure = err
	}
}

func (st *txState) failed() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.failure
}

// Prefetched returns the rows of the i-th query of WithPrefetch, from 0 on. They
// are in memory: every call starts with the first row again. Where there is no
// such query the rows have an error.
func Prefetched(ctx context.Context, i int) pgx.Rows {
	st := stateFrom(ctx)
	if st == nil || i < 0 || i >= len(st.ses.fetched) {
		return closedRows{errors.New("idem: there is no such prefetched query")}
	}
	return &fetchedRows{types: st.ses.core.conn.TypeMap().Copy(), query: st.ses.fetched[i]}
}

// DBTX is what pools and transactions have in common; sqlc's generated code asks
// for no more.
type DBTX interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error)
}

// DB returns the innermost transaction on pool that ctx carries, and pool itself
// elsewhere and after the commit: a repository that asks for it at each call takes
// part in the transaction of whoever calls it, and stays as it is.
func DB(ctx context.Context, pool *pgxpool.Pool) DBTX {
	if st := current(ctx, pool); st != nil {
		return st.ses.tx
	}
	return pool
}

// AfterCommit has fn called once the transaction that ctx carries is committed,
// before the answer is sent, and never if it isn't. fn is given a context that
// doesn't end with the request. It runs at most once: a process that dies
// between the commit and fn takes it along, and a repeat is only replayed.
//
// An error of fn is reported: the client is answered 500, or as Policy.OnError
// has it. The work stays committed, and a repeat is answered from it. In
// Inbox.Do, where a committed message is a handled one, it is only logged.
//
// Where ctx carries no transaction, what was done before is as committed as it
// will get: fn runs at once, and its error is logged.
func AfterCommit(ctx context.Context, fn func(context.Context) error) {
	st := stateFrom(ctx)
	if st != nil && st.later(fn) {
		return
	}
	if err := fn(context.WithoutCancel(ctx)); err != nil {
		slog.Default().LogAttrs(ctx, slog.LevelError, "idem: AfterCommit, called outside of a transaction", errAttr(err))
	}
}

// later keeps fn for the commit. False: the commit has been.
func (st *txState) later(fn func(context.Context) error) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.over {
		st.after = append(st.after, fn)
	}
	return !st.over || !st.committed
}

// finish says how the transaction ended, and runs what waits for its commit.
// All of it runs, also when a function fails.
func (st *txState) finish(ctx context.Context, isCommitted bool) (err error) {
	st.mu.Lock()
	st.over, st.committed = true, isCommitted
	after := st.after
	st.after = nil
	st.mu.Unlock()
	if !isCommitted {
		return nil
	}
	return runAll(context.WithoutCancel(ctx), after)
}

// runAll runs all of fns, one after the other, also when one of them panics.
func runAll(ctx context.Context, fns []func(context.Context) error) (err error) {
	if len(fns) == 0 {
		return nil
	}
	defer func() { err = errors.Join(err, runAll(ctx, fns[1:])) }()
	return fns[0](ctx)
}
