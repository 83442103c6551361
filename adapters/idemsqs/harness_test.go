package idemsqs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/idem-go/idem"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 20 * time.Second
	tick     = 2 * time.Millisecond
)

var (
	errHandler = errors.New("handler failed")
	errFault   = errors.New("as the test wants it")
)

// rig is a queue with one for its dead letters, and the guard of that endpoint.
type rig struct {
	t     testing.TB
	sqs   *fake
	kind  string // ".fifo" or nothing
	queue string // URL
	dead  string // URL
	guard *idem.Generational
}

func newRig(t testing.TB) *rig { return newRigOf(t, "", nil) }

func newRigOf(t testing.TB, kind string, policy *redrive) *rig {
	t.Helper()
	f := newFake(t)
	guard, err := idem.NewGenerational()
	require.NoError(t, err)
	return &rig{t: t, sqs: f, kind: kind, dead: f.queue("dead"+kind, nil), queue: f.queue("orders"+kind, policy), guard: guard}
}

// wire is the way of one client to SQS, which can be cut.
type wire struct {
	*sqs.Client
	http.RoundTripper
	dead atomic.Bool
}

// RoundTrip hangs while the wire is cut, as it does when the other end has vanished
// without a word.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.dead.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	answer, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	return answer, whole(answer)
}

// whole reads the answer to its end. The SDK closes the request's body as soon as it
// has the answer's header; net/http, if it is still about to see that this body has
// ended, takes that for a failed write and cuts the connection under the answer. A
// server in the same process is quick enough for that.
func whole(answer *http.Response) error {
	body, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return err
}

func (w *wire) cut() { w.dead.Store(true) }

// client is the real one. It doesn't retry, so that tests see what happens.
func (r *rig) client() *wire {
	w := &wire{RoundTripper: &http.Transport{}}
	r.t.Cleanup(w.RoundTripper.(*http.Transport).CloseIdleConnections)
	w.Client = sqs.New(sqs.Options{
		BaseEndpoint: aws.String(r.sqs.URL),
		Region:       "eu-central-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
		HTTPClient: &http.Client{Transport: w},
		Retryer:    aws.NopRetryer{},
	})
	return w
}

func (r *rig) source(opts ...Option) *Source { return r.sourceOn(r.client(), opts...) }

func (r *rig) sourceOn(c Client, opts ...Option) *Source {
	r.t.Helper()
	s, err := New(c, r.queue, append([]Option{WithRequeueDelay(0), WithDeadLetterQueue(r.dead)}, opts...)...)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { giveUp(s) })
	return s
}

// giveUp ends the request that is under way.
func giveUp(s *Source) {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.GiveBack(done)
}

// publish sends messages with these bodies, in this order.
func (r *rig) publish(bodies ...string) {
	r.t.Helper()
	c := r.client()
	for _, body := range bodies {
		in := &sqs.SendMessageInput{QueueUrl: &r.queue, MessageBody: &body}
		if r.kind != "" {
			in.MessageGroupId, in.MessageDeduplicationId = aws.String("group-"+body), &body
		}
		_, err := c.SendMessage(r.t.Context(), in)
		require.NoError(r.t, err)
	}
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
	ctx, cancel := context.WithTimeout(r.t.Context(), 50*time.Millisecond)
	defer cancel()
	d, err := s.Next(ctx)
	require.ErrorIs(r.t, err, context.DeadlineExceeded)
	require.Nil(r.t, d)
}

func (r *rig) expire() { r.sqs.expire("orders" + r.kind) }

func (r *rig) held() []fakeMessage { return r.sqs.list("orders" + r.kind) }

// settled waits until the queue is empty, and nothing is in flight.
func (r *rig) settled() {
	r.t.Helper()
	r.eventually(func() bool { return len(r.held()) == 0 && r.guard.Stats().InFlight == 0 })
}

func (r *rig) eventually(condition func() bool) {
	r.t.Helper()
	require.Eventually(r.t, condition, patience, tick)
}

// deadLetters returns the bodies of all dead letters.
func (r *rig) deadLetters() (bodies []string) {
	for _, m := range r.sqs.list("dead" + r.kind) {
		bodies = append(bodies, m.body)
	}
	return bodies
}

func bodyOf(d *Delivery) string { return aws.ToString(d.Message().Body) }

// tally lists runs by body, in their order.
type tally struct {
	mu   sync.Mutex // protects runs
	runs []string
}

// add notes a run, and returns how many there were of that body.
func (c *tally) add(body string) int {
	c.mu.Lock()
	c.runs = append(c.runs, body)
	c.mu.Unlock()
	return c.of(body)
}

func (c *tally) of(body string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, run := range c.runs {
		if run == body {
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
	c.add(bodyOf(d))
	return nil
}

// gated is a handler that waits at a gate, and then returns what it is told.
type gated struct {
	entered chan string
	gate    chan error
}

func newGated() *gated { return &gated{entered: make(chan string, 100), gate: make(chan error)} }

func (g *gated) handle(_ context.Context, d *Delivery) error {
	g.entered <- bodyOf(d)
	return <-g.gate
}
