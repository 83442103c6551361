package peers

import (
	"context"

	"github.com/allegro/bigcache/v3"
)

// bigcacheKind is bounded in megabytes, not in ids: it gets as many as n entries
// need, rounded up, and the right size to start with instead of 500 bytes an entry,
// which saves it two thirds of its memory. Its shards each have their part of that,
// fixed; with 64 of them a small setting still has room for more than a handful
// each. Nothing looks and adds in one step: two calls at once for a new id can both
// get true. Of two ids with one 64-bit FNV hash it forgets the first.
var bigcacheKind = Kind{
	Name: "bigcache", Title: "bigcache v3 (bounded in MB)", Bounded: true, Library: true,
	New: func(n, length int) Peer {
		c := bigcache.DefaultConfig(Window)
		c.Shards = 64
		c.MaxEntriesInWindow = n
		c.MaxEntrySize = length + bigcacheOverhead
		c.HardMaxCacheSize = (n*c.MaxEntrySize + 1<<20 - 1) >> 20
		c.Verbose = false
		return bigcachePeer{must(bigcache.New(context.Background(), c))}
	},
}

// bigcacheOverhead is what an entry takes beside its key: the length, the time, the
// hash, the key's length, and a value of one byte.
const bigcacheOverhead = 1 + 8 + 8 + 2 + 1

var seen = []byte{1}

type bigcachePeer struct{ c *bigcache.BigCache }

func (p bigcachePeer) FirstSeen(id string) bool {
	if p.Holds(id) {
		return false
	}
	// The only error is an entry larger than a shard.
	return p.c.Set(id, seen) == nil
}

func (p bigcachePeer) Holds(id string) bool {
	_, err := p.c.Get(id)
	return err == nil
}

func (p bigcachePeer) Close() { _ = p.c.Close() }
