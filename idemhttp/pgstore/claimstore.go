package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idem-go/idem/idemhttp"
)

var _ idemhttp.Store = (*Store)(nil)

// Claim writes a running claim and tells whether it did, in one round trip. The
// primary key decides. An expired claim goes first, in the same transaction.
func (s *Store) Claim(ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
	var insert *query
	err := s.attempt(ctx, "claim", func(f *flush) {
		f.add(s.sql.expire, c.ID[:])
		insert = f.add(s.sql.claim, claimParams(c, ttl)...)
	})
	if err != nil {
		return false, err
	}
	return insert.tag.RowsAffected() == 1, nil
}

// Answer stores the answer, in one round trip. See idemhttp.Store.
func (s *Store) Answer(ctx context.Context, c idemhttp.Claim, resp *idemhttp.Response, ttl time.Duration) error {
	params := append(claimParams(c, ttl), answerParams(resp)...)
	var write *query
	err := s.attempt(ctx, "answer", func(f *flush) { write = f.add(s.sql.answer, params...) })
	if err != nil || write.tag.RowsAffected() == 1 {
		return err
	}
	return s.holds(ctx, c)
}

// holds is nil if the claim is c's, in whatever state.
func (s *Store) holds(ctx context.Context, c idemhttp.Claim) error {
	var holder *query
	err := s.attempt(ctx, "answer", func(f *flush) { holder = f.add(s.sql.holder, c.ID[:]) })
	if err != nil {
		return err
	}
	if len(holder.rows) == 1 && string(holder.rows[0][0]) == string(c.Token[:]) {
		return nil
	}
	return fmt.Errorf("idem: answer: %w", idemhttp.ErrNotHolder)
}

// Release removes a running claim of that token.
func (s *Store) Release(ctx context.Context, id idemhttp.ID, token idemhttp.Token) error {
	return s.attempt(ctx, "release", func(f *flush) { f.add(s.sql.release, id[:], token[:]) })
}

// Lookup returns the claim of an id.
func (s *Store) Lookup(ctx context.Context, id idemhttp.ID) (rec idemhttp.Record, found bool, err error) {
	var look *query
	err = s.attempt(ctx, "look-up", func(f *flush) { look = f.add(s.sql.lookup, id[:]) })
	if err != nil {
		return rec, false, err
	}
	return recordOf(id, look)
}

// recordOf reads what a look-up has found. A row that has expired is none.
func recordOf(id idemhttp.ID, look *query) (rec idemhttp.Record, found bool, err error) {
	if look.err != nil || len(look.rows) == 0 || sawExpired(look) {
		return rec, false, look.err
	}
	rec, err = decodeRecord(id, look.rows[0])
	return rec, err == nil, err
}

// sawExpired reports whether a look-up has come across a row that has expired.
func sawExpired(look *query) bool {
	return look != nil && len(look.rows) == 1 && look.rows[0][expiredColumn][0] != 0
}

// Forget removes a claim that isn't running any more, and tells whether it did:
// the request runs when it comes again.
func (s *Store) Forget(ctx context.Context, id idemhttp.ID) (bool, error) {
	var forget *query
	err := s.attempt(ctx, "forget", func(f *flush) { forget = f.add(s.sql.forget, id[:]) })
	if err != nil {
		return false, err
	}
	return forget.tag.RowsAffected() == 1, nil
}

// attempts is how often a statement is sent that the server refused only for its
// timing.
const attempts = 3

// attempt runs the flush that build makes, as a transaction of its own, and
// returns the first error of it. A refusal that leaves nothing behind and won't
// come twice is tried again.
func (s *Store) attempt(ctx context.Context, verb string, build func(*flush)) (err error) {
	for range attempts {
		var f flush
		build(&f)
		if err = s.exchange(ctx, &f); err == nil {
			err = f.firstErr()
		}
		if err == nil {
			return nil
		}
		if !again(err) {
			break
		}
	}
	return s.explain(verb, err)
}

// explain says what failed, and what to do about a table that isn't there.
func (s *Store) explain(verb string, err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		return fmt.Errorf("idem: %s: the table %s is missing, Store.Migrate makes it: %w", verb, s.table, err)
	}
	return fmt.Errorf("idem: %s in %s: %w", verb, s.table, err)
}

// again reports whether a transaction that failed so is worth repeating: it lost
// against a concurrent one (class 40; where the database's default isolation is
// strict), or a prepared statement was gone.
func again(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (strings.HasPrefix(pgErr.Code, "40") || pgErr.Code == errUndefinedStatement)
}

// firstErr is the error that made its group fail.
func (f *flush) firstErr() error {
	for _, q := range f.queries {
		if q.err != nil {
			return q.err
		}
	}
	return nil
}
