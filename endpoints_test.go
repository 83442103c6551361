package idem_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

// captureDefaultLog makes slog.Default a recorder, until the test is over.
func captureDefaultLog(t testing.TB) *hookLog {
	before := slog.Default()
	recorder := newHookLog()
	slog.SetDefault(slog.New(recorder))
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(os.Stderr) // SetDefault has redirected it, too
	})
	return recorder
}

func hookEndpoints(t testing.TB, opts ...idem.Option) *idem.Endpoints {
	t.Helper()
	endpoints, err := idem.NewEndpoints(opts...)
	require.NoError(t, err)
	return endpoints
}

func TestNewEndpointsValidatesThePolicy(t *testing.T) {
	for want, opt := range map[string]idem.Option{
		"WithWindow(0s)":       idem.WithWindow(0),
		"WithMaxTracked(1)":    idem.WithMaxTracked(1),
		"WithLease(-1ns)":      idem.WithLease(-1),
		"WithMessageIdentity(": idem.WithMessageIdentity(7),
		"WithClock(":           idem.WithClock(nil),
		"option 1 of 1 is nil": nil,
	} {
		endpoints, err := idem.NewEndpoints(opt)
		assert.Nil(t, endpoints)
		assert.ErrorIs(t, err, idem.ErrInvalidOption)
		assert.ErrorContains(t, err, want)
	}
}

func TestTheSameNameGivesTheSameGuard(t *testing.T) {
	endpoints := hookEndpoints(t)
	orders, err := endpoints.Guard(idem.Endpoint{Name: "orders"})
	require.NoError(t, err)
	require.NotNil(t, orders)
	again, err := endpoints.Guard(idem.Endpoint{Name: "orders"})
	require.NoError(t, err)
	assert.Same(t, orders, again)

	payments, err := endpoints.Guard(idem.Endpoint{Name: "payments"})
	require.NoError(t, err)
	assert.NotSame(t, orders, payments)
	assert.NotSame(t, orders, guardOf(t, hookEndpoints(t), "orders"), "another policy has guards of its own")
}

func guardOf(t testing.TB, endpoints *idem.Endpoints, name string, opts ...idem.Option) *idem.Generational {
	t.Helper()
	guard, err := endpoints.Guard(idem.Endpoint{Name: name}, opts...)
	require.NoError(t, err)
	return guard
}

// A reconnect builds the receiver anew, and is what makes the broker redeliver.
func TestARebuiltReceiverKnowsWhatTheOldOneHandled(t *testing.T) {
	endpoints := hookEndpoints(t)
	runs := 0
	receive := func() {
		h := newHookRig(t, func(context.Context, *fakeDelivery) error { runs++; return nil })
		h.Guard = guardOf(t, endpoints, "orders")
		d := h.arrive("a")
		require.NoError(t, h.Receive(t.Context(), d))
		assert.Equal(t, idem.Ack, d.only(t).outcome)
	}
	receive()
	receive()
	assert.Equal(t, 1, runs)
}

func TestAnEmptyNameOrUnknownModeIsAnInvalidOption(t *testing.T) {
	endpoints := hookEndpoints(t)
	for want, ep := range map[string]idem.Endpoint{
		"Endpoint.Name is empty":                                           {},
		"Endpoint.Name is empty: a guard belongs to a name":                {Mode: idem.Durable},
		`endpoint "a": Mode must be Native, Durable or Local, not Mode(3)`: {Name: "a", Mode: 3},
		"Mode(255)": {Name: "a", Mode: 255},
	} {
		guard, err := endpoints.Guard(ep)
		assert.Nil(t, guard)
		assert.ErrorIs(t, err, idem.ErrInvalidOption)
		assert.ErrorContains(t, err, want)
	}
	assert.Empty(t, maps.Collect(endpoints.All()))
}

func TestEndpointOptionsComeOnTopOfThePolicys(t *testing.T) {
	mock := clock.NewMock()
	endpoints := hookEndpoints(t, idem.WithWindow(time.Minute), idem.WithClock(mock), idem.WithMessageIdentity(idem.IDOnly))
	plain := guardOf(t, endpoints, "plain")
	longer := guardOf(t, endpoints, "longer", idem.WithWindow(time.Hour))
	for _, guard := range []*idem.Generational{plain, longer} {
		claim, _ := guard.TryBegin(idem.IDAt("a", "x"))
		guard.Complete(claim)
		_, state := guard.TryBegin(idem.IDAt("a", "y"))
		assert.Equal(t, idem.Completed, state, "the policy's identity")
	}
	mock.Add(2 * time.Minute)
	_, state := plain.TryBegin(idem.ID("a"))
	assert.Equal(t, idem.Begun, state, "the policy's window")
	_, state = longer.TryBegin(idem.ID("a"))
	assert.Equal(t, idem.Completed, state, "its own window")
}

