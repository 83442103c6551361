package idem

import (
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
