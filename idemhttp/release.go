package idemhttp

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/idem-go/idem/idemhttp/internal/httpbuf"
	"github.com/idem-go/idem/idemhttp/internal/mark"
)

const (
	// storeTimeout bounds each call of the store. They don't end with the
	// request: the caller that hangs up is the one that will retry.
	storeTimeout = 5 * time.Second
	// vanishLimit is how often a claim is tried whose holder was gone by the time
	// it was looked at.
	vanishLimit = 3
)

var errClaimExpired = errors.New("idemhttp: the endpoint took longer than ClaimTTL")

// release is claim-and-release for one request: the claim is taken before the
// endpoint runs, and answered or given back after it.
type release struct {
	*Exchange
	what  whatToStore
	since time.Time // from before the claim was taken: it expires no earlier
	mark  mark.Mark
}

func (x *release) serve(next http.Handler) {
	rec, err := x.take()
	switch {
	case err != nil && x.endpoint.policy.FailOpen:
		x.storeFailed(x.Request.Context(), "store down, running unguarded", err)
		x.runUnguarded(next)
	case err != nil:
		x.Observe(Event{Kind: EventStoreError, Err: err})
		x.Refuse(StoreDown, err)
	case rec != nil:
		x.AnswerFrom(*rec)
	default:
		x.run(next)
	}
}

// run runs the endpoint under the claim. Whatever leaves it, the claim is
// settled before anything reaches the client.
func (x *release) run(next http.Handler) {
	buf := x.Buffer(false)
	ctx, cancel := x.endpointContext()
	defer cancel()
	settled := false
	defer func() {
		if !settled { // a panic, or runtime.Goexit: it goes on with its own value
			x.fail(buf, nil)
			if buf.Wrote() && buf.Status() >= http.StatusBadRequest {
				_ = buf.Send()
			}
		}
	}()
	r := x.Request.WithContext(ctx)
	defer x.HandBackForm(r)
	next.ServeHTTP(buf, r)
	answer := x.settle(ctx, buf)
	settled = true
	answer()
}

func (x *release) endpointContext() (context.Context, context.CancelFunc) {
	ctx := mark.With(x.Context(x.Request.Context()), &x.mark)
	if ttl := x.endpoint.policy.ClaimTTL; ttl > 0 {
		return context.WithDeadlineCause(ctx, x.since.Add(ttl), errClaimExpired)
	}
	return context.WithCancel(ctx)
}

// settle stores what became of the claim, and returns what tells the client.
func (x *release) settle(ctx context.Context, buf *httpbuf.Buffer) (answer func()) {
	err := buf.Failed(ctx)
	if err != nil {
		x.fail(buf, err)
		return func() { x.Fail(err) }
	}
	if !x.endpoint.policy.Keep(buf.Status()) {
		x.fail(buf, nil)
		return func() { _ = buf.Send() }
	}
	x.mark.Close(nil)
	x.answer(buf)
	x.Observe(Event{Kind: EventRan, Status: buf.Status()})
	return func() { _ = buf.Send() }
}

// answer stores the answer of work that is done.
func (x *release) answer(buf *httpbuf.Buffer) {
	switch {
	case x.what == withoutResponse:
		x.store(nil)
	case buf.TooLarge():
		x.storeFailed(x.Request.Context(), "response not stored, repeats get 409", httpbuf.ErrTooLarge)
		x.keepUnanswered()
	default:
		x.store(x.Response(buf))
	}
}

// keepUnanswered refuses repeats for as long as an answer would have been kept.
// ClaimTTL is for claims that nobody was heard of: of this one it is known that
// its work is done.
func (x *release) keepUnanswered() { x.store(nil) }

// store settles the claim with resp, or without an answer where it is nil: in
// the background if it must be.
func (x *release) store(resp *Response) {
	ctx := x.Request.Context()
	err := x.holding().answer(ctx, resp)
	switch {
	case errors.Is(err, ErrNotHolder):
		x.Observe(Event{Kind: EventStoreError, Err: err})
		x.holding().logOutlived(ctx)
	case err != nil:
		// The work is done, and until it is stored the claim refuses repeats.
		x.storeFailed(ctx, "answer not stored yet, repeats get 409", err)
		x.holding().retryAnswer(ctx, resp, err)
	}
}

// fail settles the claim of a request whose work isn't to be kept: released,
// unless some of the work is committed. The cause may be nil.
func (x *release) fail(buf *httpbuf.Buffer, cause error) {
	ev := Event{Kind: EventReleased, Err: cause}
	if buf.Wrote() {
		ev.Status = buf.Status()
	}
	if x.mark.Close(x.tooLate) {
		ev.Kind = EventRan
		x.endpoint.policy.logger().WarnContext(x.Request.Context(),
			"idemhttp: the request failed after its work was committed: repeats get 409", "endpoint", x.endpoint.name)
		x.keepUnanswered()
	} else {
		x.giveBack()
	}
	x.Observe(ev)
}

func (x *release) tooLate() {
	x.endpoint.policy.logger().ErrorContext(x.Request.Context(),
		"idemhttp: work was committed after the claim was released: a repeat does it again", "endpoint", x.endpoint.name)
}
