package idemhttptest

import (
	"fmt"
	"slices"
	"sync"

	"github.com/idem-go/idem/idemhttp"
)

// eventLog keeps what Observe is told, as text.
type eventLog struct {
	mu   sync.Mutex
	seen []string
}

func (l *eventLog) add(ev idemhttp.Event) {
	text := fmt.Sprintf("%s %v", ev.Endpoint, ev.Kind)
	if ev.Status != 0 {
		text += fmt.Sprintf(" %d", ev.Status)
	}
	if ev.Kind == idemhttp.EventRefused {
		text += " " + ev.Reason.String()
	}
	if ev.Unguarded {
		text += " unguarded"
	}
	if ev.Request == nil {
		text += " without its request"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, text)
}

func (l *eventLog) expect(g *rig, want ...string) {
	g.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.seen, want) {
		g.Errorf("events are\n%q, want\n%q", l.seen, want)
	}
}
