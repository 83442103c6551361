package pgstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Store keeps claims in one table of a PostgreSQL database (14 or newer). It is
// an idemhttp.Store, and makes endpoints whose claim is part of their own
// transaction. Its methods may be called from any number of goroutines.
type Store struct {
	pool      *pgxpool.Pool
	schema    string
	tableName string
	table     string // both, quoted
	logger    *slog.Logger
	sql       statements
	patience  time.Duration // see nestedWait
	verified  sync.Map      // of *pgxpool.Pool: pools that lead to this store's database
}

// Option sets up a Store.
type Option func(*Store) error

// WithSchema names the schema of the table. The default is "public".
func WithSchema(name string) Option {
	return func(s *Store) error {
		s.schema = name
		return checkName("WithSchema", name, maxIdentifier)
	}
}

// WithTable names the table. The default is "idem_claims"; 48 bytes is the most,
// since the name of its index is made of it.
func WithTable(name string) Option {
	return func(s *Store) error {
		s.tableName = name
		return checkName("WithTable", name, maxIdentifier-len(indexSuffix))
	}
}

// WithLogger sets where the store reports what no error can tell. The default is
// slog.Default, as it is at each report.
func WithLogger(logger *slog.Logger) Option {
	return func(s *Store) error {
		if logger == nil {
			return errors.New("idem: WithLogger: the logger is nil")
		}
		s.logger = logger
		return nil
	}
}

// maxIdentifier is the longest name PostgreSQL doesn't cut off, in bytes.
const maxIdentifier = 63

func checkName(option, name string, most int) error {
	switch {
	case name == "":
		return fmt.Errorf("idem: %s: the name is empty", option)
	case len(name) > most:
		return fmt.Errorf("idem: %s: %q has %d bytes, at most %d are allowed", option, name, len(name), most)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("idem: %s: %q contains a zero byte", option, name)
	}
	return nil
}

// New returns a store on pool. It doesn't connect: call Migrate before use,
// unless the table is made elsewhere.
func New(pool *pgxpool.Pool, opts ...Option) (*Store, error) {
	if pool == nil {
		return nil, errors.New("idem: pgstore.New: the pool is nil")
	}
	s := &Store{pool: pool, schema: "public", tableName: "idem_claims", patience: nestedWait}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("idem: pgstore.New: an option is nil")
		}
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	s.table = pgx.Identifier{s.schema, s.tableName}.Sanitize()
	s.sql = statementsFor(s.table)
	return s, nil
}

// exchange runs a flush on a connection of the pool.
func (s *Store) exchange(ctx context.Context, f *flush) error {
	conn, err := s.acquire(ctx, s.pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	return f.run(ctx, conn.Conn())
}

// errNested is the refusal of what would wait for itself.
var errNested = errors.New("idem: one inside the other, on a pool of one connection (MaxConns): the outer transaction has it; give the stores pools of their own")

// nestedWait is how long a request waits for a second connection of a pool it
// holds one of already: where all do, each waits for the others.
const nestedWait = 5 * time.Second

func (s *Store) acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	if !holdsOne(ctx, pool) {
		return pool.Acquire(ctx)
	}
	if pool.Stat().MaxConns() == 1 {
		return nil, errNested
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.patience, errors.New("idem: no second connection for an endpoint inside another"))
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return conn, err
}
