package idem

import (
	"crypto/sha256"
	"hash/maphash"
	"math/bits"
	"unsafe"
)

// maxInline is the longest id, with its destination, that is kept as it is. A
// longer one is stood for by its SHA-256.
const maxInline = 64

// The first byte of a key says what follows it. Up to maxInline it is the length
// of an id without a destination, so that the common case costs one byte.
const (
	formPair       = maxInline + 1 // two lengths, the id, the destination
	formDigest     = maxInline + 2 // the SHA-256 of an id without a destination
	formPairDigest = maxInline + 3 // the SHA-256 of two: the id's and the destination's
)

// maxKey is the longest a key gets: a formPair.
const maxKey = 3 + maxInline

// key is an identity as the guard compares it: bytes that tell their own length,
// equal only for equal identities, and their hash. It is made on the stack and
// holds nothing of the caller's memory.
type key struct {
	hash uint64
	n    uint8
	buf  [maxKey]byte
}

// set makes k the key of id. It works in place because a key is too large to
// copy about for nothing.
func (k *key) set(seed maphash.Seed, id Identity, m MessageIdentity) {
	if m == IDOnly {
		id.Destination = ""
	}
	switch n := len(id.ID) + len(id.Destination); {
	case n > maxInline:
		k.setDigest(seed, id)
	case id.Destination == "":
		k.setID(seed, id.ID)
	default:
		k.setPair(seed, id)
	}
}

// setID hashes the caller's text, not the copy just made: to read at once what
// was written a moment ago, in pieces of another size, would stall the core.
func (k *key) setID(seed maphash.Seed, id string) {
	k.buf[0] = byte(len(id))
	k.n = uint8(1 + copy(k.buf[1:], id))
	k.setHash(maphash.String(seed, id))
}

func (k *key) setPair(seed maphash.Seed, id Identity) {
	k.buf[0], k.buf[1], k.buf[2] = formPair, byte(len(id.ID)), byte(len(id.Destination))
	n := 3 + copy(k.buf[3:], id.ID)
	k.n = uint8(n + copy(k.buf[n:], id.Destination))
	k.setHash(both(maphash.String(seed, id.ID), maphash.String(seed, id.Destination)))
}

func (k *key) setDigest(seed maphash.Seed, id Identity) {
	form, sum := byte(formDigest), digest(id.ID)
	if id.Destination != "" {
		form, sum = formPairDigest, pairDigest(sum, digest(id.Destination))
	}
	k.buf[0] = form
	k.n = uint8(1 + copy(k.buf[1:], sum[:]))
	k.setHash(maphash.Bytes(seed, sum[:]))
}

// pairDigest hashes two digests, not two texts one behind the other: where the id
// ends must count.
func pairDigest(id, destination [sha256.Size]byte) [sha256.Size]byte {
	var sums [2 * sha256.Size]byte
	copy(sums[:], id[:])
	copy(sums[sha256.Size:], destination[:])
	return sha256.Sum256(sums[:])
}

// digest reads the string's bytes where they are: Sum256 neither writes to nor
// keeps its argument, and a copy would be an allocation as large as the id.
func digest(s string) [sha256.Size]byte {
	return sha256.Sum256(unsafe.Slice(unsafe.StringData(s), len(s)))
}

// setHash never sets 0, which is the hash of claims this package did not give.
func (k *key) setHash(hash uint64) { k.hash = max(1, hash) }

// both is the hash of two texts: in their order, and not as one.
func both(first, second uint64) uint64 { return bits.RotateLeft64(first, 32) ^ second }

// hashOf is the hash of the key that begins b, as set has made it.
func hashOf(seed maphash.Seed, b []byte) uint64 {
	if b[0]&^rejectedBit != formPair {
		return max(1, maphash.Bytes(seed, b[1:keyLen(b)]))
	}
	cut := 3 + b[1]
	return max(1, both(maphash.Bytes(seed, b[3:cut]), maphash.Bytes(seed, b[cut:keyLen(b)])))
}

// copy makes k the same key as other.
func (k *key) copy(other *key) {
	k.hash, k.n = other.hash, other.n
	copy(k.buf[:k.n], other.buf[:])
}

func (k *key) bytes() []byte { return k.buf[:k.n] }

// keyLen is the length of the key that begins b.
func keyLen(b []byte) int {
	switch form := b[0] &^ rejectedBit; form {
	case formPair:
		return 3 + int(b[1]) + int(b[2])
	case formDigest, formPairDigest:
		return 1 + sha256.Size
	default:
		return 1 + int(form)
	}
}
