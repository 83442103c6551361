// Package idemhttptest has conformance suites for what is built on idemhttp.
//
//   - [RunStore] tests an implementation of idemhttp.Store.
//   - [RunEndpoint] tests what a client sees of an endpoint, in any mode.
//   - [RunRelease] tests claim-and-release on a store that works, and on one that
//     fails at the worst moments.
//
// It needs nothing but the standard library.
package idemhttptest
