package idemkafka

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var _ idem.Delivery = (*Delivery)(nil)

func ack(d *Delivery) error { return d.Ack(context.Background()) }

func requeue(cause error) func(*Delivery) error {
	return func(d *Delivery) error { return d.Requeue(context.Background(), cause) }
}

func reject(cause error) func(*Delivery) error {
	return func(d *Delivery) error { return d.Reject(context.Background(), cause) }
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	record := func(headers ...string) *kgo.Record {
		r := &kgo.Record{Topic: topic, Partition: 3, Offset: 17, Key: []byte("customer")}
		for i := 0; i < len(headers); i += 2 {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
		}
		return r
	}
	errID := errors.New("no such field")
	for name, tt := range map[string]struct {
		record *kgo.Record
		id     ID
		want   string
		err    error
	}{
		"header":              {record("x", "b", "id", "a"), HeaderID("id"), "a", nil},
		"header, last value":  {record("id", "a", "id", "b", "x", "c"), HeaderID("id"), "b", nil},
		"header, exact key":   {record("ID", "a"), HeaderID("id"), "", nil},
		"header, empty":       {record("id", ""), HeaderID("id"), "", nil},
		"no headers":          {record(), HeaderID("id"), "", nil},
		"offset":              {record("id", "a"), OffsetID(), "orders/3@17", nil},
		"function":            {record(), func(r *kgo.Record) (string, error) { return string(r.Key), nil }, "customer", nil},
		"function that fails": {record(), func(*kgo.Record) (string, error) { return "x", errID }, "", errID},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(tt.id)
			require.NoError(t, err)
			s.group = group
			id, err := newDelivery(s, &partition{}, tt.record).Identity()
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err)
				require.ErrorContains(t, err, "idemkafka: id of orders/3@17")
				require.Equal(t, idem.Identity{}, id)
				return
			}
			require.NoError(t, err)
			require.Equal(t, idem.IDAt(tt.want, "orders/billing"), id)
		})
	}
}

func TestSecondVerbDoesNothing(t *testing.T) {
	t.Parallel()
	r, handed := newRig(t, 1), tally{}
	count := func(context.Context, *kgo.Record, error) error { handed.add(""); return nil }
	m := r.join(WithRetry(count), WithDeadLetter(count))
	for i, first := range []struct {
		verb   func(*Delivery) error
		is     idem.Outcome
		handed int
	}{
		{ack, idem.Ack, 0},
		{requeue(errHandler), idem.Requeue, 1},
		{reject(errHandler), idem.Reject, 2},
	} {
		r.produce(0, "a")
		d := m.next()
		require.Equal(t, idem.Unsettled, d.Settled())
		require.NoError(t, first.verb(d))
		for _, second := range []func(*Delivery) error{ack, requeue(nil), requeue(errHandler), reject(errHandler)} {
			require.NoError(t, second(d))
			require.Equal(t, first.is, d.Settled())
		}
		assert.Equal(t, first.handed, handed.of(""))
		assert.Equal(t, int64(i+1), r.committed(0))
	}
	assert.Equal(t, []int64{1, 2, 3}, r.commits(0))
}

func TestRequeueWithoutACauseComesAgainAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a", "b")
	m := r.join()
	m.source.rest = time.Hour
	for range 3 {
		d := m.next()
		require.Equal(t, "a", idOf(d))
		require.NoError(t, d.Requeue(t.Context(), nil))
		require.Equal(t, idem.Requeue, d.Settled())
	}
	require.NoError(t, ack(m.next()))
	require.Equal(t, "b", idOf(m.next()))
}

// Two deliveries of one partition are never out.
func TestNextWaitsForThePartition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a", "b")
	m := r.join()
	d := m.next()
	second := make(chan *Delivery)
	go func() { second <- m.next() }()
	select {
	case <-second:
		t.Fatal("the first one is not settled")
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, ack(d))
	require.Equal(t, "b", idOf(<-second), "the poll under way is woken")
}

func TestFailedVerbGivesTheRecordBack(t *testing.T) {
	t.Parallel()
	failing := func(context.Context, *kgo.Record, error) error { return errHandler }
	done, cancel := context.WithCancel(context.Background())
	cancel()
	for name, verb := range map[string]func(*Delivery) error{
		"ack":               ack,
		"ack in vain":       func(d *Delivery) error { return d.Ack(done) },
		"requeue, retry":    requeue(errHandler),
		"requeue in vain":   func(d *Delivery) error { return d.Requeue(done, nil) },
		"reject":            reject(errHandler),
		"reject, no commit": func(d *Delivery) error { d.source.deadLetter = nothingWrong; return reject(errHandler)(d) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			fault := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Count: -1})
			r.produce(0, "a", "b")
			m := r.join(WithRetry(failing), WithDeadLetter(failing))
			d := m.next()
			err := verb(d)
			require.ErrorContains(t, err, "idemkafka: ")
			require.ErrorContains(t, err, "orders/0@0")
			require.Equal(t, err, ack(d), "the same error again")
			again := m.next()
			require.NotSame(t, d, again)
			require.Equal(t, "a", idOf(again))
			require.Equal(t, idem.Unsettled, again.Settled())
			fault.Remove()
			require.NoError(t, ack(again))
			require.Equal(t, err, ack(d), "also when another one has succeeded")
			require.Equal(t, int64(1), r.committed(0))
		})
	}
}

// What fails at once is not tried again without pause.
func TestRecordRestsWhenItsVerbHasFailed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a")
	m := r.join()
	require.Equal(t, defaultRest, time.Second)
	m.source.rest = 300 * time.Millisecond
	r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}})
	require.Error(t, ack(m.next()))
	failed := time.Now()
	require.NoError(t, ack(m.next()))
	assert.GreaterOrEqual(t, time.Since(failed), 290*time.Millisecond)
}

