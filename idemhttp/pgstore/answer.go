package pgstore

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/internal/httpbuf"
)

// answer tells the client what became of its request. The connection has been
// given back by now.
func (q *request) answer(ctx context.Context, st *txState, buf *httpbuf.Buffer, e end) {
	switch e.ending {
	case committed:
		q.answerCommitted(ctx, st, buf)
	case overtaken:
		_ = st.finish(ctx, false)
		q.Observe(idemhttp.Event{Kind: idemhttp.EventLostRace, Status: buf.Status(), Err: e.err})
		q.AnswerFrom(e.rec)
	case undone:
		_ = st.finish(ctx, false)
		q.answerUndone(buf, e.err)
	case unknown:
		_ = st.finish(ctx, false)
		q.Refuse(idemhttp.OutcomeUnknown, e.err)
	}
}

// answerCommitted: from here on nothing is a lost race any more. What fails is
// reported; the claim stays answered and a repeat is replayed.
func (q *request) answerCommitted(ctx context.Context, st *txState, buf *httpbuf.Buffer) {
	if err := q.finish(ctx, st, buf); err != nil {
		q.Fail(err)
		return
	}
	q.send(buf)
}

var errPanicked = errors.New("idem: a function given to AfterCommit panicked")

// finish runs what waits for the commit, and reports the run, also where that
// panics.
func (q *request) finish(ctx context.Context, st *txState, buf *httpbuf.Buffer) (err error) {
	err = errPanicked
	defer func() {
		q.Observe(idemhttp.Event{Kind: idemhttp.EventRan, Status: buf.Status(), Unguarded: !q.Guarded, Err: err})
	}()
	return st.finish(ctx, true)
}

func (q *request) answerUndone(buf *httpbuf.Buffer, err error) {
	q.Observe(idemhttp.Event{Kind: idemhttp.EventReleased, Status: buf.Status(), Err: err})
	own := buf.Err() == nil && buf.Wrote() && buf.Status() >= http.StatusBadRequest
	switch {
	case errors.Is(err, errEndedInside):
		q.Fail(err)
	case errors.Is(err, errLockBusy):
		q.Refuse(idemhttp.InProgress, err)
	case buf.Err() == nil && (errors.Is(err, ErrRollback) || errors.Is(err, errNotKept)), own:
		q.send(buf)
	default:
		q.Fail(err)
	}
}

func (q *request) send(buf *httpbuf.Buffer) {
	if err := buf.Send(); err != nil {
		q.endpoint.store.log(q.Request.Context(), slog.LevelWarn, "the answer could not be sent", errAttr(err),
			slog.String("endpoint", q.endpoint.Name()))
	}
}

// abandon rolls back for an endpoint that didn't return. Its own answer goes out
// only if it tells of a failure.
func (q *request) abandon(ctx context.Context, st *txState, buf *httpbuf.Buffer) {
	e := st.ses.rollback(ctx, errors.New("idem: the endpoint panicked"), false)
	_ = st.finish(ctx, false)
	q.Observe(idemhttp.Event{Kind: idemhttp.EventReleased, Status: buf.Status(), Err: e.err})
	if buf.Err() == nil && buf.Wrote() && buf.Status() >= http.StatusBadRequest {
		q.send(buf)
	}
}
