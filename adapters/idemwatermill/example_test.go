package idemwatermill_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemwatermill"
)

// Orders, one of which is published twice, make invoices.
func Example() {
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true, BlockPublishUntilSubscriberAck: true}, nil)
	router := message.NewDefaultRouter(nil)

	endpoints, err := idem.NewEndpoints(idem.WithWindow(10 * time.Minute))
	check(err)
	guard, err := endpoints.Guard(idem.Endpoint{Name: "billing"}) // outlives the router
	check(err)
	dedup, err := idemwatermill.New(guard, idemwatermill.WithMetadataID("order_id"))
	check(err)
	poison, err := middleware.PoisonQueue(pubsub, "poisoned")
	check(err)
	retry := middleware.Retry{MaxRetries: 3, InitialInterval: 10 * time.Millisecond}
	router.AddMiddleware(poison, dedup, retry.Middleware) // in this order

	router.AddHandler("billing", "orders", pubsub, "invoices", pubsub, func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("billed", string(msg.Payload))
		return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
	})

	closed := make(chan error)
	go func() { closed <- router.Run(context.Background()) }()
	<-router.Running()
	for _, id := range []string{"order-1", "order-2", "order-1"} {
		msg := message.NewMessage(watermill.NewUUID(), []byte(id))
		msg.Metadata.Set("order_id", id)
		check(pubsub.Publish("orders", msg))
	}
	check(router.Close())
	check(<-closed)
	fmt.Println("copies dropped:", guard.Stats().DuplicatesCompleted)
	// Output:
	// billed order-1
	// billed order-2
	// copies dropped: 1
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
