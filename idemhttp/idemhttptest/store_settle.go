package idemhttptest

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/idem-go/idem/idemhttp"
)

func checkOnlyHolderAnswers(s *storeRun) error {
	c := newClaim()
	if err := s.mustClaim(c, long); err != nil {
		return err
	}
	other := c
	other.Token = newClaim().Token
	if err := s.Answer(s.ctx, other, &idemhttp.Response{Status: 200}, long); !errors.Is(err, idemhttp.ErrNotHolder) {
		return failf("Answer with another token = %v, want ErrNotHolder", err)
	}
	if err := s.expect(idemhttp.Record{Claim: c}); err != nil {
		return err
	}
	if err := s.Answer(s.ctx, c, nil, long); err != nil {
		return fmt.Errorf("Answer: %w", err)
	}
	if err := s.Answer(s.ctx, other, &idemhttp.Response{Status: 200}, long); !errors.Is(err, idemhttp.ErrNotHolder) {
		return failf("Answer of a settled claim with another token = %v, want ErrNotHolder", err)
	}
	return s.expect(idemhttp.Record{Claim: c, State: idemhttp.Unanswered})
}

func checkAnswerInserts(s *storeRun) error {
	c := newClaim()
	resp := &idemhttp.Response{Status: 200, Body: []byte("late")}
	if err := s.Answer(s.ctx, c, resp, long); err != nil {
		return fmt.Errorf("Answer without a claim: %w", err)
	}
	return s.expect(idemhttp.Record{Claim: c, State: idemhttp.Answered, Response: resp})
}

func checkAnswerTTL(s *storeRun) error {
	longer, shorter := newClaim(), newClaim()
	resp := &idemhttp.Response{Status: 200}
	err := errors.Join(s.mustClaim(longer, short), s.Answer(s.ctx, longer, resp, long),
		s.mustClaim(shorter, long), s.Answer(s.ctx, shorter, resp, short))
	if err != nil {
		return err
	}
	if err := s.expire(shorter.ID); err != nil {
		return err
	}
	return s.expect(idemhttp.Record{Claim: longer, State: idemhttp.Answered, Response: resp})
}

func checkRelease(s *storeRun) error {
	c := newClaim()
	if err := errors.Join(s.mustClaim(c, long), s.Release(s.ctx, c.ID, c.Token)); err != nil {
		return err
	}
	if err := s.expectNone(c.ID); err != nil {
		return err
	}
	if err := s.Release(s.ctx, c.ID, c.Token); err != nil {
		return fmt.Errorf("a second Release: %w", err)
	}
	next := c
	next.Token = newClaim().Token
	return errors.Join(s.mustClaim(next, long), s.expect(idemhttp.Record{Claim: next}))
}

func checkOnlyHolderReleases(s *storeRun) error {
	c := newClaim()
	if err := s.mustClaim(c, long); err != nil {
		return err
	}
	if err := s.Release(s.ctx, c.ID, newClaim().Token); err != nil {
		return fmt.Errorf("Release with another token: %w", err)
	}
	return s.expect(idemhttp.Record{Claim: c})
}

func checkReleaseSettled(s *storeRun) error {
	for _, resp := range []*idemhttp.Response{nil, {Status: 200}} {
		c := newClaim()
		err := errors.Join(s.mustClaim(c, long), s.Answer(s.ctx, c, resp, long), s.Release(s.ctx, c.ID, c.Token))
		if err != nil {
			return err
		}
		if _, found, err := s.Lookup(s.ctx, c.ID); err != nil || !found {
			return failf("after Answer(%v) and Release, Lookup found %v, %v; want it", resp, found, err)
		}
	}
	return nil
}

func checkExpired(s *storeRun) error {
	c := newClaim()
	if err := errors.Join(s.mustClaim(c, short), s.expire(c.ID)); err != nil {
		return err
	}
	if ok, err := s.Forget(s.ctx, c.ID); ok || err != nil {
		return failf("Forget of an expired claim = %v, %v; want false, nil", ok, err)
	}
	next := newClaim()
	next.ID = c.ID
	if err := s.mustClaim(next, long); err != nil {
		return err
	}
	return s.expect(idemhttp.Record{Claim: next})
}

func checkExpiredAnswer(s *storeRun) error {
	c := newClaim()
	resp := &idemhttp.Response{Status: 200, Body: []byte("old")}
	err := errors.Join(s.mustClaim(c, long), s.Answer(s.ctx, c, resp, short), s.expire(c.ID))
	if err != nil {
		return err
	}
	next := newClaim()
	next.ID = c.ID
	if ok, err := s.Forget(s.ctx, c.ID); ok || err != nil {
		return failf("Forget of an expired answer = %v, %v; want false, nil", ok, err)
	}
	return errors.Join(s.mustClaim(next, long), s.expect(idemhttp.Record{Claim: next}))
}

