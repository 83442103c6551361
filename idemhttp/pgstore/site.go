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
	memory   time.Duration // see siteMemory

	mu      sync.Mutex    // protects what follows; never held while asking
	asking  chan struct{} // closed when the question under way is answered; nil: there is none
	decided bool
	foreign bool
	err     error     // why it isn't decided
	again   time.Time // after a failure it isn't asked before
}

// siteMemory is how long a failed question isn't asked again: the requests of a
// service whose database is away don't all wait for it in turn.
const siteMemory = time.Second

var errSiteUnknown = errors.New("idem: which database the pool leads to isn't known yet")

func newSite(e *Endpoint) *site {
	s := &site{endpoint: e, memory: siteMemory, err: errSiteUnknown}
	s.decide(context.Background())
	s.again = time.Time{} // the first request asks again
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

// decide asks, unless that is known or another request asks already, and waits
// for the answer no longer than ctx lasts.
func (s *site) decide(ctx context.Context) {
	asking := s.question(ctx)
	if asking == nil {
		return
	}
	select {
	case <-asking:
	case <-ctx.Done():
	}
}

// question is the one under way, begun where there is none. Nil: none is needed.
func (s *site) question(ctx context.Context) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decided || time.Now().Before(s.again) {
		return nil
	}
	if s.asking == nil {
		s.asking = make(chan struct{})
		go s.ask(context.WithoutCancel(ctx)) // all wait for it: it doesn't end with one of them
	}
	return s.asking
}

func (s *site) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, siteTimeout)
	defer cancel()
	store := s.endpoint.store
	claims, err := store.identify(ctx, store.pool)
	work, workErr := store.identify(ctx, s.endpoint.pool)
	s.answer(ctx, claims, work, errors.Join(err, workErr))
}

func (s *site) answer(ctx context.Context, claims, work identity, err error) {
	e := s.endpoint
	foreign := claims != work || work.standby
	if err == nil && foreign {
		e.store.log(ctx, slog.LevelWarn, "the work pool leads to another database than the claims: claim and release is used instead",
			slog.String("endpoint", e.Name()), slog.String("work", work.name), slog.String("claims", claims.name))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decided, s.foreign, s.err = err == nil, foreign, err
	s.again = time.Now().Add(s.memory)
	close(s.asking)
	s.asking = nil
}

// identity is a database, as identitySQL tells it.
type identity struct {
	name    string
	standby bool
}

// identify asks on a connection of pool, which a transaction that ctx is inside of
// may hold all of.
func (s *Store) identify(ctx context.Context, pool *pgxpool.Pool) (identity, error) {
	conn, err := s.acquire(ctx, pool)
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
	claims, err := ses.store.identify(ctx, ses.store.pool)
	if err != nil {
		return err
	}
	if work := identityOf(q); work != claims || work.standby {
		return fmt.Errorf("%w: %s is not %s", errElsewhere, work.name, claims.name)
	}
	ses.store.verified.Store(ses.plan.pool, true)
	return nil
}
