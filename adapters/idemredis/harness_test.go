package idemredis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	// A client that could not dial tries again once a second, and notices no sooner
	// that it was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// quiet is for the client, which logs each attempt to dial.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

const (
	patience = 20 * time.Second
	tick     = 2 * time.Millisecond
	quick    = 20 * time.Millisecond // a requeue delay short enough to wait for
	never    = time.Minute           // an idle time that doesn't pass in a test
)

var errHandler = errors.New("handler failed")

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

// Missing is for the tests that see the package from outside.
var Missing = missing

func redisURL() string {
	if url := os.Getenv("IDEM_REDIS_URL"); url != "" {
		return url
	}
	return "redis://127.0.0.1:6379/0"
}

// line is a client whose connections can be cut, and whose commands are noted.
type line struct {
	*redis.Client
	cutOff atomic.Bool
	lose   func(cmd redis.Cmder) error // what a command's caller is told in place of Redis; nil: it is sent

	mu    sync.Mutex // protects what follows
	conns []net.Conn
	sent  []string
}

func dial(t testing.TB) *line {
	t.Helper()
	opts, err := redis.ParseURL(redisURL())
	require.NoError(t, err)
	l := &line{}
	opts.Dialer = l.dial
	opts.DialerRetries = 1
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	l.Client = redis.NewClient(opts)
	t.Cleanup(func() { l.Close() })
	if err := l.Ping(t.Context()).Err(); err != nil {
		missing(t, "Redis", "IDEM_REDIS_URL", opts.Addr, err)
	}
	l.AddHook(hook{l})
	return l
}

func (l *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cutOff.Load() { // perhaps while this one was dialled
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

// cut closes the connections under whoever uses them, for good.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutOff.Store(true)
	for _, conn := range l.conns {
		_ = conn.Close()
	}
}

// verbs returns the commands of that name that were given to the client.
func (l *line) count(name string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sent := range l.sent {
		if sent == name {
			n++
		}
	}
	return n
}

type hook struct{ *line }

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.mu.Lock()
		h.sent = append(h.sent, nameOf(cmd))
		h.mu.Unlock()
		if h.lose != nil {
			if err := h.lose(cmd); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

// nameOf is the command's name, or of what our script is for.
func nameOf(cmd redis.Cmder) string {
	for name, script := range map[string]*redis.Script{"renew": renewing, "return": returning, "bury": burying} {
		if args := cmd.Args(); len(args) > 1 && args[1] == script.Hash() {
			return name
		}
	}
	return strings.ToLower(cmd.Name())
}

// rig is a stream with a group, and the guard of that endpoint.
type rig struct {
	t     testing.TB
	rdb   *line // for all that isn't consuming
	place Consumer
	dead  string
	guard *idem.Generational
}

func newRig(t testing.TB) *rig {
	t.Helper()
	guard, err := idem.NewGenerational()
	require.NoError(t, err)
	stream := "idemredis:{" + rand.Text()[:12] + "}"
	r := &rig{t: t, rdb: dial(t), place: Consumer{stream, "billing", "worker"}, dead: stream + ":dead", guard: guard}
	require.NoError(t, r.rdb.XGroupCreateMkStream(t.Context(), stream, "billing", "0").Err())
	t.Cleanup(func() { require.NoError(t, r.rdb.Del(context.Background(), stream, r.dead).Err()) })
	return r
}

// publish adds entries with these ids, in this order.
func (r *rig) publish(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		values := []string{"payload", "of " + id}
		if id != "" {
			values = append(values, "id", id)
		}
		require.NoError(r.t, r.rdb.XAdd(r.t.Context(), &redis.XAddArgs{Stream: r.place.Stream, Values: values}).Err())
	}
}

func (r *rig) source(l *line, opts ...Option) *Source { return r.sourceAs("worker", l, opts...) }

func (r *rig) sourceAs(name string, l *line, opts ...Option) *Source {
	r.t.Helper()
	place := r.place
	place.Name = name
	s, err := New(l, place, FieldID("id"), append([]Option{WithMinIdle(never), WithRequeueDelay(quick), WithDeadLetters(r.dead)}, opts...)...)
	require.NoError(r.t, err)
	return s
}

func (r *rig) receiver(handle func(context.Context, *Delivery) error) *Receiver {
	return &Receiver{Guard: r.guard, Handle: handle, Logger: slog.New(slog.DiscardHandler)}
}

// consume runs the receiver until the test is over, or until stop, which returns
// what Consume has returned.
func (r *rig) consume(receiver *Receiver, s *Source) (stop func() error) {
	r.t.Helper()
	stopping, wait := r.start(receiver, s)
	return func() error {
		stopping()
		return wait()
	}
}

// start is consume in steps: when stop has returned, nothing new is begun, and wait
// returns what Consume has returned.
func (r *rig) start(receiver *Receiver, s *Source) (stop func(), wait func() error) {
	r.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- receiver.Consume(ctx, 4, s.Next) }()
	wait = sync.OnceValue(func() error { return <-result })
	r.t.Cleanup(func() {
		stop()
		_ = wait()
	})
	return stop, wait
}

