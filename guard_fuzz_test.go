package idem

import (
	"math/rand/v2"
	"testing"
	"time"
)

// FuzzIds begins two identities in one guard: they are the same message exactly
// when they are equal, whatever their bytes.
func FuzzIds(f *testing.F) {
	long := string(fill(64, 'a'))
	for _, s := range [][4]string{
		{"a", "", "a", ""},
		{"ab", "c", "a", "bc"},
		{"ab", "", "a", "b"},
		{"", "a", "a", ""},
		{"\x00", "", "\x00\x00", ""},
		{"\xff", "\x80", "\x80", "\xff"},
		{long, "", long + "a", ""},
		{long, "a", long + "a", ""},
		{long[:32], long[32:], long[:31], long[31:]},
		{"A", "AA", "\x01AAA", ""},
		{"6f1e9f5c-7c1e-4b8e-9d1a-0b1c2d3e4f50", "orders", "6f1e9f5c-7c1e-4b8e-9d1a-0b1c2d3e4f50", "payments"},
	} {
		f.Add(s[0], s[1], s[2], s[3], false)
		f.Add(s[0], s[1], s[2], s[3], true)
	}
	f.Fuzz(func(t *testing.T, id1, dest1, id2, dest2 string, idOnly bool) {
		m := IDAndDestination
		if idOnly {
			m = IDOnly
		}
		g, _ := newGuard(t, WithMessageIdentity(m))
		a, b := IDAt(id1, dest1), IDAt(id2, dest2)
		c, state := g.TryBegin(a)
		if state != Begun || (c == Claim{}) != (id1 == "") {
			t.Fatalf("first of %q: %v", a, state)
		}
		same := id1 == id2 && (dest1 == dest2 || idOnly)
		if want := fuzzWant(same && id1 != "", InFlight); look(g, b) != want {
			t.Fatalf("%q in flight: %q is %v, want %v", a, b, look(g, b), want)
		}
		g.Reject(c)
		if want := fuzzWant(same && id1 != "", Rejected); look(g, b) != want {
			t.Fatalf("%q rejected: %q is %v, want %v", a, b, look(g, b), want)
		}
		if forgotten := g.Forget(b); forgotten != (same && id1 != "") {
			t.Fatalf("%q forgotten: %v", b, forgotten)
		}
		requireBalance(t, g.Stats())
	})
}

func fuzzWant(dup bool, state State) State {
	if dup {
		return state
	}
	return Begun
}

// FuzzOps plays a sequence of steps on a guard and on the model: two bytes a
// step, what to do and with which id or how much time.
func FuzzOps(f *testing.F) {
	f.Add(uint8(4), uint8(10), uint8(10), []byte{0, 0, 1, 0, 0, 0, 6, 9, 0, 0, 6, 1, 0, 0})
	f.Add(uint8(2), uint8(1), uint8(1), []byte{0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2, 5, 0})
	f.Add(uint8(7), uint8(20), uint8(5), []byte{0, 0, 6, 10, 0, 0, 2, 0, 4, 0, 0, 0, 7, 200, 0, 0, 5, 0})
	f.Add(uint8(3), uint8(255), uint8(0), []byte{0, 0, 8, 0, 0, 0, 8, 1, 0, 0, 8, 2, 0, 0, 1, 0, 3, 1, 9, 9})
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 8 {
		ops := make([]byte, 200)
		for i := range ops {
			ops[i] = byte(rnd.Uint32())
		}
		f.Add(uint8(rnd.Uint32()), uint8(rnd.Uint32()), uint8(rnd.Uint32()), ops)
	}
	f.Fuzz(func(t *testing.T, m, w, l uint8, ops []byte) {
		model := newModel(t, rand.New(rand.NewPCG(1, 1)), 2+int(m), 0)
		model.w, model.l = 1+time.Duration(w), 1+time.Duration(l)
		model.g, model.clock = newGuard(t, WithMaxTracked(2+int(m)), WithWindow(model.w), WithLease(model.l))
		for ; len(ops) >= 2; ops = ops[2:] {
			model.fuzzStep(ops[0], ops[1])
		}
		model.stats()
	})
}

func (m *model) fuzzStep(op, arg byte) {
	id := m.ids[int(arg)%len(m.ids)]
	switch op % 10 {
	case 0:
		m.tryBegin(id)
	case 1, 2, 3:
		if f := m.flying[id]; f != nil {
			m.settle(f, verb(op%10-1))
		}
	case 4:
		if n := len(m.claims); n > 0 {
			m.settle(m.claims[int(arg)%n], verb(arg%3))
		}
	case 5:
		m.forget(id)
	case 6:
		m.clock.add(time.Duration(arg))
	case 7:
		m.clock.add(-time.Duration(arg))
	case 8:
		m.clock.set([]time.Time{farthest, {}, time.Unix(0, 0), newGuardClock().now}[arg%4])
	case 9:
		m.stats()
	}
}

// FuzzClaims settles claims made of any token for any id: none counts but the
// one that was given.
func FuzzClaims(f *testing.F) {
	f.Add("a", uint64(0), uint64(0))
	f.Add("a", uint64(1), uint64(1))
	f.Add("", ^uint64(0), ^uint64(0))
	f.Fuzz(func(t *testing.T, id string, token, hash uint64) {
		g, _ := newGuard(t)
		mine := mustBegin(t, g, ID("mine"))
		for _, verb := range verbs {
			verb(g, NewClaim(ID(id), token))
			verb(g, Claim{id: ID(id), token: token, hash: hash})
			if mine.token != token {
				verb(g, Claim{id: ID("mine"), token: token, hash: mine.hash})
			}
		}
		want := Stats{InFlight: 1, Begun: 1, Horizon: defaultWindow / 2}
		if s := g.Stats(); s != want {
			t.Fatalf("%+v", s)
		}
	})
}
