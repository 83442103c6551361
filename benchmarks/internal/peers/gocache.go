package peers

import "github.com/patrickmn/go-cache"

// goCacheKind uses Add, its one call that looks and adds in one step. It answers a
// duplicate with a formatted error, which is most of what a duplicate costs there.
// Its janitor comes as often as ids run out; a finalizer stops it.
var goCacheKind = Kind{
	Name: "go-cache", Title: "go-cache (unbounded)", Exact: true, Library: true,
	New: func(int, int) Peer { return goCachePeer{cache.New(Window, Window)} },
}

type goCachePeer struct{ c *cache.Cache }

func (p goCachePeer) FirstSeen(id string) bool {
	return p.c.Add(id, struct{}{}, cache.DefaultExpiration) == nil
}

func (p goCachePeer) Holds(id string) bool {
	_, ok := p.c.Get(id)
	return ok
}

func (goCachePeer) Close() {}
