package idem

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// keptSizes are what chunks may have grown to when a life ends.
var keptSizes = []int{firstChunk, 512, 1024, 2048, 3072, chunkSize}

// arenaThatKept returns an empty arena as recycle may leave it, with chunks of these
// sizes, in which there still is what was in them.
func arenaThatKept(sizes ...int) (a arena) {
	for _, size := range sizes {
		chunk := make([]byte, size)
		for i := range chunk {
			chunk[i] = 0xee
		}
		a.chunks = append(a.chunks, chunk)
	}
	return a
}

// someText is as long as a key can be, or a little shorter than a chunk.
func someText(rnd *rand.Rand) []byte {
	most := maxKey
	if rnd.IntN(8) == 0 {
		most = firstChunk - 1
	}
	text := make([]byte, 1+rnd.IntN(most))
	for i := range text {
		text[i] = byte(rnd.Uint32())
	}
	return text
}

// requireTold fills an arena until it has whole chunks behind those it kept, and
// looks for every text.
func requireTold(t *testing.T, rnd *rand.Rand, a *arena) {
	t.Helper()
	put, times, total := map[uint32]string{}, 0, 0
	for n := len(a.chunks); a.used < n+3; times++ {
		text := someText(rnd)
		put[a.put(text)] = string(text)
		total += len(text)
	}
	require.Len(t, put, times, "a reference is given once")
	require.Equal(t, total, a.bytes)
	for ref, text := range put {
		if got := a.at(ref)[:len(text)]; string(got) != text {
			require.Equal(t, text, string(got), "reference %x", ref)
		}
	}
	requireWhole(t, a)
}

// requireWhole says that all chunks but the last one are full-sized, and the tail is
// in that one.
func requireWhole(t *testing.T, a *arena) {
	t.Helper()
	for i, chunk := range a.chunks[:a.used-1] {
		require.Len(t, chunk, chunkSize, "chunk %d", i)
	}
	require.Len(t, a.chunks, a.used)
	require.Equal(t, unsafe.SliceData(a.chunks[a.used-1]), unsafe.SliceData(a.tail))
	require.Equal(t, len(a.chunks[a.used-1]), cap(a.tail))
}

func TestArenaReusesTheChunksItKept(t *testing.T) {
	for _, first := range keptSizes {
		for _, second := range keptSizes {
			for _, third := range keptSizes {
				t.Run(fmt.Sprint(first, second, third), func(t *testing.T) {
					rnd := rand.New(rand.NewPCG(uint64(first), uint64(second)<<16|uint64(third)))
					a := arenaThatKept(first, second, third)
					kept := [...][]byte{a.chunks[0], a.chunks[1], a.chunks[2]}
					requireTold(t, rnd, &a)
					for i, chunk := range kept {
						same := unsafe.SliceData(chunk) == unsafe.SliceData(a.chunks[i])
						require.Equal(t, len(chunk) == chunkSize, same, "chunk %d of %d", i, len(chunk))
					}
					a.recycle(rnd.IntN(4 * chunkSize))
					requireTold(t, rnd, &a)
				})
			}
		}
	}
}

// put copies b into the arena.
func (a *arena) put(b []byte) uint32 {
	ref, room := a.reserve(len(b))
	copy(room, b)
	return ref
}

func TestArenaTellsWhatWasPut(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var a arena
	for life := range 4 {
		var refs []uint32
		var put [][]byte
		total := 0
		for range 1 + rnd.IntN(3000) {
			b := make([]byte, 1+rnd.IntN(maxKey))
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			refs, put = append(refs, a.put(b)), append(put, b)
			total += len(b)
		}
		for i := range refs {
			require.True(t, bytes.HasPrefix(a.at(refs[i]), put[i]), "life %d, entry %d", life, i)
		}
		require.Equal(t, total, a.bytes)
		require.LessOrEqual(t, cap(a.tail), chunkSize)
		a.recycle(rnd.IntN(3 * chunkSize))
		require.Zero(t, a.used)
	}
}

func TestArenaStartsSmallAndGivesBack(t *testing.T) {
	var a arena
	a.put([]byte("x"))
	a.put(make([]byte, firstChunk-1))
	require.Equal(t, firstChunk, cap(a.chunks[0]), "full, and no fuller")
	for size := 2 * firstChunk; size < chunkSize; size *= 2 {
		a.put(make([]byte, 1))
		require.Equal(t, size, cap(a.chunks[0]))
		a.put(make([]byte, size/2-1))
	}
	var starts []int
	for range 500 {
		a.put(make([]byte, maxKey))
		if a.used > 1+len(starts) {
			require.Equal(t, chunkSize, cap(a.chunks[a.used-2]), "the one before has grown to a whole one")
			starts = append(starts, cap(a.tail))
		}
	}
	require.Equal(t, []int{1024, 2048, 3072, chunkSize}, starts[:4], "a quarter of what there is")
	for range 600 {
		a.put(make([]byte, maxKey))
	}
	chunks := len(a.chunks)
	require.Greater(t, chunks, 10)
	a.recycle(a.size())
	require.Len(t, a.chunks, chunks, "kept for a life as large")
	require.Zero(t, a.size())
	a.recycle(chunks * chunkSize / 2)
	require.Len(t, a.chunks, chunks, "or half as large")
	for _, c := range []struct{ size, chunks int }{
		{2 * chunkSize, 4}, // and room for a small one, of which there is none
		{chunkSize - firstChunk, 2},
		{chunkSize - firstChunk - 1, 1},
		{chunkSize/2 - firstChunk, 1},
		{chunkSize/2 - firstChunk - 1, 0},
	} {
		a.recycle(c.size)
		require.Len(t, a.chunks, c.chunks, "twice of %d", c.size)
		require.Equal(t, c.chunks, cap(a.chunks), "nor does the list of them hold the others")
	}
	a.put([]byte("x"))
	require.Equal(t, firstChunk, a.size())
	a.recycle(0)
	require.Len(t, a.chunks, 1, "too little to give back")
	for range 100 {
		a.put(make([]byte, maxKey))
	}
	require.Equal(t, chunkSize+cap(a.chunks[1]), a.size())
	a.recycle(0)
	require.Empty(t, a.chunks, "nor kept for a life that was none")
}
