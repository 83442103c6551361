package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

func TestOutcomeZeroValueSettlesNothing(t *testing.T) {
	var o idem.Outcome
	assert.Equal(t, idem.Unsettled, o)
}

func TestHookEnumsHaveNames(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"Unsettled": idem.Unsettled, "Ack": idem.Ack, "Requeue": idem.Requeue, "Reject": idem.Reject,
		"Postpone": idem.Postpone, "Outcome(5)": idem.Outcome(5), "Outcome(255)": idem.Outcome(255),
		"HoldInFlight": idem.HoldInFlight, "RequeueInFlight": idem.RequeueInFlight,
		"AckInFlight": idem.AckInFlight, "InFlightPolicy(3)": idem.InFlightPolicy(3),
		"Native": idem.Native, "Durable": idem.Durable, "Local": idem.Local, "Mode(3)": idem.Mode(3),
	} {
		assert.Equal(t, want, got.String())
	}
}

func TestDefaultClassify(t *testing.T) {
	plain := errors.New("no such customer")
	for name, row := range map[string]struct {
		err  error
		want idem.Outcome
	}{
		"nil":                         {nil, idem.Ack},
		"any error":                   {plain, idem.Requeue},
		"context.Canceled":            {context.Canceled, idem.Requeue},
		"deadline exceeded":           {context.DeadlineExceeded, idem.Requeue},
		"ErrRejected":                 {idem.ErrRejected, idem.Requeue},
		"outcome Ack":                 {idem.WithOutcome(plain, idem.Ack), idem.Ack},
		"outcome Requeue":             {idem.WithOutcome(plain, idem.Requeue), idem.Requeue},
		"outcome Reject":              {idem.WithOutcome(plain, idem.Reject), idem.Reject},
		"outcome Postpone":            {idem.WithOutcome(plain, idem.Postpone), idem.Postpone},
		"outcome Unsettled":           {idem.WithOutcome(plain, idem.Unsettled), idem.Unsettled},
		"outcome unknown":             {idem.WithOutcome(plain, 77), 77},
		"outcome without an error":    {idem.WithOutcome(nil, idem.Postpone), idem.Postpone},
		"wrapped":                     {fmt.Errorf("order 7: %w", idem.WithOutcome(plain, idem.Reject)), idem.Reject},
		"wrapped without an error":    {fmt.Errorf("order 7: %w", idem.WithOutcome(nil, idem.Reject)), idem.Reject},
		"joined, second":              {errors.Join(plain, idem.WithOutcome(plain, idem.Reject)), idem.Reject},
		"joined, the first one wins":  {errors.Join(idem.WithOutcome(plain, idem.Reject), idem.WithOutcome(plain, idem.Ack)), idem.Reject},
		"two, the outermost one wins": {idem.WithOutcome(idem.WithOutcome(plain, idem.Reject), idem.Postpone), idem.Postpone},
	} {
		assert.Equal(t, row.want, idem.DefaultClassify(row.err), name)
	}
}

func TestWithOutcomeIsTheErrorItCarries(t *testing.T) {
	plain := &hookError{"no such customer"}
	err := fmt.Errorf("order 7: %w", idem.WithOutcome(plain, idem.Reject))

	assert.EqualError(t, err, "order 7: no such customer")
	assert.ErrorIs(t, err, plain)
	var found *hookError
	require.ErrorAs(t, err, &found)
	assert.Same(t, plain, found)
}

func TestWithOutcomeOfNilSaysItsOutcome(t *testing.T) {
	err := idem.WithOutcome(nil, idem.Postpone)
	require.Error(t, err, "not nil: the outcome would be lost")
	assert.EqualError(t, err, "idem: outcome Postpone")
	assert.NoError(t, errors.Unwrap(err))
}

type hookError struct{ text string }

func (e *hookError) Error() string { return e.text }
