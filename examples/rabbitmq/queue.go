package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"time"

	"github.com/idem-go/idem/adapters/idemamqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// queue is the run's own, with a connection for all that isn't consuming.
type queue struct {
	name string
	conn *amqp.Connection
	ch   *amqp.Channel
}

const expires = 10 * time.Minute // unused; it is deleted before if all goes well

func declare(url string) (*queue, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	q := &queue{name: "idem.example." + rand.Text()[:12], conn: conn}
	if err := q.open(); err != nil {
		conn.Close()
		return nil, err
	}
	return q, nil
}

func (q *queue) open() (err error) {
	if q.ch, err = q.conn.Channel(); err != nil {
		return err
	}
	if _, err = q.ch.QueueDeclare(q.name, true, false, false, false, amqp.Table{"x-expires": expires.Milliseconds()}); err != nil {
		return err
	}
	return q.ch.Confirm(false)
}

func (q *queue) delete() {
	_, _ = q.ch.QueueDelete(q.name, false, false, false) // else it expires
	q.conn.Close()
}

// twiceAfter is how many messages come between one and its copy: few enough that
// a worker may still be at the first when another gets the second.
const twiceAfter = 5

// publish publishes all messages, every tenth twice, and waits until the broker
// has them.
func (q *queue) publish(ctx context.Context, messages int) error {
	confirms := make([]*amqp.DeferredConfirmation, 0, messages+messages/10)
	send := func(i int) error {
		c, err := q.ch.PublishWithDeferredConfirmWithContext(ctx, "", q.name, false, false,
			amqp.Publishing{MessageId: fmt.Sprintf("message-%07d", i), Body: []byte("a small payload")})
		confirms = append(confirms, c)
		return err
	}
	for i := range messages {
		if err := send(i); err != nil {
			return err
		}
		if i%10 == 9 {
			if err := send(i - twiceAfter); err != nil {
				return err
			}
		}
	}
	for _, c := range confirms {
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("a message was not confirmed: %w", err)
		}
	}
	return nil
}

func (q *queue) look() (amqp.Queue, error) {
	return q.ch.QueueDeclarePassive(q.name, true, false, false, false, nil)
}

// ready is how many messages wait to be delivered.
func (q *queue) ready() (int, error) {
	state, err := q.look()
	return state.Messages, err
}

// empty says whether nothing is left. It waits until the broker has missed the
// last consumer: what that one did not settle is in the queue then.
func (q *queue) empty() (bool, error) {
	for {
		state, err := q.look()
		if err != nil || state.Consumers == 0 {
			return state.Messages == 0, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// link is a connection for a receiver. It keeps the socket, to close it.
type link struct {
	conn   *amqp.Connection
	ch     *amqp.Channel
	socket net.Conn
}

const consumerTag = "receiver"

func connect(url string) (*link, error) {
	l := &link{}
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		socket, err := amqp.DefaultDial(10*time.Second)(network, addr)
		l.socket = socket
		return socket, err
	}})
	l.conn = conn
	return l, err
}

// consume is all that idem adds to a consumer: source.Consume in place of
// channel.Consume.
func (l *link) consume(source *idemamqp.Source) (<-chan amqp.Delivery, error) {
	var err error
	if l.ch, err = l.conn.Channel(); err != nil {
		return nil, err
	}
	if err := l.ch.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	return source.Consume(l.ch, consumerTag, false, false, false, false, nil)
}

// cut closes the socket. Neither broker nor client are told before.
func (l *link) cut() { l.socket.Close() }

// cancel ends the deliveries, and leaves the channel to settle those that came.
func (l *link) cancel() error { return l.ch.Cancel(consumerTag, false) }

func (l *link) close() { l.conn.Close() }
