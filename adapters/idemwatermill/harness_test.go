package idemwatermill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/idem-go/idem"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// Nothing is left running, but for what Watermill's own Deduplicator never stops.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/ThreeDotsLabs/watermill/message/router/middleware.(*mapExpiringKeyRepository).cleanOutLoop"))
}

const (
	patience = 10 * time.Second
	tick     = 2 * time.Millisecond
	field    = "event_id"

	orders   = "orders"
	invoices = "invoices"
	poisoned = "poisoned"
)

var errHandler = errors.New("handler failed")

// broker keeps messages until they are acked. Those that are nacked, and those of
// a connection that is closed, come again. What is published to topics that nobody
// subscribes to stays there to be looked at.
type broker struct {
	mu     sync.Mutex // protects what follows
	queues map[string][]*message.Message
	wake   chan struct{} // closed when something is queued
	open   map[*message.Message]func()
	acks   int
	nacks  int
	lose   int                                      // so many acks get lost
	refuse func(topic string, payload string) error // for Publish
}

func newBroker() *broker {
	return &broker{queues: map[string][]*message.Message{}, wake: make(chan struct{}), open: map[*message.Message]func(){}}
}

func (b *broker) locked(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *broker) Close() error { return nil }

func (b *broker) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		var refuse func(string, string) error
		b.locked(func() { refuse = b.refuse })
		if refuse != nil {
			if err := refuse(topic, string(msg.Payload)); err != nil {
				return err
			}
		}
		b.push(topic, msg.Copy())
	}
	return nil
}

func (b *broker) push(topic string, msg *message.Message) {
	b.locked(func() {
		b.queues[topic] = append(b.queues[topic], msg)
		close(b.wake)
		b.wake = make(chan struct{})
	})
}

// pop waits for a message, and opens a delivery of it.
func (b *broker) pop(ctx context.Context, topic string) (msg, d *message.Message, again chan struct{}) {
	for ctx.Err() == nil {
		var wake chan struct{}
		b.locked(func() {
			wake = b.wake
			if q := b.queues[topic]; len(q) > 0 {
				msg, b.queues[topic] = q[0], q[1:]
				d, again = msg.Copy(), make(chan struct{})
				b.open[d] = sync.OnceFunc(func() { close(again) })
			}
		})
		if msg != nil {
			break
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
	return msg, d, again
}

// redeliver delivers again what is delivered and not settled, as if a deadline had
// run out. What becomes of the older delivery doesn't count any more.
func (b *broker) redeliver() {
	b.locked(func() {
		for _, again := range b.open {
			again()
		}
	})
}

func (b *broker) waiting(topic string) (payloads []string) {
	b.locked(func() {
		for _, msg := range b.queues[topic] {
			payloads = append(payloads, string(msg.Payload))
		}
	})
	return payloads
}

func (b *broker) counts() (acks, nacks, open int) {
	b.locked(func() { acks, nacks, open = b.acks, b.nacks, len(b.open) })
	return acks, nacks, open
}

// conn is a message.Subscriber.
type conn struct {
	broker *broker
	ctx    context.Context
	cancel context.CancelFunc
}

func (b *broker) connect() *conn {
	c := &conn{broker: b}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

func (c *conn) Close() error { c.cancel(); return nil }

func (c *conn) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(c.ctx, cancel)
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		defer cancel()
		for {
			msg, d, again := c.broker.pop(ctx, topic)
			if msg == nil {
				return
			}
			ctx, cancel := context.WithCancel(ctx)
			d.SetContext(ctx)
			select {
			case out <- d:
			case <-ctx.Done():
			}
			go func() {
				defer cancel()
				c.broker.await(ctx, topic, msg, d, again)
			}()
		}
	}()
	return out, nil
}

// await does what is to be done when a delivery is settled, or cut off.
func (b *broker) await(ctx context.Context, topic string, msg, d *message.Message, again <-chan struct{}) {
	back := true
	select {
	case <-d.Acked():
		b.locked(func() {
			b.acks++
			b.lose--
			back = b.lose >= 0
		})
	case <-d.Nacked():
		b.locked(func() { b.nacks++ })
	case <-again:
	case <-ctx.Done():
	}
	if back {
		b.push(topic, msg)
	}
	b.locked(func() { delete(b.open, d) })
	select { // past a deadline the context goes on
	case <-d.Acked():
	case <-d.Nacked():
	case <-ctx.Done():
	}
}

// rig is a broker, a guard, and what has run.
type rig struct {
	*broker
	t     *testing.T
	guard *idem.Generational
	dedup message.HandlerMiddleware

	runsMu sync.Mutex // protects runs
	runs   []string
}

func newRig(t *testing.T, opts ...Option) *rig {
	t.Helper()
	guard, err := idem.NewGenerational()
	require.NoError(t, err)
	r := &rig{broker: newBroker(), t: t, guard: guard}
	r.dedup = newDedup(t, guard, opts...)
	return r
}

func newDedup(t *testing.T, guard idem.IdempotencyGuard, opts ...Option) message.HandlerMiddleware {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	m, err := New(guard, append([]Option{WithMetadataID(field), WithLogger(quiet)}, opts...)...)
	require.NoError(t, err)
	return m
}

// publish publishes to the topic of orders. The payload tells copies apart.
func (r *rig) publish(id string, payload ...string) {
	r.t.Helper()
	msg := message.NewMessage("", []byte(id))
	if len(payload) > 0 {
		msg.Payload = []byte(payload[0])
	}
	if id != "" {
		msg.Metadata.Set(field, id)
	}
	require.NoError(r.t, r.Publish(orders, msg))
}

// ran notes a run, and returns the how manieth it is of this payload.
func (r *rig) ran(msg *message.Message) int {
	r.runsMu.Lock()
	defer r.runsMu.Unlock()
	r.runs = append(r.runs, string(msg.Payload))
	n := 0
	for _, p := range r.runs {
		if p == string(msg.Payload) {
			n++
		}
	}
	return n
}

func (r *rig) ranSoFar() []string {
	r.runsMu.Lock()
	defer r.runsMu.Unlock()
	return append([]string{}, r.runs...)
}

// start runs a router with one handler of orders that writes invoices. The function
// it returns closes it, and returns when it is closed.
func (r *rig) start(h message.HandlerFunc, middlewares ...message.HandlerMiddleware) (stop func()) {
	r.t.Helper()
	return r.startOn(r.connect(), nil, h, middlewares...)
}

func (r *rig) startOn(sub message.Subscriber, decorate message.SubscriberDecorator, h message.HandlerFunc, middlewares ...message.HandlerMiddleware) (stop func()) {
	r.t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	require.NoError(r.t, err)
	router.AddMiddleware(middlewares...)
	if decorate != nil {
		router.AddSubscriberDecorators(decorate)
	}
	router.AddHandler("billing", orders, sub, invoices, r.broker, h)
	return run(r.t, router)
}

func run(t *testing.T, router *message.Router) (stop func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case <-time.After(patience):
		t.Fatal("the router does not run")
	}
	stop = sync.OnceFunc(func() {
		if err := router.Close(); err != nil {
			t.Errorf("closing the router: %v", err)
		}
		<-done
	})
	t.Cleanup(stop)
	return stop
}

