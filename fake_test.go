package idem_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem"
)

// hookDiary is what guard, handler and deliveries did, in the order they did it.
type hookDiary struct {
	mu    sync.Mutex
	lines []string
}

func (d *hookDiary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// read returns what was noted since the last read.
func (d *hookDiary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := d.lines
	d.lines = nil
	return lines
}

// fakeVerb is one call of a verb.
type fakeVerb struct {
	outcome idem.Outcome
	ctx     context.Context
	err     error         // of ctx, at the call
	left    time.Duration // until ctx's deadline, at the call; 0: it has none
	cause   error
}

// fakeDelivery is a Delivery that records each call, also one too many.
type fakeDelivery struct {
	id        idem.Identity
	name      string                                             // told in the diary
	identity  func() (idem.Identity, error)                      // nil: id
	onVerb    func(ctx context.Context, o idem.Outcome) error    // nil: works
	onSettled func(settled idem.Outcome, reads int) idem.Outcome // nil: as it is
	diary     *hookDiary

	mu         sync.Mutex // protects what follows
	settled    idem.Outcome
	verbs      []fakeVerb
	identities int // calls of Identity
	reads      int // calls of Settled
}

func (d *fakeDelivery) Identity() (idem.Identity, error) {
	d.mu.Lock()
	d.identities++
	d.mu.Unlock()
	if d.identity != nil {
		return d.identity()
	}
	return d.id, nil
}

func (d *fakeDelivery) Ack(ctx context.Context) error { return d.verb(ctx, idem.Ack, nil) }

func (d *fakeDelivery) Requeue(ctx context.Context, cause error) error {
	return d.verb(ctx, idem.Requeue, cause)
}

func (d *fakeDelivery) Reject(ctx context.Context, cause error) error {
	return d.verb(ctx, idem.Reject, cause)
}

func (d *fakeDelivery) verb(ctx context.Context, o idem.Outcome, cause error) error {
	v := fakeVerb{outcome: o, ctx: ctx, err: ctx.Err(), cause: cause}
	if deadline, ok := ctx.Deadline(); ok {
		v.left = time.Until(deadline)
	}
	d.mu.Lock()
	d.verbs = append(d.verbs, v)
	d.settled = o
	d.mu.Unlock()
	d.note(o.String())
	if d.onVerb != nil {
		return d.onVerb(ctx, o)
	}
	return ctx.Err()
}

// native settles the delivery past the hook, as a handler does that calls the
// broker's client.
func (d *fakeDelivery) native(o idem.Outcome) {
	d.mu.Lock()
	d.settled = o
	d.mu.Unlock()
	d.note("native %v", o)
}

func (d *fakeDelivery) Settled() idem.Outcome {
	d.mu.Lock()
	d.reads++
	settled, reads := d.settled, d.reads
	d.mu.Unlock()
	if d.onSettled != nil {
		return d.onSettled(settled, reads)
	}
	return settled
}

func (d *fakeDelivery) note(format string, args ...any) {
	if d.name != "" {
		format = d.name + ": " + format
	}
	d.diary.note(format, args...)
}

// calls returns the verbs called so far.
func (d *fakeDelivery) calls() []fakeVerb {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.verbs)
}

// outcomes returns the verbs called so far, without their circumstances.
func (d *fakeDelivery) outcomes() []idem.Outcome {
	var all []idem.Outcome
	for _, v := range d.calls() {
		all = append(all, v.outcome)
	}
	return all
}

// only returns the one verb that was called.
func (d *fakeDelivery) only(t testing.TB) fakeVerb {
	t.Helper()
	calls := d.calls()
	require.Len(t, calls, 1, "a delivery is settled once")
	return calls[0]
}

// recordingGuard notes the calls of a guard in the diary.
type recordingGuard struct {
	idem.IdempotencyGuard
	diary  *hookDiary
	before func(call string) // before the guard hears of it; may panic. nil: nothing
	answer *idem.State       // what TryBegin answers, if not what the guard says
}

func (g *recordingGuard) tell(call string, c idem.Claim) {
	if c == (idem.Claim{}) {
		call += " of nothing"
	}
	g.diary.note("%s", call)
	if g.before != nil {
		g.before(call)
	}
}

func (g *recordingGuard) TryBegin(id idem.Identity) (idem.Claim, idem.State) {
	if g.before != nil {
		g.before("TryBegin")
	}
	if g.answer != nil {
		return idem.Claim{}, *g.answer
	}
	claim, state := g.IdempotencyGuard.TryBegin(id)
	g.diary.note("%v", state)
	return claim, state
}

