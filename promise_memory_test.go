package idem

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Promise 11, memory: grown on demand, given back after a peak, nothing
// allocated in a steady state, nothing for the collector to scan.

// heapOf returns the bytes and objects that what make returns holds on the heap.
// It takes the least of a few tries: other things come and go meanwhile.
func heapOf[T any](make func() T) (bytes, objects int) {
	bytes, objects = math.MaxInt, math.MaxInt
	for range 3 {
		before := heap()
		kept := make()
		after := heap()
		runtime.KeepAlive(kept)
		bytes = min(bytes, int(after.HeapAlloc)-int(before.HeapAlloc))
		objects = min(objects, int(after.HeapObjects)-int(before.HeapObjects))
	}
	return bytes, objects
}

func heap() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

func TestMemoryOfANewGuard(t *testing.T) {
	const guards = 500
	for _, m := range []int{2, 1000, defaultMaxTracked, manyShards, 4_000_000} {
		bytes, _ := heapOf(func() []*Generational {
			all := make([]*Generational, guards)
			for i := range all {
				all[i], _ = newGuard(t, WithMaxTracked(m))
			}
			return all
		})
		t.Logf("maxTracked %d: %d bytes", m, bytes/guards)
		require.Less(t, bytes/guards, 4096, "maxTracked %d", m)
	}
}

func TestMemoryOfAGuardThatIsHardlyUsed(t *testing.T) {
	const guards = 100
	bytes, _ := heapOf(func() []*Generational {
		all := make([]*Generational, guards)
		for i := range all {
			all[i], _ = newGuard(t)
			mustHandle(t, all[i], number(i))
		}
		return all
	})
	t.Logf("%d bytes", bytes/guards)
	require.Less(t, bytes/guards, 8192)
}

func TestMemoryPerTrackedIdAtTheCeiling(t *testing.T) {
	for _, m := range []int{1000, 1024, 2048, 4000, 10_000, few(100_000)} {
		t.Run(fmt.Sprintf("maxTracked=%d", m), func(t *testing.T) {
			guards := max(1, 20_000/m)
			bytes, objects := heapOf(func() []*Generational {
				all := make([]*Generational, guards)
				for i := range all {
					all[i] = fullGuard(t, m)
				}
				return all
			})
			t.Logf("%.1f bytes per id, %.4f objects", float64(bytes)/float64(m*guards), float64(objects)/float64(m*guards))
			require.LessOrEqual(t, bytes, 56*m*guards)
			require.LessOrEqual(t, objects, m*guards/20+500, "chunks, not an object per id")
		})
	}
}

// fullGuard has M ids of 36 bytes, after a few rotations.
func fullGuard(t testing.TB, m int) *Generational {
	g, _ := newGuard(t, WithMaxTracked(m))
	for i := range 4 * (m / 2) {
		c, _ := g.TryBegin(number(i))
		g.Complete(c)
	}
	require.Equal(t, m/2*2, g.Stats().Tracked)
	return g
}

func TestMemoryOfAPeakIsGivenBackWithinTwoRotations(t *testing.T) {
	peak := few(100_000)
	g, clock := newGuard(t, WithWindow(100), WithMaxTracked(2*peak))
	before := heap()
	for i := range peak {
		mustHandle(t, g, number(i))
	}
	held := int(heap().HeapAlloc) - int(before.HeapAlloc)
	require.Greater(t, held, 40*peak)
	// From here one id a rotation: the shards where none comes by give back too.
	for i := range 2 {
		clock.add(50)
		mustHandle(t, g, number(peak+i))
	}
	left := int(heap().HeapAlloc) - int(before.HeapAlloc)
	t.Logf("at the peak %d KiB, after two rotations %d KiB", held>>10, left>>10)
	require.Less(t, left, held/20)
	runtime.KeepAlive(g)
}

func TestMemoryOfAPeakIsGivenBackByOneLateCall(t *testing.T) {
	peak := few(50_000)
	for name, call := range map[string]func(*Generational){
		"TryBegin": func(g *Generational) { look(g, ID("x")) },
		"Complete": func(g *Generational) { g.Complete(Claim{id: ID("x"), token: 1, hash: 1}) },
		"Forget":   func(g *Generational) { g.Forget(ID("x")) },
		"Stats":    func(g *Generational) { g.Stats() },
		"Wait":     func(g *Generational) { _ = g.Wait(t.Context(), ID("x")) },
	} {
		g, clock := newGuard(t, WithWindow(100), WithMaxTracked(2*peak))
		before := heap()
		for i := range peak {
			if i == peak/2 {
				clock.add(50) // both generations are large
			}
			mustHandle(t, g, number(i))
		}
		held := int(heap().HeapAlloc) - int(before.HeapAlloc)
		clock.add(1000)
		call(g)
		left := int(heap().HeapAlloc) - int(before.HeapAlloc)
		assert.Less(t, left, held/10, "%s: at the peak %d KiB, after %d KiB", name, held>>10, left>>10)
		runtime.KeepAlive(g)
	}
}

