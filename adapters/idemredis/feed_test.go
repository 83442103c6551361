package idemredis

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEntriesOfADeadConsumerAreClaimed(t *testing.T) {
	r := newRig(t)
	var ids []string
	for i := range 50 {
		ids = append(ids, strconv.Itoa(i))
	}
	r.publish(ids...)
	gone := r.sourceAs("gone", dial(t))
	for range 50 {
		r.next(gone)
	}
	r.age()
	r.publish("new")
	runs := tally{}
	r.consume(r.receiver(runs.counting), r.source(dial(t), WithBatch(3)))
	r.settled()
	assert.ElementsMatch(t, append(ids, "new"), runs.all())
}

// The pending entries of others don't hide an idle one behind them.
func TestScanGoesPastWhatIsNotIdle(t *testing.T) {
	r := newRig(t)
	for i := range 60 {
		r.publish(strconv.Itoa(i))
	}
	busy := r.sourceAs("busy", dial(t))
	for range 59 {
		r.next(busy)
	}
	last := r.next(busy)
	require.NoError(t, last.Requeue(t.Context(), nil))
	d := r.next(r.source(dial(t)))
	require.Equal(t, "59", idOf(d))
	require.Equal(t, int64(1), d.Delivered())
}

// A requeue is seen by a Next that waits already, also while its read waits on, and
// long before it looks for what was left pending.
func TestRequeueWakesNext(t *testing.T) {
	r, l := newRig(t), dial(t)
	s := r.source(l)
	r.publish("a")
	d := r.next(s)
	s.feed.scanAt = time.Now().Add(time.Hour)
	over := make(chan struct{})
	defer close(over)
	l.lose = func(cmd redis.Cmder) error {
		if nameOf(cmd) == "xreadgroup" {
			<-over
		}
		return nil
	}
	waiting := make(chan *Delivery)
	next := func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		d, err := s.Next(ctx)
		assert.NoError(t, err)
		waiting <- d
	}
	reads := l.count("xreadgroup")
	for i, cause := range []error{nil, errHandler} {
		go next()
		r.eventually(func() bool { return len(s.slots) == 2 && l.count("xreadgroup") == reads+1 })
		require.NoError(t, d.Requeue(t.Context(), cause))
		d = <-waiting
		require.NotNil(t, d)
		require.Equal(t, "a", idOf(d))
		require.Equal(t, int64(i+1), d.Delivered())
	}
	require.Equal(t, 2, l.count("xclaim"))
}

// What another consumer was quicker to claim doesn't come here, too.
func TestComebackThatAnotherHasClaimed(t *testing.T) {
	r := newRig(t)
	s := r.source(dial(t))
	r.publish("a")
	require.NoError(t, r.next(s).Requeue(t.Context(), nil))
	d := r.next(r.sourceAs("other", dial(t)))
	r.nothing(s)
	require.NoError(t, d.Ack(t.Context()))
}

func TestGiveBack(t *testing.T) {
	r := newRig(t)
	r.publish("a", "b", "c")
	s := r.source(dial(t), WithBatch(10))
	require.Equal(t, "a", idOf(r.next(s)))
	require.Len(t, r.pending(), 3)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.GiveBack(done), context.Canceled)
	_, err := s.Next(done)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.GiveBack(t.Context()))
	other := r.sourceAs("other", dial(t))
	for _, id := range []string{"b", "c"} {
		d := r.next(other)
		require.Equal(t, id, idOf(d))
		require.Equal(t, int64(1), d.Delivered(), "it was not begun")
	}
	require.NoError(t, s.GiveBack(t.Context()), "nothing left")
	r.publish("d")
	require.Equal(t, "d", idOf(r.next(s)), "it goes on")
}

// What a read finds after Next has returned is given back, too, or handed out next.
func TestReadThatOutlivesItsCall(t *testing.T) {
	r := newRig(t)
	s := r.source(dial(t))
	r.nothing(s)
	r.publish("a")
	r.eventually(func() bool { return len(r.pending()) == 1 })
	require.Equal(t, "a", idOf(r.next(s)))

	r.nothing(s)
	r.publish("b")
	r.eventually(func() bool { return len(r.pending()) == 2 })
	require.NoError(t, s.GiveBack(t.Context()))
	require.Equal(t, "b", idOf(r.next(r.sourceAs("other", dial(t)))))
}

// What has waited for a worker for long is asked for again before it is handed out.
func TestWhatWasFetchedAheadGrowsOld(t *testing.T) {
	r := newRig(t)
	r.publish("a", "b", "c")
	l := dial(t)
	s := r.source(l, WithBatch(10))
	require.Equal(t, "a", idOf(r.next(s)))
	s.ageBuffer()
	b := r.pending()[1]
	require.NoError(t, r.rdb.XClaim(t.Context(), &redis.XClaimArgs{
		Stream: r.place.Stream, Group: "billing", Consumer: "other", Messages: []string{b.ID},
	}).Err())
	require.Equal(t, "c", idOf(r.next(s)), "the other one is no longer ours")
	require.Equal(t, 2, l.count("renew"))
}

// ageBuffer makes what was fetched ahead have waited for long.
func (s *Source) ageBuffer() {
	for i := range s.feed.buffer {
		s.feed.buffer[i].at = s.feed.buffer[i].at.Add(-never)
	}
}

