package idemkafka

import (
	"context"
	"errors"
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

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id   ID
		opt  Option
		text string
	}{
		"no id":             {nil, WithLogger(nil), "the id function is nil"},
		"nil option":        {OffsetID(), nil, "option 1 of 1 is nil"},
		"nil retry":         {OffsetID(), WithRetry(nil), "WithRetry must be given a function, not nil"},
		"nil dead letter":   {OffsetID(), WithDeadLetter(nil), "WithDeadLetter must be given a function"},
		"nil on stop":       {OffsetID(), WithOnStop(nil), "WithOnStop must be given a function"},
		"nil assigned":      {OffsetID(), WithOnAssigned(nil), "WithOnAssigned must be given a function"},
		"nil revoked":       {OffsetID(), WithOnRevoked(nil), "WithOnRevoked must be given a function"},
		"nil lost":          {OffsetID(), WithOnLost(nil), "WithOnLost must be given a function"},
		"no interval":       {OffsetID(), WithCommitInterval(0), "WithCommitInterval must be greater than 0, not 0s"},
		"negative interval": {OffsetID(), WithCommitInterval(-1), "not -1ns"},
		"negative wait":     {OffsetID(), WithRevokeWait(-1), "WithRevokeWait must be at least 0, not -1ns"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(tt.id, tt.opt)
			require.Nil(t, s)
			require.ErrorIs(t, err, idem.ErrInvalidOption)
			require.ErrorContains(t, err, "idemkafka: ")
			require.ErrorContains(t, err, tt.text)
		})
	}
}

func TestNextRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a")
	receiver := r.receiver(nothing)
	groups := 0
	join := func(opts ...kgo.Opt) {
		groups++ // one each: they must not wait for each other's partition
		r.newClient(append([]kgo.Opt{kgo.ConsumerGroup(fmt.Sprint(group, groups)), kgo.ConsumeTopics(topic)}, opts...)...)
	}
	for name, tt := range map[string]struct {
		receiver *Receiver
		clients  func(*Source)
		text     string
		kind     error
	}{
		"no receiver": {nil, func(s *Source) { join(s.Opts()...) }, "the receiver is nil", idem.ErrInvalidOption},
		"no client":   {receiver, func(*Source) {}, "no client was made with the Opts", idem.ErrInvalidOption},
		"two clients": {receiver, func(s *Source) {
			join(s.Opts()...)
			join(s.Opts()...)
		}, "two clients", idem.ErrInvalidOption},
		"opts not last": {receiver, func(s *Source) {
			ours := kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) {})
			join(append(s.Opts(), ours)...)
		}, "orders/0 came, which was never assigned: give the client the source's Opts last", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(HeaderID("id"), WithLogger(discard))
			require.NoError(t, err)
			tt.clients(s)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err = s.Next(tt.receiver)(ctx)
			require.ErrorContains(t, err, tt.text)
			if tt.kind != nil {
				require.ErrorIs(t, err, tt.kind)
			}
		})
	}
	s, err := New(HeaderID("id"))
	require.NoError(t, err)
	_, err = kgo.NewClient(append([]kgo.Opt{kgo.ConsumeTopics(topic)}, s.Opts()...)...)
	require.Error(t, err, "the client itself refuses to go without a group")
	require.ErrorIs(t, s.Commit(t.Context()), idem.ErrInvalidOption)
}

func TestNextEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	m := r.join()
	ctx, cancel := context.WithTimeout(t.Context(), quick)
	defer cancel()
	_, err := m.source.Next(r.receiver(nothing))(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `idemkafka: next record of group "billing"`)
	r.produce(0, "a")
	require.Equal(t, "a", idOf(m.next()), "and swallows nothing")
}

func TestConsumeEndsWithTheClient(t *testing.T) {
	t.Parallel()
	r, result := newRig(t, 1), make(chan error)
	m := r.join()
	receiver := r.receiver(nothing)
	go func() { result <- receiver.Consume(context.Background(), 1, m.source.Next(receiver)) }()
	r.produce(0, "a")
	r.settled(0, 1)
	m.leave()
	require.NoError(t, <-result)
}

// What lasts ends Consume; what the client overcomes is logged.
func TestTrouble(t *testing.T) {
	t.Parallel()
	s, err := New(HeaderID("id"), WithLogger(discard))
	require.NoError(t, err)
	fetches := func(errs ...error) (list kgo.Fetches) {
		for _, err := range errs {
			list = append(list, kgo.NewErrFetch(err)...)
		}
		return list
	}
	passing := []error{context.Canceled, context.DeadlineExceeded, &kgo.ErrDataLoss{}, &kgo.ErrGroupSession{Err: kerr.UnknownMemberID}, kerr.NotLeaderForPartition}
	require.NoError(t, s.trouble(fetches(passing...)))
	for _, lasting := range []error{kerr.TopicAuthorizationFailed, kerr.UnknownTopicID, errors.New("batch parse failure")} {
		require.ErrorIs(t, s.trouble(fetches(append(passing, lasting, errHandler)...)), lasting)
	}
}

