package idemhttp

import (
	"context"
	"errors"
	"time"
)

// holding is a claim of this process's, with what it takes to settle it. It has
// nothing else of the request, so that it may go on for long after that.
type holding struct {
	endpoint *Endpoint
	ctx      context.Context // the request's values; it doesn't end
	claim    Claim
	since    time.Time // from before the claim was taken: it expires no earlier
}

func (x *release) holding() holding {
	return holding{x.endpoint, context.WithoutCancel(x.Request.Context()), x.Claim, x.since}
}

// storeContext is for one call of the store.
func (h holding) storeContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(h.ctx, storeTimeout)
}

func (h holding) release() error {
	ctx, cancel := h.storeContext()
	defer cancel()
	return h.endpoint.store.Release(ctx, h.claim.ID, h.claim.Token)
}

func (h holding) answer(resp *Response) error {
	ctx, cancel := h.storeContext()
	defer cancel()
	return h.endpoint.store.Answer(ctx, h.claim, resp, h.endpoint.policy.Window)
}

// answerAgain tries without the answer, too, where it is late: that the work
// doesn't run again is worth more than its answer.
func (h holding) answerAgain(resp *Response, late bool) error {
	err := h.answer(resp)
	if err == nil || errors.Is(err, ErrNotHolder) || resp == nil || !late {
		return err
	}
	return h.answer(nil)
}

func (h holding) logOutlived() {
	h.log("the endpoint outlived its claim, and another request ran meanwhile: ClaimTTL is too short",
		"took", time.Since(h.since), "ClaimTTL", h.endpoint.policy.claimTTL())
}

func (h holding) log(text string, attrs ...any) {
	h.endpoint.policy.logger().ErrorContext(h.ctx, "idemhttp: "+text, append([]any{"endpoint", h.endpoint.name}, attrs...)...)
}