func TestMemoryOfAPeakInFlightIsGivenBack(t *testing.T) {
	peak := few(50_000)
	for name, settle := range map[string]bool{"settled": true, "leaked": false} {
		t.Run(name, func(t *testing.T) {
			g, clock := newGuard(t, WithWindow(100), WithLease(100), WithMaxTracked(2*peak))
			before := heap()
			claims := make([]Claim, peak)
			for i := range claims {
				claims[i] = mustBegin(t, g, number(i))
			}
			for _, c := range claims {
				if settle {
					g.Release(c)
				}
			}
			clear(claims) // they hold the ids' memory
			held := int(heap().HeapAlloc) - int(before.HeapAlloc)
			for i := range 2 {
				clock.add(100)
				mustBegin(t, g, number(peak+i))
			}
			left := int(heap().HeapAlloc) - int(before.HeapAlloc)
			t.Logf("at the peak %d KiB, after two rotations %d KiB", held>>10, left>>10)
			if settle {
				require.Less(t, left, held/20)
			} else {
				// The tokens of leaked claims are kept, so that a late Complete is known.
				require.Less(t, left, held/3)
			}
			runtime.KeepAlive(g)
		})
	}
}

func TestMemoryOfForgottenIdsIsGivenBack(t *testing.T) {
	g, _ := newGuard(t, WithMaxTracked(100))
	before := heap()
	for i := range few(200_000) {
		mustHandle(t, g, number(i))
		require.True(t, g.Forget(number(i)))
	}
	require.Less(t, int(heap().HeapAlloc)-int(before.HeapAlloc), 64<<10)
	runtime.KeepAlive(g)
}

// Rooms and lapsed claims are kept in maps, which keep the size they once had.
func TestMemoryOfWaitersAndOfLateSettlesIsGivenBack(t *testing.T) {
	const peak = 20_000
	g, clock := newGuard(t, WithMaxTracked(4*peak), WithLease(100))
	before := heap()
	claims := make([]Claim, peak)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range claims {
		claims[i] = mustBegin(t, g, number(i))
		require.Error(t, g.Wait(done, number(i)))
	}
	clock.add(200)
	require.EqualValues(t, peak, g.Stats().LeasesExpired)
	for _, c := range claims {
		g.Release(c) // late: the last one empties the map
	}
	require.EqualValues(t, peak, g.Stats().LateSettles)
	for i := range g.shards {
		if sh := g.shards[i].Load(); sh != nil {
			require.Nil(t, sh.waits)
			require.Nil(t, sh.lapsed.young)
			require.Nil(t, sh.lapsed.old)
		}
	}
	clock.add(200)
	mustBegin(t, g, number(peak))
	claims = nil
	require.Less(t, int(heap().HeapAlloc)-int(before.HeapAlloc), 256<<10)
	runtime.KeepAlive(g)
	runtime.KeepAlive(claims)
}

// mallocs returns how many objects n calls of fn allocate, on average.
func mallocs(n int, fn func(i int)) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		fn(i)
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(n)
}

// skipWithInvariants is for tests of what is allocated: there the checks do.
func skipWithInvariants(t *testing.T) {
	if invariants {
		t.Skip("built with the tag invariants: its checks allocate after each step")
	}
}

func TestMemoryInASteadyStateNothingIsAllocated(t *testing.T) {
	skipWithInvariants(t)
	n := few(10_000)
	for _, size := range []int{6, 36, 64, 65, 300} {
		ids := make([]Identity, n)
		for i := range ids {
			ids[i] = ID(fmt.Sprintf("%0*d", size, i))
		}
		for _, m := range []int{1000, manyShards} {
			for name, verb := range verbs {
				t.Run(fmt.Sprintf("%s, %d bytes, maxTracked=%d", name, size, m), func(t *testing.T) {
					g, clock := newGuard(t, WithMaxTracked(m), WithWindow(time.Duration(n)), WithLease(time.Duration(n)))
					cycle := func(i int) {
						clock.add(1)
						c, _ := g.TryBegin(ids[i%n])
						verb(g, c)
					}
					for i := range 2 * n { // four rotations
						cycle(i)
					}
					require.Less(t, mallocs(n, cycle), 1000/float64(n), "but for two rotations, of all shards")
				})
			}
		}
	}
}

func TestMemoryManyInFlightAllocateNothingInASteadyState(t *testing.T) {
	skipWithInvariants(t)
	for _, many := range []int{1, fewFlights, fewFlights + 1, 100} {
		g, clock := newGuard(t, WithMaxTracked(1000), WithWindow(1000), WithLease(1000))
		claims := make([]Claim, many)
		next := func(i int) {
			clock.add(1)
			g.Complete(claims[i%many])
			claims[i%many], _ = g.TryBegin(ids50k[i])
		}
		for i := range 6000 {
			next(i)
		}
		require.Equal(t, many, g.Stats().InFlight)
		require.Zero(t, testing.AllocsPerRun(1, func() {
			for i := range 3000 { // through three leases
				next(6000 + i)
			}
		}), "%d in flight", many)
	}
}

