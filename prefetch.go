//go:build gc && !purego && (amd64 || arm64)

package idem

import "unsafe"

// prefetch asks the core to have the cache lines of p, q and r at hand soon, for
// itself alone: they will be written to. It is a hint: it neither reads nor writes,
// waits for nothing, and no address is wrong for it. So it takes no lock, and the
// race detector has nothing to see. It takes three, since a call costs more than they
// do; two of them may be the same.
//
// What a store or an unlock would wait for then comes meanwhile: see
// docs/performance.md for what that is worth.
//
//go:noescape
func prefetch(p, q, r unsafe.Pointer)
