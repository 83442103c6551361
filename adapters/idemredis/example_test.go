package idemredis_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemredis"
	"github.com/redis/go-redis/v9"
)

// A consumer of orders, one of which was added twice. It prints that each was
// billed once, and that one copy was dropped.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	rdb, orders, remove := startStream()
	defer remove()
	for _, id := range []string{"order-1", "order-2", "order-1", "order-3"} {
		check(rdb.XAdd(ctx, &redis.XAddArgs{Stream: orders, Values: []string{"order", id, "amount", "7"}}).Err())
	}

	// From here on, this is what there is to write.
	check(rdb.XGroupCreateMkStream(ctx, orders, "billing", "0").Err())
	endpoints, err := idem.NewEndpoints(idem.WithWindow(10 * time.Minute))
	check(err)
	guard, err := endpoints.Guard(idem.Endpoint{Name: "orders/billing"})
	check(err)
	source, err := idemredis.New(rdb,
		idemredis.Consumer{Stream: orders, Group: "billing", Name: "node-1"},
		idemredis.FieldID("order"),
		idemredis.WithDeadLetters(orders+":dead"))
	check(err)

	receiver := idemredis.Receiver{
		Guard: guard,
		Handle: func(ctx context.Context, d *idemredis.Delivery) error {
			id := d.Message().Values["order"]
			fmt.Println("billed", id)
			if id == "order-3" {
				stop() // enough seen
			}
			return nil
		},
	}
	const workers = 1 // one after the other, for a steady output
	fmt.Println(receiver.Consume(ctx, workers, source.Next))
	check(source.GiveBack(context.Background()))
	fmt.Println("copies dropped:", guard.Stats().DuplicatesCompleted)
}

// startStream returns a client, and a key that nobody else uses.
func startStream() (rdb *redis.Client, key string, remove func()) {
	rdb = redis.NewClient(options())
	key = fmt.Sprintf("idemredis:example:%d", time.Now().UnixNano())
	return rdb, key, func() {
		check(rdb.Del(context.Background(), key, key+":dead").Err())
		check(rdb.Close())
	}
}

func options() *redis.Options {
	url := os.Getenv("IDEM_REDIS_URL")
	if url == "" {
		url = "redis://127.0.0.1:6379/0"
	}
	opts, err := redis.ParseURL(url)
	check(err)
	return opts
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
