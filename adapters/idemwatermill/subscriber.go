package idemwatermill

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// CloseEndsHolds is a message.SubscriberDecorator for a Pub/Sub whose messages
// keep a context of their own when the subscription ends: one over HTTP, or
// GoChannel with PreserveContext. With it the router's Close, and the handler's
// Stop, end holds there too. Other Pub/Subs need nothing: the contexts of their
// messages come from the subscription's.
//
//	router.AddSubscriberDecorators(idemwatermill.CloseEndsHolds)
func CloseEndsHolds(sub message.Subscriber) (message.Subscriber, error) {
	return subscriber{sub}, nil
}

type subscriber struct{ message.Subscriber }

type subscriptionKey struct{}

// Subscribe puts the subscription's context within reach of each message.
func (s subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	mark, err := message.MessageTransformSubscriberDecorator(func(msg *message.Message) {
		msg.SetContext(context.WithValue(msg.Context(), subscriptionKey{}, ctx))
	})(s.Subscriber)
	if err != nil {
		return nil, err
	}
	return mark.Subscribe(ctx, topic)
}

// subscriptionOf is nil where nobody told.
func subscriptionOf(ctx context.Context) context.Context {
	sub, _ := ctx.Value(subscriptionKey{}).(context.Context)
	return sub
}
