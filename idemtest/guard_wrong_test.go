package idemtest_test

import (
	"testing"

	"github.com/idem-go/idem/idemtest"
)

func TestPlain(t *testing.T) { idemtest.TestGuard(t, newPlain("none")) }

func TestWrongGuards(t *testing.T) {
	expectFailures(t, func(t *testing.T, bug string) { idemtest.TestGuard(t, newPlain(bug)) }, []wrong{
		{bug: "claims lack the destination", breaks: "States"},
		{bug: "rejected is completed", breaks: "States", also: []string{"SettledOnce", "Exactness", "LongIDs", "Destinations", "ReusedMemory", "WaitWoken", "RetentionAtLeastHalf", "NewestHalf"}},
		{bug: "a second Release forgets", breaks: "SettledOnce", may: []string{"Hammer"}},
		{bug: "the last verb counts", breaks: "SettledOnce", may: []string{"Hammer"}},
		{bug: "Complete after Release records", breaks: "SettledOnce", may: []string{"Hammer"}},
		{bug: "released claims settle by id", breaks: "StaleClaim", may: []string{"Hammer"}},
		{bug: "the zero Claim settles the last", breaks: "ZeroClaim"},
		{bug: "tokens begin at 1 in each guard", breaks: "ForeignClaim"},
		{bug: "tracks the empty id", breaks: "Unidentified"},

		{bug: "joins id and destination", breaks: "Exactness"},
		{bug: "folds case", breaks: "Exactness"},
		{bug: "mends UTF-8", breaks: "Exactness"},
		{bug: "trims space", breaks: "Exactness"},
		{bug: "cuts ids at 256 bytes", breaks: "LongIDs"},
		{bug: "ignores the destination", breaks: "Destinations"},
		{bug: "keys over the caller's memory", breaks: "ReusedMemory", also: []string{"KeepsNothing"}},
		{bug: "finds claims by id", breaks: "ReusedMemory"},
		{bug: "holds on to the payload", breaks: "KeepsNothing"},

		{bug: "Wait sleeps first", breaks: "WaitNotInFlight"},
		{bug: "Wait ends after a second", breaks: "WaitHolds"},
		{bug: "Complete wakes nobody", breaks: "WaitWoken"},
		{bug: "Reject wakes nobody", breaks: "WaitWoken"},
		{bug: "Release wakes nobody", breaks: "WaitWoken"},
		{bug: "one waiter is woken", breaks: "WaitWoken"},
		{bug: "Wait ignores its context", breaks: "WaitContext"},
		{bug: "Wait has an error of its own", breaks: "WaitContext"},
		{bug: "who gives up waiting releases", breaks: "WaitContext", may: []string{"Hammer"}},

		{bug: "checks, then acts", breaks: "OneWinner", may: []string{"Hammer"}},
		{bug: "a gap while settling", breaks: "NoGap", may: []string{"Hammer"}},
		{bug: "hot ids are cached", breaks: "Visible", may: []string{"Hammer"}},
		{bug: "checks a claim, then settles its id", breaks: "Hammer"},

		{bug: "cleared on a schedule", breaks: "RetentionAtLeastHalf"},
		{bug: "a short window", breaks: "RetentionAtLeastHalf", also: []string{"NewestHalf"}},
		{bug: "expires after the look-up", breaks: "RetentionAtMostWindow"},
		{bug: "a long window", breaks: "RetentionAtMostWindow", also: []string{"RetentionNotProlonged"}},
		{bug: "rejected ids stay", breaks: "RetentionAtMostWindow"},
		{bug: "a look prolongs", breaks: "RetentionNotProlonged"},
		{bug: "a repeated Complete prolongs", breaks: "RetentionNotProlonged"},
		{bug: "no ceiling", breaks: "Ceiling"},
		{bug: "cleared when full", breaks: "NewestHalf"},
		{bug: "a quarter remembered", breaks: "NewestHalf", also: []string{"BudgetsApart", "RepeatsTakeNoRoom"}},
		{bug: "no ceiling in flight", breaks: "InFlightCeiling"},
		{bug: "refuses the newest", breaks: "InFlightCeiling", also: []string{"BudgetsApart"}},
		{bug: "a quarter in flight", breaks: "InFlightHalf", also: []string{"BudgetsApart", "RepeatsTakeNoRoom"}},
		{bug: "one budget", breaks: "BudgetsApart"},
		{bug: "one budget, for those in flight", breaks: "BudgetsApart"},
		{bug: "a repeated Complete takes room", breaks: "RepeatsTakeNoRoom"},

		{bug: "a short lease", breaks: "LeaseHolds"},
		{bug: "renews all leases", breaks: "LeaseLapses"},
		{bug: "an endless lease", breaks: "LeaseLapses", also: []string{"WaitLapse", "LateRelease", "LateReject", "LateComplete"}},
		{bug: "Wait never looks again", breaks: "WaitLapse"},
		{bug: "a late Release releases", breaks: "LateRelease"},
		{bug: "a late Reject records", breaks: "LateReject"},
		{bug: "a late Complete is ignored", breaks: "LateComplete"},
		{bug: "a late Complete respects the owner", breaks: "LateComplete"},
		{bug: "a late Complete wakes nobody", breaks: "LateComplete"},
		{bug: "any Release forgets", breaks: "LateComplete"},
		{bug: "the last owner counts", breaks: "LateComplete"},
	})
}
