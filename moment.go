package idem

import (
	"math"
	"time"
)

// moment is one reading of a guard's clock. The rules are told in times, which
// differ by any number of years and know whether they are monotonic. Most calls
// get by with since, which counts from the guard's epoch and ends at 292 years.
type moment struct {
	since time.Duration
	read  time.Time // of the standard clock nothing: see timeline.time
}

// timeline reads a clock. Its epoch is when the guard was made, by the standard
// clock: reading a foreign one then would be too early.
type timeline struct {
	epoch time.Time
	clock Clock // nil: the standard one
}

// now reads the standard clock at little more than half the price of time.Now:
// it asks for the monotonic time alone. Rules only ever subtract times, so later
// corrections of the wall clock are not missed.
func (l *timeline) now() moment {
	if l.clock == nil {
		return moment{since: time.Since(l.epoch)}
	}
	t := l.clock.Now()
	return moment{since: t.Sub(l.epoch), read: t}
}

// time is the time of a moment.
func (l *timeline) time(m moment) time.Time {
	if l.clock == nil {
		return l.epoch.Add(m.since)
	}
	return m.read
}

// notBefore is now, or since if that is later and now was read by a call that was
// slow to get here. The standard clock never steps back, so there that is so
// always.
func (l *timeline) notBefore(now moment, since time.Duration) moment {
	slow := since - now.since
	if now.since >= since || l.clock != nil && (slow > slowCall || slow < 0 || !monotonic(now.read)) {
		return now
	}
	return moment{since: since, read: now.read.Add(slow)}
}

// slowCall is how much older than another call's the monotonic reading of an
// injected clock may be and still be taken for that of a call that was slow to get
// here. A fake clock that was set to time.Now() once is monotonic too, and may be
// stepped back.
const slowCall = time.Second

// monotonic says whether t has a monotonic reading, which Round strips.
func monotonic(t time.Time) bool { return t != t.Round(0) }

// after is d after start, since the epoch, or the longest there is. Of a start
// that is too early to be told since the epoch it is the shortest there is, which
// no moment is before: there the times themselves must be asked.
func (l *timeline) after(start time.Time, d time.Duration) time.Duration {
	switch since := start.Sub(l.epoch); {
	case since == math.MinInt64:
		return math.MinInt64
	case since > math.MaxInt64-d:
		return math.MaxInt64
	default:
		return since + d
	}
}
