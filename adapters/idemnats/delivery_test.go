package idemnats

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	_ idem.Delivery = (*Delivery)(nil)
	_ idem.Extender = (*Delivery)(nil)
	_ idem.Pauser   = (*Delivery)(nil)
)

// stub is a message without a broker. As the client's own, it refuses to be
// settled twice.
type stub struct {
	jetstream.Msg // nil: what is not stubbed panics
	header        nats.Header
	delivered     uint64
	stream        string
	fail          error
	block         chan struct{} // calls wait for it

	mu      sync.Mutex // protects what follows
	sent    []string
	done    bool
	refused int
}

func (m *stub) call(verb string) error {
	m.mu.Lock()
	done := m.done
	if done {
		m.refused++
	} else {
		m.sent = append(m.sent, verb)
	}
	m.mu.Unlock()
	if m.block != nil {
		<-m.block
	}
	switch {
	case done:
		return jetstream.ErrMsgAlreadyAckd
	case m.fail != nil:
		return m.fail
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = verb != "in progress"
	return nil
}

func (m *stub) verbs() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string{}, m.sent...)
}

func (m *stub) Headers() nats.Header               { return m.header }
func (m *stub) Ack() error                         { return m.call("ack") }
func (m *stub) DoubleAck(context.Context) error    { return m.call("double ack") }
func (m *stub) Nak() error                         { return m.call("nak") }
func (m *stub) NakWithDelay(d time.Duration) error { return m.call("nak " + d.String()) }
func (m *stub) InProgress() error                  { return m.call("in progress") }
func (m *stub) Term() error                        { return m.call("term") }
func (m *stub) TermWithReason(reason string) error { return m.call("term " + reason) }
func (m *stub) Metadata() (*jetstream.MsgMetadata, error) {
	if m.delivered == 0 {
		return nil, jetstream.ErrMsgNoReply
	}
	meta := &jetstream.MsgMetadata{NumDelivered: m.delivered, Stream: m.stream}
	meta.Sequence.Stream = 17
	return meta, nil
}

func info(change ...func(*jetstream.ConsumerInfo)) *jetstream.ConsumerInfo {
	i := &jetstream.ConsumerInfo{Stream: "ORDERS", Name: "billing", Config: jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second,
	}}
	for _, c := range change {
		c(i)
	}
	return i
}

func withBackOff(steps ...time.Duration) func(*jetstream.ConsumerInfo) {
	return func(i *jetstream.ConsumerInfo) { i.Config.BackOff = steps }
}

func deliver(t *testing.T, m jetstream.Msg, i *jetstream.ConsumerInfo, opts ...Option) *Delivery {
	t.Helper()
	s, err := New(i, opts...)
	require.NoError(t, err)
	return s.Delivery(m)
}

func TestIdentity(t *testing.T) {
	created := time.Unix(0, 123)
	sequence := WithStreamSequence(&jetstream.StreamInfo{Config: jetstream.StreamConfig{Name: "ORDERS"}, Created: created})
	fromSubject := WithID(func(jetstream.Msg) (string, error) { return "mine", nil })
	errID := errors.New("no such field")
	for name, tt := range map[string]struct {
		msg  *stub
		opts []Option
		want string
		err  error
	}{
		"header":                   {msg: &stub{header: nats.Header{"Nats-Msg-Id": {"a"}}}, want: "a"},
		"header, first value":      {msg: &stub{header: nats.Header{"Nats-Msg-Id": {"a", "b"}}}, want: "a"},
		"header, exact name":       {msg: &stub{header: nats.Header{"nats-msg-id": {"a"}, "NATS-MSG-ID": {"b"}}}},
		"header, empty":            {msg: &stub{header: nats.Header{"Nats-Msg-Id": {""}}}},
		"no headers":               {msg: &stub{}},
		"function":                 {msg: &stub{header: nats.Header{"Nats-Msg-Id": {"a"}}}, opts: []Option{fromSubject}, want: "mine"},
		"function that fails":      {msg: &stub{}, opts: []Option{WithID(func(jetstream.Msg) (string, error) { return "x", errID })}, err: errID},
		"sequence":                 {msg: &stub{delivered: 1, stream: "ORDERS"}, opts: []Option{sequence}, want: "ORDERS@123#17"},
		"sequence, not JetStream":  {msg: &stub{}, opts: []Option{sequence}, err: jetstream.ErrMsgNoReply},
		"the last option is right": {msg: &stub{}, opts: []Option{sequence, fromSubject}, want: "mine"},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := deliver(t, tt.msg, info(), tt.opts...).Identity()
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err)
				require.ErrorContains(t, err, "idemnats: ")
				require.Equal(t, idem.Identity{}, id)
				return
			}
			require.NoError(t, err)
			require.Equal(t, idem.IDAt(tt.want, "ORDERS/billing"), id)
		})
	}
	_, err := deliver(t, &stub{delivered: 1, stream: "OTHER"}, info(), sequence).Identity()
	require.ErrorContains(t, err, `"OTHER"`)
}

