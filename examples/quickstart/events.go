package main

import (
	"encoding/json"
	"fmt"
	"time"
)

// What the scene is made of. The broker's patience is short, so that little time
// passes before it is lost.
const (
	ackWait      = 500 * time.Millisecond // then the broker delivers again
	slowWork     = 700 * time.Millisecond // longer than that
	brokerWindow = 100 * time.Millisecond // how long the broker itself drops what is published twice; the least it takes
	requeueDelay = 200 * time.Millisecond
	workers      = 16
)

// event is a webhook's payload, and what is going to befall it: the same in each
// run, and decided by its number alone.
type event struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Customer string `json:"customer"`
	Cents    int    `json:"amount"`

	twice      bool          // its publisher got no answer in time, and sends it again
	work       time.Duration // how long it takes to handle
	failsFirst bool          // the first run fails
	ackLost    bool          // the first ack never reaches the broker
}

var types = []string{"invoice.paid", "charge.succeeded", "checkout.completed", "subscription.renewed"}

func makeEvents(n int) []event {
	events := make([]event, n)
	for i := range events {
		events[i] = makeEvent(i)
	}
	return events
}

// makeEvent spreads the mishaps so that they also meet: every third slow event
// fails at first, and these are not published twice, so that a copy given up too
// early is the last one.
func makeEvent(i int) event {
	e := event{
		ID:       fmt.Sprintf("evt_%06d", i+1),
		Type:     types[i%len(types)],
		Customer: fmt.Sprintf("cus_%03d", i*7%101),
		Cents:    990 + i*37%9000,

		twice:      i%5 == 1,
		work:       time.Duration(2+i%9) * time.Millisecond,
		failsFirst: i%12 == 5 || i%30 == 3,
		ackLost:    i%8 == 0,
	}
	if i%10 == 3 {
		e.work = slowWork
	}
	return e
}

// slow says whether the broker loses patience before the work is done.
func (e event) slow() bool { return e.work >= ackWait }

func (e event) payload() ([]byte, error) { return json.Marshal(e) }

// count is how many events have a property.
func count(events []event, has func(event) bool) int {
	n := 0
	for _, e := range events {
		if has(e) {
			n++
		}
	}
	return n
}
