package idem

import "time"

// Stats is what a guard holds and what it has done. It is flat and comparable.
//
// Begun = Completed + Rejected + Released + InFlight + LeasesExpired, always.
type Stats struct {
	// Tracked is how many settled ids would be recognised now.
	Tracked int
	// InFlight is how many begun ids are neither settled nor past their lease.
	InFlight int
	// Horizon is how far back the guard can promise to remember right now: half
	// the window, or less in a flood that reaches maxTracked before that. Less
	// than the broker's longest redelivery delay says that maxTracked is too
	// small for the rate.
	Horizon time.Duration

	// The counters run since the guard was made.

	Begun     uint64 // claims given
	Completed uint64 // claims settled by Complete
	Rejected  uint64 // claims settled by Reject
	Released  uint64 // claims settled by Release

	DuplicatesInFlight  uint64 // deliveries whose message was in flight; a held one counts once
	DuplicatesCompleted uint64 // deliveries whose message was completed
	DuplicatesRejected  uint64 // deliveries whose message was rejected

	Unidentified   uint64 // deliveries with an empty ID
	EarlyRotations uint64 // generations of settled ids closed by their size, before half the window
	LeasesExpired  uint64 // claims that nobody settled in time
	LateSettles    uint64 // claims settled after that
}

// counts are the counters of one shard that few calls change.
type counts struct {
	rejected, released                                          uint64
	duplicatesInFlight, duplicatesCompleted, duplicatesRejected uint64
	leasesExpired, lateSettles                                  uint64
}

func (c *counts) addTo(s *Stats) {
	s.Rejected += c.rejected
	s.Released += c.released
	s.DuplicatesInFlight += c.duplicatesInFlight
	s.DuplicatesCompleted += c.duplicatesCompleted
	s.DuplicatesRejected += c.duplicatesRejected
	s.LeasesExpired += c.leasesExpired
	s.LateSettles += c.lateSettles
}
