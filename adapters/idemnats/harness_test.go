package idemnats

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// broker is the one server of these tests. Each test has a stream of its own.
var broker *server.Server

func TestMain(m *testing.M) { os.Exit(withBroker(m)) }

// withBroker also checks that nothing is left running once the broker has stopped.
func withBroker(m *testing.M) int {
	dir, err := os.MkdirTemp("", "idemnats-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	broker, err = server.NewServer(&server.Options{
		ServerName: "idemnats", DontListen: true, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		panic(err)
	}
	broker.Start()
	if !broker.ReadyForConnections(10 * time.Second) {
		panic("the NATS server did not become ready in 10s")
	}
	code := m.Run()
	broker.Shutdown()
	broker.WaitForShutdown()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

const (
	patience = 10 * time.Second
	tick     = 2 * time.Millisecond
)

// quick is a redelivery delay short enough to wait for.
const quick = 20 * time.Millisecond

func connect(t testing.TB, opts ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect("", append([]nats.Option{nats.InProcessServer(broker), nats.NoReconnect()}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return nc, js
}

// rig is a stream with one consumer, and the guard of that endpoint.
type rig struct {
	t        testing.TB
	nc       *nats.Conn
	js       jetstream.JetStream
	stream   jetstream.Stream
	consumer jetstream.Consumer
	guard    *idem.Generational
	last     uint64 // the sequence of what was last published
}

var streams atomic.Int64

// newRig makes one whose broker redelivers after ackWait.
func newRig(t testing.TB, ackWait time.Duration, change ...func(*jetstream.ConsumerConfig)) *rig {
	t.Helper()
	nc, js := connect(t)
	name := fmt.Sprintf("S%d", streams.Add(1))
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: name, Subjects: []string{strings.ToLower(name)}, Storage: jetstream.MemoryStorage, Duplicates: 100 * time.Millisecond,
	})
	require.NoError(t, err)
	config := jetstream.ConsumerConfig{Durable: "worker", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait}
	for _, c := range change {
		c(&config)
	}
	consumer, err := stream.CreateConsumer(t.Context(), config)
	require.NoError(t, err)
	guard, err := idem.NewGenerational()
	require.NoError(t, err)
	return &rig{t: t, nc: nc, js: js, stream: stream, consumer: consumer, guard: guard}
}

func (r *rig) subject() string { return r.stream.CachedInfo().Config.Subjects[0] }

// publish publishes one message a call, also when an earlier one had the same id:
// it goes on until the broker does not drop it by itself any longer.
func (r *rig) publish(id string) {
	r.t.Helper()
	msg := &nats.Msg{Subject: r.subject(), Data: []byte("payload of " + id), Header: nats.Header{}}
	if id != "" {
		msg.Header[jetstream.MsgIDHeader] = []string{id}
	}
	require.Eventually(r.t, func() bool {
		ack, err := r.js.PublishMsg(context.Background(), msg)
		if err != nil || ack.Duplicate {
			return false
		}
		r.last = ack.Sequence
		return true
	}, patience, 10*time.Millisecond)
}

func (r *rig) source(opts ...Option) *Source {
	r.t.Helper()
	s, err := New(r.consumer.CachedInfo(), append([]Option{WithRequeueDelay(quick)}, opts...)...)
	require.NoError(r.t, err)
	return s
}

// next takes one delivery by hand.
func (r *rig) next(s *Source) *Delivery {
	r.t.Helper()
	msg, err := r.consumer.Next(jetstream.FetchMaxWait(patience))
	require.NoError(r.t, err)
	return s.Delivery(msg)
}

func (r *rig) receiver(handle func(context.Context, *Delivery) error) *Receiver {
	return &Receiver{Guard: r.guard, Handle: handle, Logger: slog.New(slog.DiscardHandler)}
}

// consume runs the receiver until the test is over, or until stop, which returns
// what Consume has returned. What passes between broker and receiver, w sees.
func (r *rig) consume(receiver *Receiver, w *wire, opts ...Option) (stop func() error) {
	r.t.Helper()
	stopping, wait := r.start(receiver, w, opts...)
	return func() error {
		stopping()
		return wait()
	}
}

// start is consume in steps: when stop has returned, nothing new is begun, and wait
// returns what Consume has returned.
func (r *rig) start(receiver *Receiver, w *wire, opts ...Option) (stop func(), wait func() error) {
	r.t.Helper()
	it, err := r.consumer.Messages(jetstream.PullMaxMessages(4))
	require.NoError(r.t, err)
	w.MessagesContext = it
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	next := r.source(opts...).Next(w)
	go func() { result <- receiver.Consume(ctx, 4, next) }()
	stop = func() {
		cancel()
		it.Stop()
	}
	wait = sync.OnceValue(func() error { return <-result })
	r.t.Cleanup(func() {
		stop()
		_ = wait()
	})
	return stop, wait
}

// settled waits until everything that was published is settled.
func (r *rig) settled() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		info := r.info()
		return info.AckFloor.Stream == r.last && info.NumAckPending == 0
	}, patience, tick)
}

