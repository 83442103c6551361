package idemtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem"
)

func TestGuardThatCannotWork(t *testing.T) {
	g, err := idem.NewGenerational()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec Guard
		want string // "" for one that can work
	}{
		{Guard{}, "needs its Guard"},
		{Guard{Guard: g}, ""},
		{Guard{Guard: g, Window: longest, Lease: longest, MaxTracked: 64}, ""},
		{Guard{Guard: g, Window: -1}, "Window -1ns"},
		{Guard{Guard: g, Lease: -1}, "Lease -1ns"},
		{Guard{Guard: g, Window: longest + 1}, "want 0 to 8760h0m0s"},
		{Guard{Guard: g, Lease: longest + 1}, "want 0 to 8760h0m0s"},
		{Guard{Guard: g, MaxTracked: 63}, "MaxTracked 63, want 0 or at least 64"},
		{Guard{Guard: g, MaxTracked: -1}, "MaxTracked -1"},
	} {
		says(t, c.spec.problem(), c.want)
	}
}

func TestBrokerThatCannotWork(t *testing.T) {
	publish := func(string) {}
	next := func(context.Context) (*Delivery, error) { return nil, nil }
	native := func(o idem.Outcome) map[idem.Outcome]func(*Delivery) {
		return map[idem.Outcome]func(*Delivery){o: func(*Delivery) {}}
	}
	for _, c := range []struct {
		spec Broker[*Delivery]
		want string // "" for one that can work
	}{
		{Broker[*Delivery]{Publish: publish}, "needs Publish and Next"},
		{Broker[*Delivery]{Next: next}, "needs Publish and Next"},
		{Broker[*Delivery]{Publish: publish, Next: next}, ""},
		{Broker[*Delivery]{Publish: publish, Next: next, Quiet: -1}, "Quiet -1ns"},
		{Broker[*Delivery]{Publish: publish, Next: next, Patience: -time.Second}, "Patience -1s"},
		{Broker[*Delivery]{Publish: publish, Next: next, Deadline: -1}, "Deadline -1ns"},
		{Broker[*Delivery]{Publish: publish, Next: next, Native: native(idem.Requeue)}, ""},
		{Broker[*Delivery]{Publish: publish, Next: next, Native: native(idem.Postpone)}, "Native call for Postpone"},
		{Broker[*Delivery]{Publish: publish, Next: next, Native: native(idem.Unsettled)}, "Native call for Unsettled"},
	} {
		says(t, c.spec.problem(), c.want)
	}
}

func says(t *testing.T, got, want string) {
	t.Helper()
	if (want == "") != (got == "") || !strings.Contains(got, want) {
		t.Errorf("the problem is %q, want %q in it", got, want)
	}
}
