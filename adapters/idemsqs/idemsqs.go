// Package idemsqs puts Amazon SQS deliveries before an [idem.Receiver], so that a
// message that is delivered again is not handled twice. It is for
// github.com/aws/aws-sdk-go-v2/service/sqs.
//
// A [Source] is one queue. Its [Source.Next] feeds Receiver.Consume.
package idemsqs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/idem-go/idem"
)

// Receiver is the hook between a queue and a handler.
type Receiver = idem.Receiver[*Delivery]

// Client is what a [Source] needs of *sqs.Client.
type Client interface {
	ReceiveMessage(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
	DeleteMessage(context.Context, *sqs.DeleteMessageInput, ...func(*sqs.Options)) (*sqs.DeleteMessageOutput, error)
	ChangeMessageVisibility(context.Context, *sqs.ChangeMessageVisibilityInput, ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityOutput, error)
	SendMessage(context.Context, *sqs.SendMessageInput, ...func(*sqs.Options)) (*sqs.SendMessageOutput, error)
}

// Source makes deliveries of one queue's messages. Make one with [New]. Its
// methods may be called from any number of goroutines.
type Source struct {
	client       Client
	queue        string // its URL
	id           func(types.Message) (string, error)
	visibility   time.Duration
	requeueDelay time.Duration
	wait         time.Duration
	batch        int32
	dead         string        // URL of the queue of the dead letters; empty: left to the redrive policy
	slots        chan struct{} // holds one for each delivery that Next has handed out and nobody settled

	feed feed
}

// Delivery makes a delivery of a message that was just received, with the timeout
// of [WithVisibilityTimeout], in a loop of your own. Ask for all system attributes
// and all message attributes, as [Source.Next] does.
func (s *Source) Delivery(msg types.Message) *Delivery { return s.deliver(msg, time.Now()) }

func (s *Source) deliver(msg types.Message, received time.Time) *Delivery {
	return &Delivery{source: s, msg: msg, received: received, asked: received, busy: make(chan struct{}, 1)}
}

// Delivery is one arrival of a message. It is an [idem.Delivery], an
// [idem.Extender] and an [idem.Pauser]. All methods may be called from any
// goroutine.
//
// Every verb uses the receipt handle of this arrival. A verb that fails leaves the
// message invisible until its visibility timeout is over, and then it comes again.
// There is one way for a verb to fail and still succeed: an answer that gets lost.
// A verb that failed may be called again.
type Delivery struct {
	source   *Source
	msg      types.Message
	received time.Time
	busy     chan struct{} // holds one while a call to SQS is under way
	release  func()        // gives the slot back; nil if it has none
	copied   bool          // to the dead letters; the busy one's

	mu      sync.Mutex // protects what follows
	asked   time.Time  // when the visibility timeout last began anew, as far as we know
	outcome idem.Outcome
	done    bool // a call succeeded, the outcome is final
}

// Message returns the message. DeleteMessage called by hand is not seen by the
// adapter: call [Delivery.Ack].
func (d *Delivery) Message() types.Message { return d.msg }

// Delivered returns how often SQS has delivered the message, this time included, as
// far as SQS knows (ApproximateReceiveCount); 0 if it doesn't say.
func (d *Delivery) Delivered() int {
	n, _ := strconv.Atoi(d.msg.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
	return n
}

// Identity returns the id, by default the MessageId that SQS gives a message when it
// is sent, with the queue's URL as its destination.
func (d *Delivery) Identity() (idem.Identity, error) {
	id, err := d.source.id(d.msg)
	if err != nil {
		return idem.Identity{}, fmt.Errorf("idemsqs: id of message %s of %s: %w", aws.ToString(d.msg.MessageId), d.source.queue, err)
	}
	return idem.IDAt(id, d.source.queue), nil
}

// Ack deletes the message (DeleteMessage). SQS has confirmed it when it returns nil,
// but a standard queue may deliver it once more all the same, and does so if the
// visibility timeout was over and it was received elsewhere.
func (d *Delivery) Ack(ctx context.Context) error {
	return d.settle(ctx, "DeleteMessage", idem.Ack, d.delete)
}

// Requeue makes the message visible again (ChangeMessageVisibility): at once if the
// cause is nil, for then nothing has failed, else after a delay, see
// [WithRequeueDelay]. It is no error if it is visible already, because its
// visibility timeout is over.
func (d *Delivery) Requeue(ctx context.Context, cause error) error {
	delay := time.Duration(0)
	if cause != nil {
		delay = d.source.requeueDelay
	}
	return d.settle(ctx, "ChangeMessageVisibility", idem.Requeue, func(ctx context.Context) error {
		return d.giveBack(ctx, delay)
	})
}

// Reject ends the deliveries of the message, for which SQS has no call.
//
// With [WithDeadLetterQueue] the message is copied there, and deleted. If the copy
// fails, the message is given back, and the error returned. If the deletion fails
// after the copy, it comes again, and may be copied a second time.
//
// Without, it is left to the queue's redrive policy: the message is made visible at
// once, and SQS delivers it until its maxReceiveCount is reached. The guard knows it
// as rejected and has each of these rejected again, so that the handler doesn't see
// them, for as long as it remembers.
func (d *Delivery) Reject(ctx context.Context, _ error) error {
	if d.source.dead == "" {
		return d.settle(ctx, "ChangeMessageVisibility", idem.Reject, func(ctx context.Context) error {
			return d.giveBack(ctx, 0)
		})
	}
	return d.settle(ctx, "dead-lettering", idem.Reject, d.bury)
}

// Settled returns which verb was called on the delivery, also when the call
// failed: what the caller wanted is known then, and the redelivery will be treated
// accordingly. A later call that succeeds has the last word.
func (d *Delivery) Settled() idem.Outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.outcome
}

// longest is how long SQS lets a message be invisible, from its receipt on.
const longest = 12 * time.Hour

// Extend begins the visibility timeout anew, if a third of it has passed since it
// last began, and returns after how long the next third will have. It ends the calls
// when SQS doesn't know the receipt handle any longer, with its error, and twelve
// hours after the receipt, which is all that SQS allows.
func (d *Delivery) Extend(ctx context.Context) (next time.Duration, err error) {
	step := d.source.visibility / 3
	if d.Settled() != idem.Unsettled {
		return 0, nil
	}
	if rest := step - d.sinceAsked(); rest > 0 {
		return rest, nil
	}
	timeout := min(d.source.visibility, longest-time.Since(d.received)-time.Second).Truncate(time.Second)
	if timeout <= 0 {
		return 0, nil
	}
	err = d.call(ctx, func(ctx context.Context) error { return d.extend(ctx, timeout) })
	switch {
	case d.Settled() != idem.Unsettled:
		return 0, nil
	case err == nil:
		return step, nil
	case isStale(err):
		step = 0
	}
	return step, d.failed("ChangeMessageVisibility", err)
}

// extend does nothing beside a verb that was quicker: it would undo a Requeue.
func (d *Delivery) extend(ctx context.Context, timeout time.Duration) error {
	if d.Settled() != idem.Unsettled {
		return nil
	}
	asked := time.Now()
	err := d.setVisibility(ctx, timeout)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.asked = asked
	}
	return err
}

