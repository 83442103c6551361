package idemredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	_ idem.Delivery = (*Delivery)(nil)
	_ idem.Extender = (*Delivery)(nil)
	_ idem.Pauser   = (*Delivery)(nil)
)

func TestIdentity(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	msg := redis.XMessage{ID: "1-2", Values: map[string]any{"id": "a", "empty": ""}}
	for name, tt := range map[string]struct {
		id   ID
		want string
		err  error
	}{
		"field":               {id: FieldID("id"), want: "a"},
		"field, empty":        {id: FieldID("empty")},
		"field, missing":      {id: FieldID("ID")},
		"entry":               {id: EntryID("orders"), want: "orders@1-2"},
		"function":            {id: func(m redis.XMessage) (string, error) { return "mine " + m.ID, nil }, want: "mine 1-2"},
		"function that fails": {id: func(redis.XMessage) (string, error) { return "x", errHandler }, err: errHandler},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(client, Consumer{"orders", "billing", "worker"}, tt.id)
			require.NoError(t, err)
			id, err := s.Delivery(msg).Identity()
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err)
				require.EqualError(t, err, "idemredis: id of entry 1-2 of orders/billing: handler failed")
				require.Equal(t, idem.Identity{}, id)
				return
			}
			require.NoError(t, err)
			require.Equal(t, idem.IDAt(tt.want, "orders/billing"), id)
		})
	}
}

func TestNewRefuses(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	place := Consumer{"orders", "billing", "worker"}
	id := FieldID("id")
	for name, tt := range map[string]struct {
		client redis.UniversalClient
		place  Consumer
		id     ID
		opts   []Option
		text   string
	}{
		"no client":           {nil, place, id, nil, "the client is nil"},
		"no stream":           {client, Consumer{"", "billing", "worker"}, id, nil, "a name is empty: {Stream: Group:billing Name:worker}"},
		"no group":            {client, Consumer{"orders", "", "worker"}, id, nil, "a name is empty"},
		"no name":             {client, Consumer{"orders", "billing", ""}, id, nil, "a name is empty"},
		"no id":               {client, place, nil, nil, "the id function is nil"},
		"nil option":          {client, place, id, []Option{nil}, "option 1 of 1 is nil"},
		"no idle time":        {client, place, id, []Option{WithMinIdle(0)}, "WithMinIdle must be at least 1ms, not 0s"},
		"short idle time":     {client, place, id, []Option{WithMinIdle(time.Millisecond - 1)}, "at least 1ms, not 999.999µs"},
		"negative delay":      {client, place, id, []Option{WithRequeueDelay(-1)}, "WithRequeueDelay must be at least 0, not -1ns"},
		"delay too long":      {client, place, id, []Option{WithRequeueDelay(31 * time.Second)}, "at most the idle time of WithMinIdle, 30s, not 31s"},
		"no batch":            {client, place, id, []Option{WithBatch(0)}, "WithBatch must be between 1 and 2147483647, not 0"},
		"none unsettled":      {client, place, id, []Option{WithMaxUnsettled(0)}, "WithMaxUnsettled must be at least 1, not 0"},
		"dead letters, empty": {client, place, id, []Option{WithDeadLetters("")}, "WithDeadLetters must be given a key"},
		"dead letters, same":  {client, place, id, []Option{WithDeadLetters("orders")}, `another stream than "orders"`},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(tt.client, tt.place, tt.id, tt.opts...)
			require.Nil(t, s)
			require.ErrorIs(t, err, idem.ErrInvalidOption)
			require.ErrorContains(t, err, "idemredis: ")
			require.ErrorContains(t, err, tt.text)
		})
	}
	s, err := New(client, place, id, WithMinIdle(100*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, 100*time.Millisecond, s.requeueDelay, "the default is no longer than the idle time")
}

func TestConcurrentVerbsSettleOnce(t *testing.T) {
	r, l := newRig(t), dial(t)
	s := r.source(l)
	for range 20 {
		r.publish("a")
		d := r.next(s)
		before := l.count("xack") + l.count("return") + l.count("bury")
		var workers sync.WaitGroup
		for _, verb := range []func(context.Context) error{
			d.Ack, d.Ack,
			func(ctx context.Context) error { return d.Requeue(ctx, nil) },
			func(ctx context.Context) error { return d.Reject(ctx, errHandler) },
		} {
			workers.Go(func() { assert.NoError(t, verb(t.Context())) })
		}
		workers.Wait()
		require.Equal(t, before+1, l.count("xack")+l.count("return")+l.count("bury"))
		if d.Settled() == idem.Requeue {
			require.NoError(t, r.next(s).Ack(t.Context()))
		}
	}
}

