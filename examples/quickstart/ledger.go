package main

import "sync"

// ledger is what really happened, event by event. Nothing in it is asked of the
// guard.
type ledger struct {
	mu        sync.Mutex // protects what follows
	histories map[string]*history
	ran       map[uint64]bool // deliveries that a handler was started for

	done       int // events that completed
	arrived    int // deliveries
	suppressed int // of them: acked without a run
	givenBack  int // of them: given back without a run
	acksLost   int
}

// history is what happened to one event.
type history struct {
	running    int
	started    int
	completed  int
	concurrent int // runs started while another was going on
}

func newLedger(events []event) *ledger {
	l := &ledger{histories: make(map[string]*history, len(events)), ran: make(map[uint64]bool)}
	for _, e := range events {
		l.histories[e.ID] = &history{}
	}
	return l
}

// start is called by the handler, first thing. It returns the number of the run.
func (l *ledger) start(id string, delivery uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.histories[id]
	if h.running > 0 {
		h.concurrent++
	}
	h.running++
	h.started++
	l.ran[delivery] = true
	return h.started
}

// finish is called by the handler, last thing. It returns how many events are
// done.
func (l *ledger) finish(id string, completed bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.histories[id]
	h.running--
	if completed {
		h.completed++
		if h.completed == 1 {
			l.done++
		}
	}
	return l.done
}

func (l *ledger) noteArrival() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrived++
}

// noteAck is called when a delivery is acked, whether or not that arrives.
func (l *ledger) noteAck(delivery uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ran[delivery] {
		l.suppressed++
	}
}

// noteNak is called when a delivery is given back.
func (l *ledger) noteNak(delivery uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ran[delivery] {
		l.givenBack++
	}
}

func (l *ledger) noteLostAck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acksLost++
}

// totals is the ledger, added up.
type totals struct {
	arrived, suppressed, givenBack, acksLost int

	running    int
	started    int
	failed     int // runs that did not complete
	again      int // completed runs after the first one
	concurrent int
	done       int // events that completed
	lost       int // events that never did
	overCents  int // what was charged too often
}

func (l *ledger) totals(events []event) totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := totals{arrived: l.arrived, suppressed: l.suppressed, givenBack: l.givenBack, acksLost: l.acksLost}
	for _, e := range events {
		t.add(e, l.histories[e.ID])
	}
	return t
}

func (t *totals) add(e event, h *history) {
	t.running += h.running
	t.started += h.started
	t.failed += h.started - h.completed - h.running
	t.concurrent += h.concurrent
	if h.completed == 0 {
		t.lost++
		return
	}
	t.done++
	t.again += h.completed - 1
	t.overCents += (h.completed - 1) * e.Cents
}
