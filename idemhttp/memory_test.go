package idemhttp_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
)

type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Time          { return time.Unix(0, c.now.Load()) }
func (c *clock) advance(d time.Duration) { c.now.Add(int64(d)) }

// numbered is a claim by a number.
func numbered(n int) idemhttp.Claim {
	var c idemhttp.Claim
	c.ID[0], c.ID[1], c.Token[0] = byte(n), byte(n>>8), byte(n)
	return c
}

func claimed(t *testing.T, s idemhttp.Store, c idemhttp.Claim, ttl time.Duration) {
	t.Helper()
	won, err := s.Claim(context.Background(), c, ttl)
	require.NoError(t, err)
	require.True(t, won)
}

func answered(t *testing.T, s idemhttp.Store, c idemhttp.Claim, body string, ttl time.Duration) {
	t.Helper()
	require.NoError(t, s.Answer(context.Background(), c, &idemhttp.Response{Status: 200, Body: []byte(body)}, ttl))
}

func holds(t *testing.T, s idemhttp.Store, c idemhttp.Claim) bool {
	t.Helper()
	_, found, err := s.Lookup(context.Background(), c.ID)
	require.NoError(t, err)
	return found
}

func TestMemoryStoreIsBoundedByClaims(t *testing.T) {
	m := idemhttp.NewMemoryStore(idemhttp.WithMaxClaims(3))
	answered(t, m, numbered(1), "a", 3*time.Hour)
	answered(t, m, numbered(2), "b", 1*time.Hour)
	answered(t, m, numbered(3), "c", 2*time.Hour)
	claimed(t, m, numbered(4), time.Hour)
	assert.False(t, holds(t, m, numbered(2)), "the first to expire goes")
	assert.True(t, holds(t, m, numbered(1)) && holds(t, m, numbered(3)) && holds(t, m, numbered(4)))
	claimed(t, m, numbered(5), time.Hour)
	assert.False(t, holds(t, m, numbered(3)))
	claimed(t, m, numbered(6), time.Hour)
	assert.Equal(t, 3, m.Stats().Running)
	assert.Equal(t, 0, m.Stats().Settled)

	won, err := m.Claim(context.Background(), numbered(7), time.Hour)
	assert.False(t, won)
	assert.ErrorIs(t, err, idemhttp.ErrStoreFull)
	assert.True(t, holds(t, m, numbered(4)) && holds(t, m, numbered(5)) && holds(t, m, numbered(6)), "what runs is never dropped")
	answered(t, m, numbered(4), "now settled", time.Hour)
	claimed(t, m, numbered(7), time.Hour)
	assert.False(t, holds(t, m, numbered(4)))
}

func TestMemoryStoreIsBoundedByBytes(t *testing.T) {
	const limit = 10_000
	m := idemhttp.NewMemoryStore(idemhttp.WithMaxBytes(limit))
	for n := range 100 {
		claimed(t, m, numbered(n), time.Duration(100+n)*time.Second)
		answered(t, m, numbered(n), strings.Repeat("x", 1000), time.Duration(100+n)*time.Second)
		assert.LessOrEqual(t, m.Stats().Bytes, int64(limit))
	}
	assert.Greater(t, m.Stats().Settled, 3)
	assert.True(t, holds(t, m, numbered(99)))
	assert.False(t, holds(t, m, numbered(0)))
}

func TestAnAnswerThatDoesNotFitLeavesTheClaim(t *testing.T) {
	m := idemhttp.NewMemoryStore(idemhttp.WithMaxBytes(2_000))
	answered(t, m, numbered(1), "small", time.Hour)
	claimed(t, m, numbered(2), time.Hour)
	err := m.Answer(context.Background(), numbered(2), &idemhttp.Response{Status: 200, Body: make([]byte, 5_000)}, time.Hour)
	require.ErrorIs(t, err, idemhttp.ErrStoreFull)
	rec, found, err := m.Lookup(context.Background(), numbered(2).ID)
	require.NoError(t, err)
	assert.True(t, found)
	assert.Equal(t, idemhttp.Running, rec.State)
	assert.True(t, holds(t, m, numbered(1)), "nothing is dropped for what doesn't fit anyway")
}

