package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
)

const (
	prefetch = 250
	workers  = 8
)

// run is one run: a queue, one guard for it, and one receiver after the other.
type run struct {
	settings
	ledger   *ledger
	queue    *queue
	receiver *idemamqp.Receiver
	source   *idemamqp.Source
	stderr   io.Writer
	old      sync.WaitGroup // receivers on connections that were cut
}

// runOnce makes a run, from the queue's declaration to its deletion.
func runOnce(ctx context.Context, s settings, stderr io.Writer) (totals, error) {
	q, err := declare(s.url)
	if err != nil {
		return totals{}, err
	}
	defer q.delete()
	r := &run{settings: s, ledger: newLedger(s.messages), queue: q, stderr: stderr}
	if err := r.build(); err != nil {
		return totals{}, err
	}
	if err := q.publish(ctx, s.messages); err != nil {
		return totals{}, err
	}
	if err := r.consume(ctx); err != nil {
		return totals{}, err
	}
	return r.ledger.totals(), nil
}

// build makes what outlives the connections.
func (r *run) build() error {
	source, err := idemamqp.New(r.queue.name)
	if err != nil {
		return err
	}
	r.source = source
	r.receiver = &idemamqp.Receiver{
		Handle:     r.handle,
		OnInFlight: r.mode.inFlight,
		Logger:     slog.New(slog.DiscardHandler), // every failure is a line in it
	}
	if !r.mode.guarded {
		return nil
	}
	endpoints, err := idem.NewEndpoints()
	if err != nil {
		return err
	}
	guard, err := endpoints.Guard(idem.Endpoint{Name: r.queue.name})
	if err != nil {
		return err
	}
	r.receiver.Guard = guard
	return nil
}

var errUnlucky = errors.New("this run was to fail")

// One run in ten is slow: slower than it takes to connect again, so that the copy
// comes while the message is running still.
const slowWork = 120 * time.Millisecond

// handle takes a while and sometimes fails. Both are decided by the message and
// the number of its run, so they are the same in each mode.
func (r *run) handle(_ context.Context, d *idemamqp.Delivery) (err error) {
	n := r.ledger.start(d)
	defer func() { r.ledger.finish(d, err) }()
	id := fnv.New64a()
	io.WriteString(id, d.Msg().MessageId)
	dice := rand.New(rand.NewPCG(id.Sum64(), uint64(n)))
	work := time.Duration(2+dice.IntN(15)) * time.Millisecond
	if dice.IntN(10) == 0 {
		work = slowWork
	}
	time.Sleep(work) // it minds no context
	if dice.Float64() < r.fail {
		return errUnlucky
	}
	return nil
}

// consume cuts the connection as often as it is told to, and goes on until the
// queue is empty and everything is settled.
func (r *run) consume(ctx context.Context) error {
	for cut := range r.cuts {
		l, err := r.work(ctx)
		if err != nil {
			return err
		}
		r.await(ctx, r.ledger.mark((cut+1)*r.messages/(r.cuts+1)))
		fmt.Fprintf(r.stderr, "%v: cut %d of %d, under %d running handlers\n", r.mode, cut+1, r.cuts, r.ledger.runningNow())
		l.cut()
	}
	for {
		if err := r.sweep(ctx); err != nil {
			return err
		}
		if empty, err := r.queue.empty(); empty || err != nil {
			return err
		}
	}
}

// work begins to receive on a connection of its own, and does not wait for the
// end: handlers may outlive the connection.
func (r *run) work(ctx context.Context) (*link, error) {
	l, err := connect(r.url)
	if err != nil {
		return nil, err
	}
	deliveries, err := l.consume(r.source)
	if err != nil {
		l.cut()
		return nil, err
	}
	next := r.source.Next(deliveries)
	r.old.Go(func() {
		_ = r.receiver.Consume(ctx, workers, func(ctx context.Context) (*idemamqp.Delivery, error) {
			d, err := next(ctx)
			if err == nil {
				r.ledger.arrived(d)
			}
			return d, err
		})
	})
	return l, nil
}

// await waits for a mark. It gives up when there is nothing left to come.
func (r *run) await(ctx context.Context, mark <-chan struct{}) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-mark:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
			if r.ledger.runningNow() > 0 {
				continue
			}
			if ready, err := r.queue.ready(); ready == 0 || err != nil {
				return
			}
		}
	}
}

// sweep handles what there is and ends in good order: the broker sends no more,
// what has come is settled, and only then is the connection closed.
func (r *run) sweep(ctx context.Context) error {
	l, err := r.work(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	r.await(ctx, nil)
	if err := l.cancel(); err != nil {
		return err
	}
	r.old.Wait()
	return ctx.Err()
}
