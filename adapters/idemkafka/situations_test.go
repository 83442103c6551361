package idemkafka

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestSuccessIsCommittedBehindTheRecord(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	r.produce(0, "a", "b")
	r.join().consume(r.receiver(func(_ context.Context, d *Delivery) error {
		assert.Equal(t, "payload of "+idOf(d), string(d.Record().Value))
		runs.add(idOf(d))
		return nil
	}))
	r.settled(0, 2)
	assert.Equal(t, []int64{1, 2}, r.commits(0))
	assert.Equal(t, map[string]int{"a": 1, "b": 1}, runs.all())
	assert.Equal(t, uint64(2), r.guard.Stats().Completed)
}

func TestFailureStopsItsPartitionOnly(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 2), tally{}
	r.produce(0, "fails", "behind")
	r.produce(1, ids("other", 20)...)
	stops := make(chan Stop, 1)
	m := r.join(WithOnStop(func(s Stop) { stops <- s }))
	m.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		if runs.add(idOf(d)) == 1 && idOf(d) == "fails" {
			return errHandler
		}
		return nil
	}))
	stop := <-stops
	require.ErrorIs(t, stop.Cause, errHandler)
	require.Equal(t, int64(0), stop.Record.Offset)
	r.settled(1, 20)
	require.Equal(t, []Stop{stop}, m.source.Stopped())
	assert.Equal(t, int64(-1), r.committed(0))
	assert.Zero(t, runs.of("behind"), "order is kept")

	assert.False(t, m.source.Resume(topic, 1))
	assert.False(t, m.source.Resume("elsewhere", 0))
	assert.True(t, m.source.Resume(topic, 0))
	r.settled(0, 2)
	assert.Empty(t, m.source.Stopped())
	assert.Equal(t, 2, runs.of("fails"))
	assert.Equal(t, 1, runs.of("behind"))
}

// OnStop may resume at once, or later: a retry that keeps the order.
func TestStoppedPartitionMayBeResumedFromOnStop(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	r.produce(0, "a", "b")
	var m *member
	m = r.join(WithOnStop(func(s Stop) {
		time.AfterFunc(quick, func() { m.source.Resume(s.Record.Topic, s.Record.Partition) })
	}))
	m.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		if runs.add(idOf(d)) < 3 {
			return errHandler
		}
		return nil
	}))
	r.settled(0, 2)
	assert.Equal(t, map[string]int{"a": 3, "b": 3}, runs.all())
}

func TestRetryTakesFailedRecordsElsewhere(t *testing.T) {
	t.Parallel()
	r, runs, retried := newRig(t, 1), tally{}, tally{}
	r.produce(0, "fails", "behind")
	m := r.join(WithRetry(func(_ context.Context, record *kgo.Record, cause error) error {
		assert.ErrorIs(t, cause, errHandler)
		assert.Equal(t, int64(0), record.Offset)
		if retried.add("") == 1 {
			return errors.New("the retry topic is away")
		}
		return nil
	}))
	m.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		runs.add(idOf(d))
		if idOf(d) == "fails" {
			return errHandler
		}
		return nil
	}))
	r.settled(0, 2)
	assert.Equal(t, 2, retried.of(""))
	assert.Equal(t, map[string]int{"fails": 2, "behind": 1}, runs.all(), "given back when retry has failed")
	assert.Empty(t, m.source.Stopped())
}

func TestPoisonGoesToTheDeadLetters(t *testing.T) {
	t.Parallel()
	r, runs, dead := newRig(t, 1), tally{}, make(chan error, 1)
	r.produce(0, "poison", "good")
	r.join(WithDeadLetter(func(_ context.Context, record *kgo.Record, cause error) error {
		assert.Equal(t, int64(0), record.Offset)
		dead <- cause
		return nil
	})).consume(r.receiver(func(_ context.Context, d *Delivery) error {
		runs.add(idOf(d))
		if idOf(d) == "poison" {
			return idem.WithOutcome(errHandler, idem.Reject)
		}
		return nil
	}))
	r.settled(0, 2)
	require.ErrorIs(t, <-dead, errHandler)
	assert.Equal(t, map[string]int{"poison": 1, "good": 1}, runs.all())
	r.eventually(func() bool { return r.guard.Stats().Rejected == 1 })
}

