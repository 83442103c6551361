// Payments is a small HTTP service that takes a payment once per idempotency
// key, however often its client sends it.
//
//	go run ./examples/payments -demo       plays a retrying client against it
//	go run ./examples/payments             in memory, at 127.0.0.1:8080
//	go run ./examples/payments -dsn postgres://… -mode tx
//
// POST /payments takes {"account":"a1","cents":500} with an Idempotency-Key and
// an X-User, which stands in for authentication. GET /payments lists the user's
// payments. With -mode release the claim is taken before the payment and
// answered after it; with -mode tx it is a row of the payment's own transaction.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(payments(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// The modes of the service.
const (
	release = "release"
	inTx    = "tx"
)

// settings is what the flags say.
type settings struct {
	addr, dsn, mode, schema string
	faults, demo            bool
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.addr, "addr", "127.0.0.1:8080", "listen at this `address`")
	flags.StringVar(&s.dsn, "dsn", "", "keep payments and claims in this PostgreSQL `database` (default: in memory)")
	flags.StringVar(&s.mode, "mode", release, "how a payment is claimed: `release or tx` (tx needs -dsn)")
	flags.StringVar(&s.schema, "schema", "payments", "the `schema` of the tables, made if it is missing")
	flags.BoolVar(&s.faults, "faults", false, "play the faults that the header X-Fault asks for: before, after, slow=200ms")
	flags.BoolVar(&s.demo, "demo", false, "play a retrying client against the service, in memory, and show what came back")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	err := s.check(flags.Args())
	if err != nil {
		fmt.Fprintln(stderr, "payments:", err)
	}
	return s, err
}

func (s settings) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case s.mode != release && s.mode != inTx:
		return fmt.Errorf("-mode must be %s or %s, not %q", release, inTx, s.mode)
	case s.mode == inTx && s.dsn == "":
		return errors.New("-mode tx needs a database: -dsn postgres://…")
	case s.schema == "":
		return errors.New("-schema must not be empty")
	}
	return nil
}

// payments runs the program, and returns its exit code: 2 for wrong flags.
func payments(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	if s.demo {
		err = demo(ctx, stdout)
	} else {
		err = serve(ctx, s, slog.New(slog.NewTextHandler(stderr, nil)))
	}
	if err != nil {
		fmt.Fprintln(stderr, "payments:", err)
		return 1
	}
	return 0
}
