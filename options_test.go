package idem

import (
	"math"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	for _, c := range []struct {
		option Option
		name   string
		value  string
		bound  string
	}{
		{WithWindow(0), "WithWindow", "0s", "greater than 0"},
		{WithWindow(-1), "WithWindow", "-1ns", "greater than 0"},
		{WithWindow(math.MinInt64), "WithWindow", time.Duration(math.MinInt64).String(), "greater than 0"},
		{WithMaxTracked(1), "WithMaxTracked", "1", "at least 2"},
		{WithMaxTracked(0), "WithMaxTracked", "0", "at least 2"},
		{WithMaxTracked(-7), "WithMaxTracked", "-7", "at least 2"},
		{WithMaxTracked(math.MinInt), "WithMaxTracked", "-", "at least 2"},
		{WithLease(0), "WithLease", "0s", "greater than 0"},
		{WithLease(-time.Second), "WithLease", "-1s", "greater than 0"},
		{WithMessageIdentity(2), "WithMessageIdentity", "MessageIdentity(2)", "IDAndDestination or IDOnly"},
		{WithMessageIdentity(255), "WithMessageIdentity", "MessageIdentity(255)", "IDAndDestination or IDOnly"},
		{WithClock(nil), "WithClock", "nil", "must not be nil"},
		{nil, "option 2 of 2", "nil", ""},
	} {
		g, err := NewGenerational(WithMaxTracked(100), c.option)
		require.Nil(t, g)
		require.ErrorIs(t, err, ErrInvalidOption)
		for _, part := range []string{"idem: ", c.name, c.value, c.bound} {
			assert.ErrorContains(t, err, part)
		}
		_, err = NewEndpoints(WithMaxTracked(100), c.option)
		require.ErrorIs(t, err, ErrInvalidOption)
	}
}

type clockFunc func() time.Time

func (f clockFunc) Now() time.Time { return f() }

func TestOptionsRefuseANilClock(t *testing.T) {
	for _, c := range []Clock{nil, (*clock.Mock)(nil), (*guardClock)(nil), clockFunc(nil)} {
		_, err := NewGenerational(WithClock(c))
		require.ErrorIs(t, err, ErrInvalidOption, "%T", c)
		require.ErrorContains(t, err, "WithClock")
	}
	_, err := NewGenerational(WithClock(clockFunc(time.Now)))
	require.NoError(t, err)
}

func TestOptionsInRangeAreTaken(t *testing.T) {
	for _, opts := range [][]Option{
		nil, {WithWindow(1)}, {WithWindow(math.MaxInt64)}, {WithMaxTracked(2)}, {WithMaxTracked(math.MaxInt)},
		{WithLease(1)}, {WithLease(math.MaxInt64)}, {WithMessageIdentity(IDOnly)}, {WithMessageIdentity(IDAndDestination)},
		{WithClock(clock.New())}, {WithClock(clock.NewMock())},
	} {
		g, err := NewGenerational(opts...)
		require.NoError(t, err)
		mustHandle(t, g, ID("a"))
		if len(opts) == 0 {
			require.Equal(t, Completed, look(g, ID("a")))
		}
	}
}

func TestOptionsLastOneWins(t *testing.T) {
	g, _ := newGuard(t, WithWindow(7), WithWindow(100))
	require.EqualValues(t, 50, g.Stats().Horizon)
}

func TestOptionsDefaults(t *testing.T) {
	g, clock := newGuard(t)
	s := newScript(t, g, clock)
	s.play(
		row{0, "handle", "a", "Begun"},
		row{0, "begin", "f", "Begun"},
		row{0, "horizon", "", "150000000000"},
		row{5*time.Minute - 1, "look", "a", "Completed"},
		row{5 * time.Minute, "look", "a", "Begun"},
		row{2*time.Hour - 1, "begin", "f", "InFlight"},
		row{2 * time.Hour, "begin", "f", "Begun"},
	)
	for i := range 100_000 {
		mustHandle(t, g, number(i))
	}
	require.Equal(t, 100_000, g.Stats().Tracked)
	mustHandle(t, g, number(100_000))
	require.Equal(t, 50_001, g.Stats().Tracked)
}

func TestOptionsTheLeaseFollowsALongWindow(t *testing.T) {
	for window, lease := range map[time.Duration]time.Duration{
		time.Minute: time.Hour, time.Hour: time.Hour, time.Hour + 1: time.Hour + 1, 48 * time.Hour: 48 * time.Hour,
	} {
		play(t, []Option{WithWindow(window)},
			row{0, "begin", "a", "Begun"},
			row{2*lease - 1, "begin", "a", "InFlight"},
			row{2 * lease, "begin", "a", "Begun"},
		)
	}
	// A lease that is given stays as it is.
	play(t, []Option{WithWindow(48 * time.Hour), WithLease(100)},
		row{0, "begin", "a", "Begun"}, row{200, "begin", "a", "Begun"})
}

func TestOptionsAreOfUseForSeveralGuards(t *testing.T) {
	opts := []Option{WithWindow(100), WithMaxTracked(100)}
	a, err := NewGenerational(opts...)
	require.NoError(t, err)
	b, err := NewGenerational(opts...)
	require.NoError(t, err)
	mustHandle(t, a, ID("x"))
	require.Zero(t, b.Stats().Begun)
}

func TestOptionsTinyWindowsWork(t *testing.T) {
	for _, w := range []time.Duration{1, 2, 3, 80} {
		g, clock := newGuard(t, WithWindow(w))
		for i := range 100 {
			mustHandle(t, g, number(i))
			require.Equal(t, Completed, look(g, number(i)), "while time stands still")
		}
		clock.add(w)
		require.Zero(t, g.Stats().Tracked)
	}
}

func TestOptionsDoNotReadTheClock(t *testing.T) {
	_, clock := newGuard(t)
	assert.Zero(t, clock.readings())
}

func TestOptionsShards(t *testing.T) {
	for _, c := range []struct{ maxTracked, shards int }{
		{2, 1},
		{1023, 1},
		{1024, 2},
		{2000, 2},
		{2047, 2},
		{2048, 4},
		{32_767, 32},
		{32_768, 64},
		{4_000_000, 64},
		{math.MaxInt, 64},
	} {
		assert.Equal(t, c.shards, shardsFor(c.maxTracked), "maxTracked %d", c.maxTracked)
	}
	assert.EqualValues(t, 1, limitFor(2))
	assert.EqualValues(t, 1, limitFor(3))
	assert.EqualValues(t, min(math.MaxInt/2, 1<<31), limitFor(math.MaxInt))
	g, err := NewGenerational(WithMaxTracked(manyShards))
	require.NoError(t, err)
	assert.Len(t, g.shards, maxShards)
}
