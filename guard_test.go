package idem

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// guardClock stands still until it is moved, in any direction.
type guardClock struct {
	mu    sync.Mutex
	now   time.Time
	reads int
}

func newGuardClock() *guardClock {
	return &guardClock{now: time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)}
}

func (c *guardClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	return c.now
}

func (c *guardClock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

func (c *guardClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *guardClock) readings() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads
}

// newGuard makes a guard on a clock that stands still.
func newGuard(t testing.TB, opts ...Option) (*Generational, *guardClock) {
	t.Helper()
	clock := newGuardClock()
	g, err := NewGenerational(append([]Option{WithClock(clock)}, opts...)...)
	require.NoError(t, err)
	return g, clock
}

// manyShards is a maxTracked that makes a guard of 64 shards.
const manyShards = 1 << 16

// eachSize runs a test on the guards that time alone must not tell apart: of one
// shard and of many.
func eachSize(t *testing.T, test func(t *testing.T, maxTracked int)) {
	for _, m := range []int{100, manyShards} {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) { test(t, m) })
	}
}

// row is one step of a script: at that time, since the script's start, do op
// with id, and want that to come of it.
type row struct {
	at   time.Duration
	op   string
	id   string
	want string
}

// script plays rows on one guard. It keeps the claims of each id, in the order
// they were begun.
type script struct {
	t      testing.TB
	g      *Generational
	clock  *guardClock
	start  time.Time
	claims map[string][]Claim
}

// play makes a guard of the options and plays the rows on it.
func play(t *testing.T, opts []Option, rows ...row) {
	t.Helper()
	g, clock := newGuard(t, opts...)
	newScript(t, g, clock).play(rows...)
}

func newScript(t testing.TB, g *Generational, clock *guardClock) *script {
	return &script{t: t, g: g, clock: clock, start: clock.Now(), claims: map[string][]Claim{}}
}

func (s *script) play(rows ...row) {
	s.t.Helper()
	for i, r := range rows {
		s.clock.set(s.start.Add(r.at))
		require.Equal(s.t, r.want, s.do(r.op, r.id), "row %d: at %d, %s %q", i+1, r.at, r.op, r.id)
	}
}

// do does one step. The verbs settle the id's newest claim, or with a number
// behind the id ("a#1") its n-th.
func (s *script) do(op, id string) string {
	switch op {
	case "begin": // and keep the claim
		return s.begin(id).String()
	case "look": // and leave everything as it was
		state := s.begin(id)
		if state == Begun {
			s.g.Release(s.claim(id))
		}
		return state.String()
	case "handle": // begin and complete
		state := s.begin(id)
		s.g.Complete(s.claim(id))
		return state.String()
	case "bury": // begin and reject
		state := s.begin(id)
		s.g.Reject(s.claim(id))
		return state.String()
	case "complete":
		s.g.Complete(s.claim(id))
	case "reject":
		s.g.Reject(s.claim(id))
	case "release":
		s.g.Release(s.claim(id))
	case "forget":
		return strconv.FormatBool(s.g.Forget(ID(id)))
	case "tracked":
		return strconv.Itoa(s.g.Stats().Tracked)
	case "in flight":
		return strconv.Itoa(s.g.Stats().InFlight)
	case "horizon":
		return strconv.FormatInt(int64(s.g.Stats().Horizon), 10)
	default:
		s.t.Fatalf("unknown op %q", op)
	}
	return ""
}

func (s *script) begin(id string) State {
	claim, state := s.g.TryBegin(ID(id))
	if state == Begun {
		s.claims[id] = append(s.claims[id], claim)
	}
	return state
}

func (s *script) claim(id string) Claim {
	for i, r := range id {
		if r == '#' {
			n, err := strconv.Atoi(id[i+1:])
			require.NoError(s.t, err)
			return s.claims[id[:i]][n-1]
		}
	}
	claims := s.claims[id]
	require.NotEmpty(s.t, claims, "no claim of %q", id)
	return claims[len(claims)-1]
}

// mustBegin is for ids that are unknown.
func mustBegin(t testing.TB, g *Generational, id Identity) Claim {
	t.Helper()
	claim, state := g.TryBegin(id)
	require.Equal(t, Begun, state, "TryBegin(%.80q)", id)
	return claim
}

// mustHandle begins and completes an unknown id.
func mustHandle(t testing.TB, g *Generational, id Identity) {
	t.Helper()
	g.Complete(mustBegin(t, g, id))
}

// look answers as TryBegin would, and leaves everything as it was.
func look(g *Generational, id Identity) State {
	claim, state := g.TryBegin(id)
	g.Release(claim)
	return state
}

// requireBalance checks what always holds of the counters.
func requireBalance(t testing.TB, s Stats) {
	t.Helper()
	sum := s.Completed + s.Rejected + s.Released + uint64(s.InFlight) + s.LeasesExpired
	require.Equal(t, s.Begun, sum, "Begun = Completed + Rejected + Released + InFlight + LeasesExpired: %+v", s)
}

// number is an id of 36 bytes, as a UUID has.
func number(i int) Identity { return ID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)) }

// farthest is as far from the epoch as a Duration can say.
var farthest = time.Unix(0, math.MaxInt64)

func TestScriptsTellAWrongAnswer(t *testing.T) {
	var failed recorder
	g, clock := newGuard(t)
	func() {
		defer func() { _ = recover() }()
		newScript(&failed, g, clock).play(row{0, "handle", "a", "Begun"}, row{0, "look", "a", "Rejected"})
	}()
	require.True(t, failed.failed, "a script whose want is wrong must fail")
}

// recorder is a testing.TB that notes a failure, and leaves the test by panic.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Log(...any)            {}
func (r *recorder) Name() string          { return "recorder" }
func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) FailNow()              { panic("failed") }
func (r *recorder) Fatalf(string, ...any) { r.failed = true; panic("failed") }
