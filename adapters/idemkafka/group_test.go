package idemkafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// moved is the partition that the second of two members has taken over.
func (m *member) moved() int32 {
	m.t.Helper()
	m.eventually(func() bool { return m.has() == 1 })
	m.source.mu.Lock()
	defer m.source.mu.Unlock()
	for at := range m.source.partitions {
		return at.num
	}
	return -1
}

// elsewhere is a receiver with a guard of its own, as in another process.
func (r *rig) elsewhere(handle func(context.Context, *Delivery) error) *Receiver {
	receiver := r.receiver(handle)
	guard, err := idem.NewGenerational()
	require.NoError(r.t, err)
	receiver.Guard = guard
	return receiver
}

// The second one gets the record that the first one is still at.
func TestTwoConsumersWithOneGuardRunARecordOnce(t *testing.T) {
	t.Parallel()
	r, g := newRig(t, 2), newGated()
	r.produce(0, "a", "b")
	r.produce(1, "c", "d")
	first := r.join()
	first.consume(r.receiver(g.handle))
	assert.ElementsMatch(t, []string{"a", "c"}, []string{<-g.entered, <-g.entered})

	second := r.join()
	second.consume(r.receiver(g.handle))
	moved := second.moved()
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
	assert.Empty(t, r.commits(moved))
	g.gate <- nil
	g.gate <- nil
	assert.ElementsMatch(t, []string{"b", "d"}, []string{<-g.entered, <-g.entered})
	g.gate <- nil
	g.gate <- nil
	r.settled(0, 2)
	r.settled(1, 2)
	assert.Empty(t, g.entered)
	assert.Equal(t, uint64(4), r.guard.Stats().Completed)
}

func TestDeliveriesOfARevokedPartitionTouchNoOffset(t *testing.T) {
	for name, opt := range map[string]Option{"at once": WithRevokeWait(0), "noted only": WithCommitInterval(time.Hour)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			touchesNoOffset(t, opt)
		})
	}
}

func touchesNoOffset(t *testing.T, opt Option) {
	r := newRig(t, 2)
	r.produce(0, ids("a", 5)...)
	r.produce(1, ids("b", 5)...)
	called := func(context.Context, *kgo.Record, error) error {
		t.Error("the next owner decides")
		return nil
	}
	for name, tt := range map[string]struct {
		verb func(*Delivery) error
		err  error
	}{
		"ack":                 {ack, ErrLost},
		"requeue":             {requeue(errHandler), nil},
		"requeue, no failure": {requeue(nil), nil},
		"reject":              {reject(errHandler), ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			first := r.join(opt, WithRetry(called), WithDeadLetter(called))
			var out [2]*Delivery
			for range out {
				d := first.next()
				out[d.Record().Partition] = d
			}
			second := r.join()
			d := out[second.moved()]
			before := r.commits(d.Record().Partition)
			require.ErrorIs(t, tt.verb(d), tt.err)
			assert.Equal(t, before, r.commits(d.Record().Partition))
			assert.Empty(t, first.source.Stopped())

			theirs := second.next()
			assert.Equal(t, d.Record().Offset, theirs.Record().Offset, "the next owner has it")
			require.NoError(t, theirs.Requeue(t.Context(), nil))
			ours := out[1-d.Record().Partition]
			require.NoError(t, ours.Ack(t.Context()), "the other partition is still ours")
			require.NoError(t, first.source.Commit(t.Context()))
			assert.Equal(t, ours.Record().Offset+1, r.committed(ours.Record().Partition))
			second.leave()
			first.leave()
		})
	}
}

// What is settled and only noted is committed before another owner begins.
func TestRevokeCommitsWhatIsSettled(t *testing.T) {
	t.Parallel()
	r, runs, again := newRig(t, 2), tally{}, tally{}
	r.produce(0, ids("a", 10)...)
	r.produce(1, ids("b", 10)...)
	first := r.join(WithCommitInterval(time.Hour))
	first.consume(r.receiver(runs.handle))
	r.eventually(func() bool { return r.guard.Stats().Completed == 20 })
	assert.LessOrEqual(t, r.total(2), int64(2), "the first Ack of all may have committed")
	second := r.join()
	second.consume(r.elsewhere(again.handle))
	r.settled(second.moved(), 10)
	first.leave()
	r.settled(0, 10)
	r.settled(1, 10)
	assert.Empty(t, again.all(), "nothing comes twice")
}

