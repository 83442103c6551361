package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrManagedTx is returned by Commit and Rollback of a transaction that isn't
// the caller's to end, by a Batch that would begin one inside it, and by every
// call after the endpoint has ended it with SQL of its own.
var ErrManagedTx = errors.New("idem: this transaction is ended by what began it; return an error to roll it back")

// txCore is what the transaction handed to an endpoint and all it hands out
// (rows, batches, savepoints) have in common: it lets calls through while the
// endpoint runs, and none afterwards. Without it a goroutine the endpoint left
// behind would write into the next request's transaction on this connection.
type txCore struct {
	conn *pgx.Conn

	mu       sync.Mutex // protects what follows; never held during a call
	closed   bool       // the endpoint has returned
	rawEnd   bool       // a call came back outside the transaction
	exposed  bool       // the connection itself was handed out, unguarded
	conflict bool       // a call has failed for its timing
	active   int        // calls under way
	quiet    chan struct{}
}

// enter lets a call through. Who got nil calls leave.
func (c *txCore) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return pgx.ErrTxClosed
	case c.rawEnd:
		return fmt.Errorf("%w (it was ended by a statement)", ErrManagedTx)
	}
	c.active++
	return nil
}

func (c *txCore) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	if !c.closed {
		c.rawEnd = c.rawEnd || outside(c.conn)
		return
	}
	if c.active == 0 {
		close(c.quiet)
	}
}

// outside reports whether a live connection is in no transaction.
func outside(conn *pgx.Conn) bool {
	return !conn.IsClosed() && conn.PgConn().TxStatus() == 'I'
}

// close shuts everything that was handed out. It returns nil if no call is
// under way; else a channel that is closed when the last one has come back.
func (c *txCore) close() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.active == 0 {
		return nil
	}
	c.quiet = make(chan struct{})
	return c.quiet
}

func (c *txCore) expose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exposed = true
}

func (c *txCore) wasExposed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exposed
}

// heard passes err on and remembers whether the server gave up a statement for
// its timing: the endpoint may make something else of it.
func (c *txCore) heard(err error) error {
	if err != nil && retryable(err) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conflict = true
	}
	return err
}

func (c *txCore) sawConflict() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conflict
}

// retryable reports whether the server says that the same again may succeed
// (class 40: serialization failure, deadlock).
func retryable(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, "40")
}

// managedTx is the pgx.Tx an endpoint works with. The root refuses Commit and
// Rollback; a savepoint is its caller's to end.
type managedTx struct {
	core   *txCore
	inner  pgx.Tx
	nested bool
}

// adopt makes a pgx.Tx of a transaction that has begun on conn by other means.
// A batch whose queries were taken away again sends nothing, and says what its
// transaction would be.
func adopt(ctx context.Context, conn *pgx.Conn) pgx.Tx {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{})
	batch.QueuedQueries = nil
	return conn.SendBatch(ctx, &batch).Tx()
}

func (tx *managedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := tx.core.enter(); err != nil {
		return nil, err
	}
	defer tx.core.leave()
	inner, err := tx.inner.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &managedTx{core: tx.core, inner: inner, nested: true}, nil
}

func (tx *managedTx) Commit(ctx context.Context) error { return tx.end(ctx, tx.inner.Commit) }

func (tx *managedTx) Rollback(ctx context.Context) error { return tx.end(ctx, tx.inner.Rollback) }

func (tx *managedTx) end(ctx context.Context, verb func(context.Context) error) error {
	if err := tx.core.enter(); err != nil {
		return err
	}
	defer tx.core.leave()
	if !tx.nested {
		return ErrManagedTx
	}
	return tx.core.heard(verb(ctx))
}

func (tx *managedTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := tx.core.enter(); err != nil {
		return 0, err
	}
	defer tx.core.leave()
	n, err := tx.inner.CopyFrom(ctx, table, columns, src)
	return n, tx.core.heard(err)
}

func (tx *managedTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if pgx.FailedBatchResults(b, ErrManagedTx).Tx() != nil {
		return pgx.FailedBatchResults(b, ErrManagedTx)
	}
	if err := tx.core.enter(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer tx.core.leave()
	return &guardedBatch{core: tx.core, inner: tx.inner.SendBatch(ctx, b)}
}

// LargeObjects works with the connection, past the guard. A connection that was
// handed out so is closed at the end of the request instead of being reused.
func (tx *managedTx) LargeObjects() pgx.LargeObjects {
	if err := tx.core.enter(); err != nil {
		return closedTx().LargeObjects()
	}
	defer tx.core.leave()
	tx.core.expose()
	return tx.inner.LargeObjects()
}

// closedTx is a transaction whose methods return pgx.ErrTxClosed.
func closedTx() pgx.Tx {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(&batch, pgx.ErrTxClosed).Tx()
}

func (tx *managedTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := tx.core.enter(); err != nil {
		return nil, err
	}
	defer tx.core.leave()
	desc, err := tx.inner.Prepare(ctx, name, sql)
	return desc, tx.core.heard(err)
}

func (tx *managedTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := tx.core.enter(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer tx.core.leave()
	tag, err := tx.inner.Exec(ctx, sql, args...)
	return tag, tx.core.heard(err)
}

func (tx *managedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := tx.core.enter(); err != nil {
		return closedRows{err}, err
	}
	defer tx.core.leave()
	rows, err := tx.inner.Query(ctx, sql, args...)
	return &guardedRows{core: tx.core, inner: rows}, tx.core.heard(err)
}

func (tx *managedTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := tx.core.enter(); err != nil {
		return closedRows{err}
	}
	defer tx.core.leave()
	return &guardedRow{core: tx.core, inner: tx.inner.QueryRow(ctx, sql, args...)}
}

// Conn returns the connection, past the guard: see LargeObjects. After the
// endpoint has returned it is nil.
func (tx *managedTx) Conn() *pgx.Conn {
	if err := tx.core.enter(); err != nil {
		return nil
	}
	defer tx.core.leave()
	tx.core.expose()
	return tx.inner.Conn()
}
