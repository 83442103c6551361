package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemnats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// run is the whole scene once, with the guard or without.
type run struct {
	broker    *broker
	events    []event
	byID      map[string]event
	guarded   bool
	inFlight  idem.InFlightPolicy
	endpoints *idem.Endpoints
	ledger    *ledger

	publisher jetstream.JetStream
	consumer  jetstream.Consumer // the publisher's view of it, to ask how far it is
	half      chan struct{}      // closed when half of the events are done
	atHalf    sync.Once
	stored    int // messages that the broker took, to be read after the run
	rebuilt   int
	took      time.Duration
}

const consumerName = "billing"

var errHandler = errors.New("the payment provider did not answer")

func newRun(b *broker, events []event, guarded bool, inFlight idem.InFlightPolicy) (*run, error) {
	// What can come back must still be remembered: here that is every event.
	endpoints, err := idem.NewEndpoints(idem.WithMaxTracked(max(1000, 4*len(events))))
	if err != nil {
		return nil, err
	}
	r := &run{
		broker: b, events: events, byID: make(map[string]event, len(events)),
		guarded: guarded, inFlight: inFlight, endpoints: endpoints,
		ledger: newLedger(events), half: make(chan struct{}),
	}
	for _, e := range events {
		r.byID[e.ID] = e
	}
	return r, nil
}

func (r *run) name() string {
	if r.guarded {
		return "guard on"
	}
	return "guard off"
}

func (r *run) stream() string {
	if r.guarded {
		return "GUARDED"
	}
	return "BARE"
}

func (r *run) subject() string { return "webhooks." + r.stream() }

// do plays the scene until the broker has nothing left to deliver.
func (r *run) do(ctx context.Context) error {
	nc, js, err := r.broker.connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := r.declare(ctx, js); err != nil {
		return err
	}
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	return r.play(ctx)
}

func (r *run) declare(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: r.stream(), Subjects: []string{r.subject()}, Storage: jetstream.MemoryStorage, Duplicates: brokerWindow,
	})
	if err != nil {
		return fmt.Errorf("the stream: %w", err)
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
	})
	if err != nil {
		return fmt.Errorf("the consumer: %w", err)
	}
	r.publisher, r.consumer = js, consumer
	return nil
}

// play publishes and consumes at once, and stops consuming when all is over.
func (r *run) play(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	over := make(chan struct{})
	outcome := make(chan error, 1)
	go func() {
		defer close(over)
		err := r.publish(ctx)
		if err == nil {
			err = r.untilQuiet(ctx)
		}
		if err != nil {
			stop()
		}
		outcome <- err
	}()
	err := r.consume(ctx, over)
	stop()
	return errors.Join(<-outcome, ignoreStop(err))
}

// ignoreStop is for the one who stops and has a reason of its own.
func ignoreStop(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// consume consumes, on a new connection whenever the old one was cut.
func (r *run) consume(ctx context.Context, over <-chan struct{}) error {
	cut := r.half
	for {
		err := r.consumeOnce(ctx, cut, over)
		if !errors.Is(err, jetstream.ErrConnectionClosed) || cut == nil {
			return err
		}
		cut = nil // once is enough
		r.rebuilt++
	}
}

// consumeOnce is a receiver's life: from its connection to that one's end.
func (r *run) consumeOnce(ctx context.Context, cut, over <-chan struct{}) error {
	nc, js, err := r.broker.connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	consumer, err := js.Consumer(ctx, r.stream(), consumerName)
	if err != nil {
		return fmt.Errorf("the consumer: %w", err)
	}
	it, err := consumer.Messages(jetstream.PullMaxMessages(workers))
	if err != nil {
		return fmt.Errorf("the consumer: %w", err)
	}
	defer it.Stop()
	end := make(chan struct{})
	defer close(end)
	go r.interrupt(nc, it, cut, over, end)
	return r.receive(ctx, consumer, it)
}

// interrupt cuts the connection half way, whatever handlers are at it, and stops
// the iterator when the scene is over.
func (r *run) interrupt(nc *nats.Conn, it jetstream.MessagesContext, cut, over, end <-chan struct{}) {
	select {
	case <-cut:
		nc.Close()
	case <-over:
		it.Stop()
	case <-end:
	}
}

// receive is all there is to write for a consumer. The guard is the endpoint's,
// so the receiver that is built after the cut knows what the first one knew.
func (r *run) receive(ctx context.Context, consumer jetstream.Consumer, it jetstream.MessagesContext) error {
	source, err := idemnats.New(consumer.CachedInfo(), idemnats.WithRequeueDelay(requeueDelay))
	if err != nil {
		return err
	}
	receiver := idemnats.Receiver{
		Handle:     r.handle,
		OnInFlight: r.inFlight,
		Logger:     slog.New(slog.DiscardHandler), // the faults are on purpose, and counted
	}
	if r.guarded {
		if receiver.Guard, err = r.endpoints.Guard(idem.Endpoint{Name: r.subject()}); err != nil {
			return err
		}
	}
	return receiver.Consume(ctx, workers, source.Next(link{MessagesContext: it, ledger: r.ledger, events: r.byID}))
}

// handle charges a customer, so to speak.
func (r *run) handle(_ context.Context, d *idemnats.Delivery) error {
	meta, err := d.Msg().Metadata()
	if err != nil {
		return err
	}
	e := r.byID[idOf(d.Msg())]
	attempt := r.ledger.start(e.ID, meta.Sequence.Consumer)
	rest(context.Background(), e.work) // a charge that was sent can't be called back
	failed := e.failsFirst && attempt == 1
	if done := r.ledger.finish(e.ID, !failed); done >= len(r.events)/2 {
		r.atHalf.Do(func() { close(r.half) })
	}
	if failed {
		return errHandler
	}
	return nil
}

// stalled is after how long without any progress a run is given up.
const stalled = 15 * time.Second

// untilQuiet waits until the broker has nothing to deliver, now or later, and no
// handler runs: what has not completed then never will.
func (r *run) untilQuiet(ctx context.Context) error {
	seen, since := totals{}, time.Now()
	for rest(ctx, 50*time.Millisecond) {
		now := r.ledger.totals(r.events)
		info, err := r.consumer.Info(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("asking after the consumer: %w", err)
		case info.NumPending == 0 && info.NumAckPending == 0 && now.running == 0:
			return nil
		case now != seen:
			seen, since = now, time.Now()
		case time.Since(since) > stalled:
			return fmt.Errorf("nothing has happened for %v: %d to come, %d unsettled", stalled, info.NumPending, info.NumAckPending)
		}
	}
	return ctx.Err()
}
