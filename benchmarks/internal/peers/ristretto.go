package peers

import "github.com/dgraph-io/ristretto/v2"

// ristrettoKind is configured as its documentation advises: ten counters an id, a
// cost of 1 each, 64 buffered reads. It is made for caches: a Set may be dropped,
// by a full buffer or by the policy, and is visible only some time later. An id is
// known by two hashes of 64 bits, not by its bytes.
var ristrettoKind = Kind{
	Name: "ristretto", Title: "ristretto v2 (drops ids)", Bounded: true, Drops: true, Library: true,
	New: func(n, _ int) Peer {
		return ristrettoPeer{must(ristretto.NewCache(&ristretto.Config[string, struct{}]{
			NumCounters:        10 * int64(n),
			MaxCost:            int64(n),
			BufferItems:        64,
			IgnoreInternalCost: true,
		}))}
	},
}

type ristrettoPeer struct {
	c *ristretto.Cache[string, struct{}]
}

func (p ristrettoPeer) FirstSeen(id string) bool {
	if _, ok := p.c.Get(id); ok {
		return false
	}
	p.c.SetWithTTL(id, struct{}{}, 1, Window)
	return true
}

func (p ristrettoPeer) Holds(id string) bool {
	_, ok := p.c.Get(id)
	return ok
}

func (p ristrettoPeer) Settle() { p.c.Wait() }

func (p ristrettoPeer) Close() { p.c.Close() }
