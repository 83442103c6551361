package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/idemhttp/pgstore"
)

// onPostgres is the service with payments and claims in one database. The
// function it returns closes what was opened.
func onPostgres(ctx context.Context, s settings, log *slog.Logger) (http.Handler, func(), error) {
	pool, err := pgxpool.New(ctx, s.dsn)
	if err != nil {
		return nil, nil, err
	}
	handler, err := onPool(ctx, pool, s, log)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return handler, pool.Close, nil
}

func onPool(ctx context.Context, pool *pgxpool.Pool, s settings, log *slog.Logger) (http.Handler, error) {
	store, err := pgstore.New(pool, pgstore.WithSchema(s.schema), pgstore.WithLogger(log))
	if err != nil {
		return nil, err
	}
	books := &pgBooks{pool: pool, table: pgx.Identifier{s.schema, "payments"}.Sanitize()}
	if err := errors.Join(store.Migrate(ctx), books.migrate(ctx)); err != nil {
		return nil, err
	}
	svc := &service{books: books, mode: s.mode, faults: s.faults, log: log}
	endpoint, err := store.Endpoint("create-payment", svc.policy())
	if err != nil {
		return nil, err
	}
	go reap(ctx, store, log)
	if s.mode == release {
		return svc.routes(endpoint.DeduplicateWithResponse(http.HandlerFunc(svc.plain))), nil
	}
	return svc.routes(endpoint.InTx(func(w http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
		return svc.pay(w, r)
	})), nil
}

// reap removes expired claims until the service stops.
func reap(ctx context.Context, store *pgstore.Store, log *slog.Logger) {
	if err := store.RunReaper(ctx, time.Minute); err != nil && ctx.Err() == nil {
		log.Error("reaper stopped", "error", err)
	}
}

// pgBooks keeps payments in a table.
type pgBooks struct {
	pool  *pgxpool.Pool
	table string // quoted
}

// migrate makes the table. Several nodes may start at once.
func (b *pgBooks) migrate(ctx context.Context) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext($1))", b.table); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS `+b.table+` (
			n       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			id      text NOT NULL UNIQUE,
			owner   text NOT NULL,
			account text NOT NULL,
			cents   bigint NOT NULL CHECK (cents > 0)
		)`)
		return err
	})
}

// pay writes into the request's transaction where there is one. In release mode
// there is none, and Begin gives one whose commit the middleware hears of.
func (b *pgBooks) pay(ctx context.Context, user string, p payment, beforeCommit func() error) error {
	if tx, ok := pgstore.Tx(ctx); ok {
		return b.write(ctx, tx, user, p, beforeCommit)
	}
	tx, err := pgstore.Begin(ctx, b.pool)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing once committed
	if err := b.write(ctx, tx, user, p, beforeCommit); err != nil {
		return err
	}
	return commitError(tx.Commit(ctx))
}

// commitError: what was never sent, or what the server has refused, isn't
// committed. Any other error leaves it open, a server that ends too.
func commitError(err error) error {
	var answered *pgconn.PgError
	refused := errors.As(err, &answered) && answered.SeverityUnlocalized == "ERROR"
	if err == nil || refused || pgconn.SafeToRetry(err) || errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", errOutcomeUnknown, err)
}

func (b *pgBooks) write(ctx context.Context, tx pgx.Tx, user string, p payment, beforeCommit func() error) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+b.table+" (id, owner, account, cents) VALUES ($1, $2, $3, $4)",
		p.ID, user, p.Account, p.Cents)
	if err != nil {
		return err
	}
	return beforeCommit()
}

func (b *pgBooks) list(ctx context.Context, user string) ([]payment, error) {
	rows, err := b.pool.Query(ctx, "SELECT id, account, cents FROM "+b.table+" WHERE owner = $1 ORDER BY n", user)
	if err != nil {
		return nil, err
	}
	return pgx.AppendRows([]payment{}, rows, pgx.RowToStructByPos[payment])
}
