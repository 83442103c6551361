package idemnats

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestShutdownInMidHandler(t *testing.T) {
	r, g, w := newRig(t, 500*time.Millisecond), newGated(), wire{}
	stop, wait := r.start(r.receiver(g.handle), &w)
	for i := range 10 {
		r.publish(fmt.Sprint(i))
	}
	for range 4 {
		<-g.entered
	}
	stop()
	for range 3 {
		g.gate <- nil
	}
	g.gate <- errHandler
	require.ErrorIs(t, wait(), context.Canceled)

	assert.Equal(t, 3, w.count("ack"), "what was done is acked, on a context that lives")
	assert.Equal(t, idem.Stats{Tracked: 3, Horizon: r.guard.Stats().Horizon, Begun: 4, Completed: 3, Released: 1}, r.guard.Stats(),
		"what was fetched ahead never came before the guard")

	var again wire
	runs := tally{}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error { runs.add(idOf(d)); return nil }), &again)
	r.settled()
	assert.Equal(t, uint64(10), r.guard.Stats().Completed)
	assert.Len(t, runs.runs, 7, "the failed one and the six others")
	for id, n := range runs.runs {
		assert.Equal(t, 1, n, id)
	}
}

func TestHandlerThatHeedsTheShutdownRunsAgain(t *testing.T) {
	r, w := newRig(t, never), wire{}
	entered := make(chan struct{}, 1)
	receiver := r.receiver(func(ctx context.Context, _ *Delivery) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	receiver.Drain = time.Millisecond
	stop := r.consume(receiver, &w)
	r.publish("a")
	<-entered
	require.ErrorIs(t, stop(), context.Canceled)
	assert.Equal(t, []string{"nak 20ms"}, w.verbs())

	var again wire
	r.consume(r.receiver(func(context.Context, *Delivery) error { return nil }), &again)
	r.settled()
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
}

// The connection is gone when the handlers are done: their acks can't succeed.
// The guard outlives the receiver, and drops what comes back.
func TestReceiverRebuilt(t *testing.T) {
	r, g := newRig(t, 200*time.Millisecond), newGated()
	nc, js := connect(t)
	consumer, err := js.Consumer(t.Context(), r.info().Stream, r.info().Name)
	require.NoError(t, err)
	it, err := consumer.Messages(jetstream.PullMaxMessages(2))
	require.NoError(t, err)
	result := make(chan error)
	next := r.source().Next(it)
	go func() { result <- r.receiver(g.handle).Consume(context.Background(), 2, next) }()
	r.publish("done")
	require.Equal(t, "done", <-g.entered)
	r.publish("failed")
	require.Equal(t, "failed", <-g.entered)
	nc.Close()
	g.gate <- nil
	g.gate <- nil
	err = <-result
	require.ErrorIs(t, err, jetstream.ErrConnectionClosed)
	require.Equal(t, uint64(2), r.guard.Stats().Completed, "a failed ack doesn't undo the work")

	runs, w := tally{}, wire{}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error { runs.add(idOf(d)); return nil }), &w)
	r.settled()
	assert.Empty(t, runs.runs)
	assert.Equal(t, []string{"ack", "ack"}, w.verbs())
	assert.Equal(t, uint64(2), r.guard.Stats().DuplicatesCompleted)
}

func TestUnidentifiedMessagesAlwaysRun(t *testing.T) {
	r, runs := newRig(t, 100*time.Millisecond), tally{}
	w := wire{lose: func(verb string, meta *jetstream.MsgMetadata) bool {
		return verb == "ack" && meta.Sequence.Stream == 1 && meta.NumDelivered == 1
	}}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error { runs.add(idOf(d)); return nil }), &w)
	r.publish("")
	r.publish("")
	r.eventually(func() bool { return len(w.verbs()) == 3 })
	r.settled()
	assert.Equal(t, 3, runs.of(""), "two messages, one of them twice: nothing tells the copies")
	assert.Equal(t, uint64(3), r.guard.Stats().Unidentified)
}

