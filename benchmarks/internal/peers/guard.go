package peers

import "github.com/idem-go/idem"

// guard is this repository's own. Its call is two: TryBegin, and Complete for what
// it began. The others mark an id as seen at once, and so can't tell a message that
// is being handled from one that is done.
var guard = Kind{
	Name: "idem", Title: "**idem** (TryBegin + Complete)", Bounded: true, Exact: true, Library: true,
	New: func(n, _ int) Peer {
		return guardPeer{must(idem.NewGenerational(idem.WithMaxTracked(n), idem.WithWindow(Window)))}
	},
}

type guardPeer struct{ g *idem.Generational }

func (p guardPeer) FirstSeen(id string) bool {
	claim, state := p.g.TryBegin(idem.ID(id))
	if state != idem.Begun {
		return false
	}
	p.g.Complete(claim)
	return true
}

func (p guardPeer) Holds(id string) bool {
	claim, state := p.g.TryBegin(idem.ID(id))
	p.g.Release(claim)
	return state != idem.Begun
}

// Guard is the guard itself, for what only it can do.
func (p guardPeer) Guard() *idem.Generational { return p.g }

func (guardPeer) Close() {}
