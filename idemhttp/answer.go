package idemhttp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
)

// HeaderReplayed is the response header that is "true" on a replayed answer.
const HeaderReplayed = "Idempotent-Replayed"

// AnswerFrom answers from a claim that is there already: 422, 409 or a replay.
func (x *Exchange) AnswerFrom(rec Record) {
	switch {
	case !rec.Sum.Same(x.Claim.Sum):
		x.Refuse(KeyReused, nil)
	case rec.State == Running:
		x.Refuse(InProgress, nil)
	case rec.State != Answered || rec.Response == nil:
		x.Refuse(NoAnswer, nil)
	default:
		x.replay(rec.Response)
	}
}

func (x *Exchange) replay(resp *Response) {
	p := &x.endpoint.policy
	if p.ReplayCheck != nil {
		// In a lost race the endpoint has run, and read the body.
		r := x.Unread(x.Request.Context())
		defer x.HandBackForm(r)
		if err := p.ReplayCheck(r); err != nil {
			x.Refuse(ReplayDenied, err)
			return
		}
	}
	x.Observe(Event{Kind: EventReplayed, Status: resp.Status})
	h := x.w.Header()
	for _, name := range x.endpoint.stored {
		h.Del(name)
	}
	h["Content-Type"] = nil // what was sent without one isn't to be sniffed now
	for name, values := range resp.Header {
		h[name] = append([]string(nil), values...)
	}
	h.Set(HeaderReplayed, "true")
	x.w.WriteHeader(resp.Status)
	if len(resp.Body) > 0 {
		_, _ = x.w.Write(resp.Body) // the client has gone, or it hasn't
	}
}

// Refuse answers with a refusal; err is for the log, and for Observe.
func (x *Exchange) Refuse(reason Reason, err error) {
	f := newRefusal(reason, err)
	x.Observe(Event{Kind: EventRefused, Status: f.Status, Reason: reason, Err: err})
	x.logRefusal(f)
	if refuse := x.endpoint.policy.Refuse; refuse != nil {
		defer x.HandBackForm(x.Request)
		refuse(x.w, x.Request, f)
		return
	}
	WriteProblem(x.w, f)
}

// logRefusal is quiet about what clients do, and loud about what is broken.
func (x *Exchange) logRefusal(f Refusal) {
	log := x.endpoint.policy.logger()
	ctx := x.Request.Context()
	if f.Status >= http.StatusInternalServerError {
		log.ErrorContext(ctx, "idemhttp: request refused", "endpoint", x.endpoint.name, "reason", f.Reason.String(), "error", f.Err)
		return
	}
	log.DebugContext(ctx, "idemhttp: request refused", "endpoint", x.endpoint.name, "reason", f.Reason.String(), "error", f.Err)
}

// Fail answers a request whose endpoint failed without an answer of its own.
func (x *Exchange) Fail(err error) {
	if onError := x.endpoint.policy.OnError; onError != nil {
		defer x.HandBackForm(x.Request)
		onError(x.w, x.Request, err)
		return
	}
	level := slog.LevelError
	if errors.Is(err, context.Canceled) { // most likely a client that hung up
		level = slog.LevelInfo
	}
	x.endpoint.policy.logger().Log(x.Request.Context(), level, "idemhttp: request failed",
		"endpoint", x.endpoint.name, "error", err)
	WriteProblem(x.w, newRefusal(Failed, err))
}

// Observe reports an event; the endpoint's name and the request are filled in.
func (x *Exchange) Observe(ev Event) {
	if observe := x.endpoint.policy.Observe; observe != nil {
		ev.Endpoint, ev.Request = x.endpoint.name, x.Request
		observe(ev)
	}
}

// storeFailed reports an error of the store that doesn't change the answer.
func (x *Exchange) storeFailed(ctx context.Context, what string, err error) {
	x.Observe(Event{Kind: EventStoreError, Err: err})
	x.endpoint.policy.logger().WarnContext(ctx, "idemhttp: "+what, "endpoint", x.endpoint.name, "error", err)
}
