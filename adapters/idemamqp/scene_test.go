package idemamqp_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	"github.com/stretchr/testify/require"
)

var errHandler = errors.New("the handler failed")

// ledger is what the handlers really did, message by message. Nothing in it is
// asked of the guard.
type ledger struct {
	mu       sync.Mutex // protects what follows
	accounts map[string]*account
}

type account struct {
	started, succeeded, running int
	concurrent                  int // runs that began while another was going on
}

func newLedger() *ledger { return &ledger{accounts: make(map[string]*account)} }

// start is called first thing in a run, and returns its number.
func (l *ledger) start(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	if a == nil {
		a = &account{}
		l.accounts[id] = a
	}
	if a.running > 0 {
		a.concurrent++
	}
	a.running++
	a.started++
	return a.started
}

// finish is called last thing in a run.
func (l *ledger) finish(id string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accounts[id].running--
	if err == nil {
		l.accounts[id].succeeded++
	}
}

func (l *ledger) of(id string) account {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[id]; a != nil {
		return *a
	}
	return account{}
}

// total adds up what there is.
func (l *ledger) total() (sum account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.accounts {
		sum.started += a.started
		sum.succeeded += a.succeeded
		sum.running += a.running
		sum.concurrent += a.concurrent
	}
	return sum
}

// done is how many messages were handled, however often.
func (l *ledger) done() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.accounts {
		if a.succeeded > 0 {
			n++
		}
	}
	return n
}

// handler is what a test wants to happen in a run. The first run of a message has
// number 1.
type handler func(ctx context.Context, d *idemamqp.Delivery, run int) error

// scene is a queue with a guarded receiver for it.
type scene struct {
	*queue
	*ledger
	source   *idemamqp.Source
	guard    *idem.Generational
	receiver *idemamqp.Receiver

	mu    sync.Mutex // protects taken
	taken []*idemamqp.Delivery
}

func newScene(t testing.TB, kind string, handle handler) *scene {
	t.Helper()
	q := declare(t, kind)
	guard, err := idem.NewGenerational()
	require.NoError(t, err)
	s := &scene{queue: q, ledger: newLedger(), source: q.source(), guard: guard}
	s.receiver = &idemamqp.Receiver{
		Guard:         guard,
		Handle:        s.recorded(handle),
		SettleTimeout: patience,
		Logger:        slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	return s
}

func (s *scene) recorded(handle handler) func(context.Context, *idemamqp.Delivery) error {
	return func(ctx context.Context, d *idemamqp.Delivery) (err error) {
		id := string(d.Msg().Body)
		run := s.start(id)
		defer func() { s.finish(id, err) }()
		return handle(ctx, d, run)
	}
}

// shift is one receiver at work, on a connection of its own.
type shift struct {
	*line
	scene *scene
	stop  context.CancelFunc
	ended chan struct{}
	err   error // of Consume; read after ended
}

// work begins a shift. It ends with the test, if not before.
func (s *scene) work(workers, prefetch int) *shift {
	s.t.Helper()
	return s.workAs(s.receiver, workers, prefetch)
}

func (s *scene) workAs(r *idemamqp.Receiver, workers, prefetch int) *shift {
	s.t.Helper()
	l, deliveries := s.consume(s.source, prefetch)
	ctx, stop := context.WithCancel(context.Background())
	sh := &shift{line: l, scene: s, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(sh.ended)
		sh.err = r.Consume(ctx, workers, s.noted(s.source.Next(deliveries)))
	}()
	s.t.Cleanup(func() { stop(); l.cut(); sh.wait() })
	return sh
}

// noted remembers what comes, to see how it ends.
func (s *scene) noted(next func(context.Context) (*idemamqp.Delivery, error)) func(context.Context) (*idemamqp.Delivery, error) {
	return func(ctx context.Context) (*idemamqp.Delivery, error) {
		d, err := next(ctx)
		if err == nil {
			s.mu.Lock()
			s.taken = append(s.taken, d)
			s.mu.Unlock()
		}
		return d, err
	}
}

// ended is how many deliveries were acked or rejected, or should have been.
func (s *scene) ended() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.taken {
		if o := d.Settled(); o == idem.Ack || o == idem.Reject {
			n++
		}
	}
	return n
}

// closes waits until n deliveries have ended, ends the shifts, and fails if
// anything is left in the queue.
func (s *scene) closes(n int, shifts ...*shift) {
	s.t.Helper()
	s.until(func() bool { return s.ended() >= n }, "deliveries ended")
	for _, sh := range shifts {
		sh.leave()
	}
	s.requireEmpty()
	require.Equal(s.t, n, s.ended())
}

// leave ends a shift in good order.
func (sh *shift) leave() {
	sh.scene.t.Helper()
	sh.stop()
	_ = sh.wait()
	sh.hangUp()
}

// finish ends a shift by cancelling its consumer: then Consume returns when all
// that came is settled, held copies too.
func (sh *shift) finish() {
	sh.scene.t.Helper()
	require.NoError(sh.scene.t, sh.Cancel(consumerTag, false))
	require.NoError(sh.scene.t, sh.wait())
	sh.hangUp()
}

// wait waits for Consume to return, and returns its error.
func (sh *shift) wait() error {
	sh.scene.t.Helper()
	select {
	case <-sh.ended:
	case <-time.After(patience):
		sh.scene.t.Error("Consume has not returned")
	}
	return sh.err
}

// finishes waits until n messages are handled.
func (s *scene) finishes(n int) {
	s.t.Helper()
	s.until(func() bool { return s.done() == n }, "messages handled")
}

func (s *scene) until(condition func() bool, what string) {
	s.t.Helper()
	require.Eventually(s.t, condition, patience, 2*time.Millisecond, what)
}

// gate is where a run waits until the test opens it.
type gate struct {
	reached chan struct{}
	opened  chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}, 1000), opened: make(chan struct{})} }

func (g *gate) pass() {
	g.reached <- struct{}{}
	<-g.opened
}

func (g *gate) open() { close(g.opened) }

// await waits until a run is at the gate.
func (g *gate) await(t testing.TB) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(patience):
		t.Fatal("no run has come to the gate")
	}
}

func succeed(context.Context, *idemamqp.Delivery, int) error { return nil }
