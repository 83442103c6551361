package idem

import (
	"crypto/sha256"
	"hash/maphash"
	"unsafe"
)

// maxInline is the longest id, with its destination, that is kept as it is. A
// longer one is stood for by its SHA-256.
const maxInline = 64

// The first byte of a key says what follows it. Up to maxInline it is the length
// of an id without a destination, so that the common case costs one byte.
const (
	formPair   = maxInline + 1 // two lengths, the id, the destination
	formDigest = maxInline + 2 // a SHA-256
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
		k.setDigest(id)
	case id.Destination == "":
		k.buf[0] = byte(n)
		k.n = uint8(1 + copy(k.buf[1:], id.ID))
	default:
		k.buf[0], k.buf[1], k.buf[2] = formPair, byte(len(id.ID)), byte(len(id.Destination))
		copy(k.buf[3:], id.ID)
		k.n = uint8(3 + len(id.ID) + copy(k.buf[3+len(id.ID):], id.Destination))
	}
	k.rehash(seed)
}

// setDigest hashes the two digests, not the two texts one behind the other:
// where the id ends must count.
func (k *key) setDigest(id Identity) {
	var both [2 * sha256.Size]byte
	first, second := digest(id.ID), digest(id.Destination)
	copy(both[:], first[:])
	copy(both[sha256.Size:], second[:])
	sum := sha256.Sum256(both[:])
	k.buf[0] = formDigest
	k.n = uint8(1 + copy(k.buf[1:], sum[:]))
}

// digest reads the string's bytes where they are: Sum256 neither writes to nor
// keeps its argument, and a copy would be an allocation as large as the id.
func digest(s string) [sha256.Size]byte {
	return sha256.Sum256(unsafe.Slice(unsafe.StringData(s), len(s)))
}

// rehash never yields 0, which is the hash of claims this package did not give.
func (k *key) rehash(seed maphash.Seed) {
	k.hash = max(1, maphash.Bytes(seed, k.bytes()))
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
	case formDigest:
		return 1 + sha256.Size
	default:
		return 1 + int(form)
	}
}
