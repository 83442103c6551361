package idemhttp

import (
	"context"
	"errors"
	"time"
)

// retryFor is how long the background goes on with a claim.
const retryFor = 5 * time.Minute

// retryRelease releases the claim in the background, until it is released, has
// expired, or is given up after a few minutes. One that is too many is left to
// ClaimTTL: of all those one is told of.
func (h holding) retryRelease(ctx context.Context, cause error) {
	b := &h.endpoint.backlog
	if err := b.add(h.releaseTask(cause), maxReleases); err != nil && b.firstDrop() {
		h.endpoint.policy.logger().WarnContext(ctx, "idemhttp: claims not released: repeats get 409 until they expire",
			"endpoint", h.endpoint.name, "error", err, "limit", maxReleases)
	}
}

func (h holding) releaseTask(cause error) *task {
	// A claim whose outcome isn't known may have been written as late as its call
	// may end.
	live := min(h.endpoint.policy.claimTTL(), retryFor) + storeTimeout
	return &task{
		last:  cause,
		until: h.since.Add(live),
		try:   func() error { return h.release(context.Background()) },
		giveUp: func(last error) {
			h.log(context.Background(), "claim not released: repeats get 409 until it expires", "error", last)
		},
	}
}

// retryAnswer stores the answer in the background, until the store has taken it,
// the claim is another's, or a few minutes are over. An answer that is too much is
// dropped, and its claim kept without one.
func (h holding) retryAnswer(ctx context.Context, resp *Response, cause error) {
	b := &h.endpoint.backlog
	err := b.add(h.answerTask(resp, cause), maxBacklog)
	if errors.Is(err, errTooMuch) {
		err = b.add(h.answerTask(nil, cause), maxBacklog)
	}
	if err != nil {
		h.logUnanswered(ctx, err)
	}
}

func (h holding) answerTask(resp *Response, cause error) *task {
	bareFrom, until := h.answerTimes(time.Now())
	return &task{
		last:  cause,
		until: until,
		size:  resp.memory(),
		try: func() error {
			err := h.answerAgain(resp, time.Now().After(bareFrom))
			if errors.Is(err, ErrNotHolder) {
				h.logOutlived(context.Background())
				return nil
			}
			return err
		},
		giveUp: func(last error) { h.logUnanswered(context.Background(), last) },
	}
}

// answerTimes says from when on a claim without the answer will do, which is
// well before the claim expires, and when to give up. A claim that has expired
// is written anew, unless somebody has taken it over.
func (h holding) answerTimes(now time.Time) (bareFrom, until time.Time) {
	bareFrom, until = h.since.Add(h.endpoint.policy.claimTTL()/2), now.Add(retryFor)
	if half := now.Add(retryFor / 2); half.Before(bareFrom) {
		bareFrom = half
	}
	return bareFrom, until
}