func TestFailedVerbIsKnownAndMayBeRepeated(t *testing.T) {
	r, l := newRig(t), dial(t)
	fail := errors.New("no route")
	l.lose = func(cmd redis.Cmder) error {
		if nameOf(cmd) == "xack" {
			return fail
		}
		return nil
	}
	r.publish("a")
	s := r.source(l)
	d := r.next(s)
	err := d.Ack(t.Context())
	require.ErrorIs(t, err, fail)
	require.EqualError(t, err, "idemredis: XACK of entry "+d.Message().ID+" of "+r.place.Stream+"/billing: no route")
	require.Equal(t, idem.Ack, d.Settled(), "what was called")
	require.NoError(t, d.Requeue(t.Context(), nil))
	require.Equal(t, idem.Requeue, d.Settled(), "what Redis was told")
	require.NoError(t, d.Ack(t.Context()))
	require.Equal(t, 1, l.count("xack"))
	require.Equal(t, int64(1), r.next(s).Delivered(), "it was not begun")
}

// Redis is there and doesn't answer: the client would wait for seconds.
func TestVerbsHonourTheirContext(t *testing.T) {
	r, l := newRig(t), dial(t)
	var stuck chan struct{}
	l.lose = func(redis.Cmder) error {
		if stuck != nil {
			<-stuck
		}
		return nil
	}
	r.publish("a", "b", "c", "d")
	s := r.source(l)
	for name, verb := range map[string]func(context.Context, *Delivery) error{
		"ack":     func(ctx context.Context, d *Delivery) error { return d.Ack(ctx) },
		"requeue": func(ctx context.Context, d *Delivery) error { return d.Requeue(ctx, errHandler) },
		"reject":  func(ctx context.Context, d *Delivery) error { return d.Reject(ctx, errHandler) },
		"extend": func(ctx context.Context, d *Delivery) error {
			d.asked = d.asked.Add(-time.Hour)
			_, err := d.Extend(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := r.next(s)
			r.eventually(func() bool { return s.feed.reading == nil })
			done, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, verb(done, d), context.Canceled)
			require.Equal(t, idem.Unsettled, d.Settled(), "not even tried")
			stuck = make(chan struct{})
			ctx, cancel := context.WithTimeout(t.Context(), quick)
			defer cancel()
			require.ErrorIs(t, verb(ctx, d), context.DeadlineExceeded)
			ctx, cancel = context.WithTimeout(t.Context(), quick)
			defer cancel()
			require.ErrorIs(t, d.Ack(ctx), context.DeadlineExceeded, "while an earlier call is under way")
			close(stuck)
			require.NoError(t, d.Ack(t.Context()))
			stuck = nil
		})
	}
}

func TestExtend(t *testing.T) {
	r, l := newRig(t), dial(t)
	s := r.source(l) // a minute
	r.publish("a", "b")
	d := r.next(s)
	next, err := d.Extend(t.Context())
	require.NoError(t, err)
	require.Zero(t, l.count("renew"), "it is fresh")
	require.InDelta(t, 20, next.Seconds(), 5)

	r.age()
	d.asked = d.asked.Add(-20 * time.Second)
	next, err = d.Extend(t.Context())
	require.NoError(t, err)
	require.Equal(t, 20*time.Second, next)
	require.Equal(t, 1, l.count("renew"))
	require.Less(t, r.pending()[0].Idle, 10*time.Second, "begun anew")
	require.Equal(t, int64(1), r.pending()[0].RetryCount, "it is no delivery")

	d.asked = d.asked.Add(-time.Hour)
	l.lose = func(redis.Cmder) error { return net.ErrClosed }
	next, err = d.Extend(t.Context())
	require.ErrorIs(t, err, net.ErrClosed)
	require.Equal(t, 20*time.Second, next, "in time for one more try")
	l.lose = nil

	r.age()
	theirs := r.next(r.sourceAs("other", dial(t)))
	next, err = d.Extend(t.Context())
	require.ErrorContains(t, err, "another consumer has claimed it")
	require.Zero(t, next)
	require.Equal(t, "other", r.pending()[0].Consumer, "and keeps it")
	require.NoError(t, theirs.Ack(t.Context()))
	next, err = d.Extend(t.Context())
	require.ErrorContains(t, err, "it is not pending any more")
	require.Zero(t, next)

	d = r.next(s)
	require.NoError(t, d.Ack(t.Context()))
	d.asked = d.asked.Add(-time.Hour)
	calls := l.count("renew")
	next, err = d.Extend(t.Context())
	require.NoError(t, err)
	require.Zero(t, next, "settled: no more calls")
	require.Equal(t, calls, l.count("renew"))
}

