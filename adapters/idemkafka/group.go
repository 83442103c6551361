package idemkafka

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// binder is the hook by which a source meets its client.
type binder struct{ s *Source }

var _ kgo.HookNewClient = binder{}

// OnNewClient is called by the client before it begins.
func (b binder) OnNewClient(client *kgo.Client) {
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.misuse = refuse("two clients were made with the Opts of one source: make a source for each")
		return
	}
	s.client = client
	if s.group, _ = client.OptValue(kgo.ConsumerGroup).(string); s.group == "" {
		s.misuse = refuse("the client has no ConsumerGroup: without one nothing can be committed")
	}
}

// bound returns the client.
func (s *Source) bound() (*kgo.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.client == nil:
		return nil, refuse("no client was made with the Opts of the source")
	case s.misuse != nil:
		return nil, s.misuse
	}
	return s.client, nil
}

func (s *Source) groupName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.group
}

func (s *Source) isGone(p *partition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.gone
}

// assigned, revoked and lost are the client's callbacks, called one at a time and
// never between a poll and what is done with it.
func (s *Source) assigned(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
	s.mu.Lock()
	for at := range places(partitions) {
		s.begin(client, at)
	}
	s.mu.Unlock()
	if s.onAssigned != nil {
		s.onAssigned(ctx, client, partitions)
	}
}

// revoked is the last moment to commit: when it returns, the partitions may be
// another's.
func (s *Source) revoked(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
	s.settle(ctx, client, s.close(partitions))
	s.dropAll(client, partitions)
	if s.onRevoked != nil {
		s.onRevoked(ctx, client, partitions)
	}
}

// lost comes when the partitions are another's already.
func (s *Source) lost(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
	s.dropAll(client, partitions)
	if s.onLost != nil {
		s.onLost(ctx, client, partitions)
	}
}

// close has nothing more of the partitions handed out, and returns what is out.
func (s *Source) close(partitions map[string][]int32) (out []*Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := range places(partitions) {
		if p := s.partitions[at]; p != nil {
			p.closing = true
			if p.out != nil {
				out = append(out, p.out)
			}
		}
	}
	return out
}

// revokeCommitTimeout keeps a broker that doesn't answer from holding up the
// rebalance.
const revokeCommitTimeout = 10 * time.Second

// settle waits for what is out as long as it may, and commits. Handlers that are
// not done then go on, but what they do to their deliveries has no effect.
func (s *Source) settle(ctx context.Context, client *kgo.Client, out []*Delivery) {
	s.wait(ctx, out)
	ctx, cancel := context.WithTimeout(ctx, revokeCommitTimeout)
	defer cancel()
	if err := s.commit(ctx, client); err != nil {
		s.log().Warn("idemkafka: commit before a rebalance failed", slog.Any("error", err))
	}
}

func (s *Source) wait(ctx context.Context, out []*Delivery) {
	if s.revokeWait == 0 {
		return
	}
	timer := time.NewTimer(s.revokeWait)
	defer timer.Stop()
	for _, d := range out {
		select {
		case <-d.done:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *Source) dropAll(client *kgo.Client, partitions map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := range places(partitions) {
		if p := s.partitions[at]; p != nil {
			s.drop(client, p)
		}
	}
}

func places(partitions map[string][]int32) func(func(place) bool) {
	return func(yield func(place) bool) {
		for topic, numbers := range partitions {
			for _, n := range numbers {
				if !yield(place{topic, n}) {
					return
				}
			}
		}
	}
}

// passes says whether the client overcomes err by itself.
func passes(err error) bool {
	var loss *kgo.ErrDataLoss
	var session *kgo.ErrGroupSession
	return errors.As(err, &loss) || errors.As(err, &session) || kerr.IsRetriable(err)
}
