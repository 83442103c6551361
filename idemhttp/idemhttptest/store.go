package idemhttptest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

// StoreConfig says how to get at the store under test.
type StoreConfig struct {
	// Open returns a store that nothing else uses while the check runs. The suite
	// uses random ids, so that it needn't be empty. Required.
	Open func(t *testing.T) idemhttp.Store
	// Advance moves the store's clock forward. Nil: its clock is a real one, and
	// the suite waits.
	Advance func(d time.Duration)
}

// RunStore tests that a store keeps what idemhttp.Store promises.
func RunStore(t *testing.T, cfg StoreConfig) {
	t.Helper()
	for _, check := range storeChecks {
		t.Run(check.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			run := &storeRun{ctx: ctx, Store: cfg.Open(t), advance: cfg.Advance}
			if err := check.run(run); err != nil {
				t.Error(err)
			}
		})
	}
}

// storeRun is one check's view of the store.
type storeRun struct {
	idemhttp.Store
	ctx     context.Context
	advance func(time.Duration)
}

const (
	long  = time.Hour
	short = 40 * time.Millisecond
)

type storeCheck struct {
	name string
	run  func(*storeRun) error
}

var storeChecks = []storeCheck{
	{"a claim is found as it was written", checkClaimFound},
	{"a second claim loses", checkSecondClaimLoses},
	{"claims of different ids do not meet", checkIDsApart},
	{"one of many concurrent claims wins", checkConcurrentClaims},
	{"an answer is found as it was written", checkAnswerFound},
	{"an answer keeps every byte", checkAnswerBytes},
	{"no answer is not an empty answer", checkUnanswered},
	{"only the holder answers", checkOnlyHolderAnswers},
	{"an answer without a claim writes one", checkAnswerInserts},
	{"an answer brings its own ttl", checkAnswerTTL},
	{"a release removes a running claim", checkRelease},
	{"only the holder releases", checkOnlyHolderReleases},
	{"a release leaves what is settled", checkReleaseSettled},
	{"an expired claim counts as absent", checkExpired},
	{"an expired answer counts as absent", checkExpiredAnswer},
	{"an expired claim is written anew by its answer", checkLateAnswer},
	{"an expired claim that was taken over stays", checkTakenOver},
	{"forget removes what is settled, and only that", checkForget},
	{"reap removes what has expired, and only that", checkReap},
	{"any ttl works", checkAnyTTL},
	{"a context that is done is an error", checkContext},
}

// failf says what was wrong. An error among the arguments may be nil, and isn't
// wrapped.
func failf(format string, args ...any) error { return fmt.Errorf(format, args...) }

func newClaim() idemhttp.Claim {
	var c idemhttp.Claim
	_, _ = rand.Read(c.ID[:])
	_, _ = rand.Read(c.Token[:])
	_, _ = rand.Read(c.Sum.Hash[:])
	c.Sum.Version = "test/1"
	return c
}

func (s *storeRun) mustClaim(c idemhttp.Claim, ttl time.Duration) error {
	won, err := s.Claim(s.ctx, c, ttl)
	if err != nil || !won {
		return failf("Claim of a free id = %v, %v; want true, nil", won, err)
	}
	return nil
}

func (s *storeRun) expectNone(id idemhttp.ID) error {
	rec, found, err := s.Lookup(s.ctx, id)
	if err != nil || found {
		return failf("Lookup = %+v, %v, %v; want nothing", rec, found, err)
	}
	return nil
}

func (s *storeRun) expect(want idemhttp.Record) error {
	got, found, err := s.Lookup(s.ctx, want.ID)
	switch {
	case err != nil || !found:
		return failf("Lookup found %v, %v; want %v", found, err, want.State)
	case got.Claim != want.Claim:
		return fmt.Errorf("Lookup found the claim %+v, want %+v", got.Claim, want.Claim)
	case got.State != want.State:
		return fmt.Errorf("Lookup found it %v, want %v", got.State, want.State)
	case (got.Response == nil) != (want.Response == nil):
		return fmt.Errorf("Lookup found the response %+v, want %+v", got.Response, want.Response)
	case got.Response == nil:
		return nil
	}
	return sameResponse(got.Response, want.Response)
}

func sameResponse(got, want *idemhttp.Response) error {
	sameHeader := len(got.Header) == 0 && len(want.Header) == 0 || reflect.DeepEqual(got.Header, want.Header)
	if got.Status != want.Status || !sameHeader || !bytes.Equal(got.Body, want.Body) {
		return fmt.Errorf("the stored response is %d %q, %d bytes; want %d %q, %d bytes",
			got.Status, got.Header, len(got.Body), want.Status, want.Header, len(want.Body))
	}
	return nil
}

// expire waits until a claim that was written with the short ttl is gone.
func (s *storeRun) expire(id idemhttp.ID) error {
	if s.advance != nil {
		s.advance(short)
		return s.expectNone(id)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		if _, found, err := s.Lookup(s.ctx, id); err != nil || !found {
			return err
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	return errors.New("a claim hasn't expired long after its ttl")
}
