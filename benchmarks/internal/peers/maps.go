package peers

import (
	"sync"

	"github.com/puzpuzpuz/xsync/v4"
)

// xsyncKind and syncMapKind are floors, not answers: nothing ever leaves them. A
// real use would have to sweep them, which is not measured.
var (
	xsyncKind = Kind{
		Name: "xsync", Title: "xsync v4 Map (never forgets)", Exact: true, Library: true,
		New: func(int, int) Peer { return xsyncPeer{xsync.NewMap[string, struct{}]()} },
	}
	syncMapKind = Kind{
		Name: "sync.Map", Title: "sync.Map (never forgets)", Exact: true, Library: true,
		New: func(int, int) Peer { return &syncMapPeer{} },
	}
)

type xsyncPeer struct {
	m *xsync.Map[string, struct{}]
}

func (p xsyncPeer) FirstSeen(id string) bool {
	_, loaded := p.m.LoadOrStore(id, struct{}{})
	return !loaded
}

func (p xsyncPeer) Holds(id string) bool {
	_, ok := p.m.Load(id)
	return ok
}

func (xsyncPeer) Close() {}

type syncMapPeer struct{ m sync.Map }

func (p *syncMapPeer) FirstSeen(id string) bool {
	_, loaded := p.m.LoadOrStore(id, struct{}{})
	return !loaded
}

func (p *syncMapPeer) Holds(id string) bool {
	_, ok := p.m.Load(id)
	return ok
}

func (*syncMapPeer) Close() {}
