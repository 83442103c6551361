package main

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// link is the network between broker and consumer, with its faults: some acks
// and some signs of life get lost on the way. Apart from that it hands through
// what the client gives it.
type link struct {
	jetstream.MessagesContext
	ledger *ledger
	events map[string]event
}

func (l link) Next(opts ...jetstream.NextOpt) (jetstream.Msg, error) {
	msg, err := l.MessagesContext.Next(opts...)
	if err != nil {
		return nil, err
	}
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	l.ledger.noteArrival()
	return &packet{Msg: msg, meta: meta, event: l.events[idOf(msg)], ledger: l.ledger}, nil
}

func idOf(msg jetstream.Msg) string { return msg.Headers().Get(jetstream.MsgIDHeader) }

// packet is one delivery on its way back.
type packet struct {
	jetstream.Msg
	meta   *jetstream.MsgMetadata
	event  event
	ledger *ledger
}

func (p *packet) Ack() error {
	p.ledger.noteAck(p.meta.Sequence.Consumer)
	if p.event.ackLost && p.meta.NumDelivered == 1 {
		p.ledger.noteLostAck()
		return nil // the consumer can't know
	}
	err := p.Msg.Ack()
	if err != nil {
		p.ledger.noteLostAck()
	}
	return err
}

// InProgress is what keeps the broker patient. For slow events it gets lost.
func (p *packet) InProgress() error {
	if p.event.slow() {
		return nil
	}
	return p.Msg.InProgress()
}

func (p *packet) NakWithDelay(delay time.Duration) error {
	p.ledger.noteNak(p.meta.Sequence.Consumer)
	return p.Msg.NakWithDelay(delay)
}
