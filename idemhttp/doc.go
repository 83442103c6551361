// Package idemhttp runs an HTTP endpoint once per idempotency key: a client that
// retries is answered from the first attempt instead of being charged twice.
package idemhttp
