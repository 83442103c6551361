package pgstore

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idem-go/idem/idemhttp/internal/mark"
)

// Tracer listens to the queries of a pool, so that a deduplicated request
// (idemhttp.Deduplicate and DeduplicateWithResponse) hears of every commit made
// with its context, and of every write outside of a transaction: committed work
// is never released. Set it as the Tracer of the pool's ConnConfig. It passes
// everything on to next, which may be nil, and may be any of pgx's tracers.
//
// A commit that was sent and whose outcome isn't known counts as committed. What
// runs with another context isn't heard, nor is a function called by SELECT that
// writes: call idemhttp.Committed for these.
func Tracer(next pgx.QueryTracer) pgx.QueryTracer {
	t := &tracer{next: next}
	t.batch, _ = next.(pgx.BatchTracer)
	t.copies, _ = next.(pgx.CopyFromTracer)
	t.prepare, _ = next.(pgx.PrepareTracer)
	t.connect, _ = next.(pgx.ConnectTracer)
	return t
}

type tracer struct {
	next    pgx.QueryTracer
	batch   pgx.BatchTracer
	copies  pgx.CopyFromTracer
	prepare pgx.PrepareTracer
	connect pgx.ConnectTracer
}

type unheardKey struct{}

// unheard is ctx for what the request is told of otherwise.
func unheard(ctx context.Context) context.Context {
	return context.WithValue(ctx, unheardKey{}, true)
}

func markOf(ctx context.Context) *mark.Mark {
	if ctx.Value(unheardKey{}) != nil {
		return nil
	}
	return mark.From(ctx)
}

// listening is what a tracer knows of the statement that is under way.
type listening struct {
	mark   *mark.Mark
	inside bool // in a transaction when it began
	told   bool // Committing was called for it
	plain  bool // one statement whose tag counts all it changes

	explicit bool // a batch with a COMMIT in it
}

type listeningKey struct{}

func listeningFrom(ctx context.Context) *listening {
	l, _ := ctx.Value(listeningKey{}).(*listening)
	return l
}

// listen is called before a statement is sent. One that may commit something
// counts as committed from here on, until it is known not to have.
func listen(ctx context.Context, conn *pgx.Conn, mayCommit func(inside bool) bool) context.Context {
	heard := markOf(ctx)
	if heard == nil {
		return ctx
	}
	l := &listening{mark: heard, inside: conn.PgConn().TxStatus() != 'I'}
	if mayCommit(l.inside) {
		l.told = true
		heard.Committing()
	}
	return context.WithValue(ctx, listeningKey{}, l)
}

// end is called when its answer is there.
func (l *listening) end(conn *pgx.Conn, tag pgconn.CommandTag, err error) {
	if l == nil || !l.told {
		return
	}
	switch {
	case err != nil && !provenUndone(err):
		// lost on the way: it counts as committed
	case err != nil || !l.committed(conn, tag):
		l.mark.RolledBack()
	default:
		l.mark.Committed()
	}
}

// committed reports whether a statement that succeeded left something committed.
func (l *listening) committed(conn *pgx.Conn, tag pgconn.CommandTag) bool {
	if conn.PgConn().TxStatus() != 'I' {
		// Still inside, or inside again: COMMIT AND CHAIN ends as it began.
		return l.inside && tag.String() == "COMMIT"
	}
	if l.plain && !l.inside && (tag.Insert() || tag.Update() || tag.Delete()) {
		return tag.RowsAffected() > 0
	}
	return tag.String() != "ROLLBACK"
}

// mayCommit reports whether a statement may leave something committed: outside of
// a transaction anything that isn't plainly a read, inside one what can end it.
func mayCommit(sql string, inside bool) bool {
	parts := strings.Split(strings.ToUpper(sql), ";")
	for _, part := range parts {
		word, rest := firstWord(part)
		if word == "" {
			continue
		}
		if inside && len(parts) == 1 {
			return endsTransaction(word, rest)
		}
		if endsTransaction(word, rest) || writes(word, rest) {
			return true
		}
	}
	return false
}

func endsTransaction(word, rest string) bool {
	next, _ := firstWord(rest)
	return word == "COMMIT" || word == "END" || word == "PREPARE" && next == "TRANSACTION"
}

// writes reports whether a statement outside of a transaction may write. What
// isn't known may.
func writes(word, rest string) bool {
	switch word {
	case "SELECT":
		return containsWord(rest, "INTO")
	case "WITH", "EXPLAIN":
		return containsWord(rest, "INSERT") || containsWord(rest, "UPDATE") || containsWord(rest, "DELETE") || containsWord(rest, "MERGE")
	case "BEGIN", "START", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "VALUES", "TABLE", "SHOW", "SET", "RESET", "FETCH", "MOVE",
		"DECLARE", "CLOSE", "LISTEN", "UNLISTEN", "DISCARD", "DEALLOCATE", "LOCK", "PREPARE", "CHECKPOINT", "ANALYZE", "VACUUM":
		return false
	}
	return true
}

