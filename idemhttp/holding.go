package idemhttp

import (
	"context"
	"errors"
	"time"
)

// holding is a claim of this process's, with what it takes to settle it. It has
// nothing else of the request, so that it may go on for long after that: not its
// context either, in which frameworks keep the request and its writer.
type holding struct {
	endpoint *Endpoint
	claim    Claim
	since    time.Time // from before the claim was taken: it expires no earlier
}

func (x *release) holding() holding { return holding{x.endpoint, x.Claim, x.since} }

// storeContext is for one call of the store. It has the values of ctx, and
// doesn't end with it.
func storeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
}

func (h holding) release(ctx context.Context) error {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	return h.endpoint.store.Release(ctx, h.claim.ID, h.claim.Token)
}

func (h holding) answer(ctx context.Context, resp *Response) error {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	return h.endpoint.store.Answer(ctx, h.claim, resp, h.endpoint.policy.Window)
}

// answerAgain tries without the answer, too, where it is late: that the work
// doesn't run again is worth more than its answer.
func (h holding) answerAgain(resp *Response, late bool) error {
	err := h.answer(context.Background(), resp)
	if err == nil || errors.Is(err, ErrNotHolder) || resp == nil || !late {
		return err
	}
	return h.answer(context.Background(), nil)
}

func (h holding) logOutlived(ctx context.Context) {
	h.log(ctx, "the endpoint outlived its claim, and another request ran meanwhile: ClaimTTL is too short",
		"took", time.Since(h.since), "ClaimTTL", h.endpoint.policy.claimTTL())
}

func (h holding) logUnanswered(ctx context.Context, err error) {
	h.log(ctx, "answer not stored: a repeat runs again when the claim expires", "error", err)
}

func (h holding) log(ctx context.Context, text string, attrs ...any) {
	h.endpoint.policy.logger().ErrorContext(ctx, "idemhttp: "+text, append([]any{"endpoint", h.endpoint.name}, attrs...)...)
}
