package idemhttptest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/idem-go/idem/idemhttp"
)

func checkClaimFound(s *storeRun) error {
	c := newClaim()
	if err := s.mustClaim(c, long); err != nil {
		return err
	}
	return s.expect(idemhttp.Record{Claim: c, State: idemhttp.Running})
}

func checkSecondClaimLoses(s *storeRun) error {
	c := newClaim()
	if err := s.mustClaim(c, long); err != nil {
		return err
	}
	other := c
	other.Token, other.Sum.Hash = newClaim().Token, newClaim().Sum.Hash
	for _, second := range []idemhttp.Claim{c, other} {
		won, err := s.Claim(s.ctx, second, long)
		if err != nil || won {
			return failf("a second Claim = %v, %v; want false, nil", won, err)
		}
	}
	if err := s.expect(idemhttp.Record{Claim: c, State: idemhttp.Running}); err != nil {
		return err
	}
	if err := s.Answer(s.ctx, c, nil, long); err != nil {
		return fmt.Errorf("Answer: %w", err)
	}
	if won, err := s.Claim(s.ctx, other, long); err != nil || won {
		return failf("Claim of a settled id = %v, %v; want false, nil", won, err)
	}
	return nil
}

func checkIDsApart(s *storeRun) error {
	a := newClaim()
	b := newClaim()
	b.ID = a.ID
	b.ID[len(b.ID)-1]++ // all but the last byte in common
	for _, c := range []idemhttp.Claim{a, b} {
		if err := s.mustClaim(c, long); err != nil {
			return err
		}
	}
	if err := s.Release(s.ctx, a.ID, a.Token); err != nil {
		return fmt.Errorf("Release: %w", err)
	}
	return errors.Join(s.expectNone(a.ID), s.expect(idemhttp.Record{Claim: b}))
}

func checkConcurrentClaims(s *storeRun) error {
	const rounds, workers = 20, 16
	for range rounds {
		if err := s.race(workers); err != nil {
			return err
		}
	}
	return nil
}

func (s *storeRun) race(workers int) error {
	id := newClaim().ID
	start := make(chan struct{})
	wins := make([]bool, workers)
	errs := make([]error, workers)
	claims := make([]idemhttp.Claim, workers)
	var wg sync.WaitGroup
	for i := range workers {
		claims[i] = newClaim()
		claims[i].ID = id
		wg.Go(func() {
			<-start
			wins[i], errs[i] = s.Claim(s.ctx, claims[i], long)
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.expectWinner(claims, wins)
}

func (s *storeRun) expectWinner(claims []idemhttp.Claim, wins []bool) error {
	winner := -1
	for i, won := range wins {
		switch {
		case won && winner >= 0:
			return errors.New("two concurrent claims of one id have both won")
		case won:
			winner = i
		}
	}
	if winner < 0 {
		return errors.New("none of the concurrent claims of one id has won")
	}
	return s.expect(idemhttp.Record{Claim: claims[winner]})
}

func checkAnswerFound(s *storeRun) error {
	c := newClaim()
	if err := s.mustClaim(c, long); err != nil {
		return err
	}
	resp := &idemhttp.Response{
		Status: 201,
		Header: map[string][]string{"Content-Type": {"text/plain"}, "Link": {"<b>", "<a>"}},
		Body:   []byte("made"),
	}
	if err := s.Answer(s.ctx, c, resp, long); err != nil {
		return fmt.Errorf("Answer: %w", err)
	}
	return s.expect(idemhttp.Record{Claim: c, State: idemhttp.Answered, Response: resp})
}

func checkAnswerBytes(s *storeRun) error {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for _, body := range [][]byte{nil, {}, {0}, every, bytes.Repeat(every, 4096)} {
		c := newClaim()
		resp := &idemhttp.Response{Status: 299, Body: body, Header: map[string][]string{
			"Etag": {"\"caf\xe9\"", "", "tab\there \\ 'quoted'"}, // not UTF-8
		}}
		if err := s.Answer(s.ctx, c, resp, long); err != nil {
			return fmt.Errorf("Answer with a body of %d bytes: %w", len(body), err)
		}
		if err := s.expect(idemhttp.Record{Claim: c, State: idemhttp.Answered, Response: resp}); err != nil {
			return err
		}
	}
	return nil
}

func checkUnanswered(s *storeRun) error {
	none, empty := newClaim(), newClaim()
	resp := &idemhttp.Response{Status: 204}
	for _, c := range []idemhttp.Claim{none, empty} {
		if err := s.mustClaim(c, long); err != nil {
			return err
		}
	}
	if err := errors.Join(s.Answer(s.ctx, none, nil, long), s.Answer(s.ctx, empty, resp, long)); err != nil {
		return fmt.Errorf("Answer: %w", err)
	}
	return errors.Join(
		s.expect(idemhttp.Record{Claim: none, State: idemhttp.Unanswered}),
		s.expect(idemhttp.Record{Claim: empty, State: idemhttp.Answered, Response: resp}))
}
