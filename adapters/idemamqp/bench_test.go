package idemamqp_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

var messagesFlag = flag.Int("messages", 50_000, "how many messages a run of BenchmarkThroughput handles")

// BenchmarkThroughput measures a consumer end to end: prefetch 250, 8 workers,
// small messages, no duplicates. One round is a run without a guard, one with a new
// guard, which grows from nothing meanwhile, and one with a guard that has been
// running, in each order in turn. Reported are the medians over the rounds, and of
// the rounds' own ratios, which a busy machine spoils less: so do many short
// rounds, as far as a new guard allows.
//
//	go test -run '^$' -bench Throughput -benchtime 12x
//	go test -run '^$' -bench Throughput -benchtime 100x -messages 5000
func BenchmarkThroughput(b *testing.B) {
	messages, rounds := *messagesFlag, b.N
	if testing.Short() {
		messages, rounds = 2_000, 1
	}
	q := declare(b, "classic")
	running := runningGuard(b)
	var off, on, ratios, runningRatios []float64
	for i := range rounds {
		var rates [3]float64
		for _, side := range orders[i%len(orders)] {
			rates[side] = q.rate(b, messages, [...]idem.IdempotencyGuard{nil, newGuard(b), running}[side])
		}
		off, on = append(off, rates[0]), append(on, rates[1])
		ratios = append(ratios, rates[1]/rates[0])
		runningRatios = append(runningRatios, rates[2]/rates[0])
	}
	b.ReportMetric(0, "ns/op") // which would be of publishing too
	b.ReportMetric(median(off), "off-msg/s")
	b.ReportMetric(median(on), "on-msg/s")
	b.ReportMetric(median(on)/median(off), "on/off")
	b.ReportMetric(median(ratios), "on/off-paired")
	b.ReportMetric(median(runningRatios), "running/off-paired")
}

// orders are those of three runs. None is always the first, or always follows the
// same one.
var orders = [...][3]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {0, 2, 1}, {2, 0, 1}, {1, 0, 2}}

func newGuard(b *testing.B) *idem.Generational {
	b.Helper()
	guard, err := idem.NewGenerational()
	require.NoError(b, err)
	return guard
}

// runningGuard has been through both of its generations: it holds as much as it
// ever will, and grows no more.
func runningGuard(b *testing.B) *idem.Generational {
	b.Helper()
	guard := newGuard(b)
	for range 150_000 {
		claim, state := guard.TryBegin(idem.IDAt(nextID(), "idemamqp.earlier"))
		require.Equal(b, idem.Begun, state)
		guard.Complete(claim)
	}
	return guard
}

// rate is how many messages a second a receiver gets through, of those that lie in
// the queue already.
func (q *queue) rate(b *testing.B, messages int, guard idem.IdempotencyGuard) float64 {
	b.Helper()
	q.fill(b, messages)
	var handled atomic.Int64
	done := make(chan struct{})
	receiver := idemamqp.Receiver{
		Guard:  guard,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Handle: func(context.Context, *idemamqp.Delivery) error {
			if handled.Add(1) == int64(messages) {
				close(done)
			}
			return nil
		},
	}
	s := q.source()
	l := dial(b)
	require.NoError(b, l.Qos(250, 0, false))
	runtime.GC() // what was published is no longer this run's business
	start := time.Now()
	deliveries, err := s.Consume(l.Channel, consumerTag, false, false, false, false, nil)
	require.NoError(b, err)
	ended := make(chan error, 1)
	go func() { ended <- receiver.Consume(b.Context(), 8, s.Next(deliveries)) }()
	<-done
	took := time.Since(start)
	require.NoError(b, l.Cancel(consumerTag, false))
	require.NoError(b, <-ended)
	l.hangUp()
	return float64(messages) / took.Seconds()
}

var lastID int

// nextID is as long as a UUID, and never the same.
func nextID() string {
	lastID++
	return fmt.Sprintf("%036d", lastID)
}

func (q *queue) fill(b *testing.B, messages int) {
	b.Helper()
	const batch = 1000
	for n := 0; n < messages; n += batch {
		msgs := make([]amqp.Publishing, min(batch, messages-n))
		for i := range msgs {
			msgs[i] = amqp.Publishing{MessageId: nextID(), Body: []byte(strconv.Itoa(i))}
		}
		q.send(msgs...)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
