package peers

import (
	"context"
	"reflect"
	"unsafe"

	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// watermillKind is the repository behind Watermill's Deduplicator, without the
// hashing of the payload and the context with a timeout that the middleware adds to
// each message.
var watermillKind = Kind{
	Name: "watermill", Title: "watermill Deduplicator's repository (unbounded)", Exact: true, Library: true,
	New: func(int, int) Peer { return watermillPeer{must(middleware.NewMapExpiringKeyRepository(Window))} },
}

type watermillPeer struct {
	r middleware.ExpiringKeyRepository
}

func (p watermillPeer) FirstSeen(id string) bool {
	again, err := p.r.IsDuplicate(context.Background(), id)
	return !again && err == nil
}

func (p watermillPeer) Holds(id string) bool { return !p.FirstSeen(id) }

// Close takes its map away by reflection: its goroutine can't be stopped and would
// keep all ids for ever, in the way of whoever is measured next. Its next cleaning
// finds the nil map empty.
func (p watermillPeer) Close() {
	tags := reflect.ValueOf(p.r).Elem().FieldByName("tags")
	reflect.NewAt(tags.Type(), unsafe.Pointer(tags.UnsafeAddr())).Elem().SetZero()
}
