package idemhttp

import (
	"container/heap"
	"errors"
	"sync"
	"time"
)

const (
	firstRetry = 100 * time.Millisecond
	longRetry  = 5 * time.Second
	// maxTries is how many calls an endpoint makes at once of what is in its
	// backlog: a store that recovers has enough to do.
	maxTries = 4
	// maxBacklog is how many claims an endpoint goes on with for a store that
	// fails. Releases may take half of it: each request that is refused leaves one,
	// and work that is done must find room.
	maxBacklog  = 10_000
	maxReleases = maxBacklog / 2
	// maxBacklogBytes is how many bytes of answers are held meanwhile.
	maxBacklogBytes = 64 << 20
)

var (
	errTooMany = errors.New("idemhttp: too many claims wait for the store already")
	errTooMuch = errors.New("idemhttp: too many bytes of answers wait for the store already")
)

// backlog is what an endpoint still has to tell a store that has failed. It is
// bounded, and has no goroutine but for a few while something is due.
type backlog struct {
	mu     sync.Mutex // protects what follows
	tasks  taskHeap
	trying int         // tasks that are being tried, and in no heap
	bytes  int64       // held by all of them
	timer  *time.Timer // works when the first task is due
	full   bool        // something was dropped since it was last empty
}

// task is tried more and more seldom, until it is done or its time is over.
type task struct {
	try    func() error
	giveUp func(last error)
	last   error // at first why there is a task
	until  time.Time
	size   int64 // of the answer it holds

	due   time.Time
	pause time.Duration
}

// add takes a task, unless there are limit of them already, or too many bytes.
func (b *backlog) add(t *task, limit int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.tasks)+b.trying >= limit:
		return errTooMany
	case t.size > 0 && b.bytes+t.size > maxBacklogBytes:
		return errTooMuch
	}
	b.bytes += t.size
	t.pause, t.due = firstRetry, time.Now().Add(firstRetry)
	heap.Push(&b.tasks, t)
	b.schedule()
	return nil
}

// firstDrop tells whether nothing else was dropped since the backlog was empty.
func (b *backlog) firstDrop() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := !b.full
	b.full = true
	return first
}

// schedule sees to it that the first task is tried when it is due: by this timer,
// or by whoever is at work. The caller holds the lock.
func (b *backlog) schedule() {
	if len(b.tasks) == 0 || b.trying == maxTries {
		return
	}
	wait := time.Until(b.tasks[0].due)
	if b.timer == nil {
		b.timer = time.AfterFunc(wait, b.work)
		return
	}
	b.timer.Reset(wait)
}

// work tries what is due.
func (b *backlog) work() {
	for t := b.take(); t != nil; t = b.take() {
		done := t.attempt()
		if !done {
			time.Sleep(firstRetry) // the next one would fare no better
		}
		b.put(t, done)
	}
}

// take returns the first task if it is due, and if there may be one more at a time.
func (b *backlog) take() (t *task) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.schedule()
	if len(b.tasks) == 0 || b.trying == maxTries || time.Now().Before(b.tasks[0].due) {
		return nil
	}
	b.trying++
	return heap.Pop(&b.tasks).(*task)
}

// put returns a task that was taken.
func (b *backlog) put(t *task, done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trying--
	if !done {
		heap.Push(&b.tasks, t)
		b.schedule()
		return
	}
	b.bytes -= t.size
	b.full = b.full && len(b.tasks)+b.trying > 0
}

// attempt tries it once. What is late is given up without another call: a store
// that hangs would make the rest of them wait.
func (t *task) attempt() (done bool) {
	if time.Now().After(t.until) {
		t.giveUp(t.last)
		return true
	}
	t.last = t.try()
	t.pause = min(2*t.pause, longRetry)
	t.due = time.Now().Add(t.pause)
	return t.last == nil
}

// taskHeap has the first to be due on top.
type taskHeap []*task

func (h taskHeap) Len() int           { return len(h) }
func (h taskHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h taskHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *taskHeap) Push(x any) { *h = append(*h, x.(*task)) }

// Pop implements heap.Interface.
func (h *taskHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}
