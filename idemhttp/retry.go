package idemhttp

import (
	"context"
	"errors"
	"time"
)

const (
	firstRetry = 100 * time.Millisecond
	longRetry  = 5 * time.Second
	retryFor   = 5 * time.Minute
	// maxWaiting is how many bytes of answers one endpoint holds for a store
	// that doesn't take them.
	maxWaiting = 64 << 20
)

// inBackground calls try, more and more seldom, until there is nothing left to do.
func inBackground(try func() (done bool)) {
	go func() {
		for pause := firstRetry; ; pause = min(pause*2, longRetry) {
			time.Sleep(pause)
			if try() {
				return
			}
		}
	}()
}

// retryRelease releases the claim in the background, until it is released, has
// expired, or is given up after a few minutes.
func (x *release) retryRelease() {
	until := x.since.Add(min(x.endpoint.policy.claimTTL(), retryFor))
	inBackground(func() bool {
		err := x.releaseOnce()
		last := time.Now().After(until)
		if err != nil && last {
			x.logStuck(context.WithoutCancel(x.Request.Context()), err)
		}
		return err == nil || last
	})
}

func (x *release) logStuck(ctx context.Context, err error) {
	x.endpoint.policy.logger().ErrorContext(ctx, "idemhttp: claim not released: repeats get 409 until it expires",
		"endpoint", x.endpoint.name, "error", err)
}

// retryAnswer stores the answer in the background, until the store has taken it,
// the claim is another's, or a few minutes are over.
func (x *release) retryAnswer(resp *Response) {
	resp, size := x.hold(resp)
	bareFrom, until := x.answerTimes(time.Now())
	inBackground(func() bool {
		err := x.answerAgain(resp, time.Now().After(bareFrom))
		done := x.answered(err, time.Now().After(until))
		if done {
			x.endpoint.waiting.Add(-size)
		}
		return done
	})
}

// hold bounds what waits for the store: an answer that is too much is dropped,
// and its claim kept without one.
func (x *release) hold(resp *Response) (*Response, int64) {
	if resp == nil {
		return nil, 0
	}
	size := int64(len(resp.Body))
	if x.endpoint.waiting.Add(size) > maxWaiting {
		x.endpoint.waiting.Add(-size)
		return nil, 0
	}
	return resp, size
}

// answerTimes says from when on a claim without the answer will do, which is
// well before the claim expires, and when to give up. A claim that has expired
// is written anew, unless somebody has taken it over.
func (x *release) answerTimes(now time.Time) (bareFrom, until time.Time) {
	bareFrom, until = x.since.Add(x.endpoint.policy.claimTTL()/2), now.Add(retryFor)
	if half := now.Add(retryFor / 2); half.Before(bareFrom) {
		bareFrom = half
	}
	return bareFrom, until
}

// answerAgain tries without the answer, too, where it is late: that the work
// doesn't run again is worth more than its answer.
func (x *release) answerAgain(resp *Response, late bool) error {
	err := x.answerOnce(resp)
	if err == nil || errors.Is(err, ErrNotHolder) || resp == nil || !late {
		return err
	}
	return x.answerOnce(nil)
}

// answered tells whether there is nothing left to try.
func (x *release) answered(err error, last bool) bool {
	ctx := context.WithoutCancel(x.Request.Context())
	switch {
	case err == nil:
		return true
	case errors.Is(err, ErrNotHolder):
		x.logOutlived(ctx)
		return true
	case last:
		x.endpoint.policy.logger().ErrorContext(ctx, "idemhttp: answer not stored: a repeat runs again when the claim expires",
			"endpoint", x.endpoint.name, "error", err)
	}
	return last
}

func (x *release) answerOnce(resp *Response) error {
	ctx, cancel := x.storeContext()
	defer cancel()
	return x.endpoint.store.Answer(ctx, x.Claim, resp, x.endpoint.policy.Window)
}

func (x *release) logOutlived(ctx context.Context) {
	x.endpoint.policy.logger().ErrorContext(ctx, "idemhttp: the endpoint outlived its claim, and another request ran meanwhile: ClaimTTL is too short",
		"endpoint", x.endpoint.name, "took", time.Since(x.since), "ClaimTTL", x.endpoint.policy.claimTTL())
}
