package pgstore

import (
	"context"
	_ "embed"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed schema.sql
var schemaSQL string

// indexSuffix makes the name of the index of the name of the table.
const indexSuffix = "_expires_at_idx"

// SQL returns what Migrate runs, for this store's schema and table: the text of
// schema.sql, which can also be run as it is where the names are the default
// ones.
func (s *Store) SQL() string {
	return strings.NewReplacer(
		`"public"."idem_claims"`, s.table,
		`"idem_claims`+indexSuffix+`"`, pgx.Identifier{s.tableName + indexSuffix}.Sanitize(),
	).Replace(schemaSQL)
}

// Migrate creates the table, its index and, where it is missing, its schema, or
// adds what an older version of the library lacks. It may be called any number
// of times and by any number of nodes at once: an advisory lock, one for all
// tables of a schema, orders them.
//
// It never changes what is there. Where the table exists already the role needs
// no right to create anything.
func (s *Store) Migrate(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("idem: migrate %s: %w", s.table, err)
	}
	defer conn.Release()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return s.migrate(ctx, tx) })
	if err != nil {
		return fmt.Errorf("idem: migrate %s: %w", s.table, err)
	}
	return nil
}

func (s *Store) migrate(ctx context.Context, tx pgx.Tx) error {
	lock := fnv.New64a()
	lock.Write([]byte("idem migrate " + s.schema)) // tables of one schema may all find it missing
	if _, err := tx.Exec(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", int64(lock.Sum64()))); err != nil {
		return err
	}
	done, err := s.migrated(ctx, tx)
	if err != nil || done {
		return err
	}
	if err := s.createSchema(ctx, tx); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, s.SQL(), pgx.QueryExecModeSimpleProtocol)
	return err
}

// migrated reports whether table and index are there. CREATE IF NOT EXISTS asks
// for the right to create before it looks. The catalogs are read themselves, here
// and below: to_regclass answers from a cache of the backend's, which may be older
// than the lock.
func (s *Store) migrated(ctx context.Context, tx pgx.Tx) (there bool, err error) {
	row := tx.QueryRow(ctx, `SELECT count(*) = 2 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname IN ($2, $3)`, pgx.QueryExecModeExec, s.schema, s.tableName, s.tableName+indexSuffix)
	return there, row.Scan(&there)
}

// createSchema asks first, for the same reason.
func (s *Store) createSchema(ctx context.Context, tx pgx.Tx) error {
	var missing bool
	row := tx.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)", pgx.QueryExecModeExec, s.schema)
	if err := row.Scan(&missing); err != nil || !missing {
		return err
	}
	_, err := tx.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{s.schema}.Sanitize())
	return err
}