// Nothing is lost for want of a place to put it.
func TestRejectWithoutDeadLettersStopsThePartition(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	r.produce(0, "poison", "behind")
	m := r.join()
	m.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		if runs.add(idOf(d)) == 1 {
			return idem.WithOutcome(errHandler, idem.Reject)
		}
		return nil
	}))
	r.eventually(func() bool { return len(m.source.Stopped()) == 1 })
	assert.Equal(t, int64(-1), r.committed(0))
	r.eventually(func() bool { return r.guard.Stats().Released == 1 })
	assert.Zero(t, r.guard.Stats().Rejected)
	m.source.Resume(topic, 0)
	r.eventually(func() bool { return runs.of("poison") == 2 })
	r.eventually(func() bool { return len(m.source.Stopped()) == 1 }) // "behind", which fails once too
	assert.Equal(t, int64(1), r.committed(0))
}

func TestDuplicateAfterSuccessIsSkippedAndCommitted(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	r.produce(0, "a", "a", "b", "a")
	r.join().consume(r.receiver(runs.handle))
	r.settled(0, 4)
	assert.Equal(t, map[string]int{"a": 1, "b": 1}, runs.all())
	assert.Equal(t, uint64(2), r.guard.Stats().DuplicatesCompleted)
}

func TestDuplicateAfterRejectIsRejectedAgain(t *testing.T) {
	t.Parallel()
	r, runs, dead := newRig(t, 1), tally{}, make(chan error, 2)
	r.produce(0, "a", "a")
	r.join(WithDeadLetter(func(_ context.Context, _ *kgo.Record, cause error) error {
		dead <- cause
		return nil
	})).consume(r.receiver(func(_ context.Context, d *Delivery) error {
		runs.add(idOf(d))
		return idem.WithOutcome(errHandler, idem.Reject)
	}))
	r.settled(0, 2)
	require.ErrorIs(t, <-dead, errHandler)
	require.ErrorIs(t, <-dead, idem.ErrRejected)
	assert.Equal(t, 1, runs.of("a"))
}

func TestInFlightHoldsItsPartitionOnly(t *testing.T) {
	for _, first := range []error{nil, errHandler} {
		t.Run(fmt.Sprintf("the first one returns %v", first), func(t *testing.T) {
			t.Parallel()
			r, g := newRig(t, 3), newGated()
			m := r.join()
			m.consume(r.receiver(func(ctx context.Context, d *Delivery) error {
				if idOf(d) == "a" {
					return g.handle(ctx, d)
				}
				return nil
			}))
			r.produce(0, "a", "behind the first")
			require.Equal(t, "a", <-g.entered)
			r.produce(1, "a", "behind the copy")
			r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 1 })
			r.produce(2, ids("other", 50)...)
			r.settled(2, 50)
			assert.Equal(t, int64(-1), r.committed(0))
			assert.Equal(t, int64(-1), r.committed(1), "nothing is settled, nothing overtakes")
			g.gate <- first
			if first == nil {
				r.settled(0, 2)
				r.settled(1, 2)
				assert.Empty(t, g.entered, "it ran once")
				return
			}
			require.Equal(t, "a", <-g.entered, "the copy's turn")
			g.gate <- nil
			r.settled(1, 2)
			require.Len(t, m.source.Stopped(), 1, "where the first one failed")
			m.source.Resume(topic, 0)
			r.settled(0, 2)
			assert.Empty(t, g.entered)
		})
	}
}

// Nothing has failed when the time to hold is over: the partition isn't stopped,
// the record comes again.
func TestHoldTimeoutHandsOutTheRecordAgain(t *testing.T) {
	t.Parallel()
	r, g := newRig(t, 2), newGated()
	m := r.join(WithRetry(func(context.Context, *kgo.Record, error) error {
		return errors.New("not for records that were never begun")
	}))
	receiver := r.receiver(g.handle)
	receiver.HoldTimeout = quick
	m.consume(receiver)
	r.produce(0, "a")
	<-g.entered
	r.produce(1, "a")
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight >= 3 })
	assert.Empty(t, m.source.Stopped())
	g.gate <- nil
	r.settled(0, 1)
	r.settled(1, 1)
	assert.Empty(t, g.entered)
}

func TestInFlightAck(t *testing.T) {
	t.Parallel()
	r, g := newRig(t, 2), newGated()
	receiver := r.receiver(g.handle)
	receiver.OnInFlight = idem.AckInFlight
	r.join().consume(receiver)
	r.produce(0, "a")
	<-g.entered
	r.produce(1, "a")
	r.settled(1, 1)
	assert.Equal(t, int64(-1), r.committed(0))
	g.gate <- nil
	r.settled(0, 1)
	assert.Empty(t, g.entered)
}

func TestInFlightRequeueIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a")
	m := r.join()
	receiver := r.receiver(nothing)
	receiver.OnInFlight = idem.RequeueInFlight
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := receiver.Consume(ctx, 1, m.source.Next(receiver))
	require.ErrorIs(t, err, idem.ErrInvalidOption)
	require.ErrorContains(t, err, "idemkafka: the receiver's OnInFlight must be HoldInFlight or AckInFlight, not RequeueInFlight")
	assert.Zero(t, r.guard.Stats().Begun)
}

