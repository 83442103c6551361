package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/internal/mark"
)

// session is one managed transaction: begun together with the look-up of its
// claim, ended together with the writing of it. Nothing but open, commit and
// rollback ends it, and each session is ended by exactly one of these.
type session struct {
	store *Store
	plan  plan
	conn  *pgxpool.Conn
	core  *txCore
	tx    *managedTx

	now  []byte // of the transaction, as the server gave it
	xid  []byte
	role []byte

	expired bool // a row of this id that has expired is to make room for the claim

	fetched     []*query // the prefetched results
	prefetchErr error
}

// plan is how a session is to be.
type plan struct {
	pool      *pgxpool.Pool
	claim     *idemhttp.Claim // nil: without one, and without a look-up
	begin     *statement
	ttl       time.Duration // of the claim, from when it is written
	exclusive bool
	verify    bool // that pool leads to the store's database
	prefetch  []*pgx.QueuedQuery
}

const (
	// settleTimeout bounds what is sent after the endpoint has returned. It doesn't
	// end with the request: the caller that hangs up is the one that will retry.
	settleTimeout = 30 * time.Second
	// claimWait is how long a claim's INSERT waits for another transaction that has
	// inserted the same one and not ended yet, and constraints that are deferred to
	// the COMMIT wait for a lock.
	claimWait = 5 * time.Second
)

var (
	errAborted      = errors.New("idem: the transaction was aborted by an error that the endpoint passed over")
	errEndedInside  = errors.New("idem: the endpoint ended the transaction with a statement of its own")
	errStillInUse   = errors.New("idem: the endpoint returned while its transaction was still in use")
	errNotCommitted = errors.New("idem: the COMMIT ended as a ROLLBACK")
	errDead         = errors.New("idem: the connection failed before anything was done on it")
	errReadOnly     = errors.New("idem: begin: the transaction is read-only, no claim could be written in it")
	errLockBusy     = errors.New("idem: another request holds the lock")
)

const xid8OID = 5069 // pgtype has no name for it

var (
	// stateSQL asks what tells later whether this is still the same transaction,
	// and whether it was committed. The id also makes a standby refuse. A server
	// that takes no writes is to be noticed before the endpoint runs.
	stateSQL = prepared("SELECT now(), pg_current_xact_id(), current_setting('role'), current_setting('transaction_read_only')")
	// fateSQL tells what became of a transaction: 'committed', 'aborted', …
	fateSQL = prepared("SELECT pg_xact_status($1)", xid8OID)
	// lockSQL is WithExclusive's. The lock ends with the transaction.
	lockSQL = prepared("SELECT pg_try_advisory_xact_lock($1)", pgtype.Int8OID)
	// resetSQL undoes a SET ROLE of the endpoint's, so that the claim is written by
	// who began, and bounds the wait for a concurrent claim, by that alone: a
	// statement_timeout that ends sooner would look like another failure. The role is
	// set for the session, to what the session had: it outlives the transaction
	// otherwise.
	resetSQL = prepared(fmt.Sprintf("SELECT set_config('role', $1, false), set_config('lock_timeout', '%d', true), set_config('statement_timeout', '0', true)",
		claimWait.Milliseconds()), pgtype.TextOID)

	beginSQL    = prepared("begin")
	commitSQL   = prepared("commit")
	chainSQL    = prepared("commit and chain") // commit, and begin another one like it
	rollbackSQL = prepared("rollback")
)

// open begins a session, or returns the claim that is there already, or
// errLockBusy. A connection that turns out to be dead is replaced: nothing has
// been done on it.
func (s *Store) open(ctx context.Context, p plan) (ses *session, rec *idemhttp.Record, err error) {
	for n := 0; mayBeStale(p.pool, n); n++ {
		conn, acquireErr := s.acquire(ctx, p.pool)
		if acquireErr != nil {
			return nil, nil, errors.Join(fmt.Errorf("idem: no connection: %w", acquireErr), err)
		}
		ses = &session{store: s, plan: p, conn: conn}
		rec, err = ses.beginOrLeave(ctx)
		if err == nil && rec == nil {
			return ses, nil, nil
		}
		if !errors.Is(err, errDead) && !again(err) || ctx.Err() != nil {
			return nil, rec, err
		}
	}
	return nil, nil, err
}