// RequeuePause is the delay of a failed message: a copy of a running one rests in
// this process as long as a failed one does in the queue.
func (d *Delivery) RequeuePause() time.Duration { return d.source.requeueDelay }

func (d *Delivery) sinceAsked() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.asked)
}

func (d *Delivery) delete(ctx context.Context) error {
	_, err := d.source.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{
		QueueUrl: &d.source.queue, ReceiptHandle: d.msg.ReceiptHandle,
	})
	return err
}

func (d *Delivery) giveBack(ctx context.Context, delay time.Duration) error {
	err := d.setVisibility(ctx, delay)
	var visible *types.MessageNotInflight
	if errors.As(err, &visible) {
		return nil
	}
	return err
}

func (d *Delivery) setVisibility(ctx context.Context, timeout time.Duration) error {
	_, err := d.source.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &d.source.queue, ReceiptHandle: d.msg.ReceiptHandle, VisibilityTimeout: int32(timeout / time.Second),
	})
	return err
}

// isStale says whether SQS has answered that this receipt can't be extended, now or
// ever. SQS has no error of its own for a handle that has aged, in a FIFO queue.
func isStale(err error) bool {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode() {
	case "MessageNotInflight", "ReceiptHandleIsInvalid", "InvalidParameterValue":
		return true
	default:
		return false
	}
}

// settle calls SQS unless the delivery is settled. It also gives the slot back,
// however the verb ends: nobody is going to handle this delivery any more.
func (d *Delivery) settle(ctx context.Context, verb string, o idem.Outcome, f func(context.Context) error) error {
	if d.release != nil {
		defer d.release()
	}
	if d.isDone() {
		return nil
	}
	err := d.call(ctx, func(ctx context.Context) error {
		if d.isDone() {
			return nil
		}
		d.note(o, false)
		err := f(ctx)
		if err == nil {
			d.note(o, true)
		}
		return err
	})
	if err != nil {
		return d.failed(verb, err)
	}
	return nil
}

// call runs f, one at a time. The client honours ctx.
func (d *Delivery) call(ctx context.Context, f func(context.Context) error) error {
	if err := enter(ctx, d.busy); err != nil {
		return err
	}
	defer func() { <-d.busy }()
	return f(ctx)
}

// note records o before the call, and for good if it is what SQS was told.
func (d *Delivery) note(o idem.Outcome, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if done || d.outcome == idem.Unsettled {
		d.outcome, d.done = o, done
	}
}

func (d *Delivery) isDone() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

func (d *Delivery) failed(verb string, err error) error {
	return fmt.Errorf("idemsqs: %s of message %s of %s: %w", verb, aws.ToString(d.msg.MessageId), d.source.queue, err)
}
