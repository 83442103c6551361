package pgstore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/internal/mark"
)

// strayTimeout is how long the end of a request waits for a call that the
// endpoint left behind, once its connection is cut.
const strayTimeout = time.Second

// rollback ends the session without a commit, for the reason given. With look it
// looks for another's claim in the same flush, ROLLBACK | Sync | look-up | Sync:
// at READ COMMITTED the loser of a version conflict is UPDATE 0 and fails in a
// way of its own, so no SQLSTATE tells a lost race from another failure.
func (ses *session) rollback(ctx context.Context, why error, look bool) end {
	ctx, cancel := detach(ctx)
	defer cancel()
	if unusable := ses.close(); unusable != nil {
		return ses.elsewhere(ctx, why, undone, look)
	}
	fate, lookup, err := ses.sendRollback(ctx, look && ses.plan.claim != nil)
	switch {
	case err != nil:
		return ses.elsewhere(ctx, why, undone, look)
	case isFate(fate, "committed"):
		return ses.keepFromRunningAgain(ctx, why)
	}
	if lookup, err = ses.lookAgain(ctx, lookup); err != nil {
		return ses.elsewhere(ctx, why, undone, look)
	}
	ses.release()
	if lookup == nil {
		return end{ending: undone, err: why}
	}
	return ses.judge(ctx, lookup, why, undone)
}

// sendRollback asks with it what became of the transaction, which the endpoint
// may have ended by itself. It returns an error only where the connection failed.
func (ses *session) sendRollback(ctx context.Context, look bool) (fate, lookup *query, err error) {
	var f flush
	if ses.conn.Conn().PgConn().TxStatus() != 'I' {
		f.add(rollbackSQL)
		f.sync()
	}
	fate = f.add(fateSQL, ses.xid)
	f.sync()
	if look {
		lookup = f.add(ses.store.sql.lookup, ses.plan.claim.ID[:])
	}
	return fate, lookup, f.run(ctx, ses.conn.Conn())
}

// lookAgain repeats a look-up that was refused for its timing only.
func (ses *session) lookAgain(ctx context.Context, lookup *query) (*query, error) {
	for n := 1; lookup != nil && again(lookup.err) && n < attempts; n++ {
		var f flush
		lookup = f.add(ses.store.sql.lookup, ses.plan.claim.ID[:])
		if err := f.run(ctx, ses.conn.Conn()); err != nil {
			return nil, err
		}
	}
	return lookup, nil
}

// isFate reports whether that is what became of the transaction.
func isFate(fate *query, what string) bool {
	return fate.err == nil && len(fate.rows) == 1 && string(fate.rows[0][0]) == what
}

// keepFromRunningAgain claims work that the endpoint committed behind our back,
// without an answer. It takes another connection: who knows what role, settings and
// transaction the endpoint has left on its own, which nobody gets any more.
func (ses *session) keepFromRunningAgain(ctx context.Context, why error) end {
	ses.core.expose()
	ses.release()
	why = errors.Join(errEndedInside, why)
	mark.From(ctx).Committed()
	claim := ses.plan.claim
	if claim == nil {
		return end{ending: undone, err: why}
	}
	write := &query{} // where there is no connection, none is sent
	params := append(claimParams(*claim, ses.plan.ttl), answerParams(nil)...)
	err := ses.retryConnection(ctx, func(f *flush) { write = f.add(ses.store.sql.answer, params...) })
	if err = errors.Join(err, write.err); err != nil {
		ses.store.log(ctx, slog.LevelError, "work was committed and could not be claimed: a repeat does it again", errAttr(err))
	}
	return end{ending: undone, err: why}
}

// elsewhere asks on another connection of the pool how the session ended, as its
// own is of no use any more. Without look another's claim doesn't matter.
func (ses *session) elsewhere(ctx context.Context, why error, otherwise ending, look bool) end {
	ses.release()
	if ses.plan.claim == nil {
		return end{ending: otherwise, err: why}
	}
	fate, lookup, err := ses.askElsewhere(ctx)
	if err != nil {
		ses.store.log(ctx, slog.LevelError, "the look-up after a failed commit failed", errAttr(err))
		return end{ending: otherwise, err: errors.Join(why, err)}
	}
	e := ses.judge(ctx, lookup, why, otherwise)
	switch {
	case e.ending != committed && isFate(fate, "committed"): // and not with our claim
		return ses.keepFromRunningAgain(ctx, why)
	case e.ending == undone && isFate(fate, "in progress"):
		e.ending = unknown
	case e.ending == overtaken && !look:
		return end{ending: undone, err: why}
	}
	return e
}

