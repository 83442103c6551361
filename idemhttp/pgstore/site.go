package pgstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// identitySQL names the database a connection leads to. A standby has the same
// name as its primary, and can't be written to.
var identitySQL = prepared(`SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' ||
	(SELECT oid FROM pg_database WHERE datname = current_database())::text, pg_is_in_recovery()`)

// siteTimeout bounds the questions asked when an endpoint is made.
const siteTimeout = 5 * time.Second

// site tells whether an endpoint's pool leads to the database of its store. A
// nil site is the store's own pool.
type site struct {
	endpoint *Endpoint

	mu      sync.Mutex // held while asking, so that one request asks for all
	decided bool
	foreign bool
	err     error // why it isn't decided
}

func newSite(e *Endpoint) *site {
	s := &site{endpoint: e}
	s.decide(context.Background())
	return s
}

// isForeign reports whether the claim can't be part of the transaction, asking
// again where that isn't known.
func (s *site) isForeign(ctx context.Context) bool {
	if s == nil {
		return false
	}
	s.decide(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.decided && s.foreign
}

// undecided is the reason why it still isn't known.
func (s *site) undecided() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *site) decide(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decided {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, siteTimeout)
	defer cancel()
	e := s.endpoint
	claims, err := identify(ctx, e.store.pool)
	work, workErr := identify(ctx, e.pool)
	if s.err = errors.Join(err, workErr); s.err != nil {
		return
	}
	s.decided = true
	s.foreign = claims != work || work.standby
	if s.foreign {
		e.store.log(ctx, slog.LevelWarn, "the work pool leads to another database than the claims: claim and release is used instead",
			slog.String("endpoint", e.Name()), slog.String("work", work.name), slog.String("claims", claims.name))
	}
}

// identity is a database, as identitySQL tells it.
type identity struct {
	name    string
	standby bool
}

func identify(ctx context.Context, pool *pgxpool.Pool) (identity, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return identity{}, fmt.Errorf("idem: which database is it: %w", err)
	}
	defer conn.Release()
	var f flush
	q := f.add(identitySQL)
	if err := errors.Join(f.run(ctx, conn.Conn()), q.err); err != nil {
		return identity{}, fmt.Errorf("idem: which database is it: %w", err)
	}
	return identityOf(q), nil
}

func identityOf(q *query) identity {
	return identity{name: string(q.rows[0][0]), standby: q.rows[0][1][0] == 1}
}

// errElsewhere is the loud failure of a transaction that isn't where it should be.
var errElsewhere = errors.New("idem: the transaction is in another database than the claims, where they would never be found again")

// addVerify asks, in the first transaction of a pool, where it is.
func (ses *session) addVerify(f *flush) *query {
	if !ses.plan.verify {
		return nil
	}
	if _, done := ses.store.verified.Load(ses.plan.pool); done {
		return nil
	}
	return f.add(identitySQL)
}

// verify compares it with where the store's claims are.
func (ses *session) verify(ctx context.Context, q *query) error {
	if q == nil {
		return nil
	}
	if q.err != nil {
		return fmt.Errorf("idem: which database is it: %w", q.err)
	}
	claims, err := identify(ctx, ses.store.pool)
	if err != nil {
		return err
	}
	if work := identityOf(q); work != claims || work.standby {
		return fmt.Errorf("%w: %s is not %s", errElsewhere, work.name, claims.name)
	}
	ses.store.verified.Store(ses.plan.pool, true)
	return nil
}
