// Rabbitmq shows on a real broker what cut connections do to a consumer, and what
// a guard does about it. It publishes messages, every tenth of them twice, handles
// them with workers that now and then fail, and closes the connection under itself
// several times, without waiting for running handlers. Then it counts, per
// message, what the handlers really did.
//
//	go run ./examples/rabbitmq -url amqp://guest:guest@127.0.0.1:5672/ -messages 2000 -cuts 5
//
// It exits with 0 only if every message ran to success exactly once.
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
	os.Exit(rabbitmq(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings is what the flags say.
type settings struct {
	url      string
	messages int
	cuts     int
	fail     float64
	mode     mode
	compare  bool
}

// mode is a way to treat duplicates.
type mode struct {
	guarded  bool
	inFlight idem.InFlightPolicy
}

// modes are all of them, the safest last.
var modes = []mode{
	{guarded: false},
	{guarded: true, inFlight: idem.AckInFlight},
	{guarded: true, inFlight: idem.RequeueInFlight},
	{guarded: true, inFlight: idem.HoldInFlight},
}

func (m mode) String() string {
	if !m.guarded {
		return "guard off"
	}
	names := map[idem.InFlightPolicy]string{idem.AckInFlight: "ack", idem.RequeueInFlight: "requeue", idem.HoldInFlight: "hold"}
	return "in flight: " + names[m.inFlight]
}

const (
	maxMessages    = 1_000_000
	maxFail        = 0.9
	messagesPerCut = 10
)

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{}
	flags := flag.NewFlagSet("rabbitmq", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.url, "url", defaultURL(), "where RabbitMQ is; IDEM_AMQP_URL, if that is set")
	flags.IntVar(&s.messages, "messages", 2000, "how many `messages` to publish; every tenth is published twice")
	flags.IntVar(&s.cuts, "cuts", 5, "how often to close the connection under running handlers")
	flags.Float64Var(&s.fail, "fail", 0.05, "which share of the handlers' runs fails")
	guard := flags.String("guard", "on", "`on or off`")
	inFlight := flags.String("in-flight", "hold", "what to do with a copy of a running message: `hold, requeue or ack`")
	flags.BoolVar(&s.compare, "compare", false, "make four runs, guard off and each -in-flight, and print them side by side")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	err := errors.Join(s.setMode(*guard, *inFlight), s.check())
	if flags.NArg() > 0 {
		err = errors.Join(err, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	return s, err
}

func defaultURL() string {
	if url := os.Getenv("IDEM_AMQP_URL"); url != "" {
		return url
	}
	return "amqp://guest:guest@127.0.0.1:5672/"
}

func (s *settings) setMode(guard, inFlight string) error {
	policies := map[string]idem.InFlightPolicy{
		"hold": idem.HoldInFlight, "requeue": idem.RequeueInFlight, "ack": idem.AckInFlight,
	}
	policy, ok := policies[inFlight]
	s.mode = mode{guarded: guard == "on", inFlight: policy}
	if !ok {
		return fmt.Errorf("-in-flight must be hold, requeue or ack, not %q", inFlight)
	}
	if guard != "on" && guard != "off" {
		return fmt.Errorf("-guard must be on or off, not %q", guard)
	}
	return nil
}

func (s *settings) check() (err error) {
	if s.messages < 1 || s.messages > maxMessages {
		err = fmt.Errorf("-messages must be from 1 to %d, not %d", maxMessages, s.messages)
	}
	if s.cuts < 0 || s.cuts > s.messages/messagesPerCut {
		err = errors.Join(err, fmt.Errorf("-cuts must be from 0 to a tenth of the messages, not %d", s.cuts))
	}
	if !(s.fail >= 0 && s.fail <= maxFail) { // NaN is neither
		err = errors.Join(err, fmt.Errorf("-fail must be from 0 to %v, not %v", maxFail, s.fail))
	}
	return err
}

// rabbitmq is main, with its exit code.
func rabbitmq(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if !s.compare {
		return one(ctx, s, stdout, stderr)
	}
	return all(ctx, s, stdout, stderr)
}

func one(ctx context.Context, s settings, stdout, stderr io.Writer) int {
	t, err := runOnce(ctx, s, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "rabbitmq:", err)
		return 1
	}
	fmt.Fprintln(stdout, t)
	return verdict(t, s)
}

// all makes a run in each mode. The last is the one to judge by.
func all(ctx context.Context, s settings, stdout, stderr io.Writer) int {
	var results []totals
	for _, m := range modes {
		s.mode = m
		t, err := runOnce(ctx, s, stderr)
		if err != nil {
			fmt.Fprintf(stderr, "rabbitmq: %v: %v\n", m, err)
			return 1
		}
		results = append(results, t)
	}
	printTable(stdout, s, results)
	t := results[len(results)-1]
	fmt.Fprintln(stdout, t)
	return verdict(t, s)
}

func verdict(t totals, s settings) int {
	if t.handled == s.messages && t.runsAgain == 0 && t.lost == 0 {
		return 0
	}
	return 1
}