// One that can't be asked for again just now is not lost: it is given back.
func TestWhatWasFetchedAheadIsKeptWhereNextIsToStop(t *testing.T) {
	r := newRig(t)
	r.publish("a", "b", "c")
	l := dial(t)
	s := r.source(l, WithBatch(10))
	require.Equal(t, "a", idOf(r.next(s)))
	s.ageBuffer()
	l.lose = func(redis.Cmder) error { return net.ErrClosed }
	_, err := s.Next(t.Context())
	require.ErrorIs(t, err, net.ErrClosed)
	l.lose = nil
	require.NoError(t, s.GiveBack(t.Context()))
	other := r.sourceAs("other", dial(t))
	require.Equal(t, "b", idOf(r.next(other)))
	require.Equal(t, "c", idOf(r.next(other)))
}

// An entry that fails for ever takes turns with new ones, and with those of consumers
// that are gone.
func TestWhatFailsForEverKeepsNobodyAway(t *testing.T) {
	r := newRig(t)
	r.publish("abandoned")
	r.next(r.sourceAs("gone", dial(t)))
	r.publish("poison")
	runs := tally{}
	s := r.source(dial(t), WithRequeueDelay(0), WithMaxUnsettled(1))
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		if runs.add(idOf(d)); idOf(d) == "poison" {
			return errHandler
		}
		return nil
	}), s)
	r.eventually(func() bool { return runs.of("poison") > 20 })
	r.age()
	r.publish("1", "2", "3")
	r.eventually(func() bool { return runs.of("1")+runs.of("2")+runs.of("3") == 3 })
	before := runs.of("poison")
	r.eventually(func() bool { return runs.of("poison") > before })
}

// A loop of one's own doesn't ask for what it gave back: nobody need remember it.
func TestWhatNextDidNotHandOutIsNotExpectedBack(t *testing.T) {
	r := newRig(t)
	s := r.source(dial(t))
	r.publish("a", "b")
	streams, err := r.rdb.XReadGroup(t.Context(), &redis.XReadGroupArgs{
		Group: "billing", Consumer: "worker", Streams: []string{r.place.Stream, ">"}, Count: 1,
	}).Result()
	require.NoError(t, err)
	require.NoError(t, s.Delivery(streams[0].Messages[0]).Requeue(t.Context(), errHandler))
	require.Empty(t, s.feed.comebacks)
	d := r.next(s)
	require.NoError(t, d.Requeue(t.Context(), errHandler))
	require.Len(t, s.feed.comebacks, 1)
}

func TestMaxUnsettled(t *testing.T) {
	r := newRig(t)
	s := r.source(dial(t), WithMaxUnsettled(2))
	r.publish("a", "b", "c", "d")
	a, b := r.next(s), r.next(s)
	r.nothing(s)
	require.Len(t, r.pending(), 2)
	require.NoError(t, a.Ack(t.Context()))
	require.NoError(t, a.Ack(t.Context()), "which makes no more room")
	c := r.next(s)
	r.nothing(s)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, b.Ack(done))
	r.next(s) // a failed verb is an end, too
	require.NoError(t, c.Ack(t.Context()))
}

func TestNextErrors(t *testing.T) {
	r := newRig(t)
	l := dial(t)
	place := r.place
	place.Group = "missing"
	s, err := New(l, place, FieldID("id"))
	require.NoError(t, err)
	_, err = s.Next(t.Context())
	require.ErrorContains(t, err, "idemredis: next entry of "+r.place.Stream+"/missing: NOGROUP")
	require.Empty(t, s.slots)

	s = r.source(l)
	r.nothing(s)
	l.cut()
	_, err = s.Next(t.Context())
	require.ErrorContains(t, err, "idemredis: next entry of ")
	require.NotErrorIs(t, err, redis.Nil)
}

// Connections are closed under running handlers, a fifth of which fail, with
// duplicates among the entries: each one's effect happens once, and none is lost.
func TestCutsUnderRunningHandlers(t *testing.T) {
	const messages, cuts, workers = 200, 4, 8
	r, runs, done := newRig(t), tally{}, tally{}
	for i := range messages {
		r.publish(strconv.Itoa(i))
		if i%10 == 9 {
			r.publish(strconv.Itoa(i - 5))
		}
	}
	landmarks := make(chan chan struct{})
	receiver := r.receiver(func(_ context.Context, d *Delivery) error {
		id := idOf(d)
		run := runs.add(id)
		i, err := strconv.Atoi(id)
		if err != nil {
			return err
		}
		if run == 1 && i%(messages/cuts) == messages/cuts/2 {
			g := make(chan struct{})
			landmarks <- g
			<-g
		}
		if run == 1 && i%5 == 0 {
			return errHandler
		}
		done.add(id)
		return nil
	})
	receiver.SettleTimeout = 500 * time.Millisecond
	shift := func(n int) (*line, chan error) {
		l, ended := dial(t), make(chan error, 1)
		s := r.sourceAs(fmt.Sprint("worker-", n), l, WithMinIdle(300*time.Millisecond), WithBatch(4))
		go func() { ended <- receiver.Consume(t.Context(), workers, s.Next) }()
		return l, ended
	}
	var ended []chan error
	l, end := shift(0)
	for n := range cuts {
		g := <-landmarks
		l.cut()
		ended = append(ended, end)
		copies := r.guard.Stats().DuplicatesInFlight
		l, end = shift(n + 1)
		r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight > copies })
		close(g)
	}
	r.settled()
	for _, e := range ended {
		require.Error(t, <-e)
	}
	for i := range messages {
		require.Equal(t, 1, done.of(strconv.Itoa(i)), i)
	}
	assert.Len(t, runs.all(), messages+messages/5)
	assert.Zero(t, r.guard.Stats().InFlight)
	l.cut()
	require.Error(t, <-end)
}