// A storm of copies behind a slow one, over all partitions.
func TestStormOfCopiesRunsOnce(t *testing.T) {
	t.Parallel()
	r, g := newRig(t, 4), newGated()
	m := r.join()
	m.consume(r.receiver(g.handle))
	r.produce(0, "a")
	<-g.entered
	for p := range int32(4) {
		r.produce(p, "a", "a", "a", "a", "a")
	}
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 3 }) // one a partition
	g.gate <- nil
	r.settled(0, 6)
	for p := range int32(3) {
		r.settled(p+1, 5)
	}
	assert.Empty(t, g.entered)
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
}

// The commit fails, also for good: the record is given back until it succeeds,
// and the guard has it run once.
func TestFailedCommitIsTriedAgain(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	fault := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Count: -1})
	r.produce(0, "a", "b")
	m := r.join()
	m.consume(r.receiver(runs.handle))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, fault.Wait(ctx, 3))
	assert.Equal(t, int64(-1), r.committed(0))
	assert.Zero(t, runs.of("b"), "nothing overtakes")
	fault.Remove()
	r.settled(0, 2)
	assert.Equal(t, map[string]int{"a": 1, "b": 1}, runs.all())
	assert.GreaterOrEqual(t, r.guard.Stats().DuplicatesCompleted, uint64(2))
}

func TestHandlerSettlesByItself(t *testing.T) {
	ctx := context.Background()
	for name, tt := range map[string]struct {
		settle    func(*Delivery) error
		committed int64
		stopped   int
	}{
		"Ack":     {func(d *Delivery) error { return d.Ack(ctx) }, 1, 0},
		"Requeue": {func(d *Delivery) error { return d.Requeue(ctx, errHandler) }, -1, 1},
		"Reject":  {func(d *Delivery) error { return d.Reject(ctx, errHandler) }, 1, 0},
	} {
		for _, returns := range []error{nil, errHandler} {
			t.Run(fmt.Sprintf("%s and returns %v", name, returns), func(t *testing.T) {
				t.Parallel()
				r, ran := newRig(t, 1), make(chan struct{}, 2)
				r.produce(0, "a")
				m := r.join(WithDeadLetter(func(context.Context, *kgo.Record, error) error { return nil }))
				stop := m.consume(r.receiver(func(_ context.Context, d *Delivery) error {
					defer func() { ran <- struct{}{} }()
					assert.NoError(t, tt.settle(d))
					return returns
				}))
				<-ran
				require.ErrorIs(t, stop(), context.Canceled)
				r.settled(0, tt.committed)
				assert.Len(t, m.source.Stopped(), tt.stopped)
				assert.Zero(t, r.guard.Stats().InFlight)
				assert.Empty(t, ran)
			})
		}
	}
}

// A handler that is slower than the session: the client keeps the session, and
// Kafka has no deadline for a record.
func TestSlowHandlerIsNotRedelivered(t *testing.T) {
	t.Parallel()
	r, g := newRig(t, 1), newGated()
	session := 300 * time.Millisecond
	beats := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Observe: true, Count: -1})
	m := r.joinAs(HeaderID("id"), []kgo.Opt{kgo.SessionTimeout(session), kgo.HeartbeatInterval(session / 6)})
	m.consume(r.receiver(g.handle))
	r.produce(0, "a")
	<-g.entered
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, beats.Wait(ctx, beats.Hits()+12), "two sessions long")
	g.gate <- nil
	r.settled(0, 1)
	assert.Empty(t, g.entered)
	assert.Equal(t, 1, m.has())
}

func TestShutdownInMidHandler(t *testing.T) {
	t.Parallel()
	r, g := newRig(t, 4), newGated()
	for p := range int32(4) {
		r.produce(p, fmt.Sprint("first", p), fmt.Sprint("second", p))
	}
	m := r.join()
	stop, wait := m.start(r.receiver(g.handle))
	for range 4 {
		<-g.entered
	}
	stop()
	for range 3 {
		g.gate <- nil
	}
	g.gate <- errHandler
	require.ErrorIs(t, wait(), context.Canceled)
	assert.Equal(t, idem.Stats{Tracked: 3, Horizon: r.guard.Stats().Horizon, Begun: 4, Completed: 3, Released: 1}, r.guard.Stats(),
		"what was fetched ahead never came before the guard")
	assert.Equal(t, int64(3), r.total(4), "what was done is committed, on a context that lives")
	m.leave()

	runs := tally{}
	r.join().consume(r.receiver(runs.handle))
	r.eventually(func() bool { return r.total(4) == 8 })
	assert.Len(t, runs.all(), 5, "the failed one and the four that were not begun")
}