func TestRevokeWaitLetsHandlersEnd(t *testing.T) {
	t.Parallel()
	r, g, again := newRig(t, 2), newGated(), tally{}
	r.produce(0, "a", "b")
	r.produce(1, "c", "d")
	revoking := r.revoking()
	first := r.join(WithRevokeWait(patience))
	first.consume(r.receiver(g.handle))
	<-g.entered
	<-g.entered
	second := r.join()
	second.consume(r.elsewhere(again.handle))
	revoking(first)
	assert.Zero(t, second.has())
	g.gate <- nil
	g.gate <- nil
	moved := second.moved()
	r.settled(moved, 2)
	assert.Equal(t, 1, len(again.all()), "the second one only, of the partition that moved")
	assert.Zero(t, again.of("a")+again.of("c"))
	assert.Contains(t, []string{"b", "d"}, <-g.entered)
	g.gate <- nil
	r.settled(1-moved, 2)
}

// revoking returns a function that waits until a member has begun to give a
// partition up.
func (r *rig) revoking() func(*member) {
	return func(m *member) {
		r.eventually(func() bool {
			m.source.mu.Lock()
			defer m.source.mu.Unlock()
			for _, p := range m.source.partitions {
				if p.closing {
					return true
				}
			}
			return false
		})
	}
}

func TestRevokeWaitEnds(t *testing.T) {
	t.Parallel()
	r, g := newRig(t, 2), newGated()
	r.produce(0, "a")
	r.produce(1, "b")
	first := r.join(WithRevokeWait(quick))
	first.consume(r.receiver(g.handle))
	<-g.entered
	<-g.entered
	second := r.join()
	second.consume(r.receiver(g.handle))
	second.moved()
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
	g.gate <- nil
	g.gate <- nil
	r.settled(0, 1)
	r.settled(1, 1)
	assert.Empty(t, g.entered)
}

// The broker has thrown the member out: what it had is another's already.
func TestLostPartitionIsNotCommitted(t *testing.T) {
	t.Parallel()
	r, g := newRig(t, 1), newGated()
	r.produce(0, "a", "b")
	lost := make(chan map[string][]int32, 1)
	m := r.join(WithCommitInterval(time.Hour), WithOnLost(func(_ context.Context, _ *kgo.Client, p map[string][]int32) {
		lost <- p
	}))
	m.source.lastCommit = time.Now() // as if a commit had just been
	m.consume(r.receiver(g.handle))
	require.Equal(t, "a", <-g.entered)
	g.gate <- nil
	require.Equal(t, "b", <-g.entered)
	r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: kerr.FencedInstanceID})
	assert.Equal(t, map[string][]int32{topic: {0}}, <-lost)
	assert.Empty(t, r.commits(0), "not even what was noted")
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 }) // it is back, and so are they
	assert.Equal(t, uint64(1), r.guard.Stats().DuplicatesCompleted)
	g.gate <- nil
	r.eventually(func() bool { return m.source.Commit(t.Context()) == nil && r.committed(0) == 2 })
	assert.Empty(t, g.entered)
}

// A delivery of an earlier assignment doesn't settle anything in a later one.
func TestPartitionThatComesBackIsAnotherOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a", "b")
	m := r.join()
	old := m.next()
	r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: kerr.UnknownMemberID})
	again := m.next()
	require.Equal(t, "a", idOf(again))
	require.ErrorIs(t, ack(old), ErrLost)
	require.ErrorIs(t, ack(old), ErrLost, "and so it stays")
	assert.Empty(t, r.commits(0))
	require.NoError(t, ack(again))
	assert.Equal(t, int64(1), r.committed(0))
}

// The client sends a commit in the name of the member it is by then.
func TestCommitThatWaitedForARebalanceLeavesOutWhatIsGone(t *testing.T) {
	t.Parallel()
	s, err := New(HeaderID("id"))
	require.NoError(t, err)
	ours, gone := &partition{place: place{topic, 0}}, &partition{place: place{topic, 1}, gone: true}
	b := batch{ours.place: {p: ours}, gone.place: {p: gone}, {"other", 1}: {p: gone}}
	request := func(partitions ...int32) *kmsg.OffsetCommitRequest {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: topic}, {Topic: "other", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 1}}}}
		for _, p := range partitions {
			req.Topics[0].Partitions = append(req.Topics[0].Partitions, kmsg.OffsetCommitRequestTopicPartition{Partition: p})
		}
		return req
	}
	req := request(0, 1)
	require.NoError(t, s.withoutGone(b)(req))
	require.Len(t, req.Topics, 1)
	require.Len(t, req.Topics[0].Partitions, 1)
	assert.Equal(t, int32(0), req.Topics[0].Partitions[0].Partition)
	require.ErrorIs(t, s.withoutGone(b)(request(1)), ErrLost)
}