func TestEndpointOptionsAreFixedByTheFirstCall(t *testing.T) {
	endpoints := hookEndpoints(t, idem.WithMaxTracked(50))
	first := guardOf(t, endpoints, "orders", idem.WithWindow(time.Minute), idem.WithClock(clock.NewMock()))

	for name, opts := range map[string][]idem.Option{
		"no options: what is fixed":             nil,
		"the same window":                       {idem.WithWindow(time.Minute)},
		"the policy's maxTracked":               {idem.WithMaxTracked(50)},
		"the lease it has by default":           {idem.WithLease(time.Hour)},
		"the identity it has by default":        {idem.WithMessageIdentity(idem.IDAndDestination)},
		"another clock: clocks aren't compared": {idem.WithClock(clock.NewMock())},
		"the last one counts":                   {idem.WithWindow(time.Hour), idem.WithWindow(time.Minute)},
	} {
		guard, err := endpoints.Guard(idem.Endpoint{Name: "orders"}, opts...)
		assert.NoError(t, err, name)
		assert.Same(t, first, guard, name)
	}
	for want, opt := range map[string]idem.Option{
		"WithWindow is fixed at 1m0s, not 5m0s":                        idem.WithWindow(5 * time.Minute),
		"WithMaxTracked is fixed at 50, not 51":                        idem.WithMaxTracked(51),
		"WithLease is fixed at 1h0m0s, not 1m0s":                       idem.WithLease(time.Minute),
		"WithMessageIdentity is fixed at IDAndDestination, not IDOnly": idem.WithMessageIdentity(idem.IDOnly),
		"WithWindow(0s): the window must be greater than 0":            idem.WithWindow(0),
	} {
		guard, err := endpoints.Guard(idem.Endpoint{Name: "orders"}, opt)
		assert.Nil(t, guard)
		assert.ErrorIs(t, err, idem.ErrInvalidOption)
		assert.ErrorContains(t, err, `endpoint "orders": `)
		assert.ErrorContains(t, err, want)
	}
	_, err := endpoints.Guard(idem.Endpoint{Name: "orders", Mode: idem.Durable})
	assert.ErrorIs(t, err, idem.ErrInvalidOption)
	assert.ErrorContains(t, err, `endpoint "orders": Mode is fixed at Native, not Durable`)
	assert.Same(t, first, guardOf(t, endpoints, "orders"), "a refused call changes nothing")
}

// The lease follows the window where it isn't given.
func TestTheDefaultLeaseOfAnEndpointIsComparedAsWhatItIs(t *testing.T) {
	endpoints := hookEndpoints(t)
	first := guardOf(t, endpoints, "orders", idem.WithWindow(3*time.Hour))
	assert.Same(t, first, guardOf(t, endpoints, "orders", idem.WithLease(3*time.Hour)))
	_, err := endpoints.Guard(idem.Endpoint{Name: "orders"}, idem.WithLease(time.Hour))
	assert.ErrorIs(t, err, idem.ErrInvalidOption)
}

func TestARefusedFirstCallFixesNothing(t *testing.T) {
	endpoints := hookEndpoints(t)
	_, err := endpoints.Guard(idem.Endpoint{Name: "orders"}, idem.WithWindow(-1))
	require.ErrorIs(t, err, idem.ErrInvalidOption)
	require.ErrorContains(t, err, `endpoint "orders": `)
	_, err = endpoints.Guard(idem.Endpoint{Name: "orders"}, nil)
	require.ErrorIs(t, err, idem.ErrInvalidOption)
	assert.NotNil(t, guardOf(t, endpoints, "orders", idem.WithWindow(time.Minute)))
}

func TestADurableEndpointIsOffAndWarnsOnce(t *testing.T) {
	log := captureDefaultLog(t)
	endpoints := hookEndpoints(t)
	for range 3 {
		guard, err := endpoints.Guard(idem.Endpoint{Name: "inbox", Mode: idem.Durable})
		require.NoError(t, err)
		assert.Nil(t, guard)
		claim, state := guard.TryBegin(idem.ID("a"))
		guard.Complete(claim)
		assert.Equal(t, idem.Begun, state)
	}
	records := log.all()
	require.Len(t, records, 1)
	assert.Equal(t, slog.LevelWarn, records[0].Level)
	assert.Equal(t, "inbox", hookAttr(records[0], "endpoint"))

	_, err := endpoints.Guard(idem.Endpoint{Name: "inbox"})
	assert.ErrorContains(t, err, "Mode is fixed at Durable, not Native")
	_, err = endpoints.Guard(idem.Endpoint{Name: "inbox", Mode: idem.Durable}, idem.WithWindow(time.Second))
	assert.ErrorIs(t, err, idem.ErrInvalidOption)
}

