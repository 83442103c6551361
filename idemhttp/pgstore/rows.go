package pgstore

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// guardedRows are rows of a managed transaction: they read from its connection,
// so they end with it.
type guardedRows struct {
	core  *txCore
	inner pgx.Rows
}

func (r *guardedRows) Close() {
	if r.core.enter() == nil {
		defer r.core.leave()
		r.inner.Close()
	}
}

func (r *guardedRows) Err() error {
	if err := r.core.enter(); err != nil {
		return err
	}
	defer r.core.leave()
	return r.core.heard(r.inner.Err())
}

func (r *guardedRows) CommandTag() (tag pgconn.CommandTag) {
	if r.core.enter() == nil {
		defer r.core.leave()
		tag = r.inner.CommandTag()
	}
	return tag
}

func (r *guardedRows) FieldDescriptions() (fields []pgconn.FieldDescription) {
	if r.core.enter() == nil {
		defer r.core.leave()
		fields = r.inner.FieldDescriptions()
	}
	return fields
}

func (r *guardedRows) Next() bool {
	if r.core.enter() != nil {
		return false
	}
	defer r.core.leave()
	more := r.inner.Next()
	if !more {
		_ = r.core.heard(r.inner.Err())
	}
	return more
}

func (r *guardedRows) Scan(dest ...any) error {
	if err := r.core.enter(); err != nil {
		return err
	}
	defer r.core.leave()
	return r.core.heard(r.inner.Scan(dest...))
}

func (r *guardedRows) Values() ([]any, error) {
	if err := r.core.enter(); err != nil {
		return nil, err
	}
	defer r.core.leave()
	return r.inner.Values()
}

func (r *guardedRows) RawValues() (values [][]byte) {
	if r.core.enter() == nil {
		defer r.core.leave()
		values = r.inner.RawValues()
	}
	return values
}

func (r *guardedRows) TypeMap() *pgtype.Map { return r.inner.TypeMap() }

func (r *guardedRows) Conn() *pgx.Conn {
	if r.core.enter() != nil {
		return nil
	}
	defer r.core.leave()
	r.core.expose()
	return r.inner.Conn()
}

// guardedRow is the one row of QueryRow, read by Scan.
type guardedRow struct {
	core  *txCore
	inner pgx.Row
}

func (r *guardedRow) Scan(dest ...any) error {
	if err := r.core.enter(); err != nil {
		return err
	}
	defer r.core.leave()
	return r.core.heard(r.inner.Scan(dest...))
}

// guardedBatch are the results of a batch sent in a managed transaction.
type guardedBatch struct {
	core  *txCore
	inner pgx.BatchResults
}

func (b *guardedBatch) Exec() (pgconn.CommandTag, error) {
	if err := b.core.enter(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer b.core.leave()
	tag, err := b.inner.Exec()
	return tag, b.core.heard(err)
}

func (b *guardedBatch) Query() (pgx.Rows, error) {
	if err := b.core.enter(); err != nil {
		return closedRows{err}, err
	}
	defer b.core.leave()
	rows, err := b.inner.Query()
	return &guardedRows{core: b.core, inner: rows}, b.core.heard(err)
}

func (b *guardedBatch) QueryRow() pgx.Row {
	if err := b.core.enter(); err != nil {
		return closedRows{err}
	}
	defer b.core.leave()
	return &guardedRow{core: b.core, inner: b.inner.QueryRow()}
}

func (b *guardedBatch) Close() error {
	if err := b.core.enter(); err != nil {
		return err
	}
	defer b.core.leave()
	return b.core.heard(b.inner.Close())
}

func (b *guardedBatch) Tx() pgx.Tx { return nil }

// closedRows are rows, or a row, that never were.
type closedRows struct{ err error }

func (r closedRows) Close()                                       {}
func (r closedRows) Err() error                                   { return r.err }
func (r closedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r closedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r closedRows) Next() bool                                   { return false }
func (r closedRows) Scan(...any) error                            { return r.err }
func (r closedRows) Values() ([]any, error)                       { return nil, r.err }
func (r closedRows) RawValues() [][]byte                          { return nil }
func (r closedRows) TypeMap() *pgtype.Map                         { return pgtype.NewMap() }
func (r closedRows) Conn() *pgx.Conn                              { return nil }