// A failing id function is no reason to ack, nor to run.
func TestFailingIDIsRequeued(t *testing.T) {
	r, runs, w := newRig(t, never), tally{}, wire{}
	calls := tally{}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error { runs.add(idOf(d)); return nil }), &w,
		WithID(func(msg jetstream.Msg) (string, error) {
			if calls.add("") == 1 {
				return "", errors.New("no id in the payload")
			}
			return string(msg.Data()), nil
		}))
	r.publish("a")
	r.settled()
	assert.Equal(t, []string{"nak 20ms", "ack"}, w.verbs())
	assert.Equal(t, 1, runs.of("a"))
	assert.Equal(t, uint64(1), r.guard.Stats().Begun)
}

// One guard for two consumers: each is to get the message, unless told otherwise.
func TestConsumersOnOneGuard(t *testing.T) {
	for mode, want := range map[idem.MessageIdentity]int{idem.IDAndDestination: 2, idem.IDOnly: 1} {
		r, runs := newRig(t, never), tally{}
		guard, err := idem.NewGenerational(idem.WithMessageIdentity(mode))
		require.NoError(t, err)
		r.guard = guard
		r.publish("a")
		receiver := r.receiver(func(_ context.Context, d *Delivery) error { runs.add(idOf(d)); return nil })
		var w1, w2 wire
		r.consume(receiver, &w1)
		r.settled()
		r.consumer, err = r.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "other", AckPolicy: jetstream.AckExplicitPolicy})
		require.NoError(t, err)
		r.consume(receiver, &w2)
		r.settled()
		assert.Equal(t, want, runs.of("a"))
	}
}

// Sequences start anew with the stream: the same number is another message then.
func TestStreamSequenceOfAStreamMadeAnew(t *testing.T) {
	r, runs, w := newRig(t, 100*time.Millisecond), tally{}, wire{}
	handle := func(_ context.Context, d *Delivery) error { runs.add(string(d.Msg().Data())); return nil }
	w.lose = func(verb string, meta *jetstream.MsgMetadata) bool { return verb == "ack" && meta.NumDelivered == 1 }
	stop := r.consume(r.receiver(handle), &w, WithStreamSequence(r.stream.CachedInfo()))
	r.publish("")
	r.eventually(func() bool { return len(w.verbs()) == 2 })
	r.settled()
	require.Equal(t, 1, runs.of("payload of "), "a redelivery is recognised")
	require.ErrorIs(t, stop(), context.Canceled)

	config := r.stream.CachedInfo().Config
	require.NoError(t, r.js.DeleteStream(t.Context(), config.Name))
	stream, err := r.js.CreateStream(t.Context(), config)
	require.NoError(t, err)
	r.stream = stream
	r.consumer, err = stream.CreateConsumer(t.Context(), r.consumer.CachedInfo().Config)
	require.NoError(t, err)
	var again wire
	r.consume(r.receiver(handle), &again, WithStreamSequence(stream.CachedInfo()))
	r.publish("")
	r.settled()
	assert.Equal(t, 2, runs.of("payload of "))
}

func TestNextEndsWithTheIterator(t *testing.T) {
	r := newRig(t, never)
	it, err := r.consumer.Messages()
	require.NoError(t, err)
	result := make(chan error)
	receiver := r.receiver(func(context.Context, *Delivery) error { return nil })
	next := r.source().Next(it)
	go func() { result <- receiver.Consume(context.Background(), 1, next) }()
	r.publish("a")
	r.settled()
	it.Stop()
	require.NoError(t, <-result)

	it, err = r.consumer.Messages()
	require.NoError(t, err)
	defer it.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = r.source().Next(it)(ctx)
	require.ErrorIs(t, err, context.Canceled)

	next = r.source().Next(it)
	go func() { result <- receiver.Consume(context.Background(), 1, next) }()
	r.eventually(func() bool { return r.info().NumWaiting == 1 })
	require.NoError(t, r.stream.DeleteConsumer(t.Context(), "worker"))
	require.ErrorIs(t, <-result, jetstream.ErrConsumerDeleted)
}
