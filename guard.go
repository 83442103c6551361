package idem

import (
	"context"
	"errors"
	"fmt"
)

// State is what TryBegin found. The rule of thumb of this package holds here
// too: only Completed means "handled, ack it"; anything else is to be run or
// given back.
type State uint8

const (
	// Begun: the message was unknown, and the claim that came with it is yours.
	Begun State = iota
	// InFlight: another claim of the same message is not settled yet.
	InFlight
	// Completed: the message was handled before.
	Completed
	// Rejected: the message was dead-lettered before.
	Rejected
)

// String returns the name of the constant, or "State(n)" for a value that has
// none.
func (s State) String() string {
	return enumName("State", uint8(s), "Begun", "InFlight", "Completed", "Rejected")
}

// enumName is the text of the n-th of names, which make up an enumeration.
func enumName(typ string, n uint8, names ...string) string {
	if int(n) < len(names) {
		return names[n]
	}
	return fmt.Sprintf("%s(%d)", typ, n)
}

// Claim is the right to settle one begun message. It is a small comparable
// value: keep it, copy it, hand it to another goroutine. The zero Claim settles
// nothing.
//
// A claim refers to the id's memory until it is settled; see
// [Generational.Complete] for what happens when that memory is reused before.
type Claim struct {
	id    Identity
	token uint64
	hash  uint64 // of the id's bytes, as the guard that gave the claim hashes them
}

// Identity returns the identity the claim was begun with.
func (c Claim) Identity() Identity { return c.id }

// Token returns what tells this claim from every other claim of its guard. It
// is 0 in the zero Claim, and only there.
func (c Claim) Token() uint64 { return c.token }

// NewClaim makes a claim for guards written elsewhere, which tell their claims
// apart by token. It settles nothing in a [Generational].
func NewClaim(id Identity, token uint64) Claim { return Claim{id: id, token: token} }

// IdempotencyGuard decides, for every delivery, whether its message is to be
// run. It is for guards in this process's memory: no context, no error. Across
// processes, see the Inbox of idemhttp/pgstore.
//
// All methods may be called from any number of goroutines. The idemtest package
// tests an implementation against these promises.
type IdempotencyGuard interface {
	// TryBegin claims a message, or says why it can't. After Begun the claim is
	// yours: settle it once, with one of the three verbs below. With any other
	// state the claim is the zero Claim. It never waits.
	//
	// An id with an empty ID always begins, with the zero Claim.
	TryBegin(id Identity) (Claim, State)

	// Wait returns nil once TryBegin would not answer InFlight, which may be at
	// once, or ctx's error if that comes first.
	Wait(ctx context.Context, id Identity) error

	// Complete says that the message is handled. It is remembered as Completed,
	// if it can be also when the guard has taken the claim for lost meanwhile: the
	// work is done.
	Complete(c Claim)

	// Reject says that the message was dead-lettered. It is remembered as
	// Rejected.
	Reject(c Claim)

	// Release says that the message is not done: its next delivery may run. It
	// changes nothing on a claim already settled, so it can be deferred.
	Release(c Claim)
}

// ErrRejected is returned by [Do] for a message that was dead-lettered before.
// A [Receiver] passes it as the cause when it rejects such a message again.
var ErrRejected = errors.New("idem: message was rejected before")

// off is the guard of those who have none: a nil Generational.
var off IdempotencyGuard = (*Generational)(nil)

// Begin is TryBegin that holds while another claim of the id is in flight. It
// answers InFlight only together with ctx's error, and only then is err not nil.
//
// A nil guard is off: the zero Claim, Begun. A handler that waits for a delivery
// of its own id waits for itself: don't.
func Begin(ctx context.Context, guard IdempotencyGuard, id Identity) (Claim, State, error) {
	if guard == nil {
		return Claim{}, Begun, nil
	}
	claim, state := guard.TryBegin(id)
	for state == InFlight {
		if err := guard.Wait(ctx, id); err != nil {
			return Claim{}, InFlight, err
		}
		claim, state = lookAgain(guard, id)
		if err := ctx.Err(); err != nil && state == InFlight {
			return Claim{}, InFlight, err // whatever Wait looks at
		}
	}
	return claim, state, nil
}

// lookAgain is TryBegin for a delivery that has been held: it was counted as a
// duplicate when it was first looked at, and is the same delivery still. Guards
// from elsewhere, also those around a Generational, can't be told, and count anew.
func lookAgain(guard IdempotencyGuard, id Identity) (Claim, State) {
	if g, ok := guard.(*Generational); ok {
		return g.tryBegin(id, held)
	}
	return guard.TryBegin(id)
}

// Do runs fn once per message, and holds as [Begin] does while another claim of
// the id is in flight.
//
// The error is nil exactly when the message is handled: now, and then ran is
// true, or before. It is [ErrRejected] when the message was dead-lettered
// before, else ctx's error (fn has not run), else fn's (it has). The claim is
// completed when fn returns nil, and released when it returns an error, panics
// or leaves by runtime.Goexit.
//
// A nil guard is off: fn runs. A nil fn panics before anything is claimed.
func Do(ctx context.Context, guard IdempotencyGuard, id Identity, fn func(context.Context) error) (ran bool, err error) {
	if fn == nil {
		panic("idem: Do called with a nil function")
	}
	if guard == nil {
		guard = off
	}
	claim, state, err := Begin(ctx, guard, id)
	if err != nil {
		return false, err
	}
	switch state {
	case Begun:
		return runClaimed(ctx, guard, claim, fn)
	case Completed:
		return false, nil
	case Rejected:
		return false, ErrRejected
	default:
		return false, fmt.Errorf("idem: the guard answered %v, which is no state to go on with", state)
	}
}

func runClaimed(ctx context.Context, guard IdempotencyGuard, claim Claim, fn func(context.Context) error) (ran bool, err error) {
	defer guard.Release(claim) // changes nothing once completed
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := fn(ctx); err != nil {
		return true, err
	}
	guard.Complete(claim)
	return true, nil
}
