package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/internal/httpbuf"
	"github.com/idem-go/idem/idemhttp/internal/seam"
)

// TxFunc is an endpoint that works in a transaction it is given. It returns nil
// to have its work committed and its answer sent, or an error to have it rolled
// back. It neither commits nor rolls back itself, and keeps neither tx nor what
// it got from it (rows, batches) beyond its return.
type TxFunc func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error

// ErrRollback rolls the work back and keeps no claim, but sends the answer that
// was written. It is returned by a TxFunc, or given to Fail.
var ErrRollback = errors.New("idem: roll back and send the answer")

var errNestedRollback = errors.New("idem: an endpoint inside this one had the transaction rolled back, and wrote no answer")

var errNotKept = errors.New("idem: an answer with this status isn't kept")

// InTx runs fn in a transaction, and writes the claim with its answer in the
// same one: either both are there or neither is. A request whose key is known is
// answered without running fn.
//
// Nothing is claimed before fn runs. Of two requests with one key that run at
// the same time one commits; the other is rolled back and answered from it.
//
// Inside another InTx on the same store and pool that has claimed the request,
// fn runs in the outer transaction. Where the outer one has no claim, or another
// store on the same pool, the request needs a second connection of that pool: it
// is refused at once where MaxConns is 1, and after 5 seconds where none is free.
func (e *Endpoint) InTx(fn TxFunc) http.HandlerFunc {
	if fn == nil {
		panic("idem: InTx: the endpoint is nil")
	}
	fallback := e.DeduplicateWithResponse
	if e.withoutResponse {
		fallback = e.Deduplicate
	}
	released := fallback(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.serve(w, r, fn) }))
	return func(w http.ResponseWriter, r *http.Request) {
		if outer := e.outer(r.Context()); outer != nil && outer.ses.plan.claim != nil {
			e.join(w, r, outer, fn)
			return
		}
		if e.site.isForeign(r.Context()) {
			released.ServeHTTP(w, r)
			return
		}
		e.serve(w, r, fn)
	}
}

// InTxMiddleware is InTx for a plain handler: it finds the transaction with Tx
// or DB, and fails with Fail.
func (e *Endpoint) InTxMiddleware(next http.Handler) http.Handler {
	if next == nil {
		panic("idem: InTxMiddleware: the handler is nil")
	}
	return e.InTx(func(w http.ResponseWriter, r *http.Request, _ pgx.Tx) error {
		next.ServeHTTP(w, r)
		return nil
	})
}

// outer is an endpoint further out whose transaction is under way, on the same pool
// and with claims in the same store; nil where there is none.
func (e *Endpoint) outer(ctx context.Context) *txState {
	for st := stateFrom(ctx); st != nil; st = st.outer {
		if st.store == e.store && st.pool == e.pool && st.underWay() {
			return st
		}
	}
	return nil
}

// join runs fn in the transaction of an outer endpoint, which is its to commit.
// A request that is to be claimed joins only where the outer one has a claim: in
// a transaction without one nothing would keep it from running again.
func (e *Endpoint) join(w http.ResponseWriter, r *http.Request, outer *txState, fn TxFunc) {
	err := fn(w, r, outer.ses.tx)
	if errors.Is(err, ErrRollback) && !hasAnswer(w) {
		err = errNestedRollback // the outer one's answer would go out
	}
	outer.fail(err)
}

// hasAnswer reports whether a status was written to the outer endpoint's buffer.
func hasAnswer(w http.ResponseWriter) bool {
	buf, ok := w.(*httpbuf.Buffer)
	return ok && buf.Wrote()
}

// request is one request on its way through InTx.
type request struct {
	*idemhttp.Exchange

	endpoint *Endpoint
	w        http.ResponseWriter
	fn       TxFunc
}

func (e *Endpoint) serve(w http.ResponseWriter, r *http.Request, fn TxFunc) {
	x, ok := e.Open(seam.Pass{}, w, r)
	if !ok {
		return
	}
	if outer := e.outer(r.Context()); outer != nil && !x.Guarded {
		e.join(w, x.Request, outer, fn)
		return
	}
	q := &request{Exchange: x, endpoint: e, w: w, fn: fn}
	if err := e.site.undecided(); err != nil {
		q.refuseStore(err)
		return
	}
	for left := e.retries; !q.attempt(left > 0 && q.canRepeat()); left-- {
	}
}

// canRepeat reports whether the endpoint can be given its request once more: the
// body of an unguarded one isn't kept.
func (q *request) canRepeat() bool {
	return q.Guarded || q.Request.Body == nil || q.Request.Body == http.NoBody
}

