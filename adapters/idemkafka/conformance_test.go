package idemkafka

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem/idemtest"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*Delivery] { return newBench(t).broker() })
}

// Its acks are noted, and committed when the client is closed: not while it is cut
// off, and then there is nothing to be checked of a verb that said nil.
func TestConformanceWithCommitInterval(t *testing.T) {
	t.Parallel()
	idemtest.TestDelivery(t, func(t *testing.T) idemtest.Broker[*Delivery] {
		broker := newBench(t, WithCommitInterval(time.Hour)).broker()
		broker.Cut = nil
		return broker
	})
}

// bench is a rig with one member at a time, and a list of its dead letters.
type bench struct {
	*rig
	t    *testing.T
	opts []Option
	*member

	mu      sync.Mutex // protects what follows
	dead    []string
	cut     bool            // the dead letters can't be reached
	cutOffs map[string]bool // group members whose commits are not answered, by id
}

func newBench(t *testing.T, opts ...Option) *bench {
	b := &bench{rig: newRig(t, 1), t: t, cutOffs: make(map[string]bool)}
	b.opts = append(opts, WithDeadLetter(b.bury))
	b.cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.cutOffs[req.(*kmsg.OffsetCommitRequest).MemberID] {
			return nil, errors.New("the connection is cut"), true
		}
		return nil, nil, false
	})
	b.rejoin()
	return b
}

// bury waits in vain while it is cut.
func (b *bench) bury(ctx context.Context, record *kgo.Record, _ error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut {
		<-ctx.Done()
		return ctx.Err()
	}
	id, err := HeaderID("id")(record)
	b.dead = append(b.dead, id)
	return err
}

// shut cuts this member off for good: a commit that is on its way when the next
// one has come must not arrive after all.
func (b *bench) shut() {
	id, _ := b.client.GroupMetadata()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut, b.cutOffs[id] = true, true
}

func (b *bench) broker() idemtest.Broker[*Delivery] {
	return idemtest.Broker[*Delivery]{
		Publish:     func(id string) { b.produce(0, id) },
		Next:        func(ctx context.Context) (*Delivery, error) { return b.source.Next(b.receiver(nothing))(ctx) },
		Redeliver:   b.rejoin,
		DeadLetters: b.deadLetters,
		Cut:         b.shut,
		NoRequeue:   true,
		Quiet:       500 * time.Millisecond, // a fetch that finds nothing takes 50
	}
}

// rejoin builds client and source anew. Nothing comes again by itself meanwhile.
func (b *bench) rejoin() {
	b.t.Helper()
	b.mu.Lock()
	b.cut = false
	b.mu.Unlock()
	if b.member != nil {
		b.leave()
	}
	b.member = b.join(b.opts...)
	b.source.rest = time.Hour
	b.eventually(func() bool { return b.has() == 1 })
}

func (b *bench) deadLetters() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dead
}