func (r *rig) poison() message.HandlerMiddleware {
	r.t.Helper()
	m, err := middleware.PoisonQueue(r.broker, poisoned)
	require.NoError(r.t, err)
	return m
}

func (r *rig) eventually(condition func() bool, text ...any) {
	r.t.Helper()
	require.Eventually(r.t, condition, patience, tick, text...)
}

// settled waits until nothing of orders is left, in the broker or in flight.
func (r *rig) settled() {
	r.t.Helper()
	r.eventually(func() bool {
		_, _, open := r.counts()
		return open == 0 && len(r.waiting(orders)) == 0 && r.guard.Stats().InFlight == 0
	})
}

// ok is a handler that makes an invoice.
func (r *rig) ok(msg *message.Message) ([]*message.Message, error) {
	r.ran(msg)
	return invoice(msg), nil
}

// failing fails the first n runs of each payload.
func (r *rig) failing(n int, err error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if r.ran(msg) <= n {
			return nil, err
		}
		return invoice(msg), nil
	}
}

func invoice(msg *message.Message) []*message.Message {
	return []*message.Message{message.NewMessage("", []byte("invoice of "+string(msg.Payload)))}
}

// gated is a handler that waits at a gate, and then returns what it is told.
type gated struct {
	r       *rig
	entered chan string
	gate    chan error
}

func (r *rig) gated() *gated {
	return &gated{r: r, entered: make(chan string, 1000), gate: make(chan error)}
}

func (g *gated) handle(msg *message.Message) ([]*message.Message, error) {
	g.r.ran(msg)
	g.entered <- string(msg.Payload)
	if err := <-g.gate; err != nil {
		return nil, err
	}
	return invoice(msg), nil
}

func (g *gated) next(t *testing.T) string {
	t.Helper()
	select {
	case p := <-g.entered:
		return p
	case <-time.After(patience):
		t.Fatal("no handler has started")
		return ""
	}
}

// failFirst refuses the first n times that something is published to a topic, for
// each payload.
func failFirst(n int, on string) func(topic, payload string) error {
	var mu sync.Mutex
	tries := map[string]int{}
	return func(topic, payload string) error {
		if topic != on {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if tries[payload]++; tries[payload] <= n {
			return fmt.Errorf("no broker for %q", topic)
		}
		return nil
	}
}
