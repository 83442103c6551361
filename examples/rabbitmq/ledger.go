package main

import (
	"fmt"
	"sync"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
)

// ledger is what really happened, message by message. Nothing in it is asked of
// the guard.
type ledger struct {
	messages int

	mu         sync.Mutex // protects what follows
	histories  map[string]*history
	deliveries []*idemamqp.Delivery
	ran        map[*idemamqp.Delivery]bool
	started    int
	running    int
	marks      map[int]chan struct{}
}

// history is what happened to one message.
type history struct {
	running    int
	started    int
	succeeded  int
	concurrent int // runs started while another was going on
}

func newLedger(messages int) *ledger {
	return &ledger{
		messages:  messages,
		histories: make(map[string]*history),
		ran:       make(map[*idemamqp.Delivery]bool),
		marks:     make(map[int]chan struct{}),
	}
}

// mark returns a channel that is closed when n runs have started.
func (l *ledger) mark(n int) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.marks[n] == nil {
		l.marks[n] = make(chan struct{})
		if n <= l.started {
			close(l.marks[n])
		}
	}
	return l.marks[n]
}

func (l *ledger) arrived(d *idemamqp.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deliveries = append(l.deliveries, d)
}

// start is called by the handler, first thing. It returns the number of the
// message's run.
func (l *ledger) start(d *idemamqp.Delivery) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.history(d)
	if h.running > 0 {
		h.concurrent++
	}
	h.running++
	h.started++
	l.running++
	l.ran[d] = true
	l.started++
	if mark := l.marks[l.started]; mark != nil {
		close(mark)
	}
	return h.started
}

func (l *ledger) history(d *idemamqp.Delivery) *history {
	id := d.Msg().MessageId
	if l.histories[id] == nil {
		l.histories[id] = &history{}
	}
	return l.histories[id]
}

// finish is called by the handler, last thing.
func (l *ledger) finish(d *idemamqp.Delivery, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.history(d)
	h.running--
	l.running--
	if err == nil {
		h.succeeded++
	}
}

func (l *ledger) runningNow() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running
}

// totals is the ledger, added up.
type totals struct {
	handled     int // messages that ran to success
	runsAgain   int // runs to success of a message that had one already
	concurrent  int // runs beside another one of the same message
	suppressed  int // deliveries that were acked without a run
	redelivered int // deliveries that the broker had delivered before
	lost        int // messages that never ran to success
}

func (t totals) String() string {
	return fmt.Sprintf("handled=%d runs_again=%d concurrent=%d suppressed=%d redelivered=%d lost=%d",
		t.handled, t.runsAgain, t.concurrent, t.suppressed, t.redelivered, t.lost)
}

func (l *ledger) totals() totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	var t totals
	for _, h := range l.histories {
		t.concurrent += h.concurrent
		if h.succeeded > 0 {
			t.handled++
			t.runsAgain += h.succeeded - 1
		}
	}
	t.lost = l.messages - t.handled
	for _, d := range l.deliveries {
		if d.Msg().Redelivered {
			t.redelivered++
		}
		if d.Settled() == idem.Ack && !l.ran[d] {
			t.suppressed++
		}
	}
	return t
}
