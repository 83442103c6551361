package ids_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/benchmarks/internal/ids"
)

func TestIdsHaveTheirLengthAndDiffer(t *testing.T) {
	for _, length := range []int{16, 36, 200} {
		seen := make(map[string]bool)
		for number := range uint64(20_000) {
			id := string(ids.Of(nil, number, length))
			require.Len(t, id, length)
			require.False(t, seen[id], "%s came twice", id)
			seen[id] = true
		}
	}
	assert.Regexp(t, `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`, string(ids.Of(nil, 1, 36)))
}

// count takes n ids of a stream in batches, and returns how many there were of
// each, and how many were said to be new.
func count(s *ids.Stream, n int) (of map[string]int, unique int) {
	of = make(map[string]int)
	for range n / 1000 {
		batch := s.Batch(1000)
		unique += batch.Unique
		for i := range batch.Len() {
			of[batch.At(i)]++
		}
	}
	return of, unique
}

func TestAStreamRepeatsWhatItSays(t *testing.T) {
	for _, c := range []struct {
		name     string
		repeat   ids.Repeat
		from, to int // unique of 100,000
	}{
		{"none", ids.Repeat{}, 100_000, 100_000},
		{"one in a hundred", ids.Repeat{Percent: 1, Reach: 1000}, 98_800, 99_200},
		{"half", ids.Repeat{Percent: 50, Reach: 1000}, 49_000, 51_000},
		{"storms", ids.Repeat{Storm: 1000}, 100, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := ids.NewStream(36, c.repeat)
			of, unique := count(s, 100_000)
			assert.Len(t, of, unique)
			assert.Equal(t, unique, s.New())
			assert.GreaterOrEqual(t, unique, c.from)
			assert.LessOrEqual(t, unique, c.to)
			for id, n := range of {
				if c.repeat.Storm > 0 {
					require.Equal(t, c.repeat.Storm, n, id)
				}
			}
		})
	}
}

func TestARepeatedIdIsWithinReach(t *testing.T) {
	s := ids.NewStream(16, ids.Repeat{Percent: 50, Reach: 10})
	last := make(map[string]int) // id to how many new ones had come before it
	batch := s.Batch(10_000)
	for i := range batch.Len() {
		id := batch.At(i)
		if at, again := last[id]; again {
			require.LessOrEqual(t, len(last)-at, 10)
		} else {
			last[id] = len(last)
		}
	}
}

func TestPastIsWhatWasFresh(t *testing.T) {
	s := ids.NewStream(36, ids.Repeat{})
	first := s.Fresh()
	second := s.Fresh()
	assert.Equal(t, second, s.Past(1))
	assert.Equal(t, first, s.Past(2))
}