func TestMemoryIsGivenBackWithoutReap(t *testing.T) {
	c := new(clock)
	m := idemhttp.NewMemoryStore(idemhttp.WithClock(c))
	for n := range 1000 {
		claimed(t, m, numbered(n), time.Second)
		if n%2 == 0 {
			answered(t, m, numbered(n), "x", time.Second)
		}
	}
	c.advance(time.Second)
	for n := range 1000 {
		claimed(t, m, numbered(5000+n), time.Minute)
	}
	assert.Equal(t, idemhttp.MemoryStats{Running: 1000, Bytes: m.Stats().Bytes}, m.Stats())
}

func TestAnExpiredRunningClaimMakesRoom(t *testing.T) {
	c := new(clock)
	m := idemhttp.NewMemoryStore(idemhttp.WithClock(c), idemhttp.WithMaxClaims(4))
	for n := range 4 {
		claimed(t, m, numbered(n), time.Second)
	}
	c.advance(time.Second)
	for n := range 4 {
		claimed(t, m, numbered(10+n), time.Second)
	}
}

func TestMemoryOptionsPanic(t *testing.T) {
	assert.PanicsWithValue(t, "idemhttp: WithMaxClaims(0): must be at least 1", func() { idemhttp.WithMaxClaims(0) })
	assert.PanicsWithValue(t, "idemhttp: WithMaxBytes(-1): must be at least 1", func() { idemhttp.WithMaxBytes(-1) })
	assert.PanicsWithValue(t, "idemhttp: WithClock(<nil>(nil)): the clock must not be nil", func() { idemhttp.WithClock(nil) })
	assert.PanicsWithValue(t, "idemhttp: WithClock(*idemhttp_test.clock(nil)): the clock must not be nil", func() { idemhttp.WithClock((*clock)(nil)) })
	assert.PanicsWithValue(t, "idemhttp: NewMemoryStore: option 2 of 2 is nil", func() { idemhttp.NewMemoryStore(idemhttp.WithMaxClaims(1), nil) })
}

// TestMemoryStoreAgainstAModel makes random calls and compares with a map.
func TestMemoryStoreAgainstAModel(t *testing.T) {
	type entry struct {
		rec     idemhttp.Record
		expires time.Time
	}
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(1, 2))
	c := new(clock)
	m := idemhttp.NewMemoryStore(idemhttp.WithClock(c))
	model := map[idemhttp.ID]entry{}
	get := func(id idemhttp.ID) (entry, bool) {
		e, ok := model[id]
		return e, ok && c.Now().Before(e.expires)
	}
	for range 50_000 {
		claim := numbered(rng.IntN(20))
		claim.Token[1] = byte(rng.IntN(3))
		ttl := time.Duration(1+rng.IntN(50)) * time.Second
		old, there := get(claim.ID)
		switch rng.IntN(7) {
		case 0, 1:
			won, err := m.Claim(ctx, claim, ttl)
			require.NoError(t, err)
			require.Equal(t, !there, won)
			if won {
				model[claim.ID] = entry{idemhttp.Record{Claim: claim}, c.Now().Add(ttl)}
			}
		case 2:
			err := m.Answer(ctx, claim, nil, ttl)
			if there && old.rec.Token != claim.Token {
				require.ErrorIs(t, err, idemhttp.ErrNotHolder)
				break
			}
			require.NoError(t, err)
			model[claim.ID] = entry{idemhttp.Record{Claim: claim, State: idemhttp.Unanswered}, c.Now().Add(ttl)}
		case 3:
			require.NoError(t, m.Release(ctx, claim.ID, claim.Token))
			if there && old.rec.Token == claim.Token && old.rec.State == idemhttp.Running {
				delete(model, claim.ID)
			}
		case 4:
			ok, err := m.Forget(ctx, claim.ID)
			require.NoError(t, err)
			require.Equal(t, there && old.rec.State != idemhttp.Running, ok)
			if ok {
				delete(model, claim.ID)
			}
		case 5:
			if rng.IntN(20) == 0 {
				_, err := m.Reap(ctx)
				require.NoError(t, err)
			}
			c.advance(time.Duration(rng.IntN(5)) * time.Second)
		case 6:
			rec, found, err := m.Lookup(ctx, claim.ID)
			require.NoError(t, err)
			require.Equal(t, there, found)
			if found {
				require.Equal(t, old.rec, rec)
			}
		}
	}
	c.advance(time.Hour)
	_, err := m.Reap(ctx)
	require.NoError(t, err)
	assert.Equal(t, idemhttp.MemoryStats{}, m.Stats(), "every byte that was counted is counted back")
}
