package idemhttp

import (
	"errors"
	"time"
)

// take claims the request. No record and no error: it is ours. A record: it is
// another's, which is to be answered from. An error: the store doesn't say.
func (x *release) take() (*Record, error) {
	giveUp := time.Now().Add(x.endpoint.policy.Wait)
	pause := firstPause
	for vanished := 0; ; {
		rec, won, err := x.tryClaim()
		switch {
		case won || err != nil:
			return nil, err
		case rec == nil:
			if vanished++; vanished == vanishLimit {
				return &Record{Claim: x.Claim, State: Running}, nil
			}
		case rec.State != Running || !rec.Sum.Same(x.Claim.Sum):
			return rec, nil
		case !x.sleep(&pause, giveUp):
			return rec, nil
		default:
			vanished = 0
		}
	}
}

// tryClaim is one attempt. Neither a record nor won: the claim was another's,
// and is gone.
func (x *release) tryClaim() (rec *Record, won bool, err error) {
	x.since = time.Now()
	ctx, cancel := storeContext(x.Request.Context())
	defer cancel()
	won, err = x.endpoint.store.Claim(ctx, x.Claim, x.endpoint.policy.claimTTL())
	if err != nil {
		return x.afterUnknownClaim(err)
	}
	if won {
		return nil, true, nil
	}
	return x.lookup()
}

// afterUnknownClaim finds out by the token whose claim it is, if anybody's.
func (x *release) afterUnknownClaim(claimErr error) (*Record, bool, error) {
	rec, won, err := x.lookup()
	if err == nil && (won || rec != nil) {
		return rec, won, nil
	}
	// It may still be written, or have been: don't leave it there.
	err = errors.Join(claimErr, err)
	x.holding().retryRelease(x.Request.Context(), err)
	return nil, false, err
}

// lookup reads the claim; won means that it is this request's own.
func (x *release) lookup() (rec *Record, won bool, err error) {
	ctx, cancel := storeContext(x.Request.Context())
	defer cancel()
	found, ok, err := x.endpoint.store.Lookup(ctx, x.Claim.ID)
	if err != nil || !ok {
		return nil, false, err
	}
	if found.Token == x.Claim.Token {
		return nil, true, nil
	}
	return &found, false, nil
}

const (
	firstPause = 10 * time.Millisecond
	longPause  = 250 * time.Millisecond
)

// sleep pauses a held repeat. False: it has been held long enough, or nobody
// waits for it any more.
func (x *release) sleep(pause *time.Duration, giveUp time.Time) bool {
	left := time.Until(giveUp)
	if left <= 0 {
		return false
	}
	t := time.NewTimer(min(*pause, left))
	defer t.Stop()
	*pause = min(*pause*2, longPause)
	select {
	case <-t.C:
		return true
	case <-x.Request.Context().Done():
		return false
	}
}

// giveBack releases the claim, in the background if it must be.
func (x *release) giveBack() {
	ctx := x.Request.Context()
	if err := x.holding().release(ctx); err != nil {
		x.storeFailed(ctx, "claim not released yet", err)
		x.holding().retryRelease(ctx, err)
	}
}
