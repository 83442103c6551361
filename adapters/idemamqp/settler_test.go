package idemamqp_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// channelFake records what reaches the broker's channel.
type channelFake struct {
	mu    sync.Mutex // protects calls
	calls []string
	hook  func() error // what a call does and returns; nil: works
}

func (f *channelFake) Ack(tag uint64, multiple bool) error {
	return f.call("ack %d multiple=%v", tag, multiple)
}

func (f *channelFake) Nack(tag uint64, multiple, requeue bool) error {
	return f.call("nack %d multiple=%v requeue=%v", tag, multiple, requeue)
}

func (f *channelFake) Reject(tag uint64, requeue bool) error {
	return f.call("reject %d requeue=%v", tag, requeue)
}

func (f *channelFake) call(format string, args ...any) error {
	f.mu.Lock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	f.mu.Unlock()
	if f.hook == nil {
		return nil
	}
	return f.hook()
}

func (f *channelFake) told() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func delivered(t *testing.T, f amqp.Acknowledger) *idemamqp.Delivery {
	t.Helper()
	s, err := idemamqp.New("orders")
	require.NoError(t, err)
	return s.Delivery(amqp.Delivery{Acknowledger: f, DeliveryTag: 7, MessageId: "a"})
}

func TestVerbsOnTheWire(t *testing.T) {
	for _, row := range []struct {
		name string
		verb func(*idemamqp.Delivery) error
		want string
		o    idem.Outcome
	}{
		{"Ack", func(d *idemamqp.Delivery) error { return d.Ack(t.Context()) }, "ack 7 multiple=false", idem.Ack},
		{"Requeue after a failure counts against a delivery limit", func(d *idemamqp.Delivery) error { return d.Requeue(t.Context(), errHandler) }, "reject 7 requeue=true", idem.Requeue},
		{"Requeue without one", func(d *idemamqp.Delivery) error { return d.Requeue(t.Context(), nil) }, "nack 7 multiple=false requeue=true", idem.Requeue},
		{"Reject", func(d *idemamqp.Delivery) error { return d.Reject(t.Context(), errHandler) }, "reject 7 requeue=false", idem.Reject},
		{"native Ack", func(d *idemamqp.Delivery) error { return d.Msg().Ack(false) }, "ack 7 multiple=false", idem.Ack},
		{"native Nack", func(d *idemamqp.Delivery) error { return d.Msg().Nack(false, false) }, "nack 7 multiple=false requeue=false", idem.Reject},
		{"native Nack to requeue", func(d *idemamqp.Delivery) error { return d.Msg().Nack(false, true) }, "nack 7 multiple=false requeue=true", idem.Requeue},
		{"native Reject", func(d *idemamqp.Delivery) error { return d.Msg().Reject(false) }, "reject 7 requeue=false", idem.Reject},
		{"native Reject to requeue", func(d *idemamqp.Delivery) error { return d.Msg().Reject(true) }, "reject 7 requeue=true", idem.Requeue},
		{"native, of a copy of the message", func(d *idemamqp.Delivery) error { m := *d.Msg(); return m.Ack(false) }, "ack 7 multiple=false", idem.Ack},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := &channelFake{}
			d := delivered(t, f)
			assert.Equal(t, idem.Unsettled, d.Settled())
			require.NoError(t, row.verb(d))
			assert.Equal(t, row.o, d.Settled())
			for range 2 {
				assert.NoError(t, d.Ack(t.Context()))
				assert.NoError(t, d.Requeue(t.Context(), nil))
				assert.NoError(t, d.Reject(t.Context(), nil))
				assert.NoError(t, d.Msg().Ack(false))
				assert.NoError(t, d.Msg().Nack(false, true))
				assert.NoError(t, d.Msg().Reject(true))
			}
			assert.Equal(t, []string{row.want}, f.told())
			assert.Equal(t, row.o, d.Settled())
		})
	}
}

