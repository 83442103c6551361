package idemsqs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// feed is what Next knows from one call to the next.
type feed struct {
	turn     chan struct{} // holds one while a call is at work: what follows is that call's
	poll     *poll         // the request that is under way; nil if there is none
	buffer   []types.Message
	received time.Time // when what is in the buffer was
}

// poll is a request for messages. It outlives the call of Next that made it: SQS may
// go on handing out to a request that was given up, and what it handed out would be
// invisible for nothing.
type poll struct {
	cancel context.CancelFunc
	answer chan answer
}

type answer struct {
	messages []types.Message
	received time.Time
	err      error
}

// Next returns the next delivery, and feeds Receiver.Consume. It waits until there is
// a message, and until fewer than [WithMaxUnsettled] are unsettled, so settle each
// delivery.
//
// The end of ctx is an error, and so is what SQS or the network makes of a call that
// the client's retryer has given up. It ends Consume: begin anew, on the same guard,
// after a pause. The request that was under way when ctx ended goes on, and the next
// call gets its answer; when no call is to follow, call [Source.GiveBack].
func (s *Source) Next(ctx context.Context) (*Delivery, error) {
	d, err := s.next(ctx)
	if err != nil {
		return nil, fmt.Errorf("idemsqs: next message of %s: %w", s.queue, err)
	}
	return d, nil
}

func (s *Source) next(ctx context.Context) (*Delivery, error) {
	if err := enter(ctx, s.slots); err != nil {
		return nil, err
	}
	release := sync.OnceFunc(func() { <-s.slots })
	if err := enter(ctx, s.feed.turn); err != nil {
		release()
		return nil, err
	}
	defer func() { <-s.feed.turn }()
	for {
		d, err := s.pop(ctx)
		switch {
		case d != nil:
			d.release = release
			return d, nil
		case err == nil:
			err = s.fetch(ctx)
		}
		if err != nil {
			release()
			return nil, err
		}
	}
}

// enter takes a place, or returns ctx's error.
func enter(ctx context.Context, place chan struct{}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case place <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pop takes a delivery from the buffer. One that has waited there for a while gets
// its time first. What can't be given any is not handed out: it may have been
// received elsewhere, or will be. It stays where only ctx has ended.
func (s *Source) pop(ctx context.Context) (*Delivery, error) {
	for f := &s.feed; len(f.buffer) > 0; {
		d := s.deliver(f.buffer[0], f.received)
		fresh := d.sinceAsked() < s.visibility/3 || d.extend(ctx, s.visibility) == nil
		if err := ctx.Err(); !fresh && err != nil {
			return nil, err
		}
		f.buffer = f.buffer[1:]
		if fresh {
			return d, nil
		}
	}
	return nil, nil
}

// fetch fills the buffer.
func (s *Source) fetch(ctx context.Context) error {
	f := &s.feed
	if f.poll == nil {
		f.poll = s.ask(ctx)
	}
	select {
	case a := <-f.poll.answer:
		f.take(a)
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *feed) take(a answer) {
	f.poll.cancel()
	f.poll, f.buffer, f.received = nil, a.messages, a.received
}

func (s *Source) ask(ctx context.Context) *poll {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &poll{cancel, make(chan answer, 1)}
	go func() {
		out, err := s.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl:                    &s.queue,
			MaxNumberOfMessages:         s.batch,
			VisibilityTimeout:           int32(s.visibility / time.Second),
			WaitTimeSeconds:             int32(s.wait / time.Second),
			MessageAttributeNames:       []string{"All"},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		})
		a := answer{received: time.Now(), err: err}
		if err == nil {
			a.messages = out.Messages
		}
		p.answer <- a
	}()
	return p
}

// GiveBack makes visible what was received and not handed out: call it when Consume
// has returned. It waits for the request that is under way, up to [WithWait], or gives
// that up when ctx ends. What isn't given back comes again after its visibility
// timeout. Next may be called again.
func (s *Source) GiveBack(ctx context.Context) error {
	select {
	case s.feed.turn <- struct{}{}: // also when ctx is done: then the request is given up
	default:
		if err := enter(ctx, s.feed.turn); err != nil {
			return fmt.Errorf("idemsqs: giving back messages of %s: %w", s.queue, err)
		}
	}
	defer func() { <-s.feed.turn }()
	f := &s.feed
	if f.poll != nil { // then the buffer is empty
		stop := context.AfterFunc(ctx, f.poll.cancel)
		a := <-f.poll.answer
		stop()
		f.take(a)
	}
	for ; len(f.buffer) > 0; f.buffer = f.buffer[1:] {
		if err := s.deliver(f.buffer[0], f.received).Requeue(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}
