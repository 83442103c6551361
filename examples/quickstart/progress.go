package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// showProgress tells how far the run is, until the function that it returns is
// called: on one line where that can be rewritten, else a line every second.
func (r *run) showProgress(w io.Writer) (stop func()) {
	live := isTerminal(w)
	every := time.Second
	if live {
		every = 100 * time.Millisecond
	}
	end := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() { r.report(w, live, every, end) })
	return func() {
		close(end)
		ended.Wait()
	}
}

func (r *run) report(w io.Writer, live bool, every time.Duration, end <-chan struct{}) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.reportOnce(w, live)
		case <-end:
			r.reportOnce(w, live)
			if live {
				fmt.Fprintln(w)
			}
			return
		}
	}
}

const barWidth = 30

func (r *run) reportOnce(w io.Writer, live bool) {
	t := r.ledger.totals(r.events)
	full := barWidth * t.done / len(r.events)
	bar := strings.Repeat("#", full) + strings.Repeat(".", barWidth-full)
	line := fmt.Sprintf("%-9s [%s] %d of %d done, %d arrived, %d ran again",
		r.name(), bar, t.done, len(r.events), t.arrived, t.again)
	if live {
		fmt.Fprintf(w, "\r%s\x1b[K", line)
		return
	}
	fmt.Fprintln(w, line)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
