package peers

import "github.com/maypok86/otter/v2"

// otterKind counts an id's life from when it was written; a duplicate does not
// prolong it. Otter's policy is made for caches: at its maximum it weighs a new key
// against an old one by how often both were asked for, and may drop the new one.
var otterKind = Kind{
	Name: "otter", Title: "otter v2", Bounded: true, Exact: true, Library: true,
	New: func(n, _ int) Peer {
		return otterPeer{must(otter.New(&otter.Options[string, struct{}]{
			MaximumSize:      n,
			ExpiryCalculator: otter.ExpiryCreating[string, struct{}](Window),
		}))}
	},
}

type otterPeer struct {
	c *otter.Cache[string, struct{}]
}

func (p otterPeer) FirstSeen(id string) bool {
	_, set := p.c.SetIfAbsent(id, struct{}{})
	return set
}

func (p otterPeer) Holds(id string) bool {
	_, ok := p.c.GetEntryQuietly(id)
	return ok
}

func (p otterPeer) Settle() { p.c.CleanUp() }

func (p otterPeer) Close() { p.c.StopAllGoroutines() }
