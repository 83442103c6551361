package ids

import "unsafe"

// Repeat says which ids of a stream have been in it before. The zero value: none.
type Repeat struct {
	// Percent of the ids have, spread evenly.
	Percent int
	// Reach is how many new ids back a repeated one may be, at least 1.
	Reach int
	// Storm, if above 1, is how often each id comes, one behind the other.
	Storm int
}

// Stream is an endless sequence of ids of one length. It is for one goroutine.
type Stream struct {
	length int
	repeat Repeat
	next   uint64 // the number of the next new id
	calls  uint64
}

// NewStream returns a stream of ids of length bytes. Two streams with the same
// arguments are the same.
func NewStream(length int, repeat Repeat) *Stream {
	return &Stream{length: length, repeat: repeat}
}

// New is how many different ids have come so far.
func (s *Stream) New() int { return int(s.next) }

// Fresh returns a new id, in memory of its own as a client's parser gives it.
func (s *Stream) Fresh() string {
	id := Of(make([]byte, 0, s.length), s.next, s.length)
	s.next++
	return unsafe.String(&id[0], len(id)) // id is not written again
}

// Past returns the id that came back new ids ago, 1 being the last, also in memory
// of its own.
func (s *Stream) Past(back int) string {
	return string(Of(make([]byte, 0, s.length), s.next-uint64(back), s.length))
}

// Batch returns the next n ids.
func (s *Stream) Batch(n int) *Batch {
	b := &Batch{text: make([]byte, 0, n*s.length), length: s.length}
	before := s.next
	for range n {
		b.text = Of(b.text, s.number(), s.length)
	}
	b.Unique = int(s.next - before)
	return b
}

// number draws the number of the next id.
func (s *Stream) number() uint64 {
	s.calls++
	coin := scramble(s.calls)
	again := coin%100 < uint64(s.repeat.Percent)
	if s.repeat.Storm > 1 {
		again = s.calls%uint64(s.repeat.Storm) != 1
	}
	if !again || s.next == 0 {
		s.next++
		return s.next - 1
	}
	reach := min(uint64(max(1, s.repeat.Reach)), s.next)
	return s.next - 1 - (coin>>8)%reach
}

// Batch is a run of ids, made beforehand so that making them is not measured.
type Batch struct {
	text   []byte
	length int

	// Unique is how many of them had not been in the stream before.
	Unique int
}

// Len is the number of ids.
func (b *Batch) Len() int { return len(b.text) / b.length }

// At returns the i-th id. All ids of a batch lie in one piece of memory, which is
// never written again: a cache may keep them.
func (b *Batch) At(i int) string {
	return unsafe.String(&b.text[i*b.length], b.length)
}
