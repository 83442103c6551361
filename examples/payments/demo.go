package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"text/tabwriter"
)

// scene is something that happens to payments, and what must come of it.
type scene struct {
	what string
	play func(context.Context, *shopper) []try
	paid int // payments that the books must have afterwards, of this scene's user
}

var scenes = []scene{
	{"the answer is lost on its way back", func(ctx context.Context, c *shopper) []try {
		c.loseAnswers = 1
		return c.pay(ctx, "k", `{"account":"a1","cents":500}`)
	}, 1},
	{"the handler fails before its commit", func(ctx context.Context, c *shopper) []try {
		c.faults = []string{"before"}
		return c.pay(ctx, "k", `{"account":"a1","cents":500}`)
	}, 1},
	{"it panics after its commit", func(ctx context.Context, c *shopper) []try {
		c.faults = []string{"after"}
		return c.pay(ctx, "k", `{"account":"a1","cents":500}`)
	}, 1},
	{"a double click on a slow payment", doubleClick, 1},
	{"sixty copies at once", sixtyCopies, 1},
	{"the key again, for another amount", func(ctx context.Context, c *shopper) []try {
		first := c.pay(ctx, "k", `{"account":"a1","cents":500}`)
		return append(first, c.pay(ctx, "k", `{"account":"a1","cents":900}`)...)
	}, 1},
	{"the same payment, written differently", func(ctx context.Context, c *shopper) []try {
		first := c.pay(ctx, "k", `{"account":"a1","cents":500}`)
		return append(first, c.pay(ctx, "k", ` {"cents": 5e2, "account": "a1"}`)...)
	}, 1},
	{"two payments, two keys", func(ctx context.Context, c *shopper) []try {
		first := c.pay(ctx, "k1", `{"account":"a1","cents":500}`)
		return append(first, c.pay(ctx, "k2", `{"account":"a1","cents":500}`)...)
	}, 2},
	{"no key", func(ctx context.Context, c *shopper) []try {
		return c.pay(ctx, "", `{"account":"a1","cents":500}`)
	}, 0},
}

func doubleClick(ctx context.Context, c *shopper) []try {
	c.faults = []string{"slow=300ms"}
	entered := make(chan struct{})
	c.onSend = sync.OnceFunc(func() { close(entered) })
	first := make(chan []try)
	go func() { first <- c.pay(ctx, "k", `{"account":"a1","cents":500}`) }()
	<-entered
	second := c.pay(ctx, "k", `{"account":"a1","cents":500}`)
	return append(<-first, second...)
}

func sixtyCopies(ctx context.Context, c *shopper) []try {
	var wg sync.WaitGroup
	all := make([][]try, 60)
	for i := range all {
		wg.Go(func() { all[i] = c.pay(ctx, "k", `{"account":"a1","cents":500}`) })
	}
	wg.Wait()
	var tries []try
	for _, t := range all {
		tries = append(tries, t...)
	}
	return tries
}

// errBooks is the demo's failure: the books have too many payments, or too few.
var errBooks = errors.New("demo: the books are wrong")

// demo starts the service in memory and plays the scenes, each with a user of
// its own.
func demo(ctx context.Context, out io.Writer) error {
	log := slog.New(slog.DiscardHandler)
	handler, err := inMemory(settings{mode: release, faults: true}, log)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- serveAt(serving, listener, handler, log) }()
	err = playAll(ctx, out, "http://"+listener.Addr().String())
	stop()
	return errors.Join(err, <-stopped)
}

func playAll(ctx context.Context, out io.Writer, url string) error {
	fmt.Fprint(out, "A client that retries until it knows, against a service that takes each payment once.\n\n")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "what happens\ttries\twhat came back\tpayments\t")
	wrong := 0
	for i, s := range scenes {
		c := newShopper(url, fmt.Sprintf("user-%d", i))
		tries := s.play(ctx, c)
		paid, err := c.count(ctx)
		if err != nil {
			return err
		}
		verdict := ""
		if paid != s.paid {
			verdict, wrong = fmt.Sprintf("should be %d", s.paid), wrong+1
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\n", s.what, len(tries), summary(tries), paid, verdict)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("%w in %d of %d scenes", errBooks, wrong, len(scenes))
	}
	_, err := fmt.Fprint(out, "\nEach payment was made once.\n")
	return err
}
