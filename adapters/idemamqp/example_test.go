package idemamqp_test

import (
	"context"
	"fmt"
	"log"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

var endpoints, _ = idem.NewEndpoints() // one for the process: guards outlive receivers

func bill(_ context.Context, order string) error {
	fmt.Println("billing", order)
	return nil
}

// A receiver on one connection. When it returns, dial again and call it again: the
// guard is the endpoint's, and knows what the last receiver has handled.
func Example() {
	consume := func(ctx context.Context, conn *amqp.Connection) error {
		channel, err := conn.Channel()
		if err != nil {
			return err
		}
		if err := channel.Qos(64, 0, false); err != nil {
			return err
		}
		source, err := idemamqp.New("orders")
		if err != nil {
			return err
		}
		deliveries, err := source.Consume(channel, "", false, false, false, false, nil) // in place of channel.Consume
		if err != nil {
			return err
		}
		guard, err := endpoints.Guard(idem.Endpoint{Name: "orders"})
		if err != nil {
			return err
		}
		receiver := idemamqp.Receiver{
			Guard: guard,
			Handle: func(ctx context.Context, d *idemamqp.Delivery) error {
				return bill(ctx, string(d.Msg().Body))
			},
		}
		return receiver.Consume(ctx, 8, source.Next(deliveries))
	}

	conn, err := amqp.Dial("amqp://guest:guest@localhost:5672/")
	if err != nil {
		log.Print(err)
		return
	}
	defer conn.Close()
	log.Print(consume(context.Background(), conn))
}

// broker shows what is told to a channel.
type broker struct{}

func (broker) Ack(tag uint64, _ bool) error     { fmt.Println("ack", tag); return nil }
func (broker) Nack(tag uint64, _, _ bool) error { fmt.Println("nack", tag); return nil }
func (broker) Reject(tag uint64, _ bool) error  { fmt.Println("reject", tag); return nil }

// The first ack was on its way when the connection broke, and the broker delivers
// again. That runs without a broker, as a test of a handler may.
func ExampleSource_Delivery() {
	guard, _ := endpoints.Guard(idem.Endpoint{Name: "orders"})
	source, _ := idemamqp.New("orders")
	receiver := idemamqp.Receiver{
		Guard: guard,
		Handle: func(ctx context.Context, d *idemamqp.Delivery) error {
			return bill(ctx, string(d.Msg().Body))
		},
	}
	for tag, again := range []bool{false, true} {
		msg := amqp.Delivery{
			Acknowledger: broker{},
			DeliveryTag:  uint64(tag + 1),
			Redelivered:  again,
			MessageId:    "order-17",
			Body:         []byte("order 17"),
		}
		if err := receiver.Receive(context.Background(), source.Delivery(msg)); err != nil {
			log.Print(err)
		}
	}
	// Output:
	// billing order 17
	// ack 1
	// ack 2
}
