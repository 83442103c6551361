package idemamqp_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
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

// BenchmarkThroughput measures a consumer end to end, with the guard and without
// it, in turn: prefetch 250, 8 workers, small messages, no duplicates. One round
// is a run of each; what is reported are the medians over the rounds, and the
// ratio of the medians.
//
//	go test -run '^$' -bench Throughput -benchtime 11x
func BenchmarkThroughput(b *testing.B) {
	messages, rounds := 50_000, b.N
	if testing.Short() {
		messages, rounds = 2_000, 1
	}
	q := declare(b, "classic")
	var off, on, ratios []float64
	for i := range rounds {
		var a, g float64
		if i%2 == 0 { // neither is always the first
			a, g = q.rate(b, messages, false), q.rate(b, messages, true)
		} else {
			g, a = q.rate(b, messages, true), q.rate(b, messages, false)
		}
		off, on, ratios = append(off, a), append(on, g), append(ratios, g/a)
	}
	b.ReportMetric(0, "ns/op") // which would be of publishing too
	b.ReportMetric(median(off), "off-msg/s")
	b.ReportMetric(median(on), "on-msg/s")
	b.ReportMetric(median(on)/median(off), "on/off")
	b.ReportMetric(median(ratios), "on/off-paired")
}

// rate is how many messages a second a receiver gets through, of those that lie in
// the queue already.
func (q *queue) rate(b *testing.B, messages int, guarded bool) float64 {
	b.Helper()
	q.fill(b, messages)
	receiver := idemamqp.Receiver{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if guarded {
		guard, err := idem.NewGenerational()
		require.NoError(b, err)
		receiver.Guard = guard
	}
	var handled atomic.Int64
	done := make(chan struct{})
	receiver.Handle = func(context.Context, *idemamqp.Delivery) error {
		if handled.Add(1) == int64(messages) {
			close(done)
		}
		return nil
	}
	s := q.source()
	l := dial(b)
	require.NoError(b, l.Qos(250, 0, false))
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

var filled int // ids are as long as UUIDs, and never the same

func (q *queue) fill(b *testing.B, messages int) {
	b.Helper()
	const batch = 1000
	for n := 0; n < messages; n += batch {
		msgs := make([]amqp.Publishing, min(batch, messages-n))
		for i := range msgs {
			filled++
			msgs[i] = amqp.Publishing{MessageId: fmt.Sprintf("%036d", filled), Body: []byte(strconv.Itoa(filled))}
		}
		q.send(msgs...)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
