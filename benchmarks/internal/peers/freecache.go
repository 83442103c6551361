package peers

import (
	"time"
	"unsafe"

	"github.com/coocood/freecache"
)

// freecacheKind is bounded in bytes, not in ids: it gets what n entries need. It has
// 256 segments with a part of that each, so that some are full before others.
var freecacheKind = Kind{
	Name: "freecache", Title: "freecache (bounded in bytes)", Bounded: true, Exact: true, Library: true,
	New: func(n, length int) Peer {
		return freecachePeer{freecache.NewCache(n * (length + freecacheOverhead))}
	},
}

// freecacheOverhead is an entry's header and a value of one byte.
const freecacheOverhead = freecache.ENTRY_HDR_SIZE + 1

type freecachePeer struct{ c *freecache.Cache }

func (p freecachePeer) FirstSeen(id string) bool {
	found, err := p.c.GetOrSet(bytesOf(id), seen, int(Window/time.Second))
	return found == nil && err == nil
}

func (p freecachePeer) Holds(id string) bool {
	_, err := p.c.Peek(bytesOf(id))
	return err == nil
}

func (freecachePeer) Close() {}

// bytesOf spares freecache the copy that its []byte keys would cost: it only reads
// them.
func bytesOf(id string) []byte { return unsafe.Slice(unsafe.StringData(id), len(id)) }
