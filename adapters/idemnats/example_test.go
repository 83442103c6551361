package idemnats_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemnats"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A consumer of orders, one of which was published twice.
func Example() {
	js, stop := startNATS()
	defer stop()
	ctx := context.Background()
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{"orders"}, Duplicates: 100 * time.Millisecond,
	})
	check(err)
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy,
	})
	check(err)
	for _, id := range []string{"order-1", "order-2", "order-1", "order-3"} {
		publish(ctx, js, id)
	}

	// From here on, this is what there is to write.
	endpoints, err := idem.NewEndpoints(idem.WithWindow(10 * time.Minute))
	check(err)
	guard, err := endpoints.Guard(idem.Endpoint{Name: "orders/billing"})
	check(err)
	source, err := idemnats.New(consumer.CachedInfo())
	check(err)
	const workers = 1 // one after the other, for a steady output
	messages, err := consumer.Messages(jetstream.PullMaxMessages(workers))
	check(err)
	defer messages.Stop()

	receiver := idemnats.Receiver{
		Guard: guard,
		Handle: func(ctx context.Context, d *idemnats.Delivery) error {
			id := d.Msg().Headers().Get(jetstream.MsgIDHeader)
			fmt.Println("billed", id)
			if id == "order-3" {
				messages.Stop() // enough seen
			}
			return nil
		},
	}
	err = receiver.Consume(ctx, workers, source.Next(messages))
	check(err)
	fmt.Println("copies dropped:", guard.Stats().DuplicatesCompleted)
	// Output:
	// billed order-1
	// billed order-2
	// billed order-3
	// copies dropped: 1
}

// In a callback, without Consume.
func ExampleSource_Delivery() {
	js, stop := startNATS()
	defer stop()
	ctx := context.Background()
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
	check(err)
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
	check(err)
	publish(ctx, js, "order-1")

	guard, err := idem.NewGenerational()
	check(err)
	source, err := idemnats.New(consumer.CachedInfo(), idemnats.WithDoubleAck())
	check(err)
	billed := make(chan string)
	receiver := idemnats.Receiver{
		Guard: guard,
		Handle: func(ctx context.Context, d *idemnats.Delivery) error {
			billed <- string(d.Msg().Data())
			return nil
		},
	}
	consuming, err := consumer.Consume(func(msg jetstream.Msg) {
		if err := receiver.Receive(ctx, source.Delivery(msg)); err != nil {
			log.Print(err)
		}
	})
	check(err)
	fmt.Println("billed", <-billed)
	consuming.Drain()
	<-consuming.Closed()
	// Output: billed order-1
}

// publish publishes until the server has stored the message: right after the
// first one, it still drops a second one by itself.
func publish(ctx context.Context, js jetstream.JetStream, id string) {
	msg := nats.NewMsg("orders")
	msg.Data = []byte(id)
	msg.Header.Set(jetstream.MsgIDHeader, id)
	for stored := false; !stored; {
		ack, err := js.PublishMsg(ctx, msg)
		check(err)
		stored = !ack.Duplicate
	}
}

// startNATS starts a server with JetStream in this process.
func startNATS() (js jetstream.JetStream, stop func()) {
	dir, err := os.MkdirTemp("", "idemnats-example-")
	check(err)
	srv, err := server.NewServer(&server.Options{ServerName: "example", DontListen: true, JetStream: true, StoreDir: dir, NoSigs: true})
	check(err)
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		log.Panic("the NATS server did not become ready in 10s")
	}
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	check(err)
	js, err = jetstream.New(nc)
	check(err)
	return js, func() {
		nc.Close()
		srv.Shutdown()
		srv.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
