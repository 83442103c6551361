package idem

// arena keeps short byte strings in chunks of one size, so that growing copies
// nothing and wastes less than a chunk. A reference is the chunk's number and
// the place in it.
type arena struct {
	chunks [][]byte // those behind used are empty, kept for later
	used   int      // chunks in use; the last of them takes what comes
	bytes  int      // put since the arena was empty
	wasted int      // of these, bytes of removed entries
}

const (
	chunkBits  = 12
	chunkSize  = 1 << chunkBits
	firstChunk = 256 // the first chunk starts small and doubles: most guards are
)

// put copies b, which must be shorter than firstChunk, and returns its reference.
func (a *arena) put(b []byte) uint32 {
	if a.used == 0 || len(a.chunks[a.used-1])+len(b) > chunkSize {
		a.extend()
	}
	chunk := &a.chunks[a.used-1]
	place := len(*chunk)
	a.makeRoom(chunk, len(b))
	*chunk = append(*chunk, b...)
	a.bytes += len(b)
	return uint32(a.used-1)<<chunkBits | uint32(place)
}

// extend takes the next chunk into use.
func (a *arena) extend() {
	if a.used == len(a.chunks) {
		a.chunks = append(a.chunks, nil)
	}
	a.used++
}

// makeRoom grows the first chunk by doubling; the others are made whole.
func (a *arena) makeRoom(chunk *[]byte, n int) {
	if len(*chunk)+n <= cap(*chunk) {
		return
	}
	size := chunkSize
	if a.used == 1 {
		size = min(chunkSize, max(firstChunk, 2*cap(*chunk)))
	}
	*chunk = append(make([]byte, 0, size), *chunk...)
}

// at returns the bytes from ref to the end of what its chunk holds.
func (a *arena) at(ref uint32) []byte {
	return a.chunks[ref>>chunkBits][ref&(chunkSize-1):]
}

// waste notes that n bytes are needed no more.
func (a *arena) waste(n int) { a.wasted += n }

// wasteful says that copying what is left is worth it: a full chunk and more
// than half of all is wasted, so that copying costs less than the removals did.
func (a *arena) wasteful() bool {
	return a.wasted > chunkSize && a.wasted > a.bytes/2
}

// recycle empties the arena for a new life in about n chunks, and gives back
// what that life will hardly need.
func (a *arena) recycle(n int) {
	if n == 0 && a.used > 0 && cap(a.chunks[0]) > 2*firstChunk {
		a.chunks = nil
	}
	if keep := 2*n + 1; len(a.chunks) > keep {
		a.chunks = append([][]byte(nil), a.chunks[:keep]...)
	}
	for i := range a.chunks {
		a.chunks[i] = a.chunks[i][:0]
	}
	a.used, a.bytes, a.wasted = 0, 0, 0
}