func TestVerbs(t *testing.T) {
	steps := withBackOff(time.Second, time.Minute)
	long := strings.Repeat("é", 1000)
	for name, tt := range map[string]struct {
		info *jetstream.ConsumerInfo
		opts []Option
		call func(*Delivery) error
		want string
		is   idem.Outcome
	}{
		"ack":               {info(), nil, ack, "ack", idem.Ack},
		"double ack":        {info(), []Option{WithDoubleAck()}, ack, "double ack", idem.Ack},
		"never begun":       {info(), nil, requeue(nil), "nak 0s", idem.Requeue},
		"failed":            {info(), nil, requeue(errHandler), "nak 1s", idem.Requeue},
		"failed, delay":     {info(), []Option{WithRequeueDelay(5)}, requeue(errHandler), "nak 5ns", idem.Requeue},
		"failed, no delay":  {info(), []Option{WithRequeueDelay(0)}, requeue(errHandler), "nak 0s", idem.Requeue},
		"failed, BackOff":   {info(steps), nil, requeue(errHandler), "nak 1m0s", idem.Requeue},
		"never begun, too":  {info(steps), nil, requeue(nil), "nak 0s", idem.Requeue},
		"delay and BackOff": {info(steps), []Option{WithRequeueDelay(5)}, requeue(errHandler), "nak 5ns", idem.Requeue},
		"reject":            {info(), nil, reject(errHandler), "term handler failed", idem.Reject},
		"reject, no cause":  {info(), nil, reject(nil), "term ", idem.Reject},
		"reject, at length": {info(), nil, reject(errors.New("x" + long)), "term x" + long[:2*255], idem.Reject},
	} {
		t.Run(name, func(t *testing.T) {
			m := &stub{delivered: 2}
			d := deliver(t, m, tt.info, tt.opts...)
			require.Equal(t, idem.Unsettled, d.Settled())
			require.NoError(t, tt.call(d))
			require.Equal(t, []string{tt.want}, m.verbs())
			require.Equal(t, tt.is, d.Settled())
			for _, second := range []func(*Delivery) error{ack, requeue(nil), requeue(errHandler), reject(errHandler)} {
				require.NoError(t, second(d))
			}
			require.Len(t, m.verbs(), 1, "settled once")
			require.Zero(t, m.refused, "the client isn't even asked")
			require.Equal(t, tt.is, d.Settled())
		})
	}
}

func ack(d *Delivery) error { return d.Ack(context.Background()) }

func requeue(cause error) func(*Delivery) error {
	return func(d *Delivery) error { return d.Requeue(context.Background(), cause) }
}

func reject(cause error) func(*Delivery) error {
	return func(d *Delivery) error { return d.Reject(context.Background(), cause) }
}

func TestBackOffStepOfTheDelivery(t *testing.T) {
	i := info(withBackOff(time.Second, time.Minute, time.Hour))
	for delivered, want := range map[uint64]time.Duration{
		0: time.Second, 1: time.Second, 2: time.Minute, 3: time.Hour, 4: time.Hour, 1 << 63: time.Hour,
	} {
		d := deliver(t, &stub{delivered: delivered}, i)
		assert.Equal(t, want, d.RequeuePause(), delivered)
		next, err := d.Extend(context.Background())
		require.NoError(t, err)
		assert.InDelta(t, float64(want/3), float64(next), float64(want/100), delivered)
	}
}

func TestFailedVerbIsKnownAndMayBeRepeated(t *testing.T) {
	m := &stub{fail: nats.ErrConnectionClosed}
	d := deliver(t, m, info())
	err := ack(d)
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
	require.EqualError(t, err, "idemnats: ack of a message of ORDERS/billing: nats: connection closed")
	require.Equal(t, idem.Ack, d.Settled(), "what was called")
	m.fail = nil
	require.NoError(t, requeue(nil)(d))
	require.Equal(t, idem.Requeue, d.Settled(), "what the server was told")
	require.NoError(t, ack(d))
	require.Equal(t, []string{"ack", "nak 0s"}, m.verbs())
}

// The client's own message may have been settled before it was handed over.
func TestSettledBeforehandIsNoError(t *testing.T) {
	m := &stub{done: true}
	d := deliver(t, m, info())
	require.NoError(t, ack(d))
	require.Empty(t, m.verbs())
	require.ErrorIs(t, d.Msg().Nak(), jetstream.ErrMsgAlreadyAckd, "natively, the client's word counts")

	d = deliver(t, m, info())
	d.asked = d.asked.Add(-time.Hour)
	next, err := d.Extend(context.Background())
	require.NoError(t, err)
	require.Zero(t, next, "nothing to extend")
}

func TestConcurrentVerbsSettleOnce(t *testing.T) {
	for range 200 {
		m := &stub{}
		d := deliver(t, m, info())
		var workers sync.WaitGroup
		for _, verb := range []func(*Delivery) error{ack, requeue(nil), requeue(errHandler), reject(errHandler), ack} {
			workers.Go(func() { assert.NoError(t, verb(d)) })
		}
		workers.Wait()
		require.Len(t, m.verbs(), 1)
	}
}

