package idemamqp_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem/adapters/idemamqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long tests wait for what must come.
const patience = 30 * time.Second

// missing ends a test whose server isn't there: a skip that says what to do,
// and in CI, where every server must be there, a failure.
func missing(t testing.TB, service, variable, at string, err error) {
	t.Helper()
	text := fmt.Sprintf("%s MISSING at %s: %v; run scripts/services up, or set %s", service, at, err, variable)
	if os.Getenv("CI") == "true" {
		t.Fatal(text)
	}
	t.Skip(text)
}

func amqpURL() string {
	if url := os.Getenv("IDEM_AMQP_URL"); url != "" {
		return url
	}
	return "amqp://guest:guest@127.0.0.1:5672/"
}

// wire is a connection to the broker whose plug can be pulled.
type wire struct {
	net.Conn
	mu     sync.Mutex // protects what follows
	stuck  bool
	closed chan struct{}
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	stuck := w.stuck
	w.mu.Unlock()
	if stuck {
		<-w.closed
		return 0, net.ErrClosed
	}
	return w.Conn.Write(p)
}

// block has every write hang until the connection is closed, as it does when the
// other end has vanished without a word and the buffers are full.
func (w *wire) block() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stuck = true
}

func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.closed:
	default:
		close(w.closed)
	}
	return w.Conn.Close()
}

// line is a connection with one channel on it.
type line struct {
	*amqp.Channel
	conn *amqp.Connection
	wire *wire
}

func dial(t testing.TB) *line {
	t.Helper()
	return dialWith(t, amqp.Config{})
}

func dialWith(t testing.TB, config amqp.Config) *line {
	t.Helper()
	l := &line{}
	config.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := amqp.DefaultDial(patience)(network, addr)
		if err != nil {
			return nil, err
		}
		l.wire = &wire{Conn: conn, closed: make(chan struct{})}
		return l.wire, nil
	}
	conn, err := amqp.DialConfig(amqpURL(), config)
	if err != nil {
		uri, _ := amqp.ParseURI(amqpURL())
		missing(t, "RabbitMQ", "IDEM_AMQP_URL", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), err)
	}
	l.conn = conn
	t.Cleanup(l.cut)
	if config.Recovery != nil {
		t.Cleanup(l.hangUp) // a cut would set the client to recovering
	}
	l.Channel, err = conn.Channel()
	require.NoError(t, err)
	return l
}

// cut closes the connection under whoever uses it, and tells nobody.
func (l *line) cut() {
	_ = l.wire.Close()
	_ = l.conn.Close() // the client's side of it, which may have noticed by itself
}

// hangUp closes the connection once the broker has got all that was written:
// what is on its way when a connection is cut may be lost.
func (l *line) hangUp() { _ = l.conn.CloseDeadline(time.Now().Add(patience)) }

// queue is a queue of the test's own, with another one for its dead letters.
type queue struct {
	t    testing.TB
	name string
	dead string
	line *line // for all that isn't consuming

	letters []string // ids of dead letters, as far as they were fetched
}

var kinds = []string{"classic", "quorum"}

func declare(t testing.TB, kind string) *queue {
	t.Helper()
	return declareWith(t, kind, nil)
}

// declareWith gives the queue of the dead letters some arguments more.
func declareWith(t testing.TB, kind string, afterDeath func(work string) amqp.Table) *queue {
	t.Helper()
	l := dial(t)
	q := &queue{t: t, name: "idemamqp." + rand.Text()[:12], line: l}
	q.dead = q.name + ".dead"
	var args amqp.Table
	if afterDeath != nil {
		args = afterDeath(q.name)
	}
	_, err := l.QueueDeclare(q.dead, true, false, false, false, args)
	require.NoError(t, err)
	args = amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": q.dead}
	if kind == "quorum" && hasDefaultLimit(l.conn) {
		args["x-delivery-limit"] = -1 // 20, which some cuts are enough for
	}
	_, err = l.QueueDeclare(q.name, true, false, false, false, args)
	require.NoError(t, err)
	require.NoError(t, l.Confirm(false))
	t.Cleanup(q.delete)
	return q
}

func hasDefaultLimit(conn *amqp.Connection) bool {
	version, _ := conn.Properties["version"].(string)
	major, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(major)
	return n >= 4
}

func (q *queue) delete() {
	for _, name := range []string{q.name, q.dead} {
		_, err := q.line.QueueDelete(name, false, false, false)
		require.NoError(q.t, err)
	}
}

// publish sends messages with these ids, in this order, and waits until the
// broker has them.
func (q *queue) publish(ids ...string) {
	q.t.Helper()
	msgs := make([]amqp.Publishing, len(ids))
	for i, id := range ids {
		msgs[i] = amqp.Publishing{MessageId: id, Body: []byte(id)}
	}
	q.send(msgs...)
}

func (q *queue) send(msgs ...amqp.Publishing) {
	q.t.Helper()
	ctx, cancel := context.WithTimeout(q.t.Context(), patience)
	defer cancel()
	confirmations := make([]*amqp.DeferredConfirmation, len(msgs))
	for i, msg := range msgs {
		var err error
		confirmations[i], err = q.line.PublishWithDeferredConfirmWithContext(ctx, "", q.name, false, false, msg)
		require.NoError(q.t, err)
	}
	for _, c := range confirmations {
		acked, err := c.WaitContext(ctx)
		require.NoError(q.t, err)
		require.True(q.t, acked)
	}
}

// deadLetters returns the ids of all dead letters so far.
func (q *queue) deadLetters() []string {
	q.t.Helper()
	for {
		msg, ok, err := q.line.Get(q.dead, true)
		require.NoError(q.t, err)
		if !ok {
			return slices.Clone(q.letters)
		}
		q.letters = append(q.letters, string(msg.Body))
	}
}

// requireEmpty fails if anything is in the queue once its consumers are gone: then
// it also holds what they did not settle.
func (q *queue) requireEmpty() {
	q.t.Helper()
	require.Eventually(q.t, func() bool {
		state, err := q.line.QueueDeclarePassive(q.name, true, false, false, false, nil)
		require.NoError(q.t, err)
		return state.Consumers == 0
	}, patience, 10*time.Millisecond, "consumers are still there")
	msg, ok, err := q.line.Get(q.name, true)
	require.NoError(q.t, err)
	require.Falsef(q.t, ok, "the queue holds %q still", msg.Body)
}

func (q *queue) source(opts ...idemamqp.Option) *idemamqp.Source {
	q.t.Helper()
	s, err := idemamqp.New(q.name, opts...)
	require.NoError(q.t, err)
	return s
}

const consumerTag = "worker"

// ready is how many messages wait for a consumer.
func (q *queue) ready() int {
	q.t.Helper()
	state, err := q.line.QueueDeclarePassive(q.name, true, false, false, false, nil)
	require.NoError(q.t, err)
	return state.Messages
}

// consume starts a consumer of its own connection.
func (q *queue) consume(s *idemamqp.Source, prefetch int) (*line, <-chan amqp.Delivery) {
	q.t.Helper()
	l := dial(q.t)
	require.NoError(q.t, l.Qos(prefetch, 0, false))
	deliveries, err := s.Consume(l.Channel, consumerTag, false, false, false, false, nil)
	require.NoError(q.t, err)
	return l, deliveries
}
