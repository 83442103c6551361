package pgstore

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/idemhttp/internal/mark"
)

// Tracer listens to the queries of a pool, so that a deduplicated request
// (idemhttp.Deduplicate and DeduplicateWithResponse) hears of every commit made
// with its context, and of every write outside of a transaction: committed work
// is never released. Set it as the Tracer of the pool's ConnConfig. It passes
// everything on to next, which may be nil, and may be any of pgx's and
// pgxpool's tracers.
//
// A commit that was sent and whose outcome isn't known counts as committed, and
// outside of a transaction so does every statement that a pgx.QueryRewriter other
// than pgx's own may have made something else of.
//
// Not heard is what runs with another context or past pgx.Conn, through its
// PgConn; a function called by SELECT that writes; and a COMMIT that a
// QueryRewriter puts in the midst of other statements. Call idemhttp.Committed for
// these.
func Tracer(next pgx.QueryTracer) pgx.QueryTracer {
	t := &tracer{next: next}
	t.batch, _ = next.(pgx.BatchTracer)
	t.copies, _ = next.(pgx.CopyFromTracer)
	t.prepare, _ = next.(pgx.PrepareTracer)
	t.connect, _ = next.(pgx.ConnectTracer)
	t.acquire, _ = next.(pgxpool.AcquireTracer)
	t.release, _ = next.(pgxpool.ReleaseTracer)
	return t
}

type tracer struct {
	next    pgx.QueryTracer
	batch   pgx.BatchTracer
	copies  pgx.CopyFromTracer
	prepare pgx.PrepareTracer
	connect pgx.ConnectTracer
	acquire pgxpool.AcquireTracer
	release pgxpool.ReleaseTracer
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

	explicit bool // it may commit in its midst: neither an error nor its last tag tells
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
	undone := err != nil || !l.committed(conn, tag)
	switch {
	case err != nil && !provenUndone(err):
		// lost on the way: it counts as committed
	case undone && !l.explicit:
		l.mark.RolledBack()
	default:
		l.mark.Committed()
	}
}

// committed reports whether a statement that succeeded left something committed.
// Its tag's count tells nothing: a trigger may write elsewhere, and return NULL.
func (l *listening) committed(conn *pgx.Conn, tag pgconn.CommandTag) bool {
	if conn.PgConn().TxStatus() != 'I' {
		// Still inside, or inside again: COMMIT AND CHAIN ends as it began.
		return l.inside && tag.String() == "COMMIT"
	}
	return tag.String() != "ROLLBACK"
}

// mayCommit reports whether a statement may leave something committed: outside of
// a transaction anything that isn't plainly a read, inside one what can end it.
func mayCommit(sql string, inside bool) bool {
	parts, clear := statementsOf(sql)
	if !clear {
		return true
	}
	for _, part := range parts {
		word, rest := firstWord(part)
		if word == "" {
			continue
		}
		if endsTransaction(word, rest) || !inside && writes(word, rest) {
			return true
		}
	}
	return false
}

// commitsInside reports whether a text may commit something before it ends, so
// that an error or a ROLLBACK at its end doesn't undo all of it.
func commitsInside(sql string, inside bool) bool {
	parts, clear := statementsOf(sql)
	if !clear {
		return true
	}
	for _, part := range parts {
		word, rest := firstWord(part)
		procedure := !inside && (word == "CALL" || word == "DO")
		if procedure || len(parts) > 1 && word != "" && endsTransaction(word, rest) {
			return true
		}
	}
	return false
}

// statementsOf splits a text at its semicolons. It isn't clear where a comment
// may hide what is one: such a text counts as all that it could be.
func statementsOf(sql string) (parts []string, clear bool) {
	text := strings.TrimRight(skipComments(strings.ToUpper(sql)), "; \t\r\n\f")
	parts = strings.Split(text, ";")
	return parts, len(parts) == 1 || !strings.Contains(text, "--") && !strings.Contains(text, "/*")
}

// endsTransaction reports whether a statement may commit the transaction it is
// in. What doesn't begin with a word isn't understood, and may.
func endsTransaction(word, rest string) bool {
	if word[0] < 'A' || word[0] > 'Z' {
		return true
	}
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
		return slices.ContainsFunc(writingWords, func(w string) bool { return containsWord(rest, w) })
	case "BEGIN", "START", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "VALUES", "TABLE", "SHOW", "SET", "RESET", "FETCH", "MOVE",
		"DECLARE", "CLOSE", "LISTEN", "UNLISTEN", "DISCARD", "DEALLOCATE", "LOCK", "PREPARE", "CHECKPOINT", "ANALYZE", "VACUUM":
		return false
	}
	return true
}

// writingWords make a write of a WITH or an EXPLAIN ANALYZE.
var writingWords = []string{"INSERT", "UPDATE", "DELETE", "MERGE", "INTO", "CREATE", "EXECUTE"}

// firstWord returns the first keyword of a statement, behind blanks and comments.
func firstWord(text string) (word, rest string) {
	text = skipComments(text)
	end := 0
	for end < len(text) && isWordByte(text[end]) {
		end++
	}
	if end == 0 && text != "" {
		end = 1
	}
	return text[:end], text[end:]
}

// skipComments takes blanks, parentheses and comments off the front of a text.
func skipComments(text string) string {
	for {
		text = strings.TrimLeft(text, " \t\r\n\f(")
		switch {
		case strings.HasPrefix(text, "--"):
			text = text[endOfLine(text):]
		case strings.HasPrefix(text, "/*"):
			text = text[endOfComment(text):]
		default:
			return text
		}
	}
}

// endOfLine is where a comment to the end of the line ends. The server takes a
// carriage return for one, too.
func endOfLine(text string) int {
	if end := strings.IndexAny(text, "\r\n"); end >= 0 {
		return end
	}
	return len(text)
}

// endOfComment is where the comment that text begins with ends. In SQL they nest.
func endOfComment(text string) int {
	depth := 0
	for i := 0; i+1 < len(text); {
		switch text[i : i+2] {
		case "/*":
			depth++
			i += 2
		case "*/":
			depth--
			i += 2
		default:
			i++
		}
		if depth == 0 {
			return i
		}
	}
	return len(text)
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
	text := textOf(conn, data.SQL)
	ctx = listen(ctx, conn, func(inside bool) bool { return rewritten(data.Args) || mayCommit(text, inside) })
	if l := listeningFrom(ctx); l != nil && l.told {
		l.explicit = commitsInside(text, l.inside)
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
			text := textOf(conn, q.SQL)
			explicit = explicit || mayCommit(text, true) || commitsInside(text, inside)
			may = may || rewritten(q.Arguments) || mayCommit(text, inside)
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
// undoes it, unless there is a COMMIT in it, or in a procedure it calls.
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
	notePrepared(conn, data.Name, data.SQL)
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

func (t *tracer) TraceAcquireStart(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireStartData) context.Context {
	if t.acquire != nil {
		ctx = t.acquire.TraceAcquireStart(ctx, pool, data)
	}
	return ctx
}

func (t *tracer) TraceAcquireEnd(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	if t.acquire != nil {
		t.acquire.TraceAcquireEnd(ctx, pool, data)
	}
}

func (t *tracer) TraceRelease(pool *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	if t.release != nil {
		t.release.TraceRelease(pool, data)
	}
}