// A commit that waits out a whole rebalance with the client says nothing about a
// partition that has gone meanwhile.
func TestCommitThatIsOvertakenByARebalance(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a")
	m := r.join()
	old := m.next()
	// The join is answered late: the commit comes in between, and waits for its end.
	joining, goOn := make(chan struct{}), make(chan struct{})
	r.cluster.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.DropControl()
		r.cluster.SleepControl(func() {
			close(joining)
			<-goOn
		})
		return nil, nil, false
	})
	m.source.mu.Lock()
	part := m.source.partitions[place{topic, 0}]
	m.source.mu.Unlock()
	m.client.ForceRebalance()
	<-joining
	result := make(chan error)
	go func() { result <- ack(old) }()
	r.eventually(func() bool { return len(m.source.committing) == 1 })
	m.source.dropAll(m.client, map[string][]int32{topic: {0}}) // as lost does
	close(goOn)
	require.ErrorIs(t, <-result, ErrLost)
	assert.True(t, part.gone)
	assert.Empty(t, r.commits(0))
}

// slowPoll is a hook that holds up a poll between the client and the source.
type slowPoll struct{ polled, goOn chan struct{} }

func (h slowPoll) OnFetchRecordUnbuffered(*kgo.Record, bool) {
	select {
	case h.polled <- struct{}{}:
		<-h.goOn
	default:
	}
}

// What was polled is taken over before a rebalance can come: a record of an
// earlier assignment must not be taken for one of a later.
func TestRebalanceWaitsUntilWhatWasPolledIsTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.produce(0, "a")
	r.produce(1, "b")
	hook, blocked := slowPoll{make(chan struct{}, 1), make(chan struct{})}, make(chan struct{}, 100)
	first := r.joinAs(HeaderID("id"), []kgo.Opt{kgo.WithHooks(hook), kgo.OnPartitionsCallbackBlocked(func(context.Context, *kgo.Client) {
		blocked <- struct{}{}
	})})
	next := make(chan *Delivery)
	go func() { next <- first.next() }()
	r.eventually(func() bool { return len(hook.polled) == 1 })
	second := r.join()
	<-blocked
	assert.Equal(t, 2, first.has())
	close(hook.goOn)
	require.NotNil(t, <-next)
	second.moved()
}

// Members come and go while handlers run, and now and then fail. Counted: every
// message to success once, nothing lost, no commit back.
func TestRebalances(t *testing.T) {
	for name, opts := range map[string][]kgo.Opt{
		"cooperative": nil,
		"eager":       {kgo.Balancers(kgo.RangeBalancer())},
		"server side": {kgo.ServerSideBalancer()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const partitions, each = 6, 100
			r := newRig(t, partitions)
			var attempts, done tally
			var mu sync.Mutex // protects running and twice
			running, twice := make(map[string]bool), 0
			handle := func(_ context.Context, d *Delivery) error {
				id := idOf(d)
				mu.Lock()
				if running[id] {
					twice++
				}
				running[id] = true
				mu.Unlock()
				n := attempts.add(id)
				time.Sleep(time.Millisecond) // what a handler takes
				mu.Lock()
				delete(running, id)
				mu.Unlock()
				if n == 1 && d.Record().Offset%20 == 7 {
					return errHandler
				}
				done.add(id)
				return nil
			}
			come := func() *member {
				var m *member
				m = r.joinAs(HeaderID("id"), opts, WithOnStop(func(s Stop) { m.source.Resume(s.Record.Topic, s.Record.Partition) }))
				m.consume(r.receiver(handle))
				return m
			}
			for p := range int32(partitions) {
				r.produce(p, ids(fmt.Sprint("p", p, "-"), each)...)
				r.produce(p, ids("copy-", 10)...) // the same in each partition
			}
			members := []*member{come()}
			for range 3 {
				members = append(members, come())
				r.eventually(func() bool { return members[len(members)-1].has() > 0 })
				soon := len(done.all()) + 60
				r.eventually(func() bool { return len(done.all()) > soon })
				if len(members) > 2 {
					members[0].leave() // in the middle of it all
					members = slices.Delete(members, 0, 1)
				}
			}
			for p := range int32(partitions) {
				r.settled(p, each+10)
			}
			assert.Len(t, done.all(), partitions*each+10, "nothing is lost")
			for id, n := range done.all() {
				assert.Equal(t, 1, n, id)
			}
			assert.Zero(t, twice, "at the same time")
		})
	}
}
