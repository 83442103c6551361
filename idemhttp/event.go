package idemhttp

import "net/http"

// EventKind is what an [Event] reports.
type EventKind uint8

const (
	// EventRan: the endpoint ran, and its answer stands. Status is the answer's.
	EventRan EventKind = iota
	// EventReplayed: a stored answer was sent. Status is the answer's.
	EventReplayed
	// EventRefused: a request was refused, for Reason.
	EventRefused
	// EventReleased: the endpoint ran and nothing is kept: the next attempt runs.
	EventReleased
	// EventLostRace: the endpoint ran inside a transaction, lost against another
	// request with the same key, and is answered from the winner.
	EventLostRace
	// EventStoreError: the store failed; Err says how.
	EventStoreError
)

// String returns the name of the constant without "Event", or "EventKind(n)" for
// a value that has none.
func (k EventKind) String() string {
	return enumName("EventKind", uint8(k), "Ran", "Replayed", "Refused", "Released", "LostRace", "StoreError")
}

// Event is what [Policy.Observe] is told, for counting.
type Event struct {
	Kind      EventKind
	Endpoint  string // the name given to New
	Request   *http.Request
	Status    int    // of the answer; 0 where there is none, or the run was unguarded
	Unguarded bool   // EventRan: without a claim, as there is no key or no store
	Reason    Reason // EventRefused
	Err       error  // EventReleased: may be nil; EventStoreError, EventRefused
}