// firstWord returns the first keyword of a statement, behind blanks and comments.
func firstWord(text string) (word, rest string) {
	for {
		text = strings.TrimLeft(text, " \t\r\n\f(")
		switch {
		case strings.HasPrefix(text, "--"):
			_, text, _ = strings.Cut(text, "\n")
		case strings.HasPrefix(text, "/*"):
			_, text, _ = strings.Cut(text, "*/")
		default:
			end := 0
			for end < len(text) && isWordByte(text[end]) {
				end++
			}
			if end == 0 && text != "" {
				end = 1
			}
			return text[:end], text[end:]
		}
	}
}

// containsWord looks for a word of its own. It may find one in a literal or in a
// comment, and then errs on the safe side.
func containsWord(text, word string) bool {
	for rest := text; ; {
		i := strings.Index(rest, word)
		if i < 0 {
			return false
		}
		before := i == 0 || !isWordByte(rest[i-1])
		after := i+len(word) == len(rest) || !isWordByte(rest[i+len(word)])
		if before && after {
			return true
		}
		rest = rest[i+len(word):]
	}
}

func isWordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func (t *tracer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	ctx = listen(ctx, conn, func(inside bool) bool { return mayCommit(data.SQL, inside) })
	if l := listeningFrom(ctx); l != nil && l.told {
		word, rest := firstWord(strings.ToUpper(data.SQL))
		l.plain = word != "WITH" && !strings.Contains(rest, ";")
	}
	if t.next != nil {
		ctx = t.next.TraceQueryStart(ctx, conn, data)
	}
	return ctx
}

func (t *tracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	listeningFrom(ctx).end(conn, data.CommandTag, data.Err)
	if t.next != nil {
		t.next.TraceQueryEnd(ctx, conn, data)
	}
}

func (t *tracer) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	explicit := false
	ctx = listen(ctx, conn, func(inside bool) (may bool) {
		for _, q := range data.Batch.QueuedQueries {
			explicit = explicit || mayCommit(q.SQL, true)
			may = may || mayCommit(q.SQL, inside)
		}
		return may
	})
	if l := listeningFrom(ctx); l != nil {
		l.explicit = explicit
	}
	if t.batch != nil {
		ctx = t.batch.TraceBatchStart(ctx, conn, data)
	}
	return ctx
}

func (t *tracer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	if t.batch != nil {
		t.batch.TraceBatchQuery(ctx, conn, data)
	}
}

// TraceBatchEnd: a batch outside of a transaction is one of its own, so an error
// undoes it, unless there is a COMMIT in it.
func (t *tracer) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	listeningFrom(ctx).endBatch(conn, data.Err)
	if t.batch != nil {
		t.batch.TraceBatchEnd(ctx, conn, data)
	}
}

func (l *listening) endBatch(conn *pgx.Conn, err error) {
	if l == nil || !l.told {
		return
	}
	undone := err != nil || conn.PgConn().TxStatus() != 'I'
	switch {
	case err != nil && !provenUndone(err):
		// lost on the way: it counts as committed
	case undone && !l.explicit:
		l.mark.RolledBack()
	default:
		l.mark.Committed()
	}
}

func (t *tracer) TraceCopyFromStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceCopyFromStartData) context.Context {
	ctx = listen(ctx, conn, func(inside bool) bool { return !inside })
	if t.copies != nil {
		ctx = t.copies.TraceCopyFromStart(ctx, conn, data)
	}
	return ctx
}

func (t *tracer) TraceCopyFromEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceCopyFromEndData) {
	listeningFrom(ctx).end(conn, data.CommandTag, data.Err)
	if t.copies != nil {
		t.copies.TraceCopyFromEnd(ctx, conn, data)
	}
}

func (t *tracer) TracePrepareStart(ctx context.Context, conn *pgx.Conn, data pgx.TracePrepareStartData) context.Context {
	if t.prepare != nil {
		ctx = t.prepare.TracePrepareStart(ctx, conn, data)
	}
	return ctx
}

func (t *tracer) TracePrepareEnd(ctx context.Context, conn *pgx.Conn, data pgx.TracePrepareEndData) {
	if t.prepare != nil {
		t.prepare.TracePrepareEnd(ctx, conn, data)
	}
}

func (t *tracer) TraceConnectStart(ctx context.Context, data pgx.TraceConnectStartData) context.Context {
	if t.connect != nil {
		ctx = t.connect.TraceConnectStart(ctx, data)
	}
	return ctx
}

func (t *tracer) TraceConnectEnd(ctx context.Context, data pgx.TraceConnectEndData) {
	if t.connect != nil {
		t.connect.TraceConnectEnd(ctx, data)
	}
}
