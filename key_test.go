package idem

import (
	"hash/maphash"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeyTellsItsOwnLength(t *testing.T) {
	seed := maphash.MakeSeed()
	for n := 1; n < 140; n++ {
		for _, dest := range []int{0, 1, n / 2, n - 1} {
			var k key
			k.set(seed, IDAt(strings.Repeat("a", n-dest), strings.Repeat("b", dest)), IDAndDestination)
			require.Equal(t, int(k.n), keyLen(k.bytes()), "%d of %d", dest, n)
			stored := append(append([]byte{}, k.bytes()...), "what follows it"...)
			require.Equal(t, int(k.n), keyLen(stored))
			stored[0] |= rejectedBit
			require.Equal(t, int(k.n), keyLen(stored), "rejected")
			require.True(t, holds(stored, &k))
		}
	}
}

func TestKeyOf64BytesIsTheIdAndOf65ItsDigest(t *testing.T) {
	seed := maphash.MakeSeed()
	var k key
	k.set(seed, ID(strings.Repeat("a", 64)), IDAndDestination)
	require.Contains(t, string(k.bytes()), strings.Repeat("a", 64))
	k.set(seed, IDAt(strings.Repeat("a", 32), strings.Repeat("b", 32)), IDAndDestination)
	require.Contains(t, string(k.bytes()), strings.Repeat("a", 32)+strings.Repeat("b", 32))
	require.EqualValues(t, maxKey, k.n)
	for id, form := range map[Identity]int{
		ID(strings.Repeat("a", 65)):                            formDigest,
		IDAt(strings.Repeat("a", 32), strings.Repeat("b", 33)): formPairDigest,
		IDAt(strings.Repeat("a", 64), "b"):                     formPairDigest,
		IDAt("a", strings.Repeat("b", 64)):                     formPairDigest,
	} {
		k.set(seed, id, IDAndDestination)
		require.EqualValues(t, form, k.buf[0], "marked as such")
		require.EqualValues(t, 33, k.n)
		require.NotContains(t, string(k.bytes()), "aaa")
		require.NotContains(t, string(k.bytes()), "bbb")
	}
	// Under IDOnly the destination does not count, for the length either.
	k.set(seed, IDAt("a", strings.Repeat("b", 65)), IDOnly)
	require.Equal(t, "\x01a", string(k.bytes()))
}

func TestKeyHashIsThatOfTheStoredKey(t *testing.T) {
	seed := maphash.MakeSeed()
	for n := 1; n < 140; n++ {
		for _, dest := range []int{0, 1, n / 2, n - 1} {
			var k key
			k.set(seed, IDAt(strings.Repeat("a", n-dest), strings.Repeat("b", dest)), IDAndDestination)
			stored := append(append([]byte{}, k.bytes()...), "what follows it"...)
			require.Equal(t, k.hash, hashOf(seed, stored))
			stored[0] |= rejectedBit
			require.Equal(t, k.hash, hashOf(seed, stored), "rejected")
		}
	}
}

func TestKeyHashesDiffer(t *testing.T) {
	seed := maphash.MakeSeed()
	seen := map[uint64]Identity{}
	add := func(id Identity) {
		var k key
		k.set(seed, id, IDAndDestination)
		other, ok := seen[k.hash]
		require.False(t, ok, "%v and %v", id, other)
		seen[k.hash] = id
	}
	for i := range 200 {
		add(number(i))
		for j := range 50 {
			add(IDAt(number(i).ID[24:], number(j).ID[24:]))
		}
	}
}

func TestKeyHashIsNeverZero(t *testing.T) {
	// 0 is the hash of claims this package did not give.
	var k key
	k.setHash(0)
	require.NotZero(t, k.hash)
	k.setHash(7)
	require.EqualValues(t, 7, k.hash)
}

func TestKeyCopyIsTheSame(t *testing.T) {
	seed := maphash.MakeSeed()
	var a, b key
	b.set(seed, ID(strings.Repeat("x", 60)), IDAndDestination)
	a.set(seed, ID("short"), IDAndDestination)
	b.copy(&a)
	assert.Equal(t, a.bytes(), b.bytes())
	assert.Equal(t, a.hash, b.hash)
}

func TestKeyDigestLeavesTheCallersBytesAlone(t *testing.T) {
	buf := fill(1000, 'x')
	id := unsafe.String(unsafe.SliceData(buf), len(buf))
	digest(id)
	assert.Equal(t, fill(1000, 'x'), buf)
	assert.NotPanics(t, func() { digest("") })
}
