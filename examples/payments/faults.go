package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// faults are what a request asks to go wrong.
type faults struct {
	before, after bool
	slow          time.Duration
}

var errFault = errors.New("fault: before the commit")

// faultsOf reads the header X-Fault, such as "slow=200ms, before".
func (s *service) faultsOf(r *http.Request) (f faults, err error) {
	text := r.Header.Get("X-Fault")
	if !s.faults || text == "" {
		return f, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		if err := f.set(strings.TrimSpace(word)); err != nil {
			return f, err
		}
	}
	if f.after && s.mode == inTx {
		return f, errors.New("X-Fault: after: in a transaction the endpoint has returned by the time of its commit")
	}
	return f, nil
}

func (f *faults) set(word string) (err error) {
	slow, isSlow := strings.CutPrefix(word, "slow=")
	switch {
	case word == "before":
		f.before = true
	case word == "after":
		f.after = true
	case isSlow:
		if f.slow, err = time.ParseDuration(slow); err != nil || f.slow < 0 {
			return fmt.Errorf("X-Fault: slow=%s is no duration", slow)
		}
	default:
		return fmt.Errorf("X-Fault: %q is no fault", word)
	}
	return nil
}

func (f faults) beforeCommit(ctx context.Context) error {
	if f.slow > 0 {
		t := time.NewTimer(f.slow)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if f.before {
		return errFault
	}
	return nil
}

func (f faults) afterCommit() {
	if f.after {
		panic("fault: after the commit")
	}
}