func (g *recordingGuard) Complete(c idem.Claim) {
	g.tell("Complete", c)
	g.IdempotencyGuard.Complete(c)
}

func (g *recordingGuard) Reject(c idem.Claim) {
	g.tell("remember Reject", c)
	g.IdempotencyGuard.Reject(c)
}

func (g *recordingGuard) Release(c idem.Claim) {
	g.tell("Release", c)
	g.IdempotencyGuard.Release(c)
}

// hookLog is a slog.Handler that keeps what it is told.
type hookLog struct {
	onRecord func(r slog.Record) // may panic; nil: nothing
	least    slog.Level

	mu      sync.Mutex // protects records
	records []slog.Record
}

func newHookLog() *hookLog { return &hookLog{least: slog.LevelDebug} }

func (l *hookLog) Enabled(_ context.Context, level slog.Level) bool { return level >= l.least }

func (l *hookLog) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	l.records = append(l.records, r.Clone())
	l.mu.Unlock()
	if l.onRecord != nil {
		l.onRecord(r)
	}
	return nil
}

func (l *hookLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *hookLog) WithGroup(string) slog.Handler      { return l }

// levels returns the level of each record.
func (l *hookLog) levels() []slog.Level {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []slog.Level
	for _, r := range l.records {
		all = append(all, r.Level)
	}
	return all
}

// all returns the records.
func (l *hookLog) all() []slog.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.records)
}

// hookAttr returns the text of one attribute of r, or "".
func hookAttr(r slog.Record, key string) (text string) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			text = a.Value.String()
		}
		return true
	})
	return text
}

// hookRig is a Receiver with everything around it recorded.
type hookRig struct {
	*idem.Receiver[*fakeDelivery]
	diary *hookDiary
	guard *idem.Generational // what the recording one asks
	calls *recordingGuard
	log   *hookLog
}

func newHookRig(t testing.TB, handle func(context.Context, *fakeDelivery) error, opts ...idem.Option) *hookRig {
	t.Helper()
	h := &hookRig{diary: &hookDiary{}, guard: hookGuard(t, opts...), log: newHookLog()}
	h.calls = &recordingGuard{IdempotencyGuard: h.guard, diary: h.diary}
	h.Receiver = &idem.Receiver[*fakeDelivery]{
		Guard:  h.calls,
		Logger: slog.New(h.log),
		Handle: func(ctx context.Context, d *fakeDelivery) error {
			d.note("handle")
			return handle(ctx, d)
		},
	}
	return h
}

func hookGuard(t testing.TB, opts ...idem.Option) *idem.Generational {
	t.Helper()
	guard, err := idem.NewGenerational(opts...)
	require.NoError(t, err)
	return guard
}

// arrive makes a delivery of the message id.
func (h *hookRig) arrive(id string) *fakeDelivery {
	return &fakeDelivery{id: idem.ID(id), diary: h.diary}
}

// state returns what the next delivery of id finds, and leaves it so.
func (h *hookRig) state(id string) idem.State {
	claim, state := h.guard.TryBegin(idem.ID(id))
	h.guard.Release(claim)
	return state
}

// begun has somebody else begin id.
func (h *hookRig) begun(t testing.TB, id string) idem.Claim {
	t.Helper()
	claim, state := h.guard.TryBegin(idem.ID(id))
	require.Equal(t, idem.Begun, state)
	return claim
}

// succeed is a handler.
func succeed(context.Context, *fakeDelivery) error { return nil }

// failWith returns a handler.
func failWith(err error) func(context.Context, *fakeDelivery) error {
	return func(context.Context, *fakeDelivery) error { return err }
}

// departure is how a function left.
type departure struct {
	err      error
	panicked any
	goexit   bool
}

// depart runs fn in a goroutine of its own, which it may end as it likes.
func depart(fn func() error) (how departure) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		returned := false
		defer func() {
			how.panicked = recover()
			how.goexit = !returned && how.panicked == nil
		}()
		how.err = fn()
		returned = true
	}()
	<-done
	return how
}

// hookGoexit stands for runtime.Goexit where a table wants a value to panic
// with.
var hookGoexit = new(int)

// orGoexit calls fn, and leaves by Goexit if it panics with hookGoexit.
func orGoexit(fn func() error) error {
	defer func() {
		switch v := recover(); v {
		case nil:
		case any(hookGoexit):
			runtime.Goexit()
		default:
			panic(v)
		}
	}()
	return fn()
}
