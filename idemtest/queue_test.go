package idemtest_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemtest"
)

func TestQueue(t *testing.T) {
	idemtest.TestDelivery(t, func(*testing.T) idemtest.Broker[*idemtest.Delivery] {
		q := idemtest.NewQueue()
		return idemtest.Broker[*idemtest.Delivery]{
			Publish:     func(id string) { q.Publish(idem.ID(id)) },
			Next:        q.Next,
			Redeliver:   func() { q.SetFault(nil); q.Redeliver() },
			DeadLetters: func() []string { return names(q.DeadLetters()) },
			Cut:         func() { q.SetFault(untilDone) },
			Quiet:       time.Millisecond,
		}
	})
}

// untilDone is a dead connection.
func untilDone(ctx context.Context, _ idem.Outcome) error {
	<-ctx.Done()
	return ctx.Err()
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func next(t *testing.T, q *idemtest.Queue) *idemtest.Delivery {
	t.Helper()
	d, err := q.Next(t.Context())
	if err != nil {
		t.Fatalf("Next: %v", err)
	}
	return d
}

func TestQueueOrder(t *testing.T) {
	ctx := t.Context()
	var q idemtest.Queue
	q.Publish(idem.ID("a"), idem.ID("b"), idem.ID("c"))
	a, b := next(t, &q), next(t, &q)
	want(t, "Unsettled", q.Unsettled(), 3)
	want(t, "Requeue", a.Requeue(ctx, nil), nil) // to the end
	want(t, "Redeliver", q.Redeliver(), 1)       // to the front
	for _, id := range []string{"b", "c", "a"} {
		d := next(t, &q)
		got, err := d.Identity()
		want(t, "Identity", got, idem.ID(id))
		want(t, "error", err, nil)
		want(t, "Ack", d.Ack(ctx), nil)
	}
	want(t, "Acked", q.Acked(), []idem.Identity{idem.ID("b"), idem.ID("c"), idem.ID("a")})
	want(t, "Unsettled", q.Unsettled(), 0)
	if err := b.Ack(ctx); !errors.Is(err, idemtest.ErrDeliveryGone) {
		t.Errorf("Ack of a delivery that was delivered again: %v, want ErrDeliveryGone", err)
	}
	want(t, "Settled", b.Settled(), idem.Unsettled)
}

func TestQueueClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		q := idemtest.NewQueue()
		q.Publish(idem.ID("a"))
		d := next(t, q)
		q.Close()
		ended := make(chan error, 1)
		go func() {
			d, err := q.Next(ctx)
			if err == nil {
				err = d.Reject(ctx, nil)
			}
			_, end := q.Next(ctx)
			ended <- errors.Join(err, end)
		}()
		synctest.Wait()
		want(t, "the end while a message is out", len(ended), 0)
		want(t, "Requeue", d.Requeue(ctx, nil), nil)
		if err := <-ended; !errors.Is(err, io.EOF) {
			t.Errorf("Next: %v, want io.EOF when all is settled", err)
		}
		want(t, "DeadLetters", q.DeadLetters(), []idem.Identity{idem.ID("a")})
	})
}

func TestQueueNextHonoursContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q := idemtest.NewQueue()
	if _, err := q.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next: %v, want context.Canceled", err)
	}
}

func TestDeliveryRecordsCalls(t *testing.T) {
	ctx, cause, down := t.Context(), errors.New("no stock"), errors.New("down")
	d := idemtest.NewDelivery(idem.IDAt("a", "orders"))
	want(t, "Attempt", d.Attempt(), 1)
	want(t, "Calls", len(d.Calls()), 0)

	d.Queue().SetFault(func(context.Context, idem.Outcome) error { return down })
	if err := d.Ack(ctx); !errors.Is(err, down) {
		t.Errorf("Ack with a fault: %v, want %v", err, down)
	}
	want(t, "Settled", d.Settled(), idem.Unsettled)
	d.Queue().SetFault(nil)
	want(t, "Requeue", d.Requeue(ctx, cause), nil)
	want(t, "Ack", d.Ack(ctx), nil)
	want(t, "Settled", d.Settled(), idem.Requeue)

	var calls []string
	for _, c := range d.Calls() {
		calls = append(calls, c.String())
	}
	want(t, "Calls", calls, []string{"Ack(): idemtest: Ack failed: down", "Requeue(no stock)", "Ack()"})
	want(t, "Cause", d.Calls()[1].Cause, cause)
	want(t, "Attempt", next(t, d.Queue()).Attempt(), 2)
}

// TestDeliveryVerbWaitsItsTurn: a second verb has to know what became of the first,
// for as long as it has time.
func TestDeliveryVerbWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := idemtest.NewDelivery(idem.ID("a"))
		d.Queue().SetFault(untilDone)
		slow, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- d.Ack(slow) }()
		synctest.Wait()
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if err := d.Reject(short, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Reject behind an Ack that blocks: %v, want context.DeadlineExceeded", err)
		}
		go func() { second <- d.Requeue(t.Context(), nil) }()
		synctest.Wait()
		d.Queue().SetFault(nil)
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("Ack: %v, want context.Canceled", err)
		}
		want(t, "Requeue", <-second, nil)
		want(t, "Settled", d.Settled(), idem.Requeue)
	})
}
