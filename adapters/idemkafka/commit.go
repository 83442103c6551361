package idemkafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Commit commits what is settled and not committed yet. There is such only with
// [WithCommitInterval]. A client that is closed has done so by itself.
func (s *Source) Commit(ctx context.Context) error {
	client, err := s.bound()
	if err != nil {
		return err
	}
	return s.commit(ctx, client)
}

// commitBehind notes that r is settled, and returns when the broker knows, or with
// an interval mostly before. After an error it isn't settled.
func (s *Source) commitBehind(ctx context.Context, p *partition, r *kgo.Record) error {
	before, err := s.note(p, kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset + 1})
	if err != nil || !s.due() {
		return err
	}
	err = s.commit(ctx, s.client)
	return s.agree(p, before, err)
}

// note moves the partition's settled offset, and returns where it was.
func (s *Source) note(p *partition, behind kgo.EpochOffset) (before kgo.EpochOffset, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.gone {
		return before, ErrLost
	}
	before = p.settled
	p.settled = behind
	s.noted = true
	return before, nil
}

// agree says what became of a commit for the one partition: another goroutine's
// may have taken it along, while ours had no answer.
func (s *Source) agree(p *partition, before kgo.EpochOffset, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case p.committed >= p.settled.Offset:
		return nil
	case p.gone:
		return ErrLost
	case err == nil:
		err = errors.New("the broker has not answered for the partition")
	}
	p.settled = before
	return err
}

// due says whether it is time to commit.
func (s *Source) due() bool {
	_, due := s.untilCommit()
	return due || s.interval == 0
}

// untilCommit is how long what is noted may wait. It answers 0, false if nothing
// is.
func (s *Source) untilCommit() (wait time.Duration, due bool) {
	if s.interval == 0 {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.noted {
		return 0, false
	}
	wait = s.interval - time.Since(s.lastCommit)
	return wait, wait <= 0
}

// idleCommitTimeout is for commits that nobody has asked for.
const idleCommitTimeout = 10 * time.Second

// commitIdle commits while there is nothing else to do.
func (s *Source) commitIdle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, idleCommitTimeout)
	defer cancel()
	if err := s.commit(ctx, s.client); err != nil && !errors.Is(err, context.Canceled) {
		s.log().Warn("idemkafka: commit failed", slog.Any("error", err))
	}
}

// commit tells the broker what is settled, all partitions in one request, and one
// request at a time: of two that overtake each other the older could win.
func (s *Source) commit(ctx context.Context, client *kgo.Client) error {
	select {
	case s.committing <- struct{}{}:
		defer func() { <-s.committing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	b := s.batch()
	if len(b) == 0 {
		return nil
	}
	err := s.send(ctx, client, b)
	if err != nil {
		return fmt.Errorf("committing offsets of group %q: %w", s.group, err)
	}
	return nil
}

// send is one request. What it says is still to be committed when it fails.
func (s *Source) send(ctx context.Context, client *kgo.Client, b batch) (err error) {
	client.CommitOffsetsSync(kgo.PreCommitFnContext(ctx, s.withoutGone(b)), b.offsets(),
		func(_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, failed error) {
			if err = failed; err == nil {
				err = s.answer(b, req, resp)
			}
		})
	if err != nil {
		s.mu.Lock()
		s.noted = true
		s.mu.Unlock()
	}
	return err
}

// batch is what one commit says.
type batch map[place]step

type step struct {
	p  *partition
	to kgo.EpochOffset
}

func (b batch) offsets() map[string]map[int32]kgo.EpochOffset {
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	for at, step := range b {
		if offsets[at.topic] == nil {
			offsets[at.topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[at.topic][at.num] = step.to
	}
	return offsets
}

// batch is what is settled and not committed.
func (s *Source) batch() batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastCommit, s.noted = time.Now(), false
	b := make(batch)
	for at, p := range s.partitions {
		if p.settled.Offset > p.committed {
			b[at] = step{p, p.settled}
		}
	}
	return b
}

// withoutGone takes out of a request what isn't ours any longer. The client calls
// it when it has the request's turn, which may be a rebalance later: the request
// would go out in the name of a member of the new generation, and the broker,
// which lets a member commit for any partition, would believe it.
func (s *Source) withoutGone(b batch) func(*kmsg.OffsetCommitRequest) error {
	return func(req *kmsg.OffsetCommitRequest) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		var topics []kmsg.OffsetCommitRequestTopic
		for _, t := range req.Topics {
			var ours []kmsg.OffsetCommitRequestTopicPartition
			for _, p := range t.Partitions {
				if !b[place{t.Topic, p.Partition}].p.gone {
					ours = append(ours, p)
				}
			}
			if t.Partitions = ours; len(ours) > 0 {
				topics = append(topics, t)
			}
		}
		if req.Topics = topics; len(topics) == 0 {
			return ErrLost
		}
		return nil
	}
}

// answer notes what the broker has taken, and returns what it hasn't.
func (s *Source) answer(b batch, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse) error {
	names := make(map[[16]byte]string) // newer brokers answer with ids
	for _, t := range req.Topics {
		names[t.TopicID] = t.Topic
	}
	var errs []error
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range resp.Topics {
		if t.Topic == "" {
			t.Topic = names[t.TopicID]
		}
		for _, p := range t.Partitions {
			step, ok := b[place{t.Topic, p.Partition}]
			switch err := kerr.ErrorForCode(p.ErrorCode); {
			case err != nil:
				errs = append(errs, fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err))
			case ok:
				step.p.committed = step.to.Offset
			}
		}
	}
	return errors.Join(errs...)
}
