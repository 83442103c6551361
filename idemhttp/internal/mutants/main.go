// Mutants proves that the rules of this module are tested: it switches each one
// off in the source, and the tests named for it must then fail.
//
//	go run ./internal/mutants             runs them all, from the list mutants.txt
//	go run ./internal/mutants -run buffer runs those whose rule matches
//	go run ./internal/mutants -into FILE  writes the list into a Markdown file
//
// No file is changed: the go command is given the mutated ones by -overlay. It
// works in the module's folder, and exits with 1 if a mutant survives.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"regexp"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("mutants: ")
	list := flag.String("list", "mutants.txt", "the `file` with the mutants")
	only := flag.String("run", "", "only the rules that match this `regexp`")
	into := flag.String("into", "", "write the list into this Markdown `file`, between its marks, and run nothing")
	flag.Parse()

	mutants, err := read(*list)
	if err != nil {
		log.Fatal(err)
	}
	if *into != "" {
		if err := document(*into, *list, mutants); err != nil {
			log.Fatal(err)
		}
		return
	}
	match, err := regexp.Compile("(?i)" + *only)
	if err != nil {
		log.Fatal(err)
	}
	if survivors := runAll(mutants, match); survivors > 0 {
		log.Fatalf("%d survived", survivors)
	}
}

// runAll tells how many mutants have survived, or can't be made.
func runAll(mutants []mutant, match *regexp.Regexp) (survivors int) {
	for _, m := range mutants {
		if !match.MatchString(m.rule) {
			continue
		}
		start := time.Now()
		verdict := "killed"
		if err := m.kill(); err != nil {
			verdict = err.Error()
			survivors++
		}
		fmt.Fprintf(os.Stdout, "%-8s %5.1fs  %s\n", verdict, time.Since(start).Seconds(), m.rule)
	}
	return survivors
}
