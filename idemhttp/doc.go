// Package idemhttp runs an HTTP endpoint once per idempotency key. A client that
// gets no answer sends its request again, with the same Idempotency-Key, and is
// answered from the first attempt:
//
//	endpoint, err := idemhttp.New(store, "create-payment", idemhttp.Policy{Scope: byUser})
//	…
//	mux.Handle("POST /payments", endpoint.DeduplicateWithResponse(createPayment))
//
// # What happens to a request
//
//	                           a free claim            runs, is answered, and the
//	scope, key, body  ------>  in the store  ------->  answer is stored in the claim
//	  401  400  413              |
//	                             |  taken, and answered:       the stored answer
//	                             |  for another request:       422
//	                             |  still running:             409, Retry-After
//	                             '  done, without an answer:   409
//
// The claim is one atomic step of the store, before the endpoint runs. The
// endpoint's answer is held in memory until the claim is settled, and nothing of
// it reaches the client before: a 201 is never sent for work that is then thrown
// away, nor an answer that the retry wouldn't get.
//
// An endpoint that fails (a status that [Policy.Keep] refuses, a panic, a context
// that ended) gives its claim back, and the next attempt runs. Unless some of its
// work is committed: see [Committed].
//
// # Where claims are kept
//
// [NewMemoryStore] keeps them in this process, and forgets them with it. Package
// pgstore keeps them in PostgreSQL, and can make the claim a row of the endpoint's
// own transaction: then work, claim and answer are there together or not at all.
// Other stores implement [Store]; package idemhttptest tests them.
//
// # Where the middleware belongs
//
// Around the endpoint itself: inside the router, authentication, CORS,
// compression, http.TimeoutHandler and method overrides. It takes any
// http.Handler and works with every router that does.
package idemhttp
