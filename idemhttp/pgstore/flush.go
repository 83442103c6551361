package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A flush is what goes to the server in one write and is answered in one read:
// one round trip, in every exec mode of pgx. It consists of groups; each group
// ends with a Sync, so an error skips the rest of its own group and no more.
// Outside a transaction block a group is a transaction of its own.
type flush struct {
	queries []*query
	room    []query // for those to come: most flushes allocate once
	sent    bool    // at least a part of it may have reached the server
}

// A query is one statement of a flush, with what the server answered.
type query struct {
	stmt      *statement
	params    [][]byte
	formats   *formats
	preparing bool
	last      bool // of its group

	fields []pgconn.FieldDescription
	rows   [][][]byte
	tag    pgconn.CommandTag
	err    error
}

// A statement is one SQL text. Its parameters and results travel in the binary
// format, which neither DateStyle nor bytea_output can change.
type statement struct {
	name string // of the prepared statement; empty: never prepared
	sql  string
	oids []uint32
}

// errSkipped is the error of a query that an earlier one of its group kept from
// running.
var errSkipped = errors.New("idem: not run, as an earlier statement failed")

// errUndefinedStatement is the SQLSTATE of a prepared statement that is gone.
const errUndefinedStatement = "26000"

// noRows are the fields of a statement that returns none. Where there are no
// fields pgx asks the server for them each time anew, for the sake of statements
// whose result isn't known before they run; of this package's it always is.
var noRows = make([]pgconn.FieldDescription, 1)

// formats are those of a query's parameters and results.
type formats struct{ params, results []int16 }

var inBinary = &formats{[]int16{pgx.BinaryFormatCode}, []int16{pgx.BinaryFormatCode}}

func prepared(sql string, oids ...uint32) *statement {
	sum := sha256.Sum256([]byte(sql))
	return &statement{name: "idem_" + hex.EncodeToString(sum[:12]), sql: sql, oids: oids}
}

// add puts a statement in the current group.
func (f *flush) add(stmt *statement, params ...[]byte) *query {
	const usual = 4 // queries
	if len(f.room) == 0 {
		f.room = make([]query, usual)
		f.queries = slices.Grow(f.queries, usual)
	}
	q := &f.room[0]
	f.room = f.room[1:]
	*q = query{stmt: stmt, params: params, formats: inBinary}
	return f.addQuery(q)
}

func (f *flush) addQuery(q *query) *query {
	f.queries = append(f.queries, q)
	return q
}

// sync ends the current group.
func (f *flush) sync() { f.queries[len(f.queries)-1].last = true }

// run sends the flush and reads all answers into its queries. It returns an
// error only where the connection failed; what the server refused is in the
// err of the queries.
func (f *flush) run(ctx context.Context, conn *pgx.Conn) error {
	f.sync()
	names := namesOf(conn)
	pipe := conn.PgConn().StartPipeline(ctx)
	for _, q := range f.queries {
		q.send(pipe, names)
		if q.last {
			pipe.SendPipelineSync()
		}
	}
	if err := pipe.Flush(); err != nil {
		f.sent = !pgconn.SafeToRetry(err)
		return f.fail(err)
	}
	f.sent = true
	err := f.read(pipe, names)
	if closeErr := pipe.Close(); err == nil && closeErr != nil && !isPgError(closeErr) {
		err = closeErr
	}
	if err != nil {
		return f.fail(err)
	}
	return nil
}

// fail gives err to every query that has no answer yet.
func (f *flush) fail(err error) error {
	err = fmt.Errorf("idem: connection: %w", err)
	for _, q := range f.queries {
		if q.err == nil && q.tag.String() == "" {
			q.err = err
		}
	}
	return err
}

func (q *query) send(pipe *pgconn.Pipeline, names *stmtNames) {
	if !names.use(q.stmt) {
		pipe.SendQueryParams(q.stmt.sql, q.params, q.stmt.oids, q.formats.params, q.formats.results)
		return
	}
	if known := names.known[q.stmt.name]; known != nil {
		pipe.SendQueryStatement(known, q.params, q.formats.params, q.formats.results)
		return
	}
	if !names.pending[q.stmt.name] {
		q.preparing = true
		names.pending[q.stmt.name] = true
		pipe.SendPrepare(q.stmt.name, q.stmt.sql, q.stmt.oids)
	}
	pipe.SendQueryPrepared(q.stmt.name, q.params, q.formats.params, q.formats.results)
}

