package idemwatermill

import (
	"context"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/idem-go/idem"
)

// BenchmarkRouter is what the middleware costs in a router whose Pub/Sub costs next
// to nothing: no duplicates, no outputs.
func BenchmarkRouter(b *testing.B) {
	for _, on := range []bool{false, true} {
		name := "guard=off"
		if on {
			name = "guard=on"
		}
		b.Run(name, func(b *testing.B) {
			router, err := message.NewRouter(message.RouterConfig{}, nil)
			if err != nil {
				b.Fatal(err)
			}
			if on {
				router.AddMiddleware(benchDedup(b))
			}
			feed := feed(make(chan *message.Message))
			router.AddConsumerHandler("bench", "orders", feed, func(*message.Message) error { return nil })
			done := make(chan error)
			go func() { done <- router.Run(context.Background()) }()
			<-router.Running()
			b.ReportAllocs()
			last := make([]*message.Message, 64) // as many at once
			for i := 0; b.Loop(); i++ {
				if old := last[i%len(last)]; old != nil {
					<-old.Acked()
				}
				msg := identified(strconv.Itoa(i))
				last[i%len(last)] = msg
				feed <- msg
			}
			close(feed)
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

func benchDedup(b *testing.B) message.HandlerMiddleware {
	guard, err := idem.NewGenerational()
	if err != nil {
		b.Fatal(err)
	}
	m, err := New(guard, WithMetadataID(field))
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// feed is a message.Subscriber.
type feed chan *message.Message

func (f feed) Subscribe(context.Context, string) (<-chan *message.Message, error) { return f, nil }
func (f feed) Close() error                                                       { return nil }
