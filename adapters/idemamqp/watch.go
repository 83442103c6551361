package idemamqp

import (
	"maps"
	"slices"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// watch knows whether a channel was closed since deliveries were first taken from
// it. That is for ever, also if the client reopens it: what it delivered before
// can't be settled any more, and the tags mean other messages then. A nil watch
// is for deliveries that come from elsewhere, as in tests: it knows of no end.
type watch struct {
	channel *amqp.Channel
	closes  chan *amqp.Error // has room for one, so the client leaves word before it can reopen

	mu     sync.Mutex // protects what follows
	ended  bool
	reason *amqp.Error            // nil after an orderly close
	fed    []<-chan amqp.Delivery // what the source consumes from the channel
}

// watchOf returns the watch of the channel that the message came from.
func (s *Source) watchOf(msg amqp.Delivery) *watch {
	ch, ok := msg.Acknowledger.(*amqp.Channel)
	if !ok || ch == nil {
		return nil
	}
	return s.watch(ch)
}

// watch returns the one watch of the channel. A new channel is the occasion to
// forget those that are over. One that the client may reopen is kept as long as
// it is not closed: with a new watch it would look like a new channel.
func (s *Source) watch(ch *amqp.Channel) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watches[ch]; w != nil {
		return w
	}
	maps.DeleteFunc(s.watches, func(_ *amqp.Channel, w *watch) bool { return w.forgettable() })
	w := &watch{channel: ch, closes: ch.NotifyClose(make(chan *amqp.Error, 1))}
	s.watches[ch] = w
	return w
}

// feeds notes that these deliveries come from the channel.
func (w *watch) feeds(deliveries <-chan amqp.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fed = append(w.fed, deliveries)
}

// feedsNoMore forgets deliveries that have come to their end.
func (w *watch) feedsNoMore(deliveries <-chan amqp.Delivery) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fed = slices.DeleteFunc(w.fed, func(other <-chan amqp.Delivery) bool { return other == deliveries })
}

// watchFeeding returns the watch of the channel that the deliveries come from, nil if
// none is known.
func (s *Source) watchFeeding(deliveries <-chan amqp.Delivery) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches {
		w.mu.Lock()
		found := slices.Contains(w.fed, deliveries)
		w.mu.Unlock()
		if found {
			return w
		}
	}
	return nil
}

// err is why nothing can be sent any more, nil if it can.
func (w *watch) err() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.look()
	}
	if !w.ended {
		return nil
	}
	return &closedError{reason: w.reason}
}

// closedError is amqp.ErrClosed with the reason that the client was told.
type closedError struct{ reason *amqp.Error }

func (e *closedError) Error() string {
	if e.reason == nil {
		return "the channel was closed"
	}
	return "the channel was closed: " + e.reason.Error()
}

func (e *closedError) Unwrap() []error {
	if e.reason == nil {
		return []error{amqp.ErrClosed}
	}
	return []error{e.reason, amqp.ErrClosed} // errors.As finds the reason
}

func (w *watch) look() {
	select {
	case w.reason = <-w.closes:
		w.ended = true
	default:
	}
}

// forgettable says whether the client has let go of the channel: then it has also
// closed what it told of the end through, and can't reopen.
func (w *watch) forgettable() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.look()
	}
	if !w.ended || !w.channel.IsClosed() {
		return false
	}
	select {
	case _, open := <-w.closes:
		return !open
	default:
		return false
	}
}

// recovers says whether the client is going to reopen the channel and to consume
// again, as far as that shows: it keeps a list of what was declared then.
func recovers(ch *amqp.Channel) bool {
	t := ch.TopologyConfiguration(true)
	return t.Qos != nil || len(t.Exchanges)+len(t.Queues)+len(t.Bindings)+len(t.ExchangeBindings) > 0
}