func TestALocalEndpointIsRefused(t *testing.T) {
	log := captureDefaultLog(t)
	endpoints := hookEndpoints(t)
	guardOf(t, endpoints, "orders")
	for _, name := range []string{"orders", "local"} {
		guard, err := endpoints.Guard(idem.Endpoint{Name: name, Mode: idem.Local})
		assert.Nil(t, guard)
		assert.ErrorIs(t, err, idem.ErrLocalEndpoint)
		assert.NotErrorIs(t, err, idem.ErrInvalidOption)
		assert.ErrorContains(t, err, fmt.Sprintf("endpoint %q: ", name))
	}
	assert.NotNil(t, guardOf(t, endpoints, "local"), "the refused call registered nothing")
	assert.Empty(t, log.levels())
}

func TestAllIsInTheOrderOfTheNames(t *testing.T) {
	captureDefaultLog(t)
	endpoints := hookEndpoints(t)
	want := map[string]*idem.Generational{}
	for _, name := range []string{"d", "b", "a", "e", "c"} {
		want[name] = guardOf(t, endpoints, name)
	}
	_, err := endpoints.Guard(idem.Endpoint{Name: "bb", Mode: idem.Durable})
	require.NoError(t, err)

	var names []string
	for name, guard := range endpoints.All() {
		names = append(names, name)
		assert.Same(t, want[name], guard)
	}
	assert.Equal(t, []string{"a", "b", "c", "d", "e"}, names, "a Durable endpoint has none")
}

func TestAllStopsWhereTheLoopDoes(t *testing.T) {
	endpoints := hookEndpoints(t)
	for _, name := range []string{"a", "b", "c"} {
		guardOf(t, endpoints, name)
	}
	var names []string
	for name := range endpoints.All() {
		if names = append(names, name); name == "b" {
			break
		}
	}
	assert.Equal(t, []string{"a", "b"}, names)
}

// Under a lock this loop would wait for itself.
func TestAllHoldsNoLockInTheLoop(t *testing.T) {
	endpoints := hookEndpoints(t)
	guardOf(t, endpoints, "a")
	guardOf(t, endpoints, "b")
	all := endpoints.All()
	for name := range all {
		guardOf(t, endpoints, name+"'")
		for range endpoints.All() {
		}
	}
	assert.Equal(t, []string{"a", "a'", "b", "b'"}, slices.Sorted(maps.Keys(maps.Collect(all))), "each range looks anew")
}

func TestTheZeroEndpointsHasTheDefaultPolicy(t *testing.T) {
	var endpoints idem.Endpoints
	assert.Empty(t, maps.Collect(endpoints.All()))
	guard, err := endpoints.Guard(idem.Endpoint{Name: "orders"})
	require.NoError(t, err)
	again, err := endpoints.Guard(idem.Endpoint{Name: "orders"}, idem.WithWindow(5*time.Minute), idem.WithMaxTracked(100_000))
	require.NoError(t, err)
	assert.Same(t, guard, again)
	claim, state := guard.TryBegin(idem.ID("a"))
	assert.Equal(t, idem.Begun, state)
	guard.Complete(claim)
}

func TestEndpointsAreForManyGoroutines(t *testing.T) {
	log := captureDefaultLog(t)
	endpoints := hookEndpoints(t)
	const callers = 32
	guards := make([]*idem.Generational, callers)
	var group sync.WaitGroup
	start := make(chan struct{})
	for n := range callers {
		group.Go(func() {
			<-start
			guards[n], _ = endpoints.Guard(idem.Endpoint{Name: "orders"})
			_, _ = endpoints.Guard(idem.Endpoint{Name: "inbox", Mode: idem.Durable})
			_, _ = endpoints.Guard(idem.Endpoint{Name: fmt.Sprint(n)})
			for range endpoints.All() {
			}
		})
	}
	close(start)
	group.Wait()
	for _, guard := range guards {
		assert.NotNil(t, guard)
		assert.Same(t, guards[0], guard)
	}
	assert.Len(t, log.levels(), 1, "one warning, however many ask at once")
	assert.Len(t, maps.Collect(endpoints.All()), callers+1)
}
