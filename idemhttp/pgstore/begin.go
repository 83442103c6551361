package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/idemhttp/internal/mark"
)

// Begin begins a transaction on pool whose Commit tells the deduplicated request
// that ctx belongs to, so that a request which fails afterwards keeps its claim
// and doesn't run again (idemhttp.Deduplicate and DeduplicateWithResponse). The
// context counts, not that of Commit. Outside of such a request it is pool.Begin.
//
// Where ctx carries a managed transaction on pool (InTx, Inbox.Do), it returns a
// savepoint in that one, which is its to commit.
func Begin(ctx context.Context, pool *pgxpool.Pool) (pgx.Tx, error) {
	if st := current(ctx, pool); st != nil {
		return st.ses.tx.Begin(ctx)
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	heard := mark.From(ctx)
	if heard == nil {
		return tx, nil
	}
	return &markedTx{Tx: tx, mark: heard}, nil
}

// markedTx is a transaction whose commit is heard of.
type markedTx struct {
	pgx.Tx
	mark *mark.Mark
}

func (tx *markedTx) Commit(ctx context.Context) error {
	tx.mark.Committing()
	err := tx.Tx.Commit(unheard(ctx)) // a Tracer need not tell it again
	switch {
	case err == nil:
		tx.mark.Committed()
	case provenUndone(err):
		tx.mark.RolledBack()
	}
	return err
}

// provenUndone reports whether a COMMIT that failed with err is known to have
// changed nothing. Without such proof it counts as done.
func provenUndone(err error) bool {
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) {
		return true
	}
	return isPgError(err) && !fatal(err)
}