// What would settle other deliveries is refused, and nothing is sent.
func TestNativeCallsSettleThisDeliveryOnly(t *testing.T) {
	f := &channelFake{}
	d := delivered(t, f)
	assert.ErrorContains(t, d.Msg().Ack(true), "idemamqp: delivery 7: multiple must be false, not true")
	assert.ErrorContains(t, d.Msg().Nack(true, true), "multiple must be false")
	assert.ErrorContains(t, d.Msg().Acknowledger.Ack(6, false), "idemamqp: delivery 7 can't settle delivery 6")
	assert.ErrorContains(t, d.Msg().Acknowledger.Reject(8, false), "can't settle delivery 8")
	assert.Empty(t, f.told())
	assert.Equal(t, idem.Unsettled, d.Settled())
	require.NoError(t, d.Ack(t.Context()))
}

// A verb that failed may be followed by another one, which is the last then.
func TestAfterAFailedVerb(t *testing.T) {
	f := &channelFake{hook: func() error { return amqp.ErrClosed }}
	d := delivered(t, f)
	err := d.Ack(t.Context())
	assert.ErrorIs(t, err, amqp.ErrClosed)
	assert.ErrorContains(t, err, `idemamqp: ack of a message of queue "orders"`)
	assert.Equal(t, idem.Ack, d.Settled(), "what the caller wanted")
	assert.ErrorIs(t, d.Msg().Nack(false, true), amqp.ErrClosed)
	assert.Equal(t, idem.Ack, d.Settled())
	f.hook = nil
	require.NoError(t, d.Requeue(t.Context(), nil))
	assert.Equal(t, idem.Requeue, d.Settled())
	require.NoError(t, d.Ack(t.Context()))
	assert.Len(t, f.told(), 3)
}

func TestVerbWithoutTimeLeftSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := &channelFake{}
	d := delivered(t, f)
	assert.ErrorIs(t, d.Ack(ctx), context.Canceled)
	assert.ErrorIs(t, d.Requeue(ctx, nil), context.Canceled)
	assert.ErrorIs(t, d.Reject(ctx, nil), context.Canceled)
	assert.Empty(t, f.told())
	assert.Equal(t, idem.Unsettled, d.Settled())
	require.NoError(t, d.Ack(t.Context()))
	assert.NoError(t, d.Ack(ctx), "settled, so there is nothing to wait for")
}

// A write that hangs outlives the verb. Nothing else is sent meanwhile, nor
// afterwards if it has succeeded.
func TestVerbReturnsWhileTheClientIsBlocked(t *testing.T) {
	for _, late := range []error{nil, amqp.ErrClosed} {
		t.Run(fmt.Sprint("the write returns ", late), func(t *testing.T) {
			g := newGate()
			f := &channelFake{hook: func() error { g.pass(); return late }}
			d := delivered(t, f)
			first, cancel := context.WithCancel(t.Context())
			verb := make(chan error)
			go func() { verb <- d.Ack(first) }()
			g.await(t)
			cancel()
			assert.ErrorIs(t, <-verb, context.Canceled)

			second, cancel := context.WithCancel(t.Context())
			go func() { verb <- d.Requeue(second, errHandler) }()
			cancel()
			assert.ErrorIs(t, <-verb, context.Canceled)
			assert.Equal(t, []string{"ack 7 multiple=false"}, f.told())
			assert.Equal(t, idem.Ack, d.Settled())

			g.open()
			err := d.Requeue(t.Context(), errHandler)
			if late == nil {
				assert.NoError(t, err)
				assert.Equal(t, []string{"ack 7 multiple=false"}, f.told())
				return
			}
			assert.ErrorIs(t, err, late)
			assert.Equal(t, []string{"ack 7 multiple=false", "reject 7 requeue=true"}, f.told())
		})
	}
}

func TestDeliveryWithoutAChannel(t *testing.T) {
	d := delivered(t, nil)
	assert.ErrorIs(t, d.Ack(t.Context()), amqp.ErrDeliveryNotInitialized)
	assert.ErrorIs(t, d.Msg().Ack(false), amqp.ErrDeliveryNotInitialized)
}

func TestRacingVerbsReachTheBrokerOnce(t *testing.T) {
	for range 200 {
		f := &channelFake{}
		d := delivered(t, f)
		var racers sync.WaitGroup
		start := make(chan struct{})
		for _, verb := range []func() error{
			func() error { return d.Ack(t.Context()) },
			func() error { return d.Requeue(t.Context(), nil) },
			func() error { return d.Reject(t.Context(), errHandler) },
			func() error { return d.Msg().Ack(false) },
			func() error { return d.Msg().Nack(false, true) },
		} {
			racers.Go(func() {
				<-start
				assert.NoError(t, verb())
			})
		}
		close(start)
		racers.Wait()
		require.Len(t, f.told(), 1)
	}
}

