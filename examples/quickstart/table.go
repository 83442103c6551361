package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/idem-go/idem"
)

// result is what a run came to.
type result struct {
	name    string
	guarded bool
	events  int
	twice   int
	rebuilt int
	acked   bool // copies of running events were acked at once
	took    time.Duration
	totals
}

func (r *run) result() result {
	return result{
		name: r.name(), guarded: r.guarded, rebuilt: r.rebuilt, took: r.took,
		events: len(r.events), twice: r.stored - len(r.events), acked: r.inFlight == idem.AckInFlight,
		totals: r.ledger.totals(r.events),
	}
}

// introduce says what is going to happen.
func introduce(w io.Writer, events []event, s settings) {
	fmt.Fprintf(w, `%d webhook events, through a NATS JetStream server in this process, to %d workers.
  %4d are published twice, as a publisher does that got no answer
  %4d take %v, longer than the broker waits (%v): it delivers them again meanwhile
  %4d fail on the first try
  %4d acks never reach the broker
Half way the connection is cut, and the receiver built anew. Copies of a running event: %v.

`, len(events), workers,
		count(events, func(e event) bool { return e.twice }),
		count(events, event.slow), slowWork, ackWait,
		count(events, func(e event) bool { return e.failsFirst }),
		count(events, func(e event) bool { return e.ackLost }),
		s.inFlight)
}

// row is a line of the table: a figure of each run. Without a figure it is a rule.
type row struct {
	label  string
	figure func(result) string
}

var rows = []row{
	{"published", number(func(r result) int { return r.events })},
	{"  of them twice", number(func(r result) int { return r.twice })},
	{"arrived", number(func(r result) int { return r.arrived })},
	{"  acks lost on the way", number(func(r result) int { return r.acksLost })},
	{"  receivers rebuilt", number(func(r result) int { return r.rebuilt })},
	{},
	{"ran", number(func(r result) int { return r.started })},
	{"  failed, then tried again", number(func(r result) int { return r.failed })},
	{"  ran again, though done", number(func(r result) int { return r.again })},
	{"  ran concurrently with itself", number(func(r result) int { return r.concurrent })},
	{"suppressed", number(func(r result) int { return r.suppressed })},
	{"given back without a run", number(func(r result) int { return r.givenBack })},
	{"lost: never done", number(func(r result) int { return r.lost })},
	{},
	{"charged too often", func(r result) string { return fmt.Sprintf("$%d.%02d", r.overCents/100, r.overCents%100) }},
	{"took", func(r result) string { return fmt.Sprintf("%.1fs", r.took.Seconds()) }},
}

func number(figure func(result) int) func(result) string {
	return func(r result) string { return fmt.Sprint(figure(r)) }
}

const (
	labelWidth  = 32
	figureWidth = 12
)

func printTable(w io.Writer, results []result) {
	rule := "  " + strings.Repeat("-", labelWidth+figureWidth*len(results))
	fmt.Fprintf(w, "\n  %-*s", labelWidth, "")
	for _, r := range results {
		fmt.Fprintf(w, "%*s", figureWidth, r.name)
	}
	fmt.Fprintf(w, "\n%s\n", rule)
	for _, line := range rows {
		if line.figure == nil {
			fmt.Fprintln(w, rule)
			continue
		}
		fmt.Fprintf(w, "  %-*s", labelWidth, line.label)
		for _, r := range results {
			fmt.Fprintf(w, "%*s", figureWidth, line.figure(r))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

// verdict says what the guard was worth, and returns the exit code.
func verdict(w io.Writer, results []result) int {
	code := 0
	for _, r := range results {
		fmt.Fprintf(w, "%s: %s\n", r.name, r.summary())
		if r.guarded && !r.clean() {
			code = 1
		}
	}
	return code
}

func (r result) clean() bool { return r.again+r.concurrent+r.lost == 0 }

func (r result) summary() string {
	if r.clean() {
		return "every event was handled, and each once."
	}
	text := fmt.Sprintf("%d ran again though done, %d ran concurrently with itself, %d lost.", r.again, r.concurrent, r.lost)
	if r.guarded {
		text = "FAILED: " + text
	}
	if r.guarded && r.acked && r.lost > 0 {
		text += " A copy that is acked while the event runs may be the last: then a run that fails loses it."
	}
	return text
}