func (r *rig) info() *jetstream.ConsumerInfo {
	r.t.Helper()
	info, err := r.consumer.Info(context.Background())
	require.NoError(r.t, err)
	return info
}

// eventually waits for a condition.
func (r *rig) eventually(condition func() bool) {
	r.t.Helper()
	require.Eventually(r.t, condition, patience, tick)
}

// terminated subscribes to the broker's word on messages that were rejected.
func (r *rig) terminated() *nats.Subscription {
	r.t.Helper()
	sub, err := r.nc.SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED." + r.stream.CachedInfo().Config.Name + ".>")
	require.NoError(r.t, err)
	require.NoError(r.t, r.nc.Flush())
	return sub
}

// wire is what lies between the broker and the receiver: it keeps a list of what
// the client sends, and may lose it.
type wire struct {
	jetstream.MessagesContext
	lose func(verb string, meta *jetstream.MsgMetadata) bool

	mu   sync.Mutex // protects sent
	sent []string
}

func (w *wire) Next(opts ...jetstream.NextOpt) (jetstream.Msg, error) {
	msg, err := w.MessagesContext.Next(opts...)
	if err != nil {
		return nil, err
	}
	return &wired{Msg: msg, wire: w}, nil
}

// verbs returns what was sent, in order.
func (w *wire) verbs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.sent...)
}

func (w *wire) count(verb string) int {
	n := 0
	for _, sent := range w.verbs() {
		if sent == verb {
			n++
		}
	}
	return n
}

type wired struct {
	jetstream.Msg
	wire *wire
}

func (m *wired) send(verb string, call func() error) error {
	m.wire.mu.Lock()
	m.wire.sent = append(m.wire.sent, verb)
	m.wire.mu.Unlock()
	meta, err := m.Metadata()
	if err != nil {
		return err
	}
	if m.wire.lose != nil && m.wire.lose(verb, meta) {
		return nil
	}
	return call()
}

func (m *wired) Ack() error { return m.send("ack", m.Msg.Ack) }
func (m *wired) DoubleAck(ctx context.Context) error {
	return m.send("double ack", func() error { return m.Msg.DoubleAck(ctx) })
}
func (m *wired) Nak() error { return m.send("nak", m.Msg.Nak) }
func (m *wired) NakWithDelay(d time.Duration) error {
	return m.send(fmt.Sprintf("nak %v", d), func() error { return m.Msg.NakWithDelay(d) })
}
func (m *wired) InProgress() error { return m.send("in progress", m.Msg.InProgress) }
func (m *wired) Term() error       { return m.send("term", m.Msg.Term) }
func (m *wired) TermWithReason(reason string) error {
	return m.send("term "+reason, func() error { return m.Msg.TermWithReason(reason) })
}

// idOf is the id of the delivered message.
func idOf(d *Delivery) string { return d.Msg().Headers().Get(jetstream.MsgIDHeader) }

// tally counts runs by id.
type tally struct {
	mu   sync.Mutex // protects runs
	runs map[string]int
}

// add counts a run, and returns how many there were.
func (c *tally) add(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = make(map[string]int)
	}
	c.runs[id]++
	return c.runs[id]
}

func (c *tally) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[id]
}
