package idemwatermill

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
)

// theirs is Watermill's own, with the same id.
func theirs(*rig) message.HandlerMiddleware {
	return (&middleware.Deduplicator{KeyFactory: middleware.NewMessageHasherFromMetadataField(field)}).Middleware
}

func ours(r *rig) message.HandlerMiddleware { return r.dedup }

// Watermill's Deduplicator takes a message for seen before it is handled: what
// fails then is dropped when it comes again, and acked.
func TestAgainstWatermillsDeduplicator(t *testing.T) {
	for name, tt := range map[string]struct {
		scene func(r *rig, m message.HandlerMiddleware)
		// what was done in the end
		theirs, ours []string
	}{
		"the handler fails once": {
			scene: func(r *rig, m message.HandlerMiddleware) {
				r.start(r.failing(1, errHandler), m)
				r.publish("a")
			},
			ours: []string{"invoice of a"},
		},
		"publishing the outputs fails once": {
			scene: func(r *rig, m message.HandlerMiddleware) {
				r.refuse = failFirst(1, invoices)
				r.start(r.ok, m)
				r.publish("a")
			},
			ours: []string{"invoice of a"},
		},
		"the first one fails after its copy came, and goes to the poison queue": {
			scene: func(r *rig, m message.HandlerMiddleware) {
				g := r.gated()
				r.start(g.handle, r.poison(), m)
				r.publish("a", "original")
				g.next(r.t)
				r.publish("a", "copy")
				r.eventually(func() bool { acks, _, _ := r.counts(); return acks+r.guard.Stats().InFlight > 0 })
				r.eventually(func() bool { return len(r.waiting(orders)) == 0 })
				g.gate <- errHandler
				if r.guard.Stats().Begun > 0 {
					g.next(r.t)
					g.gate <- nil
				}
			},
			ours: []string{"invoice of copy"},
		},
		"all goes well, twice": {
			scene: func(r *rig, m message.HandlerMiddleware) {
				r.start(r.ok, m)
				r.publish("a")
				r.eventually(func() bool { acks, _, _ := r.counts(); return acks == 1 })
				r.publish("a")
			},
			theirs: []string{"invoice of a"},
			ours:   []string{"invoice of a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for which, side := range map[string]struct {
				middleware func(*rig) message.HandlerMiddleware
				want       []string
			}{"theirs": {theirs, tt.theirs}, "ours": {ours, tt.ours}} {
				t.Run(which, func(t *testing.T) {
					r := newRig(t)
					tt.scene(r, side.middleware(r))
					r.settled()
					assert.Equal(t, side.want, r.waiting(invoices))
				})
			}
		})
	}
}