// total is the sum of the committed offsets.
func (r *rig) total(partitions int32) (sum int64) {
	for p := range partitions {
		sum += max(r.committed(p), 0)
	}
	return sum
}

// The receiver is rebuilt on the same client: what it has polled ahead goes on,
// and what was stopped begins again.
func TestReceiverRebuiltOnItsClient(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, ids("a", 10)...)
	m := r.join()
	entered := make(chan struct{}, 1)
	receiver := r.receiver(func(ctx context.Context, d *Delivery) error {
		if idOf(d) != "a3" {
			return nil
		}
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	receiver.Drain = time.Millisecond
	stop := m.consume(receiver)
	<-entered
	require.ErrorIs(t, stop(), context.Canceled)
	r.settled(0, 3)
	require.Len(t, m.source.Stopped(), 1)

	runs := tally{}
	m.consume(r.receiver(runs.handle))
	r.settled(0, 10)
	assert.Len(t, runs.all(), 7)
}

// Client and receiver are rebuilt, after their commits have failed. The guard
// outlives them, and drops what comes back.
func TestReceiverRebuiltWithItsClient(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 2), tally{}
	fault := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Count: -1})
	r.produce(0, "a")
	r.produce(1, "b")
	m := r.join()
	stop := m.consume(r.receiver(runs.handle))
	r.eventually(func() bool { return r.guard.Stats().Completed == 2 })
	require.ErrorIs(t, stop(), context.Canceled)
	m.leave()
	fault.Remove()

	again := r.join()
	again.consume(r.receiver(runs.handle))
	r.settled(0, 1)
	r.settled(1, 1)
	assert.Equal(t, map[string]int{"a": 1, "b": 1}, runs.all())
}

func TestUnidentifiedRecordsAlwaysRun(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	r.produce(0, "", "", "")
	r.join().consume(r.receiver(runs.handle))
	r.settled(0, 3)
	assert.Equal(t, 3, runs.of(""))
	assert.Equal(t, uint64(3), r.guard.Stats().Unidentified)
}

// A failing id function is no reason to ack, nor to run.
func TestFailingIDStopsThePartition(t *testing.T) {
	t.Parallel()
	r, runs, calls := newRig(t, 1), tally{}, tally{}
	r.produce(0, "a")
	m := r.joinAs(func(record *kgo.Record) (string, error) {
		if calls.add("") == 1 {
			return "", errors.New("no id in the payload")
		}
		return string(record.Value), nil
	}, nil)
	m.consume(r.receiver(runs.handle))
	r.eventually(func() bool { return len(m.source.Stopped()) == 1 })
	assert.Empty(t, runs.all())
	m.source.Resume(topic, 0)
	r.settled(0, 1)
	assert.Equal(t, 1, runs.of("a"))
	assert.Equal(t, uint64(1), r.guard.Stats().Begun)
}

// A handler's panic goes through Consume, and its record is not lost.
func TestPanickingHandlerLosesNothing(t *testing.T) {
	t.Parallel()
	r, runs := newRig(t, 1), tally{}
	r.produce(0, "a")
	m := r.join()
	receiver := r.receiver(func(context.Context, *Delivery) error { panic("boom") })
	require.PanicsWithValue(t, "boom", func() { _ = receiver.Consume(t.Context(), 1, m.source.Next(receiver)) })
	m.consume(r.receiver(runs.handle))
	r.settled(0, 1)
	assert.Equal(t, 1, runs.of("a"))
}

// One guard for two groups: each is to get the message, unless told otherwise.
func TestGroupsOnOneGuard(t *testing.T) {
	for mode, want := range map[idem.MessageIdentity]int{idem.IDAndDestination: 2, idem.IDOnly: 1} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			r, runs := newRig(t, 1), tally{}
			r.rewinds() // the groups' commits are told apart by the broker only
			guard, err := idem.NewGenerational(idem.WithMessageIdentity(mode))
			require.NoError(t, err)
			r.guard = guard
			r.produce(0, "a")
			r.join().consume(r.receiver(runs.handle))
			r.settled(0, 1)
			r.joinAs(HeaderID("id"), []kgo.Opt{kgo.ConsumerGroup("shipping")}).consume(r.receiver(runs.handle))
			r.eventually(func() bool {
				info := r.cluster.GroupInfo("shipping")
				return info != nil && info.Commits[topic][0].Offset == 1
			})
			assert.Equal(t, want, runs.of("a"))
		})
	}
}