func (f *flush) read(pipe *pgconn.Pipeline, names *stmtNames) error {
	defer clear(names.pending)
	var failed error // in the current group
	for _, q := range f.queries {
		if failed != nil {
			q.err = fmt.Errorf("%w: %w", errSkipped, failed)
		} else if err := q.read(pipe, names); err != nil {
			return err
		} else {
			failed = q.err
		}
		if !q.last {
			continue
		}
		if err := q.readSync(pipe); err != nil {
			return err
		}
		failed = nil
	}
	return nil
}

// read takes the answer to one query. It returns an error only where the
// connection failed.
func (q *query) read(pipe *pgconn.Pipeline, names *stmtNames) error {
	if q.preparing {
		res, err := pipe.GetResults()
		if err != nil {
			return q.refused(err, names)
		}
		known, ok := res.(*pgconn.StatementDescription)
		if !ok {
			return fmt.Errorf("unexpected answer %T", res)
		}
		known.Name, known.SQL = q.stmt.name, q.stmt.sql
		if len(known.Fields) == 0 {
			known.Fields = noRows
		}
		names.known[q.stmt.name] = known
	}
	res, err := pipe.GetResults()
	if err != nil {
		return q.refused(err, names)
	}
	reader, ok := res.(*pgconn.ResultReader)
	if !ok {
		return fmt.Errorf("unexpected answer %T", res)
	}
	if q.stmt.name == "" { // of a statement that isn't this package's own
		q.fields = slices.Clone(reader.FieldDescriptions())
	}
	for reader.NextRow() {
		q.rows = append(q.rows, cloneRow(reader.Values()))
	}
	if q.tag, err = reader.Close(); err != nil {
		return q.refused(err, names)
	}
	return nil
}

// cloneRow copies a row, in two allocations.
func cloneRow(values [][]byte) [][]byte {
	size := 0
	for _, v := range values {
		size += len(v)
	}
	row, all := make([][]byte, len(values)), make([]byte, 0, size)
	for i, v := range values {
		if v != nil {
			begin := len(all)
			all = append(all, v...)
			row[i] = all[begin:len(all):len(all)]
		}
	}
	return row
}

func (q *query) refused(err error, names *stmtNames) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	if pgErr.Code == errUndefinedStatement {
		names.off = true
	}
	q.err = err
	return nil
}

// readSync reads up to the end of the group whose last query this is. An error
// that the server reports there (the implicit transaction could not commit) is
// that query's.
func (q *query) readSync(pipe *pgconn.Pipeline) error {
	for {
		res, err := pipe.GetResults()
		switch {
		case err != nil && !isPgError(err):
			return err
		case err != nil:
			if q.err == nil {
				q.err = err
			}
		case res == nil:
			return errors.New("the server's answer ended early")
		default:
			if _, ok := res.(*pgconn.PipelineSync); ok {
				return nil
			}
		}
	}
}

func isPgError(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr)
}

// stmtNames are the statements this package prepared on one connection. Only
// the exec mode that lets pgx prepare lets us: the others are what people set
// where a pooler stands in between.
type stmtNames struct {
	off     bool
	known   map[string]*pgconn.StatementDescription
	pending map[string]bool // in the flush being sent
}

// stmtNamesKey is where a connection keeps its stmtNames.
const stmtNamesKey = "github.com/idem-go/idem/idemhttp/pgstore"

func namesOf(conn *pgx.Conn) *stmtNames {
	data := conn.PgConn().CustomData()
	if names, ok := data[stmtNamesKey].(*stmtNames); ok {
		return names
	}
	cfg := conn.Config()
	names := &stmtNames{
		off:     cfg.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement || cfg.StatementCacheCapacity == 0,
		known:   map[string]*pgconn.StatementDescription{},
		pending: map[string]bool{},
	}
	data[stmtNamesKey] = names
	return names
}

func (n *stmtNames) use(stmt *statement) bool { return !n.off && stmt.name != "" }
