package idem

import (
	"hash/maphash"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// set makes k the key of id.
func (k *key) set(seed maphash.Seed, id Identity, m MessageIdentity) {
	*k = keyOf(seed, id, m, new(keyRoom))
}

// bytes is what is stored of k.
func (k *key) bytes() []byte {
	b := make([]byte, k.len())
	k.put(b)
	return b
}

func TestKeyTellsItsOwnLength(t *testing.T) {
	seed := maphash.MakeSeed()
	for n := 1; n < 140; n++ {
		for _, dest := range []int{0, 1, n / 2, n - 1} {
			var k key
			k.set(seed, IDAt(strings.Repeat("a", n-dest), strings.Repeat("b", dest)), IDAndDestination)
			require.Equal(t, k.len(), keyLen(k.bytes()), "%d of %d", dest, n)
			require.True(t, k.begins(k.bytes()))
			stored := append(k.bytes(), "what follows it"...)
			require.Equal(t, k.len(), keyLen(stored))
			stored[0] |= rejectedBit
			require.Equal(t, k.len(), keyLen(stored), "rejected")
			require.True(t, k.begins(stored))
			require.Equal(t, k, keyIn(stored, k.hash))
			require.False(t, k.begins(stored[:k.len()-1]), "the last one in a chunk")
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
	require.Equal(t, maxKey, k.len())
	for id, form := range map[Identity]int{
		ID(strings.Repeat("a", 65)):                            formDigest,
		IDAt(strings.Repeat("a", 32), strings.Repeat("b", 33)): formPairDigest,
		IDAt(strings.Repeat("a", 64), "b"):                     formPairDigest,
		IDAt("a", strings.Repeat("b", 64)):                     formPairDigest,
	} {
		k.set(seed, id, IDAndDestination)
		require.EqualValues(t, form, k.head, "marked as such")
		require.Equal(t, 33, k.len())
		require.NotContains(t, string(k.bytes()), "aaa")
		require.NotContains(t, string(k.bytes()), "bbb")
	}
	// Under IDOnly the destination does not count, for the length either.
	k.set(seed, IDAt("a", strings.Repeat("b", 65)), IDOnly)
	require.Equal(t, "\x01a", string(k.bytes()))
}

func TestKeyThatAnotherBeginsWithIsAnother(t *testing.T) {
	seed := maphash.MakeSeed()
	for _, pair := range [][2]Identity{
		{ID("a"), ID("ab")},
		{IDAt("ab", "c"), IDAt("ab", "cd")},
		{IDAt("ab", "c"), IDAt("a", "bc")},
	} {
		var short, long key
		short.set(seed, pair[0], IDAndDestination)
		long.set(seed, pair[1], IDAndDestination)
		require.False(t, short.begins(long.bytes()))
		require.False(t, long.begins(append(short.bytes(), "d and more"...)))
	}
}

func TestKeyHashIsThatOfTheStoredKey(t *testing.T) {
	seed := maphash.MakeSeed()
	for n := 1; n < 140; n++ {
		for _, dest := range []int{0, 1, n / 2, n - 1} {
			var k key
			k.set(seed, IDAt(strings.Repeat("a", n-dest), strings.Repeat("b", dest)), IDAndDestination)
			stored := append(k.bytes(), "what follows it"...)
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
	require.NotZero(t, notZero(0))
	require.EqualValues(t, 7, notZero(7))
}

func TestKeyOfAnIdAloneCopiesNothing(t *testing.T) {
	id := strings.Repeat("x", maxInline)
	var k key
	k.set(maphash.MakeSeed(), ID(id), IDAndDestination)
	require.Same(t, unsafe.StringData(id), unsafe.StringData(k.rest))
}

func TestKeyDigestLeavesTheCallersBytesAlone(t *testing.T) {
	buf := fill(1000, 'x')
	id := unsafe.String(unsafe.SliceData(buf), len(buf))
	digest(id)
	assert.Equal(t, fill(1000, 'x'), buf)
	assert.NotPanics(t, func() { digest("") })
}
