package idem

import "errors"

// WithOutcome is a handler's error that carries its outcome, also when it is
// wrapped further: [DefaultClassify] finds it. The err may be nil: then the
// outcome is all there is to say, and with Ack and Postpone [Receiver.Receive]
// returns nil for it. [Do], which settles nothing with a broker, takes it for an
// error like any other.
//
//	return idem.WithOutcome(err, idem.Reject)   // poison: never again
//	return idem.WithOutcome(nil, idem.Postpone) // sent again for later, same id
func WithOutcome(err error, o Outcome) error { return &outcomeError{err: err, outcome: o} }

type outcomeError struct {
	err     error
	outcome Outcome
}

func (e *outcomeError) Error() string {
	if e.err == nil {
		return "idem: outcome " + e.outcome.String()
	}
	return e.err.Error()
}

func (e *outcomeError) Unwrap() error { return e.err }

// DefaultClassify is what [Receiver.Classify] is when left nil. A nil error is
// Ack, one made by [WithOutcome] is its outcome, and anything else is Requeue:
// also context.Canceled, which a handler may get from anywhere.
func DefaultClassify(err error) Outcome {
	var with *outcomeError
	switch {
	case err == nil:
		return Ack
	case errors.As(err, &with):
		return with.outcome
	default:
		return Requeue
	}
}

// reported is what Receive returns for a handler's err: an outcome that is not a
// failure, and has no error to it, is nothing to report.
func reported(err error) error {
	with, ok := err.(*outcomeError) //nolint:errorlint // one that is wrapped has an error to it
	if !ok {
		return err
	}
	if with.err == nil && (with.outcome == Ack || with.outcome == Postpone) {
		return nil
	}
	return err
}

// causeOf is what a verb is told of a handler that has run: never nil, which
// would say that it hasn't.
func causeOf(err error, o Outcome) error {
	if err == nil {
		return WithOutcome(nil, o)
	}
	return err
}
