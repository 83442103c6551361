package idem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// InFlightPolicy says what becomes of a delivery whose message is being handled
// right now.
type InFlightPolicy uint8

const (
	// HoldInFlight neither runs nor settles the copy until the running one is
	// settled. It is the default, and the only one that can lose nothing: when the
	// running one fails, the held copy runs.
	HoldInFlight InFlightPolicy = iota
	// RequeueInFlight gives the copy back after a pause, see [Pauser]. Each return
	// counts against the broker's delivery limit.
	RequeueInFlight
	// AckInFlight acks the copy at once. If the running one then fails, the
	// process dies or the claim was leaked, and this was the last live copy, the
	// message is lost.
	AckInFlight
)

// String returns the name of the constant, or "InFlightPolicy(n)" for a value
// that has none.
func (p InFlightPolicy) String() string {
	return enumName("InFlightPolicy", uint8(p), "HoldInFlight", "RequeueInFlight", "AckInFlight")
}

// The defaults of a Receiver.
const (
	defaultHoldTimeout   = time.Minute
	defaultSettleTimeout = 30 * time.Second
	defaultDrain         = 30 * time.Second
	defaultPause         = time.Second
)

// Receiver is the hook between a broker's client and a handler. It asks the
// guard about every delivery, runs the handler where it should run, and settles
// each delivery exactly once. The zero value of every field but Handle will do.
//
// Fields don't change after the first call. The methods may be called from any
// number of goroutines. A field out of range panics at the first call, with a
// text that begins with "idem: ".
type Receiver[D Delivery] struct {
	// Guard decides. Nil is off, for the price of this one check.
	Guard IdempotencyGuard

	// Handle handles a delivery. It is required. What its error means Classify
	// says. It may settle the delivery itself; then its error settles nothing.
	Handle func(ctx context.Context, d D) error

	// Classify says what a handler's error, which may be nil, means for the
	// delivery. What it answers decides, not whether there is an error: one that
	// it maps to Ack is remembered as completed. Nil is [DefaultClassify].
	Classify func(err error) Outcome

	// OnInFlight says what becomes of a copy of a running message.
	OnInFlight InFlightPolicy

	// HoldTimeout is how long a copy is held before it is given back. 0 is a
	// minute. Keep it below the broker's own deadline for a delivery.
	HoldTimeout time.Duration

	// SettleTimeout is the deadline of a verb's context. 0 is 30 seconds.
	SettleTimeout time.Duration

	// Drain is how long handlers may go on after Consume's context has ended. 0 is
	// 30 seconds.
	Drain time.Duration

	// Logger is told of suppressed duplicates (Debug), and of failing verbs and
	// other trouble (Warn). Nil is slog.Default().
	Logger *slog.Logger
}

// errAbandoned is the cause of a requeue where the handler did not return.
var errAbandoned = errors.New("idem: handling panicked or left by runtime.Goexit")

// Receive deals with one delivery, and settles it before it returns, however
// the handler leaves. It returns the handler's error joined with that of the
// settling verb, nil if there is neither.
//
// When ctx is done before the handler would start, the delivery is given back.
// The handler's context is ctx; the verbs run on one that outlives it.
func (r *Receiver[D]) Receive(ctx context.Context, d D) error {
	r.check()
	handling, settling := r.receive(ctx, ctx, d, nil)
	return join(handling, settling)
}

// join is errors.Join that leaves a single error as it is.
func join(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	default:
		return errors.Join(a, b)
	}
}

// receive is the one way for a delivery. Nothing is begun after ctx is done; the
// handler runs on work. A nil seat is for those who bring a goroutine of their
// own.
func (r *Receiver[D]) receive(ctx, work context.Context, d D, s *seat) (handling, settling error) {
	t := turn[D]{r: r, ctx: ctx, d: d, guard: r.Guard}
	returned := false
	defer func() {
		if !returned {
			t.abandon()
		}
	}()
	handling, settling = t.take(work, s)
	if s != nil && handling != nil { // a worker has nobody to return it to
		t.log(slog.LevelWarn, "idem: handling failed", slog.Any("error", handling))
	}
	returned = true
	return handling, settling
}

// check panics on a Receiver that can't work.
func (r *Receiver[D]) check() {
	switch {
	case r == nil:
		panic("idem: nil Receiver")
	case r.Handle == nil:
		panic("idem: Receiver without Handle")
	case r.OnInFlight > AckInFlight:
		panic(fmt.Sprintf("idem: Receiver with unknown OnInFlight: %v", r.OnInFlight))
	}
	r.checkDurations()
}

func (r *Receiver[D]) checkDurations() {
	if r.HoldTimeout|r.SettleTimeout|r.Drain >= 0 { // no sign bit among them
		return
	}
	panic(fmt.Sprintf("idem: Receiver with a negative duration: HoldTimeout %v, SettleTimeout %v, Drain %v",
		r.HoldTimeout, r.SettleTimeout, r.Drain))
}

func (r *Receiver[D]) classify(err error) Outcome {
	if r.Classify == nil {
		return DefaultClassify(err)
	}
	return r.Classify(err)
}

func (r *Receiver[D]) logger() *slog.Logger {
	if r.Logger == nil {
		return slog.Default()
	}
	return r.Logger
}

// isOff says whether guard decides nothing: also a nil *Generational, as
// [Endpoints.Guard] returns one for a Durable endpoint.
func isOff(guard IdempotencyGuard) bool {
	if guard == nil {
		return true
	}
	g, ok := guard.(*Generational)
	return ok && g.off()
}

// orDefault is d, or what 0 stands for.
func orDefault(d, whenZero time.Duration) time.Duration {
	if d == 0 {
		return whenZero
	}
	return d
}
