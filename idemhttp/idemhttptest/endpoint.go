package idemhttptest

import (
	"net/http"
	"testing"

	"github.com/idem-go/idem/idemhttp"
)

// Subject is one endpoint under test: two middlewares over the same claims.
type Subject struct {
	// Full deduplicates with the response: DeduplicateWithResponse, InTxMiddleware.
	Full func(http.Handler) http.Handler
	// Bare keeps no response: Deduplicate, or InTxMiddleware WithoutResponse.
	Bare func(http.Handler) http.Handler
	// Endpoint is the endpoint itself, for Forget.
	Endpoint *idemhttp.Endpoint
}

// Builder makes an endpoint. All endpoints of one builder share one store.
type Builder func(name string, p idemhttp.Policy) (Subject, error)

// EndpointConfig says how to get at the endpoints under test.
type EndpointConfig struct {
	// Open opens a store and returns what makes endpoints on it. Required.
	Open func(t *testing.T) Builder
	// InTx: claim and response are one row, written when the work is committed. A
	// response over MaxResponse then fails the request.
	InTx bool
	// RunsAlong: a repeat runs although the first is still running, and is then
	// answered from the winner. So it is inside a transaction that isn't exclusive.
	RunsAlong bool
}

// OnStore is the builder for claim-and-release on a store.
func OnStore(store idemhttp.Store) Builder {
	return func(name string, p idemhttp.Policy) (Subject, error) {
		e, err := idemhttp.New(store, name, p)
		if err != nil {
			return Subject{}, err
		}
		return Subject{Full: e.DeduplicateWithResponse, Bare: e.Deduplicate, Endpoint: e}, nil
	}
}

type endpointTest struct {
	name string
	run  func(*rig, EndpointConfig)
}

// RunEndpoint tests what a client sees of an endpoint, over a real server.
func RunEndpoint(t *testing.T, cfg EndpointConfig) {
	t.Helper()
	for _, group := range [][]endpointTest{clientTests, refusalTests, bufferTests, failureTests} {
		for _, test := range group {
			t.Run(test.name, func(t *testing.T) { test.run(newRig(t, cfg.Open(t)), cfg) })
		}
	}
}