// Records of a partition one after the other, partitions side by side.
func TestOrderInAPartitionAndPartitionsInParallel(t *testing.T) {
	t.Parallel()
	const partitions, each = 4, 30
	r := newRig(t, partitions)
	for p := range int32(partitions) {
		r.produce(p, ids(fmt.Sprint(p, "-"), each)...)
	}
	var mu sync.Mutex // protects what follows
	order := make(map[int32][]int64)
	running, most := make(map[int32]bool), 0
	together := make(chan struct{})
	r.join().consume(r.receiver(func(_ context.Context, d *Delivery) error {
		p := d.Record().Partition
		mu.Lock()
		assert.False(t, running[p], "one at a time")
		running[p] = true
		if most = max(most, len(running)); most == partitions && len(order) < partitions {
			close(together)
		}
		order[p] = append(order[p], d.Record().Offset)
		mu.Unlock()
		if d.Record().Offset == 0 {
			<-together // all four at once, or never
		}
		mu.Lock()
		delete(running, p)
		mu.Unlock()
		return nil
	}))
	for p := range int32(partitions) {
		r.settled(p, each)
	}
	mu.Lock()
	defer mu.Unlock()
	for p := range int32(partitions) {
		assert.Len(t, order[p], each)
		assert.True(t, slices.IsSorted(order[p]))
	}
}

// What is polled ahead of a slow partition is bounded, and the client is told.
func TestSlowPartitionIsNotPolledAhead(t *testing.T) {
	t.Parallel()
	const many = 5 * pollMax
	r, g := newRig(t, 2), newGated()
	r.produce(0, ids("slow", many)...)
	runs := tally{}
	m := r.join(WithCommitInterval(time.Millisecond))
	m.consume(r.receiver(func(ctx context.Context, d *Delivery) error {
		if idOf(d) == "slow0" {
			return g.handle(ctx, d)
		}
		return runs.handle(ctx, d)
	}))
	<-g.entered
	paused := func() int { return len(m.client.PauseFetchPartitions(nil)[topic]) }
	r.eventually(func() bool { return paused() == 1 })
	for i := range 20 { // the others go on all the while
		r.produce(1, fmt.Sprint("other", i))
		r.settled(1, int64(i+1))
	}
	m.source.mu.Lock()
	queued := len(m.source.partitions[place{topic, 0}].queue)
	m.source.mu.Unlock()
	assert.LessOrEqual(t, queued, queueHigh+pollMax)
	g.gate <- nil
	r.settled(0, many)
	assert.Len(t, runs.all(), many-1+20)
	r.eventually(func() bool { return paused() == 0 })
}

// A pause outlives an assignment with the client. It must not with the source.
func TestPauseEndsWithTheAssignment(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.produce(0, ids("a", 2*queueHigh)...)
	r.produce(1, ids("b", 2*queueHigh)...)
	first := r.join()
	paused := func() int { return len(first.client.PauseFetchPartitions(nil)[topic]) }
	first.next()
	first.next()
	ctx, cancel := context.WithCancel(t.Context())
	polling := make(chan struct{})
	go func() {
		defer close(polling)
		_, _ = first.source.Next(first.receiver(nothing))(ctx) // polls on, with nothing to hand out
	}()
	r.eventually(func() bool { return paused() == 2 })
	second := r.join()
	second.moved()
	r.eventually(func() bool { return paused() == 1 })
	cancel()
	<-polling
}

func TestCommitInterval(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	m := r.join(WithCommitInterval(300 * time.Millisecond))
	m.consume(r.receiver(runs.handle))
	r.produce(0, ids("a", 500)...)
	r.settled(0, 500) // also when nothing comes any more
	assert.Less(t, len(r.commits(0)), 50)
	assert.Len(t, runs.all(), 500)
}

// What is noted while Next already waits for records is committed all the same.
func TestCommitIntervalWhileNextWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a", "b")
	m := r.join(WithCommitInterval(300 * time.Millisecond))
	require.NoError(t, ack(m.next())) // the first of all commits
	d := m.next()
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_, _ = m.source.Next(r.receiver(nothing))(ctx)
	}()
	r.eventually(func() bool {
		m.source.mu.Lock()
		defer m.source.mu.Unlock()
		return m.source.wake != nil
	})
	// It fails twice, and isn't forgotten.
	r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Count: 2})
	require.NoError(t, ack(d))
	r.settled(0, 2)
	cancel()
	<-waiting
}

func TestCommitOnDemand(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a", "b", "c")
	m := r.join(WithCommitInterval(time.Hour))
	require.NoError(t, ack(m.next())) // the first of all commits
	require.NoError(t, ack(m.next()))
	require.NoError(t, ack(m.next()))
	assert.Equal(t, int64(1), r.committed(0))
	fault := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed})
	require.ErrorIs(t, m.source.Commit(t.Context()), kerr.GroupAuthorizationFailed)
	fault.Remove()
	require.NoError(t, m.source.Commit(t.Context()))
	assert.Equal(t, int64(3), r.committed(0))
	require.NoError(t, m.source.Commit(t.Context()))
	assert.Equal(t, []int64{1, 3, 3}, r.commits(0), "nothing more to say")
}