func TestIdentity(t *testing.T) {
	death := func(count any) amqp.Table { return amqp.Table{"queue": "orders", "reason": "rejected", "count": count} }
	died := func(count, at int64) amqp.Table { return amqp.Table{"count": count, "time": time.Unix(at, 0)} }
	for _, row := range []struct {
		name    string
		id      string
		headers amqp.Table
		want    string
	}{
		{"first trip", "a", nil, "a"},
		{"other headers", "a", amqp.Table{"x-delivery-count": int64(3)}, "a"},
		{"returned once", "a", amqp.Table{"x-death": []any{death(int64(1))}}, "a;trip=1"},
		{"returned from a wait queue", "a", amqp.Table{"x-death": []any{death(int64(2)), death(int64(3))}}, "a;trip=5"},
		{"a count that a program has copied", "a", amqp.Table{"x-death": []any{death(int32(2)), death(uint8(1))}}, "a;trip=3"},
		{"returned at a time", "a", amqp.Table{"x-death": []any{died(1, 1_764_000_000), died(2, 1_764_000_005), death(int64(1))}}, "a;trip=4@1764000005"},
		{"a time that is none", "a", amqp.Table{"x-death": []any{amqp.Table{"count": int64(1), "time": "noon"}}}, "a;trip=1"},
		{"counts that are none", "a", amqp.Table{"x-death": []any{death("2"), death(int64(-1)), death(nil), "x", nil}}, "a"},
		{"deaths that are none", "a", amqp.Table{"x-death": "often"}, "a"},
		{"an id that looks like a trip", "a;trip=1", nil, "a;trip=1;trip="},
		{"the same, returned", "a;trip=1", amqp.Table{"x-death": []any{death(int64(1))}}, "a;trip=1;trip=1"},
		{"no id", "", nil, ""},
		{"no id, returned", "", amqp.Table{"x-death": []any{death(int64(1))}}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			msg := amqp.Delivery{MessageId: row.id, CorrelationId: row.id, Headers: row.headers, DeliveryTag: 1}
			s, err := idemamqp.New("orders")
			require.NoError(t, err)
			id, err := s.Delivery(msg).Identity()
			require.NoError(t, err)
			assert.Equal(t, idem.IDAt(row.want, "orders"), id)

			s, err = idemamqp.New("orders", idemamqp.WithID(func(m *amqp.Delivery) (string, error) { return m.CorrelationId, nil }))
			require.NoError(t, err)
			id, err = s.Delivery(msg).Identity()
			require.NoError(t, err)
			assert.Equal(t, idem.IDAt(row.want, "orders"), id)
		})
	}
}

func TestIdentityFails(t *testing.T) {
	s, err := idemamqp.New("orders", idemamqp.WithID(func(*amqp.Delivery) (string, error) { return "a", errHandler }))
	require.NoError(t, err)
	id, err := s.Delivery(amqp.Delivery{}).Identity()
	assert.ErrorIs(t, err, errHandler)
	assert.ErrorContains(t, err, `idemamqp: id of a message of queue "orders"`)
	assert.Zero(t, id)
}

func TestNewRefuses(t *testing.T) {
	for text, make := range map[string]func() (*idemamqp.Source, error){
		"name is empty":                        func() (*idemamqp.Source, error) { return idemamqp.New("") },
		`queue "orders": option 1 of 1 is nil`: func() (*idemamqp.Source, error) { return idemamqp.New("orders", nil) },
		"WithID must be given a function":      func() (*idemamqp.Source, error) { return idemamqp.New("orders", idemamqp.WithID(nil)) },
	} {
		s, err := make()
		assert.Nil(t, s)
		assert.ErrorIs(t, err, idem.ErrInvalidOption)
		assert.ErrorContains(t, err, text)
	}
}

func TestNextEndsWithContext(t *testing.T) {
	s, err := idemamqp.New("orders")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Next(make(chan amqp.Delivery))(ctx)
	assert.ErrorIs(t, err, context.Canceled)
}
