// Paybench measures what idempotency costs: the same payments handler without
// it, with claim-and-release, in a transaction, and in a transaction that is
// exclusive, side by side on one PostgreSQL.
//
//	go run ./internal/paybench              prints the table
//	go run ./internal/paybench -into FILE   writes it into a Markdown file
//
// The variants take turns, a short slice each, for several rounds: what disturbs
// the machine for a while disturbs all of them. Requests go through a real HTTP
// server on loopback, each with a key of its own. IDEM_POSTGRES_DSN names the
// server; a schema of its own is made and dropped.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("paybench: ")
	slice := flag.Duration("slice", 500*time.Millisecond, "how long each variant runs at a time")
	rounds := flag.Int("rounds", 21, "how often all of them take their turn")
	into := flag.String("into", "", "write the table into this Markdown `file`, between its marks")
	flag.Parse()
	if err := run(*slice, *rounds, *into); err != nil {
		log.Fatal(err)
	}
}

func run(slice time.Duration, rounds int, into string) error {
	ctx := context.Background()
	var text strings.Builder
	for i, l := range loads {
		if err := runLoad(ctx, l, slice, rounds, i == 0, &text); err != nil {
			return err
		}
	}
	fmt.Print(text.String())
	if into == "" {
		return nil
	}
	return replace(into, text.String())
}

func runLoad(ctx context.Context, l load, slice time.Duration, rounds int, first bool, out *strings.Builder) error {
	b, err := open(ctx, l)
	if err != nil {
		return err
	}
	defer b.close(ctx)
	if err := b.measure(ctx, slice, rounds); err != nil {
		return err
	}
	if first {
		about, err := b.about(ctx, slice, rounds)
		if err != nil {
			return err
		}
		out.WriteString(about)
	}
	out.WriteString(b.table())
	return nil
}

// replace puts text between the marks of a Markdown file.
func replace(name, text string) error {
	file, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	const begin, end = "<!-- paybench -->\n", "<!-- /paybench -->"
	head, rest, found := strings.Cut(string(file), begin)
	_, tail, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s has no line %q with an end behind it", name, strings.TrimSpace(begin))
	}
	return os.WriteFile(name, []byte(head+begin+text+end+tail), 0o644)
}
