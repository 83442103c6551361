package idemhttp

import (
	"errors"
	"time"
)

const (
	firstRetry = 100 * time.Millisecond
	longRetry  = 5 * time.Second
	retryFor   = 5 * time.Minute
	// maxRetries is how many claims one endpoint goes on with for a store that
	// fails.
	maxRetries = 10_000
	// maxWaiting is how many bytes of answers one endpoint holds for a store
	// that doesn't take them.
	maxWaiting = 64 << 20
)

// inBackground calls try, more and more seldom, until there is nothing left to do.
// False: there are too many already.
func (e *Endpoint) inBackground(try func() (done bool)) bool {
	if e.retries.Add(1) > maxRetries {
		e.retries.Add(-1)
		return false
	}
	go func() {
		defer e.retries.Add(-1)
		for pause := firstRetry; ; pause = min(pause*2, longRetry) {
			time.Sleep(pause)
			if try() {
				return
			}
		}
	}()
	return true
}

// retryRelease releases the claim in the background, until it is released, has
// expired, or is given up after a few minutes.
func (h holding) retryRelease() {
	until := h.since.Add(min(h.endpoint.policy.claimTTL(), retryFor))
	going := h.endpoint.inBackground(func() bool {
		err := h.release()
		last := time.Now().After(until)
		if err != nil && last {
			h.logStuck(err)
		}
		return err == nil || last
	})
	if !going {
		h.logStuck(errTooMany)
	}
}

var errTooMany = errors.New("idemhttp: too many claims wait for the store already")

func (h holding) logStuck(err error) {
	h.log("claim not released: repeats get 409 until it expires", "error", err)
}

// retryAnswer stores the answer in the background, until the store has taken it,
// the claim is another's, or a few minutes are over.
func (h holding) retryAnswer(resp *Response) {
	resp, size := h.endpoint.hold(resp)
	bareFrom, until := h.answerTimes(time.Now())
	going := h.endpoint.inBackground(func() bool {
		err := h.answerAgain(resp, time.Now().After(bareFrom))
		done := h.answered(err, time.Now().After(until))
		if done {
			h.endpoint.waiting.Add(-size)
		}
		return done
	})
	if !going {
		h.endpoint.waiting.Add(-size)
		h.answered(errTooMany, true)
	}
}

// hold bounds what waits for the store: an answer that is too much is dropped,
// and its claim kept without one.
func (e *Endpoint) hold(resp *Response) (*Response, int64) {
	if resp == nil {
		return nil, 0
	}
	size := int64(len(resp.Body))
	if e.waiting.Add(size) > maxWaiting {
		e.waiting.Add(-size)
		return nil, 0
	}
	return resp, size
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

// answered tells whether there is nothing left to try.
func (h holding) answered(err error, last bool) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, ErrNotHolder):
		h.logOutlived()
		return true
	case last:
		h.log("answer not stored: a repeat runs again when the claim expires", "error", err)
	}
	return last
}
