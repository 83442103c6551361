package idemnats

import (
	"context"
	"sync"
	"time"

	"github.com/idem-go/idem"
	"github.com/nats-io/nats.go/jetstream"
)

// recorder is a message that notes how it is settled. It forbids nothing: that
// is up to the client, which answers a second settle with ErrMsgAlreadyAckd.
type recorder struct {
	jetstream.Msg

	mu      sync.Mutex // protects what follows
	outcome idem.Outcome
	done    bool // a call succeeded, the outcome is final
}

func (m *recorder) Ack() error { return m.note(idem.Ack, m.Msg.Ack) }

func (m *recorder) DoubleAck(ctx context.Context) error {
	return m.note(idem.Ack, func() error { return m.Msg.DoubleAck(ctx) })
}

func (m *recorder) Nak() error { return m.note(idem.Requeue, m.Msg.Nak) }

func (m *recorder) NakWithDelay(delay time.Duration) error {
	return m.note(idem.Requeue, func() error { return m.Msg.NakWithDelay(delay) })
}

func (m *recorder) Term() error { return m.note(idem.Reject, m.Msg.Term) }

func (m *recorder) TermWithReason(reason string) error {
	return m.note(idem.Reject, func() error { return m.Msg.TermWithReason(reason) })
}

// note records o before the call, whose end nobody may wait for, and after it if
// it is what the server was told.
func (m *recorder) note(o idem.Outcome, call func() error) error {
	m.record(o, false)
	err := call()
	if err == nil {
		m.record(o, true)
	}
	return err
}

func (m *recorder) record(o idem.Outcome, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.done && (done || m.outcome == idem.Unsettled) {
		m.outcome, m.done = o, done
	}
}

func (m *recorder) settled() idem.Outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.outcome
}

// unlessSettled runs f if no call has succeeded yet.
func (m *recorder) unlessSettled(ctx context.Context, f func(context.Context) error) error {
	m.mu.Lock()
	done := m.done
	m.mu.Unlock()
	if done {
		return nil
	}
	return f(ctx)
}
