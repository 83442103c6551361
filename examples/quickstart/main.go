// Quickstart shows what a guard is for. It starts a NATS server with JetStream
// in this process, publishes webhook events through it, and lets happen what
// happens to consumers: publishers that send twice, handlers slower than the
// broker's patience, lost acks, a cut connection. Once without a guard, once with
// one. Then it counts, per event, what the handlers really did.
//
//	go run ./examples/quickstart
//
// It exits with 1 if with the guard on anything ran again or was lost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/idem-go/idem"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(quickstart(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings is what the flags say.
type settings struct {
	messages int
	guards   []bool // one run each: guard off, guard on
	inFlight idem.InFlightPolicy
}

const maxMessages = 1_000_000

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{}
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.messages, "messages", 300, "how many `events` to publish")
	guard := flags.String("guard", "both", "which runs to make: `off, on or both`")
	inFlight := flags.String("in-flight", "hold", "what to do with a copy of a running event: `hold, requeue or ack`")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	err := errors.Join(s.setGuards(*guard), s.setInFlight(*inFlight))
	if s.messages < 1 || s.messages > maxMessages {
		err = errors.Join(err, fmt.Errorf("-messages must be from 1 to %d, not %d", maxMessages, s.messages))
	}
	if flags.NArg() > 0 {
		err = errors.Join(err, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	return s, err
}

func (s *settings) setGuards(text string) error {
	guards := map[string][]bool{"off": {false}, "on": {true}, "both": {false, true}}
	s.guards = guards[text]
	if s.guards == nil {
		return fmt.Errorf("-guard must be off, on or both, not %q", text)
	}
	return nil
}

func (s *settings) setInFlight(text string) error {
	policies := map[string]idem.InFlightPolicy{
		"hold": idem.HoldInFlight, "requeue": idem.RequeueInFlight, "ack": idem.AckInFlight,
	}
	policy, ok := policies[text]
	s.inFlight = policy
	if !ok {
		return fmt.Errorf("-in-flight must be hold, requeue or ack, not %q", text)
	}
	return nil
}

// quickstart is main, with its exit code.
func quickstart(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	results, err := runAll(ctx, s, stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "quickstart:", err)
		return 1
	}
	printTable(stdout, results)
	return verdict(stdout, results)
}

// runAll makes the runs one after the other, on one server.
func runAll(ctx context.Context, s settings, stdout, stderr io.Writer) ([]result, error) {
	server, err := startServer()
	if err != nil {
		return nil, err
	}
	defer server.stop()
	events := makeEvents(s.messages)
	introduce(stdout, events, s)
	var results []result
	for _, guarded := range s.guards {
		r, err := newRun(server, events, guarded, s.inFlight)
		if err != nil {
			return nil, err
		}
		done := r.showProgress(stderr)
		err = r.do(ctx)
		done()
		if err != nil {
			return nil, fmt.Errorf("the run with the %s: %w", r.name(), err)
		}
		results = append(results, r.result())
	}
	return results, nil
}
