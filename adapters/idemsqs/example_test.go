package idemsqs_test

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemsqs"
)

// A consumer of orders, one of which was sent twice. The id is the publisher's, from
// an attribute; the default, SQS's own MessageId, tells redeliveries only.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	// In earnest: client := sqs.NewFromConfig(config)
	client := &standIn{orders: []string{"order-1", "order-2", "order-1", "order-3"}}

	endpoints, err := idem.NewEndpoints(idem.WithWindow(10 * time.Minute))
	check(err)
	guard, err := endpoints.Guard(idem.Endpoint{Name: "orders"})
	check(err)
	source, err := idemsqs.New(client, "https://sqs.eu-central-1.amazonaws.com/123456789012/orders",
		idemsqs.WithID(func(msg types.Message) (string, error) {
			return aws.ToString(msg.MessageAttributes["order"].StringValue), nil
		}),
		idemsqs.WithDeadLetterQueue("https://sqs.eu-central-1.amazonaws.com/123456789012/orders-dead"))
	check(err)

	receiver := idemsqs.Receiver{
		Guard: guard,
		Handle: func(ctx context.Context, d *idemsqs.Delivery) error {
			fmt.Println("billed", aws.ToString(d.Message().Body))
			if aws.ToString(d.Message().Body) == "order-3" {
				stop() // enough seen
			}
			return nil
		},
	}
	const workers = 1 // one after the other, for a steady output
	fmt.Println(receiver.Consume(ctx, workers, source.Next))
	check(source.GiveBack(context.Background()))
	fmt.Println("deleted:", client.deleted, "copies dropped:", guard.Stats().DuplicatesCompleted)
	// Output:
	// billed order-1
	// billed order-2
	// billed order-3
	// context canceled
	// deleted: 4 copies dropped: 1
}

// standIn is as much of *sqs.Client as one worker needs for a few orders.
type standIn struct {
	idemsqs.Client
	orders  []string
	deleted int
}

func (c *standIn) ReceiveMessage(ctx context.Context, _ *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	if len(c.orders) == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	order := c.orders[0]
	c.orders = c.orders[1:]
	return &sqs.ReceiveMessageOutput{Messages: []types.Message{{
		MessageId:         aws.String(strconv.Itoa(len(c.orders))),
		ReceiptHandle:     aws.String("handle"),
		Body:              &order,
		MessageAttributes: map[string]types.MessageAttributeValue{"order": {StringValue: &order}},
	}}}, nil
}

func (c *standIn) DeleteMessage(context.Context, *sqs.DeleteMessageInput, ...func(*sqs.Options)) (*sqs.DeleteMessageOutput, error) {
	c.deleted++
	return &sqs.DeleteMessageOutput{}, nil
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
