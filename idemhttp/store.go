package idemhttp

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// ID is the primary key of a claim: a hash over the endpoint's name, the scope
// and the key of the request. The key itself isn't stored.
type ID [32]byte

// Token tells the holder of a claim from everybody else. It is random, and new
// for every request.
type Token [16]byte

// Sum is the fingerprint of a request: what makes it the same request again.
type Sum struct {
	// Version names the way it was made. Sums of different versions are not
	// compared: the request counts as the same.
	Version string
	Hash    [32]byte
}

// Same tells whether s and other may be of the same request.
func (s Sum) Same(other Sum) bool { return s.Version != other.Version || s.Hash == other.Hash }

// State is how far a stored claim has got.
type State uint8

const (
	// Running: the first request has not been answered, as far as the store
	// knows. It may also have died.
	Running State = iota
	// Unanswered: the work is done, or must be taken for done, and there is no
	// answer to replay.
	Unanswered
	// Answered: the work is done, and its answer is stored.
	Answered
)

// String returns the name of the constant, or "State(n)" for a value that has
// none.
func (s State) String() string {
	return enumName("State", uint8(s), "Running", "Unanswered", "Answered")
}

// Claim is the right to answer one request: what [Store.Claim] writes.
type Claim struct {
	ID    ID
	Token Token
	Sum   Sum
}

// Response is an answer as it is stored: the headers that are kept, and the
// body, which may be empty. Header values and body are any bytes.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Record is a stored claim that hasn't expired.
type Record struct {
	Claim
	State    State
	Response *Response // not nil exactly when State is Answered
}

// ErrNotHolder is wrapped by the error of [Store.Answer] for a claim that is
// another's.
var ErrNotHolder = errors.New("idemhttp: the claim is held by another request")

// Store keeps the claims. The memory store is [NewMemoryStore]; a PostgreSQL one
// is in the package pgstore. Package idemhttptest tests an implementation
// against what is promised here.
//
// A claim exists until its ttl is over, counted from the call that set it, by
// the store's own clock. An expired claim counts as absent for every method,
// whether or not it is still there. A ttl is greater than 0.
//
// All methods may be called from any number of goroutines and honour ctx, which
// has the values of the request's, but for calls that are tried again in the
// background. What a method is given and what it returns is not changed afterwards
// by either side. The dynamic type of a Store must be comparable, as a pointer is.
type Store interface {
	// Claim writes a Running claim, and tells whether it did: of any number of
	// calls for one id, exactly one does while the claim exists, whatever the
	// tokens. It is one atomic step, never a look and then a write. It doesn't
	// wait for the holder.
	//
	// After an error the claim may or may not be there.
	Claim(ctx context.Context, c Claim, ttl time.Duration) (won bool, err error)

	// Answer makes the claim with c's id and token Answered with resp, or
	// Unanswered where resp is nil, for ttl from now. Where no claim of that id
	// exists, it writes one; also one that has expired is written anew. One with
	// another token stays as it is: ErrNotHolder.
	Answer(ctx context.Context, c Claim, resp *Response, ttl time.Duration) error

	// Release removes the claim if it is Running and the token is its own.
	// Anything else it leaves alone, without an error: it can be repeated.
	Release(ctx context.Context, id ID, token Token) error

	// Lookup returns the claim. Whether there is one is told by found.
	Lookup(ctx context.Context, id ID) (rec Record, found bool, err error)

	// Forget removes the claim unless it is Running, and tells whether it did.
	Forget(ctx context.Context, id ID) (bool, error)

	// Reap removes what has expired, and tells how many claims that were.
	Reap(ctx context.Context) (int64, error)
}
