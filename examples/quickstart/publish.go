package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The events are published in batches. What is published twice comes again two
// batches later: the first copy has left the broker's window by then.
const (
	batches    = 10
	batchEvery = brokerWindow + 20*time.Millisecond
	twiceAfter = 2
)

// publish publishes all events, and some of them twice.
func (r *run) publish(ctx context.Context) error {
	for batch := range batches + twiceAfter {
		if err := r.publishBatch(ctx, batch, false); err != nil {
			return err
		}
		if err := r.publishBatch(ctx, batch-twiceAfter, true); err != nil {
			return err
		}
		if !rest(ctx, batchEvery) {
			return ctx.Err()
		}
	}
	return nil
}

func (r *run) publishBatch(ctx context.Context, batch int, again bool) error {
	if batch < 0 || batch >= batches {
		return nil
	}
	from, to := len(r.events)*batch/batches, len(r.events)*(batch+1)/batches
	for _, e := range r.events[from:to] {
		if again && !e.twice {
			continue
		}
		if err := r.publishOne(ctx, e); err != nil {
			return fmt.Errorf("publishing %s: %w", e.ID, err)
		}
	}
	return nil
}

// publishOne publishes until the broker has stored the event: as long as it drops
// the second copy by itself, there is nothing to show.
func (r *run) publishOne(ctx context.Context, e event) error {
	data, err := e.payload()
	if err != nil {
		return err
	}
	msg := &nats.Msg{Subject: r.subject(), Header: nats.Header{jetstream.MsgIDHeader: {e.ID}}, Data: data}
	for {
		ack, err := r.publisher.PublishMsg(ctx, msg)
		switch {
		case err != nil:
			return err
		case !ack.Duplicate:
			r.stored++
			return nil
		case !rest(ctx, brokerWindow):
			return ctx.Err()
		}
	}
}

// rest waits, and says whether ctx let it.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
