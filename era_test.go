package idem

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The rules of an era, on times alone.

var dawn = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

func since(d time.Duration) time.Time { return dawn.Add(d) }

func began(d time.Duration) generation { return generation{since(d), true} }

func TestEraTurnsWhenAnIDLands(t *testing.T) {
	none := era{number: 2}
	require.False(t, none.open(since(10), 50), "nothing has begun")
	one := none.rotated(since(10), false)
	require.Equal(t, era{number: 2, young: began(10)}, one)
	require.True(t, one.open(since(59), 50))
	require.False(t, one.open(since(60), 50))
	two := one.rotated(since(60), false)
	require.Equal(t, era{number: 3, young: began(60), old: began(10)}, two)
	three := two.rotated(since(70), true)
	require.Equal(t, era{number: 4, young: began(70), old: began(60), floor: since(60), cut: true}, three)
	four := three.rotated(since(120), false)
	require.Equal(t, era{number: 5, young: began(120), old: began(70), floor: since(60), cut: true}, four)
}

func TestEraAgesByTimeAlone(t *testing.T) {
	both := era{number: 3, young: began(50), old: began(0), floor: since(-7), cut: true}
	require.Equal(t, both, both.aged(since(99), 100))
	alone := both.aged(since(100), 100)
	require.Equal(t, era{number: 3, young: began(50), floor: since(-7), cut: true}, alone)
	require.Equal(t, alone, alone.aged(since(149), 100))
	none := alone.aged(since(150), 100)
	require.Equal(t, era{number: 5}, none, "both sets are for others now")
	require.Equal(t, none, both.aged(since(1e9), 100), "however late the call")
	require.Equal(t, none, none.aged(since(-1e9), 100), "what is gone stays so")
}

func TestEraOfAYoungGenerationThatHasNotBegunKeepsTheOldOne(t *testing.T) {
	e := era{number: 3, old: began(0)}
	require.Equal(t, era{number: 3, young: began(20), old: began(0)}, e.rotated(since(20), false))
}

func TestEraBeginsAnewWhenTheClockStepsBack(t *testing.T) {
	e := era{number: 3, young: began(50), old: began(20), floor: since(10), cut: true}
	require.Equal(t, e, e.aged(since(50), 100))
	require.Equal(t, era{number: 3, young: began(49), old: began(20), floor: since(10), cut: true}, e.aged(since(49), 100))
	require.Equal(t, era{number: 3, young: began(5), old: began(5), floor: since(5), cut: true}, e.aged(since(5), 100))
}

func TestEraHorizon(t *testing.T) {
	e := era{number: 3, young: began(50), floor: since(20)}
	require.EqualValues(t, 50, e.horizon(since(21), 50), "nothing was cut")
	e.cut = true
	for at, want := range map[time.Duration]time.Duration{19: 0, 20: 0, 21: 1, 69: 49, 70: 50, 71: 50} {
		require.Equal(t, want, e.horizon(since(at), 50), at)
	}
}
