package peers

import "github.com/jellydator/ttlcache/v3"

// ttlcacheKind is told not to prolong an id's life when a duplicate finds it, which
// is also the faster way. Its cleaner runs, as its documentation asks.
var ttlcacheKind = Kind{
	Name: "ttlcache", Title: "ttlcache v3", Bounded: true, Exact: true, Library: true,
	New: func(n, _ int) Peer {
		c := ttlcache.New(
			ttlcache.WithTTL[string, struct{}](Window),
			ttlcache.WithCapacity[string, struct{}](uint64(n)),
			ttlcache.WithDisableTouchOnHit[string, struct{}](),
		)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Start()
		}()
		return ttlcachePeer{c, done}
	},
}

type ttlcachePeer struct {
	c    *ttlcache.Cache[string, struct{}]
	done chan struct{}
}

func (p ttlcachePeer) FirstSeen(id string) bool {
	_, found := p.c.GetOrSet(id, struct{}{})
	return !found
}

func (p ttlcachePeer) Holds(id string) bool { return p.c.Has(id) }

func (p ttlcachePeer) Close() {
	for {
		p.c.Stop() // does nothing before Start has begun
		select {
		case <-p.done:
			return
		default:
		}
	}
}