// The broker has committed, and its answer says otherwise.
func TestLostAnswerToACommit(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.RequestTimedOut, Count: 3})
	r.produce(0, "a", "b")
	r.join().consume(r.receiver(runs.handle))
	r.settled(0, 2)
	assert.Equal(t, map[string]int{"a": 1, "b": 1}, runs.all())
}

// Whoever sets the client back wants the records again, and their commits. The
// guard still knows those it has seen.
func TestClientThatIsSetBack(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	r.rewinds()
	m := r.join()
	stop := m.consume(r.receiver(runs.handle))
	r.produce(0, "a", "b", "c")
	r.settled(0, 3)
	require.ErrorIs(t, stop(), context.Canceled)
	r.produce(0, "d")
	old := m.next()
	m.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{topic: {0: {Epoch: -1, Offset: 0}}})
	seen := tally{}
	m.consume(r.elsewhere(seen.handle))
	r.eventually(func() bool { return len(seen.all()) == 4 })
	r.settled(0, 4)
	require.ErrorIs(t, ack(old), ErrLost, "of the time before")
	assert.Contains(t, r.commits(0)[1:], int64(1))
}

// A topic that is made anew counts from 0 again. Ids of the publisher's tell its
// records from the old ones; offsets don't, which is documented with OffsetID.
func TestTopicMadeAnew(t *testing.T) {
	for name, tt := range map[string]struct {
		id   ID
		runs int
	}{
		"ids of the publisher": {HeaderID("id"), 2},
		"offsets":              {OffsetID(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, runs := newRig(t, 1), tally{}
			r.rewinds()
			m := r.joinAs(tt.id, []kgo.Opt{kgo.MetadataMaxAge(50 * time.Millisecond)})
			handle := func(_ context.Context, d *Delivery) error { runs.add(string(d.Record().Value)); return nil }
			stop := m.consume(r.receiver(handle))
			r.produce(0, "old", "second", "third")
			r.settled(0, 3)
			require.ErrorIs(t, stop(), context.Canceled)
			m.leave()
			require.NoError(t, r.cluster.DeleteTopic(topic))
			require.NoError(t, r.cluster.CreateTopic(topic, 1, nil))
			r.producer = r.newClient(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(topic))
			r.produce(0, "new")

			again := r.joinAs(tt.id, nil)
			again.consume(r.receiver(handle))
			r.settled(0, 1)
			assert.Equal(t, tt.runs-1, runs.of("payload of new"))
		})
	}
}

// The same while the consumer runs. The client doesn't follow: Consume ends, and a
// new client goes on, or the old one if it is told to forget the topic.
func TestTopicMadeAnewUnderTheConsumer(t *testing.T) {
	for name, anew := range map[string]func(*member) *member{
		"new client": func(m *member) *member { m.leave(); return m.join() },
		"old client": func(m *member) *member {
			m.client.PurgeTopicsFromClient(topic)
			m.client.AddConsumeTopics(topic)
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, runs, result := newRig(t, 1), tally{}, make(chan error)
			r.rewinds()
			m := r.joinAs(HeaderID("id"), []kgo.Opt{kgo.MetadataMaxAge(50 * time.Millisecond)})
			receiver := r.receiver(runs.handle)
			go func() { result <- receiver.Consume(context.Background(), 1, m.source.Next(receiver)) }()
			r.produce(0, ids("old", 10)...)
			r.settled(0, 10)
			require.NoError(t, r.cluster.DeleteTopic(topic))
			require.NoError(t, r.cluster.CreateTopic(topic, 1, nil))
			require.ErrorIs(t, <-result, kerr.UnknownTopicID)
			r.producer = r.newClient(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(topic))
			r.produce(0, "new0", "new1")
			anew(m).consume(r.receiver(runs.handle))
			r.settled(0, 2)
			assert.Equal(t, 1, runs.of("new0"))
			assert.Equal(t, 1, runs.of("new1"))
		})
	}
}

func TestCallbacksOfTheUser(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	called := make(chan string, 10)
	tell := func(what string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
			assert.NotNil(t, client)
			if len(partitions[topic]) == 1 {
				called <- fmt.Sprintf("%s, committed %d", what, r.committed(0))
			}
		}
	}
	m := r.join(WithCommitInterval(time.Hour), WithOnAssigned(tell("assigned")), WithOnRevoked(tell("revoked")), WithOnLost(tell("lost")))
	r.produce(0, "a", "b")
	require.NoError(t, ack(m.next()))
	require.NoError(t, ack(m.next()))
	require.Equal(t, "assigned, committed -1", <-called)
	r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: kerr.FencedInstanceID})
	require.Equal(t, "lost, committed 1", <-called)
	require.Equal(t, "b", idOf(m.next()))
	require.Equal(t, "assigned, committed 1", <-called)
	m.leave()
	require.Equal(t, "revoked, committed 1", <-called)
}