func TestMemoryNoCallAllocates(t *testing.T) {
	skipWithInvariants(t)
	g, _ := newGuard(t)
	id, long := number(1), IDAt(strings.Repeat("x", 300), strings.Repeat("y", 300))
	mustHandle(t, g, number(2))
	mustBegin(t, g, number(3))
	ctx := t.Context()
	for name, call := range map[string]func(){
		"Begun, Release":      func() { c, _ := g.TryBegin(id); g.Release(c) },
		"Begun, Release long": func() { c, _ := g.TryBegin(long); g.Release(c) },
		"Completed":           func() { g.TryBegin(number2) },
		"InFlight":            func() { g.TryBegin(number3) },
		"unidentified":        func() { g.TryBegin(Identity{}) },
		"Wait":                func() { _ = g.Wait(ctx, id) },
		"Begin":               func() { c, _, _ := Begin(ctx, g, id); g.Release(c) },
		"Forget":              func() { g.Forget(id) },
		"with a destination":  func() { c, _ := g.TryBegin(IDAt("a", "b")); g.Release(c) },
	} {
		call()
		assert.Zero(t, testing.AllocsPerRun(1000, call), name)
	}
	var none *Generational
	assert.Zero(t, testing.AllocsPerRun(1000, func() { c, _ := none.TryBegin(id); none.Complete(c) }))
}

var number2, number3 = number(2), number(3)

func TestMemoryNothingOfTheCallersIsKept(t *testing.T) {
	// Ids cut out of large payloads must not keep the payloads.
	const n, parent = 60, 1 << 20
	for name, verb := range verbs {
		g, _ := newGuard(t)
		before := heap()
		for i := range n {
			payload := strings.Repeat("x", parent-36) + number(i).ID
			verb(g, mustBegin(t, g, ID(payload[parent-36:])))
		}
		for i := range n { // nor those in flight
			payload := strings.Repeat("x", parent-36) + number(n+i).ID
			mustBegin(t, g, ID(payload[parent-36:]))
			long := strings.Repeat("y", parent-36) + number(n+i).ID
			mustBegin(t, g, IDAt(long[parent-100:], payload[parent-100:]))
		}
		grown := int(heap().HeapAlloc) - int(before.HeapAlloc)
		require.Less(t, grown, 10<<20, "%s: %d KiB of %d MiB", name, grown>>10, 3*n)
		runtime.KeepAlive(g)
	}
}

func TestMemoryTheCollectorHasNothingToScan(t *testing.T) {
	// What there is one of for each id holds no pointer.
	for _, typ := range []reflect.Type{
		reflect.TypeFor[flight](),
		reflect.TypeOf(table{}.tags).Elem(),
		reflect.TypeOf(table{}.refs).Elem(),
		reflect.TypeOf(arena{}.chunks).Elem().Elem(),
	} {
		require.False(t, hasPointers(typ), "%v", typ)
	}
	require.True(t, hasPointers(reflect.TypeFor[Claim]()), "the check itself")
}

func hasPointers(typ reflect.Type) bool {
	switch typ.Kind() {
	case reflect.Struct:
		for i := range typ.NumField() {
			if hasPointers(typ.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Array:
		return hasPointers(typ.Elem())
	default:
		return typ.Kind() >= reflect.Array && typ.Kind() != reflect.Struct
	}
}

func TestMemoryOfAFlight(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(flight{}), uintptr(104))
}

func TestMemoryAMillionCyclesLeaveNothingInFlight(t *testing.T) {
	g, _ := newGuard(t, WithMaxTracked(10_000))
	ids := make([]Identity, 1000)
	for i := range ids {
		ids[i] = number(i)
	}
	n := rounds(1_000_000)
	before := heap()
	for i := range n {
		c, state := g.TryBegin(ids[i%1000])
		if state == Begun {
			g.Release(c)
		}
	}
	require.Zero(t, g.Stats().InFlight)
	for i := range n {
		c, _ := g.TryBegin(number(i))
		g.Complete(c)
	}
	s := g.Stats()
	require.Zero(t, s.InFlight)
	require.Zero(t, s.LeasesExpired)
	requireBalance(t, s)
	require.Less(t, int(heap().HeapAlloc)-int(before.HeapAlloc), 10_000*56+64<<10)
}

func TestMemoryAQuietGuardAllocatesNothing(t *testing.T) {
	skipWithInvariants(t)
	// All it holds ends between one message and the next.
	g, clock := newGuard(t, WithWindow(100), WithLease(100), WithMaxTracked(manyShards))
	for i := range 2000 {
		mustHandle(t, g, number(i))
	}
	i := 0
	handle := func() {
		clock.add(200)
		i++
		c, _ := g.TryBegin(ids50k[i%2])
		g.Complete(c)
	}
	handle()
	handle()
	require.Zero(t, testing.AllocsPerRun(200, handle))
}