func checkLateAnswer(s *storeRun) error {
	own, others := newClaim(), newClaim()
	resp := &idemhttp.Response{Status: 200}
	err := errors.Join(s.mustClaim(own, short), s.mustClaim(others, short), s.expire(own.ID), s.expire(others.ID))
	if err != nil {
		return err
	}
	answerer := newClaim()
	answerer.ID = others.ID
	for _, c := range []idemhttp.Claim{own, answerer} {
		if err := s.Answer(s.ctx, c, resp, long); err != nil {
			return fmt.Errorf("Answer after the claim expired: %w", err)
		}
		if err := s.expect(idemhttp.Record{Claim: c, State: idemhttp.Answered, Response: resp}); err != nil {
			return err
		}
	}
	return nil
}

func checkTakenOver(s *storeRun) error {
	first, second := newClaim(), newClaim()
	second.ID = first.ID
	err := errors.Join(s.mustClaim(first, short), s.expire(first.ID), s.mustClaim(second, long))
	if err != nil {
		return err
	}
	if err := s.Answer(s.ctx, first, nil, long); !errors.Is(err, idemhttp.ErrNotHolder) {
		return failf("Answer of a claim that was taken over = %v, want ErrNotHolder", err)
	}
	if err := s.Release(s.ctx, first.ID, first.Token); err != nil {
		return fmt.Errorf("Release of a claim that was taken over: %w", err)
	}
	return s.expect(idemhttp.Record{Claim: second})
}

func checkForget(s *storeRun) error {
	for _, resp := range []*idemhttp.Response{nil, {Status: 200}} {
		c := newClaim()
		if err := errors.Join(s.mustClaim(c, long), s.expectForget(c.ID, false), s.expect(idemhttp.Record{Claim: c})); err != nil {
			return err
		}
		if err := s.Answer(s.ctx, c, resp, long); err != nil {
			return fmt.Errorf("Answer: %w", err)
		}
		if err := errors.Join(s.expectForget(c.ID, true), s.expectNone(c.ID), s.expectForget(c.ID, false)); err != nil {
			return err
		}
	}
	return nil
}

func (s *storeRun) expectForget(id idemhttp.ID, want bool) error {
	ok, err := s.Forget(s.ctx, id)
	if err != nil || ok != want {
		return failf("Forget = %v, %v; want %v, nil", ok, err, want)
	}
	return nil
}

func checkReap(s *storeRun) error {
	stays, answered, gone1, gone2 := newClaim(), newClaim(), newClaim(), newClaim()
	resp := &idemhttp.Response{Status: 200}
	err := errors.Join(
		s.mustClaim(stays, long), s.Answer(s.ctx, answered, resp, long),
		s.mustClaim(gone1, short), s.Answer(s.ctx, gone2, resp, short),
		s.expire(gone1.ID), s.expire(gone2.ID))
	if err != nil {
		return err
	}
	n, err := s.Reap(s.ctx)
	if err != nil || n < 2 {
		return failf("Reap = %d, %v; want at least the 2 that expired", n, err)
	}
	if n, err = s.Reap(s.ctx); err != nil || n != 0 {
		return failf("a second Reap = %d, %v; want 0", n, err)
	}
	return errors.Join(s.expect(idemhttp.Record{Claim: stays}),
		s.expect(idemhttp.Record{Claim: answered, State: idemhttp.Answered, Response: resp}))
}

func checkAnyTTL(s *storeRun) error {
	least, most := newClaim(), newClaim()
	err := errors.Join(s.mustClaim(least, 1), s.expire(least.ID), s.mustClaim(most, math.MaxInt64))
	if err != nil {
		return err
	}
	if err := s.expect(idemhttp.Record{Claim: most}); err != nil {
		return err
	}
	return errors.Join(s.Answer(s.ctx, most, nil, math.MaxInt64),
		s.expect(idemhttp.Record{Claim: most, State: idemhttp.Unanswered}))
}

func checkContext(s *storeRun) error {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	c := newClaim()
	_, claimErr := s.Claim(ctx, c, long)
	_, _, lookErr := s.Lookup(ctx, c.ID)
	_, forgetErr := s.Forget(ctx, c.ID)
	_, reapErr := s.Reap(ctx)
	errs := map[string]error{"Claim": claimErr, "Answer": s.Answer(ctx, c, nil, long),
		"Release": s.Release(ctx, c.ID, c.Token), "Lookup": lookErr, "Forget": forgetErr, "Reap": reapErr}
	for name, err := range errs {
		if err == nil {
			return fmt.Errorf("%s with a context that is done returned no error", name)
		}
	}
	return nil
}