// beginOrLeave gives the connection back wherever it begins nothing: also where
// an argument of a prefetched query panics.
func (ses *session) beginOrLeave(ctx context.Context) (rec *idemhttp.Record, err error) {
	begun := false
	defer func() {
		if !begun {
			ses.leave(ctx)
		}
	}()
	rec, err = ses.begin(ctx)
	begun = err == nil && rec == nil
	return rec, err
}

// leave gives the connection back when nothing was done on it. What can't be
// rolled back is closed by the pool.
func (ses *session) leave(ctx context.Context) {
	defer ses.conn.Release()
	if conn := ses.conn.Conn(); !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		var f flush
		f.add(rollbackSQL)
		_ = f.run(ctx, conn)
	}
}

// begin sends the look-up and BEGIN, and what may travel with them.
func (ses *session) begin(ctx context.Context) (*idemhttp.Record, error) {
	var (
		f           flush
		lock, fresh *query
	)
	claim := ses.plan.claim
	look, begin := ses.addBegin(&f)
	state := f.add(stateSQL)
	if claim != nil && ses.plan.exclusive {
		lock = f.add(lockSQL, int8Param(ses.store.lockKey(claim.ID)))
		fresh = f.add(ses.store.sql.fresh, claim.ID[:])
	}
	place := ses.addVerify(&f)
	ses.addPrefetch(ctx, &f)
	if err := f.run(ctx, ses.conn.Conn()); err != nil {
		return nil, fmt.Errorf("%w: %w", errDead, err)
	}
	rec, err := ses.claimed(look, lock, fresh)
	if rec != nil || err != nil {
		return rec, err
	}
	if err := cmp.Or(begin.err, state.err); err != nil {
		return nil, fmt.Errorf("idem: begin: %w", err)
	}
	if err := ses.verify(ctx, place); err != nil {
		return nil, err
	}
	if claim != nil && string(state.rows[0][3]) == "on" {
		return nil, errReadOnly
	}
	ses.expired = sawExpired(look) || sawExpired(fresh)
	ses.prefetchErr = cmp.Or(ses.prefetchErr, prefetchError(ses.fetched), ses.endedByPrefetch())
	ses.now, ses.xid, ses.role = state.rows[0][0], state.rows[0][1], state.rows[0][2]
	ses.core = &txCore{conn: ses.conn.Conn()}
	ses.tx = &managedTx{core: ses.core, inner: adopt(ctx, ses.conn.Conn())}
	return nil, nil
}

// addBegin adds BEGIN | look-up | COMMIT | BEGIN: the look-up has a transaction of
// its own. In the endpoint's, at SERIALIZABLE, requests with different keys would
// abort one another, since all of them read the table that all of them write. A
// Sync would end it as well, but have the server answer twice.
func (ses *session) addBegin(f *flush) (look, begin *query) {
	if ses.plan.claim == nil {
		return nil, f.add(ses.plan.begin)
	}
	f.add(beginSQL)
	look = f.add(ses.store.sql.lookup, ses.plan.claim.ID[:])
	if ses.plan.begin == beginSQL {
		return look, f.add(chainSQL)
	}
	f.add(commitSQL)
	return look, f.add(ses.plan.begin)
}

// claimed returns what the look-ups found: the one before BEGIN, and the one
// under the lock, if that was asked for.
func (ses *session) claimed(look, lock, fresh *query) (*idemhttp.Record, error) {
	if look == nil {
		return nil, nil
	}
	if look.err != nil {
		return nil, ses.store.explain("look-up", look.err)
	}
	if rec, found, err := recordOf(ses.plan.claim.ID, look); found || err != nil {
		return &rec, err
	}
	switch {
	case lock == nil, errors.Is(lock.err, errSkipped): // without one, or BEGIN has failed
		return nil, nil
	case lock.err != nil:
		return nil, fmt.Errorf("idem: WithExclusive's lock: %w", lock.err)
	}
	if lock.rows[0][0][0] == 0 {
		return nil, errLockBusy
	}
	if rec, found, err := recordOf(ses.plan.claim.ID, fresh); found || err != nil {
		return &rec, err
	}
	return nil, nil
}