// attempt runs the endpoint once. False: it is to be run again.
func (q *request) attempt(mayRepeat bool) bool {
	ses := q.begin()
	if ses == nil {
		return true
	}
	buf := q.Buffer(q.Guarded && !q.endpoint.withoutResponse)
	st := &txState{store: q.endpoint.store, pool: q.endpoint.pool, ses: ses}
	ctx, cancel := q.context(st)
	defer cancel()
	settled := false
	defer func() {
		if !settled { // a panic, or runtime.Goexit: it goes on with its own value
			q.abandon(ctx, st, buf)
		}
	}()
	end := q.settle(ctx, st, buf, q.run(ctx, st, buf))
	settled = true
	if mayRepeat && end.repeatable(ses) {
		_ = st.finish(ctx, false)
		return false
	}
	q.answer(ctx, st, buf, end)
	return true
}

// begin opens the session. Nil: the request is answered already.
func (q *request) begin() *session {
	giveUp := time.Now().Add(q.endpoint.policy.Wait)
	ctx := q.Request.Context()
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		ses, rec, err := q.endpoint.store.open(ctx, q.plan())
		switch {
		case errors.Is(err, errLockBusy):
			rec = &idemhttp.Record{Claim: q.Claim, State: idemhttp.Running}
		case errors.Is(err, errNested):
			q.Fail(err)
			return nil
		case err != nil:
			q.refuseStore(err)
			return nil
		case rec == nil:
			return ses
		}
		running := rec.State == idemhttp.Running && rec.Sum.Same(q.Claim.Sum)
		if !running || !sleep(ctx, min(pause, time.Until(giveUp))) {
			q.AnswerFrom(*rec)
			return nil
		}
	}
}

func (q *request) refuseStore(err error) {
	q.Observe(idemhttp.Event{Kind: idemhttp.EventStoreError, Err: err})
	q.Refuse(idemhttp.StoreDown, err)
}

const (
	firstPause = 10 * time.Millisecond
	longPause  = 250 * time.Millisecond
)

// sleep pauses for d. False: there is no time left, or nobody who waits.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (q *request) plan() plan {
	e := q.endpoint
	p := plan{pool: e.pool, begin: e.begin, ttl: e.policy.Window, exclusive: e.exclusive}
	if q.Guarded {
		p.claim, p.verify = &q.Claim, e.site != nil
	}
	if e.prefetch != nil {
		p.prefetch = q.prefetch()
	}
	return p
}

// context is what the endpoint is given: with ClaimTTL, where it is set, as its
// deadline.
func (q *request) context(st *txState) (context.Context, context.CancelFunc) {
	ctx := st.in(q.Request.Context())
	if q.Guarded {
		ctx = q.Context(ctx)
	}
	if ttl := q.endpoint.policy.ClaimTTL; ttl > 0 && q.Guarded {
		return context.WithTimeoutCause(ctx, ttl, fmt.Errorf("idem: the endpoint took longer than ClaimTTL (%v)", ttl))
	}
	return context.WithCancel(ctx)
}

// run runs the endpoint and returns why it failed.
func (q *request) run(ctx context.Context, st *txState, buf *httpbuf.Buffer) error {
	if err := st.ses.prefetchErr; err != nil {
		return st.ses.core.heard(err)
	}
	r := q.Unread(ctx)
	defer q.HandBackForm(r)
	if err := q.fn(buf, r, st.ses.tx); err != nil {
		return err
	}
	if err := st.failed(); err != nil {
		return err
	}
	return buf.Failed(ctx)
}

// settle ends the session as the endpoint would have it.
func (q *request) settle(ctx context.Context, st *txState, buf *httpbuf.Buffer, failure error) end {
	if failure == nil && !q.endpoint.policy.Keep(buf.Status()) {
		failure = errNotKept
	}
	if failure == nil {
		return st.ses.commit(ctx, q.stored(buf))
	}
	return st.ses.rollback(ctx, failure, !unauthorized(buf))
}

// stored is what the claim keeps of the answer.
func (q *request) stored(buf *httpbuf.Buffer) *idemhttp.Response {
	if q.endpoint.withoutResponse {
		return nil
	}
	return q.Response(buf)
}

// unauthorized reports whether the endpoint turned the caller away: who isn't
// allowed in isn't shown the answer of who was.
func unauthorized(buf *httpbuf.Buffer) bool {
	return buf.Status() == http.StatusUnauthorized || buf.Status() == http.StatusForbidden
}

// repeatable reports whether running the endpoint again may help.
func (e end) repeatable(ses *session) bool {
	return e.ending == undone && !errors.Is(e.err, errEndedInside) && (retryable(e.err) || ses.core.sawConflict())
}
