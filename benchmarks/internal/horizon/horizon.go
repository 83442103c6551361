// Package horizon finds out how far back a guard remembers at a steady rate.
package horizon

import (
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/benchmarks/internal/ids"
)

// clock is told what time it is.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// samples a turn is how often the guard is asked: what is found is at most a
// thousandth of a turn too long.
const samples = 1000

// At gives a real guard new messages at a steady rate a second, on a clock of its own,
// until its generations have turned twice, and returns the shortest Horizon that it
// tells from there to the next turn.
func At(tracked int, window time.Duration, rate float64) (time.Duration, error) {
	c := &clock{now: start}
	g, err := idem.NewGenerational(idem.WithMaxTracked(tracked), idem.WithWindow(window), idem.WithClock(c))
	if err != nil {
		return 0, err
	}
	turn := int(min(float64(tracked)/2, rate*window.Seconds()/2)) // full, or half a window old
	every := max(1, turn/samples)
	stream := ids.NewStream(16, ids.Repeat{})
	shortest := window
	for i := range 3 * turn {
		c.now = start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		claim, _ := g.TryBegin(idem.ID(stream.Fresh()))
		g.Complete(claim)
		if i > 2*turn-every && i%every == 0 {
			shortest = min(shortest, g.Stats().Horizon)
		}
	}
	return shortest, nil
}

var start = time.Unix(1_700_000_000, 0)