// ending is how a session ended.
type ending uint8

const (
	committed ending = iota // the work, and the claim with it
	overtaken               // not, and another's claim is there
	undone                  // not, and no claim is there
	unknown                 // the connection is of no use any more, and no claim is there yet
)

// end is an ending, with what belongs to it.
type end struct {
	ending
	rec idemhttp.Record // overtaken
	err error           // why it isn't committed
}

// commit writes the claim and commits, in one flush. A nil response is a claim
// without an answer.
func (ses *session) commit(ctx context.Context, resp *idemhttp.Response) end {
	ctx, cancel := detach(ctx)
	defer cancel()
	if why := ses.close(); why != nil {
		return ses.elsewhere(ctx, why, undone, true)
	}
	switch conn := ses.conn.Conn(); {
	case conn.PgConn().TxStatus() == 'I':
		return ses.rollback(ctx, errEndedInside, true)
	case ses.plan.claim != nil && conn.PgConn().TxStatus() != 'T':
		return ses.rollback(ctx, errAborted, true)
	}
	return ses.sendCommit(ctx, resp)
}

func (ses *session) sendCommit(ctx context.Context, resp *idemhttp.Response) end {
	var f flush
	var insert *query
	if ses.conn.Conn().PgConn().TxStatus() == 'T' { // else the COMMIT is a ROLLBACK
		f.add(resetSQL, ses.role)
	}
	if claim := ses.plan.claim; claim != nil {
		params := append(claimParams(*claim, ses.plan.ttl), answerParams(resp)...)
		insert = f.add(ses.write(), append(params, ses.now)...)
	}
	commit := f.add(commitSQL)
	heard := mark.From(ctx)
	heard.Committing()
	err := f.run(ctx, ses.conn.Conn())
	switch {
	case err != nil && !f.sent:
		heard.RolledBack()
		return ses.elsewhere(ctx, err, undone, true)
	case err != nil && refused(insert) == nil && refused(commit) == nil:
		return ses.elsewhere(ctx, err, unknown, true)
	case commit.tag.String() == "COMMIT":
		heard.Committed()
		ses.release()
		return end{}
	}
	heard.RolledBack() // the server said so
	return ses.rollback(ctx, ses.whyNot(insert, commit), true)
}

// write is the statement that writes the claim.
func (ses *session) write() *statement {
	if ses.expired {
		return ses.store.sql.replace
	}
	return ses.store.sql.insert
}

// refused is the server's own error for a query.
func refused(q *query) error {
	if q == nil || !isPgError(q.err) || fatal(q.err) {
		return nil
	}
	return q.err
}

// whyNot finds the reason in a closing flush that didn't commit.
func (ses *session) whyNot(insert, commit *query) error {
	switch {
	case insert == nil || insert.err == nil:
		return cmp.Or(commit.err, errNotCommitted)
	case ses.foreign(insert.err):
		return errEndedInside
	case timedOut(insert.err):
		return fmt.Errorf("%w: %w", errLockBusy, insert.err)
	}
	return fmt.Errorf("idem: the claim could not be written: %w", insert.err)
}

// foreign reports whether the claim's INSERT found itself in another transaction
// than the one that was begun: it then writes no token, which the table refuses.
func (ses *session) foreign(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "23502" && pgErr.ColumnName == "token" &&
		pgErr.TableName == ses.store.tableName && pgErr.SchemaName == ses.store.schema
}

// timedOut reports whether an INSERT gave up waiting for another transaction.
func timedOut(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55P03"
}

// fatal reports whether the server closed the connection with this error. What
// it was doing at that time isn't known then.
func fatal(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.SeverityUnlocalized == "FATAL" || pgErr.SeverityUnlocalized == "PANIC")
}

// detach returns a context with ctx's values and a time limit of its own.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
}