// A verb was quicker: a sign of life would take back what it has given back.
func TestExtendBesideAVerbDoesNothing(t *testing.T) {
	asked := 0
	client := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		asked++
		return nil, errHandler
	}})
	defer client.Close()
	s, err := New(client, Consumer{"orders", "billing", "worker"}, FieldID("id"))
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		d := s.Delivery(redis.XMessage{ID: "1-2"})
		time.Sleep(time.Minute) // of the bubble's own clock
		d.settler.busy <- struct{}{}
		extended := make(chan error)
		go func() {
			next, err := d.Extend(t.Context())
			assert.Zero(t, next)
			extended <- err
		}()
		synctest.Wait()
		d.settler.note(idem.Requeue, true)
		<-d.settler.busy
		require.NoError(t, <-extended)
		require.Zero(t, asked)
	})
}

// What an earlier delivery gives back is in other hands by now, also if they are of
// the same consumer.
func TestRequeueOfAnEarlierDeliveryChangesNothing(t *testing.T) {
	for _, consumer := range []string{"worker", "other"} {
		r, l := newRig(t), dial(t)
		s := r.source(l)
		r.publish("a")
		d := r.next(s)
		r.age()
		later := r.next(r.sourceAs(consumer, dial(t)))
		require.Equal(t, int64(2), later.Delivered())
		require.NoError(t, d.Requeue(t.Context(), nil))
		require.Equal(t, 1, l.count("return"))
		held := r.pending()[0]
		require.Equal(t, consumer, held.Consumer)
		require.Equal(t, int64(2), held.RetryCount)
		require.Less(t, held.Idle, never)
		r.nothing(s)
		require.NoError(t, later.Ack(t.Context()))
	}
}

func TestRequeueOfASettledEntryMakesNone(t *testing.T) {
	r, s := newRig(t), (*Source)(nil)
	s = r.source(dial(t))
	r.publish("a")
	d := r.next(s)
	require.NoError(t, r.rdb.XAck(t.Context(), r.place.Stream, "billing", d.Message().ID).Err())
	require.NoError(t, d.Requeue(t.Context(), errHandler))
	require.Empty(t, r.pending())
	r.nothing(s)
}