// askElsewhere asks what became of the transaction, and then for the claim, so that
// a commit is never seen without its claim. One that is still under way gets a
// moment to end: its server may not have heard yet that the connection is gone.
func (ses *session) askElsewhere(ctx context.Context) (fate, lookup *query, err error) {
	giveUp := time.Now().Add(strayTimeout)
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		err = ses.retryConnection(ctx, func(f *flush) {
			fate = f.add(fateSQL, ses.xid)
			f.sync()
			lookup = f.add(ses.store.sql.lookup, ses.plan.claim.ID[:])
		})
		if err != nil || !isFate(fate, "in progress") || !sleep(ctx, min(pause, time.Until(giveUp))) {
			return fate, lookup, err
		}
	}
}

// retryConnection runs a flush that may be repeated on connections of the pool.
func (ses *session) retryConnection(ctx context.Context, build func(*flush)) (err error) {
	for n := 0; mayBeStale(ses.plan.pool, n); n++ {
		conn, acquireErr := ses.plan.pool.Acquire(ctx)
		if acquireErr != nil {
			return fmt.Errorf("idem: no connection: %w", acquireErr)
		}
		var f flush
		build(&f)
		err = f.run(ctx, conn.Conn())
		conn.Release()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// judge tells from a look-up how the session ended.
func (ses *session) judge(ctx context.Context, lookup *query, why error, otherwise ending) end {
	rec, found, err := recordOf(ses.plan.claim.ID, lookup)
	switch {
	case err != nil:
		ses.store.log(ctx, slog.LevelError, "the look-up after a failed commit failed", errAttr(err))
		return end{ending: otherwise, err: errors.Join(why, err)}
	case !found:
		return end{ending: otherwise, err: why}
	case rec.Token == ses.plan.claim.Token:
		mark.From(ctx).Committed()
		return end{ending: committed}
	case otherwise == unknown:
		mark.From(ctx).RolledBack()
	}
	return end{ending: overtaken, rec: rec, err: why}
}

// close shuts the transaction for the endpoint. It returns nil while the
// connection can be used to end it. One on which a call is under way is cut: who
// knows what it would do. (Rows that nobody closed make the next flush fail.)
func (ses *session) close() error {
	if ses.conn == nil {
		return pgconn.ErrConnClosed
	}
	quiet := ses.core.close()
	if quiet != nil {
		ses.cut(quiet)
		return errStillInUse
	}
	if ses.conn.Conn().IsClosed() {
		return pgconn.ErrConnClosed
	}
	return nil
}

// cut closes the socket under a running call, for which pgx has the server cancel its
// statement. A call that doesn't return in time, since it waits for something else,
// keeps the connection, but not its place in the pool.
func (ses *session) cut(quiet <-chan struct{}) {
	conn := ses.conn
	ses.conn = nil
	ctx, cancel := context.WithTimeout(context.Background(), strayTimeout)
	defer cancel()
	_ = conn.Conn().PgConn().Conn().Close()
	select {
	case <-quiet:
		conn.Release()
	case <-ctx.Done():
		bare := conn.Hijack()
		go func() {
			<-quiet
			closeBare(bare)
		}()
	}
}

// release gives the connection back. One that was handed out past the guard is
// closed instead: somebody may still hold it.
func (ses *session) release() {
	conn := ses.conn
	if conn == nil {
		return
	}
	ses.conn = nil
	if !ses.core.wasExposed() || conn.Conn().IsClosed() {
		conn.Release()
		return
	}
	go closeBare(conn.Hijack())
}

// closeBare closes a connection that is the pool's no more.
func closeBare(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), strayTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// mayBeStale reports whether the n-th connection of a pool, from 0 on, may still
// have died before it was used. After a server's restart all of them have; when
// more than the pool holds have, something else is wrong.
func mayBeStale(pool *pgxpool.Pool, n int) bool {
	return n < attempts || n < int(pool.Stat().MaxConns())+attempts // Stat takes the pool's lock
}

// lockKey is the advisory lock of an id: of the table, too, as stores of one
// database don't share their ids.
func (s *Store) lockKey(id idemhttp.ID) int64 {
	h := fnv.New64a()
	h.Write([]byte(s.table))
	h.Write(id[:])
	return int64(h.Sum64())
}
