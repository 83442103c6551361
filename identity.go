package idem

// Identity names the message a delivery carries. Two deliveries with equal
// identities are the same message, as far as one guard is concerned.
//
// An empty ID is "unidentified": such a message is never deduplicated, whatever
// its Destination. Ids must be unique over all that one guard sees; where they
// are not (several queues or topics on one guard), Destination tells them apart.
//
// Any bytes of any length will do. Ids are compared byte for byte: ("ab", "c")
// is not ("a", "bc"). A guard keeps nothing of the memory behind the strings.
type Identity struct {
	ID          string
	Destination string
}

// ID is the identity of a message whose id is unique by itself.
func ID(id string) Identity { return Identity{ID: id} }

// IDAt is the identity of a message whose id is unique within a destination:
// a queue, a topic, a stream, a tenant.
func IDAt(id, destination string) Identity {
	return Identity{ID: id, Destination: destination}
}

// MessageIdentity says what makes two deliveries the same message.
type MessageIdentity uint8

const (
	// IDAndDestination compares the ID and the Destination. It is the default.
	IDAndDestination MessageIdentity = iota
	// IDOnly ignores the Destination. It is for one process with several
	// listeners of the same message, of which only one is to handle it.
	IDOnly
)

// String returns the name of the constant, or "MessageIdentity(n)" for a value
// that has none.
func (m MessageIdentity) String() string {
	return enumName("MessageIdentity", uint8(m), "IDAndDestination", "IDOnly")
}
