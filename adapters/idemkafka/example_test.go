package idemkafka_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemkafka"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A consumer of orders, one of which was produced twice.
func Example() {
	broker, stop := startKafka("orders")
	defer stop()
	produce(broker, "order-1", "order-2", "order-1", "order-3")

	// From here on, this is what there is to write.
	endpoints, err := idem.NewEndpoints(idem.WithWindow(10 * time.Minute))
	check(err)
	guard, err := endpoints.Guard(idem.Endpoint{Name: "orders/billing"})
	check(err)
	source, err := idemkafka.New(idemkafka.HeaderID("id"))
	check(err)
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(broker),
		kgo.ConsumerGroup("billing"),
		kgo.ConsumeTopics("orders"),
	}, source.Opts()...)...)
	check(err)

	ctx, enough := context.WithCancel(context.Background())
	receiver := &idemkafka.Receiver{
		Guard: guard,
		Handle: func(_ context.Context, d *idemkafka.Delivery) error {
			fmt.Printf("billed %s\n", d.Record().Value)
			if string(d.Record().Value) == "order-3" {
				enough()
			}
			return nil
		},
	}
	err = receiver.Consume(ctx, 8, source.Next(receiver))
	client.Close() // after Consume: it commits what is settled, and leaves the group
	fmt.Println(err)
	fmt.Println("copies dropped:", guard.Stats().DuplicatesCompleted)
	// Output:
	// billed order-1
	// billed order-2
	// billed order-3
	// context canceled
	// copies dropped: 1
}

// A failed record goes to a topic of its own, and comes back from there; a
// rejected one goes where somebody looks at it.
func ExampleWithRetry() {
	broker, stop := startKafka("orders", "orders-retry", "orders-dead")
	defer stop()
	produce(broker, "order-1")
	producer, err := kgo.NewClient(kgo.SeedBrokers(broker))
	check(err)
	defer producer.Close()
	to := func(topic string) func(context.Context, *kgo.Record, error) error {
		return func(ctx context.Context, r *kgo.Record, cause error) error {
			fmt.Printf("%s to %s: %v\n", r.Value, topic, cause)
			return producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Headers: r.Headers}).FirstErr()
		}
	}
	source, err := idemkafka.New(idemkafka.HeaderID("id"),
		idemkafka.WithRetry(to("orders-retry")), idemkafka.WithDeadLetter(to("orders-dead")))
	check(err)
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(broker),
		kgo.ConsumerGroup("billing"),
		kgo.ConsumeTopics("orders", "orders-retry"),
	}, source.Opts()...)...)
	check(err)
	defer client.Close()

	guard, err := idem.NewGenerational()
	check(err)
	ctx, enough := context.WithCancel(context.Background())
	receiver := &idemkafka.Receiver{
		Guard: guard,
		Handle: func(_ context.Context, d *idemkafka.Delivery) error {
			if d.Record().Topic == "orders" {
				return fmt.Errorf("the bank is closed")
			}
			enough()
			return idem.WithOutcome(fmt.Errorf("the bank is gone"), idem.Reject)
		},
	}
	_ = receiver.Consume(ctx, 8, source.Next(receiver))
	// Output:
	// order-1 to orders-retry: the bank is closed
	// order-1 to orders-dead: the bank is gone
}

// startKafka starts a broker in this process.
func startKafka(topics ...string) (address string, stop func()) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topics...))
	check(err)
	return cluster.ListenAddrs()[0], cluster.Close
}

func produce(broker string, ids ...string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.DefaultProduceTopic("orders"))
	check(err)
	defer client.Close()
	for _, id := range ids {
		record := kgo.StringRecord(id)
		record.Headers = []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}
		check(client.ProduceSync(context.Background(), record).FirstErr())
	}
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