// next takes one delivery by hand.
func (r *rig) next(s *Source) *Delivery {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	d, err := s.Next(ctx)
	require.NoError(r.t, err)
	return d
}

// nothing fails if there is a delivery.
func (r *rig) nothing(s *Source) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*quick)
	defer cancel()
	d, err := s.Next(ctx)
	require.ErrorIs(r.t, err, context.DeadlineExceeded)
	require.Nil(r.t, d)
}

func (r *rig) pending() []redis.XPendingExt {
	r.t.Helper()
	list, err := r.rdb.XPendingExt(context.Background(), &redis.XPendingExtArgs{
		Stream: r.place.Stream, Group: r.place.Group, Start: "-", End: "+", Count: 10_000,
	}).Result()
	require.NoError(r.t, err)
	return list
}

// age has what is pending be idle for very long.
func (r *rig) age() {
	r.t.Helper()
	for _, p := range r.pending() {
		require.NoError(r.t, r.rdb.Do(context.Background(), "XCLAIM", r.place.Stream, r.place.Group, p.Consumer, 0, p.ID,
			"IDLE", time.Hour.Milliseconds(), "JUSTID").Err())
	}
}

// settled waits until everything that was published has been delivered, and
// nothing is pending.
func (r *rig) settled() {
	r.t.Helper()
	r.eventually(func() bool {
		groups, err := r.rdb.XInfoGroups(context.Background(), r.place.Stream).Result()
		require.NoError(r.t, err)
		stream, err := r.rdb.XInfoStream(context.Background(), r.place.Stream).Result()
		require.NoError(r.t, err)
		return groups[0].Pending == 0 && groups[0].LastDeliveredID == stream.LastGeneratedID
	})
	r.eventually(func() bool { return r.guard.Stats().InFlight == 0 })
}

func (r *rig) eventually(condition func() bool) {
	r.t.Helper()
	require.Eventually(r.t, condition, patience, tick)
}

// deadLetters returns the ids of all dead letters.
func (r *rig) deadLetters() (ids []string) {
	r.t.Helper()
	for _, msg := range r.deadEntries() {
		id, _ := msg.Values["id"].(string)
		ids = append(ids, id)
	}
	return ids
}

func (r *rig) deadEntries() []redis.XMessage {
	r.t.Helper()
	msgs, err := r.rdb.XRange(context.Background(), r.dead, "-", "+").Result()
	require.NoError(r.t, err)
	return msgs
}

func idOf(d *Delivery) string {
	id, _ := d.Message().Values["id"].(string)
	return id
}

// tally lists runs by id, in their order.
type tally struct {
	mu   sync.Mutex // protects runs
	runs []string
}

// add notes a run, and returns how many there were of that id.
func (c *tally) add(id string) int {
	c.mu.Lock()
	c.runs = append(c.runs, id)
	c.mu.Unlock()
	return c.of(id)
}

func (c *tally) of(id string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, run := range c.runs {
		if run == id {
			n++
		}
	}
	return n
}

func (c *tally) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.runs)
}

// counting is a handler that only counts.
func (c *tally) counting(_ context.Context, d *Delivery) error {
	c.add(idOf(d))
	return nil
}

// gated is a handler that waits at a gate, and then returns what it is told.
type gated struct {
	entered chan string
	gate    chan error
}

func newGated() *gated { return &gated{entered: make(chan string, 100), gate: make(chan error)} }

func (g *gated) handle(_ context.Context, d *Delivery) error {
	g.entered <- idOf(d)
	return <-g.gate
}
