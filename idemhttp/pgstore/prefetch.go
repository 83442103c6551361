package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// prefetch asks for the endpoint's own first queries: again for each run, and for
// each time that a held repeat looks. The function is given a request of its own,
// so that it takes nothing of the endpoint's body; where that isn't kept, it is
// given the endpoint's, so that both have the form it parses.
func (q *request) prefetch() []*pgx.QueuedQuery {
	r := q.Request
	if q.Guarded {
		r = q.Unread(r.Context())
		defer q.HandBackForm(r)
	}
	var b pgx.Batch
	q.endpoint.prefetch(r, &b)
	return b.QueuedQueries
}

// addPrefetch puts the endpoint's own first queries behind BEGIN. Their
// arguments travel as text and without types, as in pgx.QueryExecModeExec.
func (ses *session) addPrefetch(ctx context.Context, f *flush) {
	for i, queued := range ses.plan.prefetch {
		q, err := encodeQuery(ctx, ses.conn.Conn(), queued.SQL, queued.Arguments)
		if err != nil {
			ses.prefetchErr = fmt.Errorf("idem: prefetch: query %d: %w", i, err)
			return
		}
		ses.fetched = append(ses.fetched, f.addQuery(q))
	}
}

func encodeQuery(ctx context.Context, conn *pgx.Conn, sql string, args []any) (*query, error) {
	if len(args) > 0 {
		if rewriter, ok := args[0].(pgx.QueryRewriter); ok {
			var err error
			if sql, args, err = rewriter.RewriteQuery(ctx, conn, sql, args[1:]); err != nil {
				return nil, err
			}
		}
	}
	var b pgx.ExtendedQueryBuilder
	if err := b.Build(conn.TypeMap(), nil, args); err != nil {
		return nil, err
	}
	return &query{
		stmt: &statement{sql: sql}, params: b.ParamValues, formats: &formats{b.ParamFormats, b.ResultFormats},
	}, nil
}

// prefetchError is the first error of the prefetched queries.
func prefetchError(fetched []*query) error {
	for i, q := range fetched {
		if q.err != nil {
			return fmt.Errorf("idem: prefetch: query %d: %w", i, q.err)
		}
	}
	return nil
}

// endedByPrefetch is an error where a query ended the transaction: the endpoint
// would work outside of it, or, behind AND CHAIN, in another one.
func (ses *session) endedByPrefetch() error {
	for i, q := range ses.fetched {
		if slices.Contains(endTags, q.tag.String()) {
			return fmt.Errorf("idem: prefetch: query %d: %w", i, errEndedInside)
		}
	}
	return nil
}

// endTags are what the server answers to statements that end a transaction. That
// is surer than their text: EXECUTE may be one.
var endTags = []string{"COMMIT", "ROLLBACK", "PREPARE TRANSACTION"}

// fetchedRows are rows that have been read already.
type fetchedRows struct {
	types *pgtype.Map
	query *query
	at    int // rows handed out so far
	err   error
	done  bool
}

func (r *fetchedRows) Close()                                       { r.done = true }
func (r *fetchedRows) Err() error                                   { return r.err }
func (r *fetchedRows) CommandTag() pgconn.CommandTag                { return r.query.tag }
func (r *fetchedRows) FieldDescriptions() []pgconn.FieldDescription { return r.query.fields }
func (r *fetchedRows) TypeMap() *pgtype.Map                         { return r.types }
func (r *fetchedRows) Conn() *pgx.Conn                              { return nil }

func (r *fetchedRows) Next() bool {
	if r.done || r.err != nil || r.at == len(r.query.rows) {
		r.done = true
		return false
	}
	r.at++
	return true
}

func (r *fetchedRows) RawValues() [][]byte {
	if r.at == 0 {
		return nil
	}
	return r.query.rows[r.at-1]
}

func (r *fetchedRows) Scan(dest ...any) error {
	if r.at == 0 {
		return errors.New("idem: Scan of prefetched rows before Next")
	}
	err := r.scan(dest)
	if err != nil {
		r.err = err
	}
	return err
}

func (r *fetchedRows) scan(dest []any) error {
	if len(dest) == 1 {
		if scanner, ok := dest[0].(pgx.RowScanner); ok {
			return scanner.ScanRow(r)
		}
	}
	return pgx.ScanRow(r.types, r.query.fields, r.RawValues(), dest...)
}

func (r *fetchedRows) Values() ([]any, error) {
	values := make([]any, len(r.query.fields))
	for i, raw := range r.RawValues() {
		field := &r.query.fields[i]
		if raw == nil {
			continue
		}
		typ, ok := r.types.TypeForOID(field.DataTypeOID)
		if !ok {
			values[i] = string(raw) // the text format is what was asked for
			continue
		}
		v, err := typ.Codec.DecodeValue(r.types, field.DataTypeOID, field.Format, raw)
		if err != nil {
			r.err = fmt.Errorf("idem: prefetched column %q: %w", field.Name, err)
			return nil, r.err
		}
		values[i] = v
	}
	return values, nil
}