func TestVerbsHonourTheirContext(t *testing.T) {
	for name, verb := range map[string]func(context.Context, *Delivery) error{
		"ack":     func(ctx context.Context, d *Delivery) error { return d.Ack(ctx) },
		"requeue": func(ctx context.Context, d *Delivery) error { return d.Requeue(ctx, errHandler) },
		"reject":  func(ctx context.Context, d *Delivery) error { return d.Reject(ctx, errHandler) },
		"extend": func(ctx context.Context, d *Delivery) error {
			d.asked = d.asked.Add(-time.Hour)
			_, err := d.Extend(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &stub{block: make(chan struct{})}
				d := deliver(t, m, info())
				done, cancel := context.WithCancel(t.Context())
				cancel()
				for range 20 { // or else a select might choose it by chance
					require.ErrorIs(t, verb(done, d), context.Canceled)
				}
				synctest.Wait()
				require.Empty(t, m.verbs(), "not even tried")
				require.Equal(t, idem.Unsettled, d.Settled())

				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.ErrorIs(t, verb(ctx, d), context.DeadlineExceeded, "while the client blocks")
				ctx, cancel = context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.ErrorIs(t, d.Ack(ctx), context.DeadlineExceeded, "while an earlier call is under way")
				require.Len(t, m.verbs(), 1)
				close(m.block)
				synctest.Wait()
				require.NoError(t, d.Ack(t.Context()))
			})
		})
	}
}

func TestExtendAsksEveryThirdOfAckWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &stub{}
		d := deliver(t, m, info()) // 30 s
		steps := []struct {
			after time.Duration
			next  time.Duration
			sent  int
		}{
			{0, 10 * time.Second, 0}, // fresh
			{4 * time.Second, 6 * time.Second, 0},
			{6*time.Second - 1, 1, 0},
			{1, 10 * time.Second, 1},
			{0, 10 * time.Second, 1},
			{10 * time.Second, 10 * time.Second, 2},
			{time.Hour, 10 * time.Second, 3},
		}
		for i, s := range steps {
			time.Sleep(s.after) // of the bubble's own clock
			next, err := d.Extend(t.Context())
			require.NoError(t, err)
			require.Equal(t, s.next, next, i)
			require.Len(t, m.verbs(), s.sent, i)
		}
		m.fail = nats.ErrConnectionClosed
		time.Sleep(11 * time.Second)
		next, err := d.Extend(t.Context())
		require.ErrorIs(t, err, nats.ErrConnectionClosed)
		require.Equal(t, 10*time.Second, next, "in time for one more try")
		m.fail = nil
		_, err = d.Extend(t.Context())
		require.NoError(t, err)
		require.Len(t, m.verbs(), 5, "a failed one doesn't count")

		require.NoError(t, d.Ack(t.Context()))
		time.Sleep(time.Hour)
		next, err = d.Extend(t.Context())
		require.NoError(t, err)
		require.Zero(t, next, "settled: no more calls")
		require.Len(t, m.verbs(), 6)
	})
}

func TestExtendWithoutDeadline(t *testing.T) {
	m := &stub{}
	d := deliver(t, m, info(func(i *jetstream.ConsumerInfo) { i.Config.AckWait = 0 }))
	next, err := d.Extend(context.Background())
	require.NoError(t, err)
	require.Zero(t, next)
	require.Empty(t, m.verbs())
}

// valve is a connection whose writes block while it is shut.
type valve struct {
	net.Conn
	shut atomic.Bool
	open chan struct{}
}

func (v *valve) Write(p []byte) (int, error) {
	if v.shut.Load() {
		<-v.open
	}
	return v.Conn.Write(p)
}

type dialer struct{ valve *valve }

func (d dialer) Dial(string, string) (net.Conn, error) {
	conn, err := broker.InProcessConn()
	d.valve.Conn = conn
	return d.valve, err
}

// The real client holds its lock while a write blocks, and so does every call.
func TestVerbsHonourTheirContextWhileAWriteBlocks(t *testing.T) {
	r := newRig(t, never)
	r.publish("a")
	v := &valve{open: make(chan struct{})}
	nc, err := nats.Connect("nats://valve:4222", nats.SetCustomDialer(dialer{v}), nats.NoReconnect())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	r.consumer, err = js.Consumer(t.Context(), r.info().Stream, "worker")
	require.NoError(t, err)
	d := r.next(r.source())

	v.shut.Store(true)
	require.NoError(t, nc.Publish("elsewhere", nil)) // wakes the flusher
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-time.After(quick)
		cancel()
	}()
	for err == nil { // until the flusher has the lock
		err = d.call(ctx, "in progress", func(context.Context) error { return d.msg.InProgress() })
	}
	require.ErrorIs(t, err, context.Canceled)
	v.shut.Store(false)
	close(v.open)
	require.NoError(t, d.Ack(t.Context()))
	require.NoError(t, nc.Flush())
	_, js = connect(t)
	r.consumer, err = js.Consumer(t.Context(), r.stream.CachedInfo().Config.Name, "worker")
	require.NoError(t, err)
	r.settled()
}