// Not by chance, either.
func TestVerbOnADoneContextAlwaysGivesTheRecordBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a")
	m := r.join()
	m.source.rest = time.Millisecond
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		require.ErrorIs(t, m.next().Ack(done), context.Canceled)
	}
	require.NoError(t, ack(m.next()))
}

func nothingWrong(context.Context, *kgo.Record, error) error { return nil }

// The cause is in the error.
func TestErrorsTellWhatFailed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a")
	m := r.join()
	r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}})
	require.EqualError(t, ack(m.next()), "idemkafka: Ack of orders/0@0: committing offsets of group \"billing\": orders/0: "+
		"UNKNOWN_SERVER_ERROR: The server experienced an unexpected error when processing the request.")
	d := m.next()
	err := reject(errHandler)(d)
	require.Equal(t, idem.Requeue, d.Settled(), "it was given back: the claim is to be released")
	require.ErrorIs(t, err, ErrNoDeadLetter)
	require.EqualError(t, err, "idemkafka: Reject of orders/0@0: idemkafka: there is no dead-letter function, the record was not rejected")
}

func TestConcurrentVerbsSettleOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	m := r.join(WithRetry(nothingWrong), WithDeadLetter(nothingWrong))
	for i := range 50 {
		r.produce(0, "a")
		d := m.next()
		var workers sync.WaitGroup
		for _, verb := range []func(*Delivery) error{ack, requeue(errHandler), reject(errHandler), ack} {
			workers.Go(func() { assert.NoError(t, verb(d)) })
		}
		workers.Wait()
		require.Len(t, r.commits(0), i+1)
	}
}

// A function of the caller's that doesn't heed its context is left behind.
func TestVerbsHonourTheirContext(t *testing.T) {
	t.Parallel()
	r, release := newRig(t, 1), make(chan struct{})
	hangs := func(context.Context, *kgo.Record, error) error { <-release; return nil }
	r.produce(0, "a")
	m := r.join(WithRetry(hangs), WithDeadLetter(hangs))
	for _, verb := range []func(context.Context, *Delivery) error{
		func(ctx context.Context, d *Delivery) error { return d.Requeue(ctx, errHandler) },
		func(ctx context.Context, d *Delivery) error { return d.Reject(ctx, errHandler) },
	} {
		d := m.next()
		ctx, cancel := context.WithTimeout(t.Context(), quick)
		require.ErrorIs(t, verb(ctx, d), context.DeadlineExceeded)
		cancel()
	}
	d := m.next()
	close(release)
	require.Empty(t, r.commits(0), "what it says when nobody listens has no effect")
	require.NoError(t, ack(d))

	// A second verb doesn't wait for the first one longer than its own context.
	r.produce(0, "b")
	again := make(chan struct{})
	m.source.retry = func(context.Context, *kgo.Record, error) error { <-again; return nil }
	d = m.next()
	first := make(chan error)
	go func() { first <- requeue(errHandler)(d) }()
	r.eventually(func() bool { return d.Settled() == idem.Requeue })
	ctx, cancel := context.WithTimeout(t.Context(), quick)
	defer cancel()
	require.ErrorIs(t, d.Ack(ctx), context.DeadlineExceeded)
	close(again)
	require.NoError(t, <-first)
	require.NoError(t, ack(d))
}

// A commit that has no answer doesn't hold up the verb.
func TestAckHonoursItsContextWhileTheBrokerIsSilent(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.produce(0, "a")
	r.produce(1, "b")
	m := r.join()
	one, other := m.next(), m.next()
	asked, release := make(chan struct{}), make(chan struct{})
	r.cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.DropControl()
		r.cluster.SleepControl(func() { close(asked); <-release })
		return nil, nil, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() { first <- one.Ack(ctx) }()
	<-asked
	short, cancelShort := context.WithTimeout(t.Context(), quick)
	defer cancelShort()
	require.ErrorIs(t, other.Ack(short), context.DeadlineExceeded, "it waits for its turn")
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)
	close(release)
	for range 2 {
		require.NoError(t, ack(m.next()))
	}
	assert.Equal(t, int64(2), r.total(2))
}

func TestFunctionThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.produce(0, "a")
	m := r.join(
		WithRetry(func(context.Context, *kgo.Record, error) error { panic("boom") }),
		WithDeadLetter(func(context.Context, *kgo.Record, error) error { runtime.Goexit(); return nil }),
	)
	require.PanicsWithValue(t, "boom", func() { _ = requeue(errHandler)(m.next()) }, "raised where the receiver sees it")
	require.ErrorIs(t, reject(errHandler)(m.next()), errAbandoned)
	require.NoError(t, ack(m.next()))
}

// Those that wait at the same time share a request.
func TestAcksShareCommits(t *testing.T) {
	t.Parallel()
	const partitions = 8
	r := newRig(t, partitions)
	for p := range int32(partitions) {
		r.produce(p, "a")
	}
	m := r.join()
	var out []*Delivery
	for range partitions {
		out = append(out, m.next())
	}
	requests := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Observe: true, Count: -1})
	m.source.committing <- struct{}{} // as if one were under way
	var acks sync.WaitGroup
	for _, d := range out {
		acks.Go(func() { assert.NoError(t, ack(d)) })
	}
	r.eventually(func() bool {
		m.source.mu.Lock()
		defer m.source.mu.Unlock()
		noted := 0
		for _, p := range m.source.partitions {
			if p.settled.Offset == 1 {
				noted++
			}
		}
		return noted == partitions
	})
	<-m.source.committing
	acks.Wait()
	assert.Equal(t, 1, requests.Hits())
	assert.Equal(t, int64(partitions), r.total(partitions))
}
