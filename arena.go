package idem

import (
	"slices"
	"unsafe"
)

// arena keeps short byte strings in chunks. The last one starts with a quarter of all
// there is and doubles, up to chunkSize, so that little of a small arena is empty;
// those before it are whole. A reference is the chunk's number and the place in it.
type arena struct {
	tail   []byte   // what is filled of the chunk that takes what comes
	used   int      // chunks in use; the tail is in the last of them
	bytes  int      // put since the arena was empty
	wasted int      // of these, bytes of removed entries
	chunks [][]byte // at full length; those behind used are kept for later
}

const (
	chunkBits  = 12
	chunkSize  = 1 << chunkBits
	firstChunk = 256 // what the first chunk starts with: most guards are small

	cacheLine = 64
)

// reserve returns room for n bytes, fewer than firstChunk, and its reference.
func (a *arena) reserve(n int) (ref uint32, room []byte) {
	if len(a.tail)+n > cap(a.tail) {
		a.extend()
	}
	place := len(a.tail)
	a.tail = a.tail[:place+n]
	a.bytes += n
	return uint32(a.used-1)<<chunkBits | uint32(place), a.tail[place:]
}

// next returns the first and the last of the 64 bytes that come next, in the lines
// that a string is written to; nil if fewer are left in the chunk.
func (a *arena) next() (first, last unsafe.Pointer) {
	n := len(a.tail)
	if n+cacheLine > cap(a.tail) {
		return nil, nil
	}
	room := a.tail[n : n+cacheLine]
	return unsafe.Pointer(&room[0]), unsafe.Pointer(&room[cacheLine-1])
}

// extend makes room at the tail: the last chunk is doubled until it is full-sized,
// and then one more is taken into use.
func (a *arena) extend() {
	if size := cap(a.tail); 0 < size && size < chunkSize {
		larger := make([]byte, min(2*size, chunkSize))
		a.tail = larger[:copy(larger, a.tail)]
		a.chunks[a.used-1] = larger
		return
	}
	if a.used == len(a.chunks) {
		a.chunks = append(a.chunks, make([]byte, a.nextSize()))
	}
	a.tail = a.chunks[a.used][:0]
	a.used++
}

// nextSize is what another chunk starts with: a quarter of all there is.
func (a *arena) nextSize() int {
	return max(firstChunk, min(a.used, 4)*chunkSize/4)
}

// at returns the bytes from ref to the end of its chunk.
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

// size is how many bytes the chunks in use have.
func (a *arena) size() int {
	return max(0, a.used-1)*chunkSize + cap(a.tail)
}

// recycle empties the arena for a new life of about size, and gives back what is
// more than twice that.
func (a *arena) recycle(size int) {
	keep, left := 0, 2*size+2*firstChunk
	for keep < len(a.chunks) && len(a.chunks[keep]) <= left {
		left -= len(a.chunks[keep])
		keep++
	}
	if keep < len(a.chunks) {
		a.chunks = slices.Clone(a.chunks[:keep])
	}
	a.tail, a.used, a.bytes, a.wasted = nil, 0, 0, 0
}
