package idemkafka

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// place is where a partition is to be found.
type place struct {
	topic string
	num   int32
}

func (p place) in() map[string][]int32 { return map[string][]int32{p.topic: {p.num}} }

// partition is one partition for as long as it is assigned. When it comes back it
// is another one: what was handed out before can't settle anything in it. The
// source's mu protects all of it.
type partition struct {
	place
	queue     []*kgo.Record   // polled and not settled, in order
	out       *Delivery       // of the first in the queue; nil: none
	settled   kgo.EpochOffset // behind the last record that is settled
	committed int64           // what the broker was told, as far as we know

	stopped *Stop // nil: it isn't
	resting bool  // a verb has failed not long ago
	closing bool  // it is being revoked: nothing more is handed out
	gone    bool  // it isn't ours any longer
	listed  bool  // in Source.ready
	paused  bool  // the client fetches no more of it
}

// Stop is a partition that has stopped at a record: nothing more of it is handed
// out and its offset stays there, while the others go on. It begins again with
// that record: by [Source.Resume], by [Source.Next], and whenever the partition is
// assigned anew, here or to another member of the group.
type Stop struct {
	Record *kgo.Record // that failed
	Cause  error       // why
}

// Stopped returns the partitions that are stopped now, in the order of their
// topics and numbers.
func (s *Source) Stopped() []Stop {
	s.mu.Lock()
	defer s.mu.Unlock()
	var stops []Stop
	for _, p := range s.partitions {
		if p.stopped != nil {
			stops = append(stops, *p.stopped)
		}
	}
	slices.SortFunc(stops, func(a, b Stop) int { return compare(a.Record, b.Record) })
	return stops
}

// Resume has a stopped partition begin again, with the record that it stopped at,
// and says whether it was stopped.
func (s *Source) Resume(topic string, number int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.partitions[place{topic, number}]
	if p == nil || p.stopped == nil {
		return false
	}
	p.stopped = nil
	s.offer(p)
	return true
}

func (s *Source) resumeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.partitions {
		p.stopped = nil
		s.offer(p)
	}
}

// The queue of a partition is kept between these two: the client is asked to fetch
// no more of it, and asked again while there is still enough to go on with. It may
// take the client the rest of a fetch, seconds, to begin again.
const (
	queueHigh = pollMax
	queueLow  = queueHigh / 2
)

// enqueue says whether the partition is known.
func (s *Source) enqueue(client *kgo.Client, at place, records []*kgo.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.partitions[at]
	if p == nil {
		return false
	}
	if n := len(p.queue); n > 0 && records[0].Offset <= p.queue[n-1].Offset || records[0].Offset < p.settled.Offset {
		// The client was set back, by its user or because the log has lost its end.
		// What is out belongs to the time before.
		p = s.begin(client, at)
	}
	p.queue = append(p.queue, records...)
	if len(p.queue) >= queueHigh && !p.paused {
		p.paused = true
		client.PauseFetchPartitions(at.in())
	}
	s.offer(p)
	return true
}

// begin puts a new partition in the place of what may be there. Locked.
func (s *Source) begin(client *kgo.Client, at place) *partition {
	if old := s.partitions[at]; old != nil {
		s.drop(client, old)
	}
	p := &partition{place: at, committed: -1}
	p.settled.Offset = -1
	s.partitions[at] = p
	return p
}

// drop ends a partition. Locked.
func (s *Source) drop(client *kgo.Client, p *partition) {
	p.gone = true
	p.queue = nil
	if p.paused {
		client.ResumeFetchPartitions(p.in()) // it would stay paused for the next time
	}
	delete(s.partitions, p.place)
}

func (p *partition) canGo() bool {
	return p.out == nil && p.stopped == nil && !p.resting && !p.closing && !p.gone && len(p.queue) > 0
}

// offer lists a partition that has something to hand out. Locked.
func (s *Source) offer(p *partition) {
	if p.listed || !p.canGo() {
		return
	}
	p.listed = true
	s.ready = append(s.ready, p)
	if s.wake != nil {
		s.wake()
	}
}

// take hands out the next record of the partition that has been ready longest.
func (s *Source) take() *Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ready) > 0 {
		p := s.ready[0]
		s.ready[0] = nil
		s.ready = s.ready[1:]
		p.listed = false
		if p.canGo() {
			p.out = newDelivery(s, p, p.queue[0])
			return p.out
		}
	}
	return nil
}

// sleep says that a poll begins, to be ended by wake, unless there is no need.
func (s *Source) sleep(wake func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) > 0 {
		return false
	}
	s.wake = wake
	return true
}

func (s *Source) awake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake = nil
}

// isOver says that d isn't out any longer, and returns its partition if there is
// something to go on with: nil for one that is gone or has gone on. Locked.
func (d *Delivery) isOver() *partition {
	p := d.part
	if p.out != d {
		return nil
	}
	p.out = nil
	if p.gone {
		return nil
	}
	return p
}

// advance goes on behind the record of d, which is settled.
func (s *Source) advance(d *Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := d.isOver()
	if p == nil {
		return
	}
	p.queue[0] = nil
	p.queue = p.queue[1:]
	if p.paused && len(p.queue) <= queueLow {
		p.paused = false
		s.client.ResumeFetchPartitions(p.in())
	}
	s.offer(p)
}

// giveBack has the record of d handed out again, after a rest if it is not 0.
func (s *Source) giveBack(d *Delivery, rest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := d.isOver()
	if p == nil {
		return
	}
	if rest > 0 {
		p.resting = true
		time.AfterFunc(rest, func() { s.rested(p) })
	}
	s.offer(p)
}

func (s *Source) rested(p *partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.resting = false
	s.offer(p)
}

// stop stops d's partition at its record, and says whether it was ours to stop.
func (s *Source) stop(d *Delivery, stop Stop) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := d.isOver()
	if p == nil {
		return false
	}
	p.stopped = &stop
	return true
}
