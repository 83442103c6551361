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

// maxKey is the longest a stored key gets: a formPair.
const maxKey = 3 + maxInline

// key is an identity as the guard looks for it, and its hash. What is stored of it
// is its head and its rest: bytes that tell their own length, equal only for equal
// identities. A key lives for a call: it may be in the caller's memory, and most are,
// so that nothing is copied for a duplicate.
type key struct {
	hash uint64
	head byte // what the rest is
	rest string
}

// keyRoom is where the rest of a key is put that isn't an id alone.
type keyRoom [maxKey - 1]byte

// keyOf is the key of id.
func keyOf(seed maphash.Seed, id Identity, m MessageIdentity, room *keyRoom) key {
	if m == IDOnly {
		id.Destination = ""
	}
	switch n := len(id.ID) + len(id.Destination); {
	case n > maxInline:
		return digestKey(seed, id, room)
	case id.Destination == "":
		return key{notZero(maphash.String(seed, id.ID)), byte(n), id.ID}
	default:
		return pairKey(seed, id, room)
	}
}

func pairKey(seed maphash.Seed, id Identity, room *keyRoom) key {
	rest := append(room[:0], byte(len(id.ID)), byte(len(id.Destination)))
	rest = append(append(rest, id.ID...), id.Destination...)
	hash := both(maphash.String(seed, id.ID), maphash.String(seed, id.Destination))
	return key{notZero(hash), formPair, text(rest)}
}

func digestKey(seed maphash.Seed, id Identity, room *keyRoom) key {
	head, sum := byte(formDigest), digest(id.ID)
	if id.Destination != "" {
		head, sum = formPairDigest, pairDigest(sum, digest(id.Destination))
	}
	rest := append(room[:0], sum[:]...)
	return key{notZero(maphash.Bytes(seed, rest)), head, text(rest)}
}

// keyIn is the key that begins b, as long as b stays what it is.
func keyIn(b []byte, hash uint64) key {
	return key{hash, b[0] &^ rejectedBit, text(b[1:keyLen(b)])}
}

// text is b where it lies. Nothing writes to it while a key refers to it.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// len is how many bytes of k are stored.
func (k *key) len() int { return 1 + len(k.rest) }

// put stores k at the front of b.
func (k *key) put(b []byte) {
	b[0] = k.head
	copy(b[1:], k.rest)
}

// begins says whether the stored key that begins b is k. A key tells its own
// length, so one that begins as k does is k.
func (k *key) begins(b []byte) bool {
	return b[0]&^rejectedBit == k.head && len(b) >= k.len() && text(b[1:k.len()]) == k.rest
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

// notZero is hash, or 1 for 0, which is the hash of claims this package did not give.
func notZero(hash uint64) uint64 { return max(1, hash) }

// both is the hash of two texts: in their order, and not as one.
func both(first, second uint64) uint64 { return bits.RotateLeft64(first, 32) ^ second }

// hashOf is the hash of the key that begins b.
func hashOf(seed maphash.Seed, b []byte) uint64 {
	if b[0]&^rejectedBit != formPair {
		return notZero(maphash.Bytes(seed, b[1:keyLen(b)]))
	}
	cut := 3 + b[1]
	return notZero(both(maphash.Bytes(seed, b[3:cut]), maphash.Bytes(seed, b[cut:keyLen(b)])))
}

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