func TestReject(t *testing.T) {
	t.Run("without dead letters it leaves the entry in the stream", func(t *testing.T) {
		r := newRig(t)
		s, err := New(dial(t), r.place, FieldID("id"))
		require.NoError(t, err)
		r.publish("a")
		require.NoError(t, r.next(s).Reject(t.Context(), errHandler))
		require.Empty(t, r.pending())
		require.Equal(t, int64(1), r.rdb.XLen(t.Context(), r.place.Stream).Val())
	})
	t.Run("without dead letters it leaves alone what is another's", func(t *testing.T) {
		r := newRig(t)
		s, err := New(dial(t), r.place, FieldID("id"))
		require.NoError(t, err)
		r.publish("a")
		d := r.next(s)
		r.age()
		theirs := r.next(r.sourceAs("other", dial(t)))
		require.ErrorContains(t, d.Reject(t.Context(), errHandler), "another consumer has claimed it")
		require.Len(t, r.pending(), 1, "it may fail there")
		require.NoError(t, theirs.Ack(t.Context()))
		require.NoError(t, d.Reject(t.Context(), errHandler), "settled by someone else")
	})
	t.Run("an entry may have any number of fields", func(t *testing.T) {
		for _, c := range []struct {
			fields  int
			trimmed bool
		}{{3500, false}, {3501, false}, {3501, true}, {9000, false}, {9000, true}} {
			r := newRig(t)
			var values []string
			for i := range c.fields {
				values = append(values, fmt.Sprintf("field %04d", i), "\xff\x00"+strconv.Itoa(i))
			}
			require.NoError(t, r.rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: r.place.Stream, Values: values}).Err())
			d := r.next(r.source(dial(t)))
			if c.trimmed {
				require.NoError(t, r.rdb.XTrimMaxLen(t.Context(), r.place.Stream, 0).Err())
			}
			require.NoError(t, d.Reject(t.Context(), errHandler))
			require.Empty(t, r.pending())
			dead := r.deadEntries()[0].Values
			require.Equal(t, "handler failed", dead["dead-reason"])
			if c.fields == 3500 {
				require.Equal(t, "\xff\x003499", dead["field 3499"])
				continue
			}
			unpacked, err := r.rdb.Eval(t.Context(), "return cmsgpack.unpack(ARGV[1])", nil, dead["dead-fields"]).StringSlice()
			require.NoError(t, err)
			require.Equal(t, values, unpacked)
		}
	})
	t.Run("without a cause there is no reason", func(t *testing.T) {
		r := newRig(t)
		r.publish("a")
		require.NoError(t, r.next(r.source(dial(t))).Reject(t.Context(), nil))
		require.NotContains(t, r.deadEntries()[0].Values, "dead-reason")
	})
	t.Run("a trimmed entry is copied as it came", func(t *testing.T) {
		r := newRig(t)
		r.publish("a")
		d := r.next(r.source(dial(t)))
		require.NoError(t, r.rdb.XTrimMaxLen(t.Context(), r.place.Stream, 0).Err())
		require.NoError(t, d.Reject(t.Context(), errHandler))
		require.Empty(t, r.pending())
		values := r.deadEntries()[0].Values
		require.Equal(t, "of a", values["payload"])
		require.Equal(t, "handler failed", values["dead-reason"])
		require.Len(t, values, 6)
	})
	t.Run("fields are copied in their order, twins and all", func(t *testing.T) {
		r := newRig(t)
		fields := []string{"z", "1", "a", "2", "z", "3", "id", "x", "binary", "\x00\xff\r\n"}
		require.NoError(t, r.rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: r.place.Stream, Values: fields}).Err())
		require.NoError(t, r.next(r.source(dial(t))).Reject(t.Context(), nil))
		raw, err := r.rdb.Do(t.Context(), "XRANGE", r.dead, "-", "+").Slice()
		require.NoError(t, err)
		copied := raw[0].([]any)[1].([]any)
		for i, f := range fields {
			require.Equal(t, f, copied[i])
		}
	})
	t.Run("a failed copy leaves the entry pending", func(t *testing.T) {
		r, l := newRig(t), dial(t)
		require.NoError(t, r.rdb.Set(t.Context(), r.dead, "no stream", 0).Err())
		r.publish("a")
		s := r.source(l)
		d := r.next(s)
		err := d.Reject(t.Context(), errHandler)
		require.ErrorContains(t, err, "idemredis: dead-lettering of entry "+d.Message().ID)
		require.ErrorContains(t, err, "WRONGTYPE")
		require.Len(t, r.pending(), 1)
		require.NoError(t, r.rdb.Del(t.Context(), r.dead).Err())
		require.NoError(t, d.Reject(t.Context(), errHandler))
		require.Equal(t, []string{"a"}, r.deadLetters())
	})
	t.Run("tried again after a lost answer it copies once", func(t *testing.T) {
		r, l := newRig(t), dial(t)
		r.publish("a")
		s := r.source(l)
		d := r.next(s)
		require.NoError(t, s.bury(t.Context(), d, errHandler))
		require.NoError(t, s.bury(t.Context(), d, errHandler))
		require.Equal(t, []string{"a"}, r.deadLetters())
	})
	t.Run("what another consumer is at is his", func(t *testing.T) {
		r := newRig(t)
		r.publish("a")
		d := r.next(r.source(dial(t)))
		r.age()
		theirs := r.next(r.sourceAs("other", dial(t)))
		require.ErrorContains(t, d.Reject(t.Context(), errHandler), "another consumer has claimed it")
		require.Empty(t, r.deadLetters())
		require.Len(t, r.pending(), 1)
		require.NoError(t, theirs.Ack(t.Context()))
	})
	t.Run("a large entry", func(t *testing.T) {
		r := newRig(t)
		big := strings.Repeat("x", 1<<20)
		require.NoError(t, r.rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: r.place.Stream, Values: []string{"id", "a", "big", big}}).Err())
		require.NoError(t, r.next(r.source(dial(t))).Reject(t.Context(), nil))
		require.Equal(t, big, r.deadEntries()[0].Values["big"])
	})
}
