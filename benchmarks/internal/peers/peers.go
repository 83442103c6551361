// Package peers puts what a consumer could use in the guard's place behind one
// call, so that all of them do the same job: was this id seen within the window;
// if not, remember it.
package peers

import "time"

// Window is how long every peer that knows time remembers an id.
const Window = 5 * time.Minute

// Peer does the job. All methods may be called from any number of goroutines,
// Close once, when nobody else calls.
type Peer interface {
	// FirstSeen says whether id was not seen within the window, and remembers it.
	FirstSeen(id string) bool
	// Holds says whether FirstSeen would answer false. It is for counting, not
	// measured, and is allowed to remember id.
	Holds(id string) bool
	// Close lets go of goroutines and of as much memory as the peer's API allows.
	Close()
}

// Kind is one way of doing the job.
type Kind struct {
	// Name is short, as it stands in names of benchmarks.
	Name string
	// Title is what a table says.
	Title string
	// Bounded says that it can be told a number of ids it won't pass.
	Bounded bool
	// Exact says that it takes one id for another never, and that of two calls at
	// once for a new id one gets true. What a peer forgets is counted, not said.
	Exact bool
	// Drops says that a call may return before it has remembered the id, or without.
	Drops bool
	// Library says that it is somebody's published code, not written here.
	Library bool
	// New makes one that is to remember n ids of about length bytes.
	New func(n, length int) Peer
}

// All are the kinds, in the order in which they are run and shown. The guard comes
// first; those that can't be closed come last, because what they leave behind is in
// the way of whoever comes next.
var All = []Kind{
	guard,
	twoMaps,
	otterKind,
	bigcacheKind,
	freecacheKind,
	ristrettoKind,
	ttlcacheKind,
	xsyncKind,
	syncMapKind,
	goCacheKind,
	lruKind,
	watermillKind,
}

// Named returns the kind of that name. There must be one.
func Named(name string) Kind {
	for _, k := range All {
		if k.Name == name {
			return k
		}
	}
	panic("peers: no kind is named " + name)
}

// Settle waits for what p does in the background, if it does.
func Settle(p Peer) {
	if s, ok := p.(interface{ Settle() }); ok {
		s.Settle()
	}
}

// must is for constructors of valid configurations.
func must[T any](made T, err error) T {
	if err != nil {
		panic(err)
	}
	return made
}
