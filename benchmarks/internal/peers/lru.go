package peers

import "github.com/hashicorp/golang-lru/v2/expirable"

// lruKind looks with Peek, not Get: a duplicate must not move its id to the front
// and so push out a newer one. The expirable LRU has no call that looks and adds in
// one step, so two calls at once for a new id can both get true. A mutex around both
// would help and cost; it is measured without.
var lruKind = Kind{
	Name: "golang-lru", Title: "golang-lru v2 expirable", Bounded: true, Library: true,
	New: func(n, _ int) Peer { return lruPeer{expirable.NewLRU[string, struct{}](n, nil, Window)} },
}

type lruPeer struct {
	c *expirable.LRU[string, struct{}]
}

func (p lruPeer) FirstSeen(id string) bool {
	if _, ok := p.c.Peek(id); ok {
		return false
	}
	p.c.Add(id, struct{}{})
	return true
}

func (p lruPeer) Holds(id string) bool {
	_, ok := p.c.Peek(id)
	return ok
}

// Close empties it. Its goroutine can't be stopped.
func (p lruPeer) Close() { p.c.Purge() }
