package idemredis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// blockFor is how long one read waits for new entries. The client can't end it
// sooner, so it is also how long a goroutine stays behind when Next has returned
// with its ctx, and GiveBack has to wait for it.
const blockFor = 200 * time.Millisecond

// longestLook is how long what another consumer has given back goes unnoticed.
const longestLook = 5 * time.Second

// fetched is an entry that Redis takes for delivered.
type fetched struct {
	msg   redis.XMessage
	count int64
	at    time.Time // not later than its idle time began
}

// feed is what Next knows from one call to the next.
type feed struct {
	turn chan struct{} // holds one while a call of Next is at work: what follows is that call's

	buffer   []fetched     // not handed out yet
	cameBack bool          // the last ones had been given back
	reading  chan read     // answers the read that is under way; nil if there is none
	scanAt   time.Time     // when to look next for what was left pending
	cursor   string        // how far the look has come
	wake     chan struct{} // holds one after comebacks have changed

	mu        sync.Mutex // protects comebacks
	comebacks []comeback // given back here, in the order of when they can be claimed
}

type read struct {
	entries []fetched
	err     error
}

type comeback struct {
	id string
	at time.Time
}

const scanStart = "0-0"

func newFeed() feed {
	return feed{turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), cursor: scanStart}
}

// Next returns the next delivery, and feeds Receiver.Consume. Entries that were given
// back and whose delay is over take turns with those that were pending for longer
// than [WithMinIdle], whoever had them, and with new ones. It waits until there is
// one and until fewer than [WithMaxUnsettled] are unsettled, so settle each delivery.
//
// The end of ctx is an error, and so is what a broken connection or a missing group
// makes of a read. It ends Consume: begin anew, on the same guard, after a pause. When
// no call is to follow, call [Source.GiveBack].
func (s *Source) Next(ctx context.Context) (*Delivery, error) {
	d, err := s.next(ctx)
	if err != nil {
		return nil, fmt.Errorf("idemredis: next entry of %s: %w", s.destination, err)
	}
	return d, nil
}

func (s *Source) next(ctx context.Context) (d *Delivery, err error) {
	if err := enter(ctx, s.slots); err != nil {
		return nil, err
	}
	release := sync.OnceFunc(func() { <-s.slots })
	defer func() {
		if err != nil {
			release()
		}
	}()
	if err := enter(ctx, s.feed.turn); err != nil {
		return nil, err
	}
	defer func() { <-s.feed.turn }()
	for d == nil {
		if err = ctx.Err(); err != nil {
			return nil, err
		}
		if d, err = s.pop(ctx); d == nil && err == nil {
			err = s.fetch(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
	d.release = release
	return d, nil
}

func enter(ctx context.Context, place chan struct{}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case place <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pop takes a delivery from the buffer. One that has waited there for a while may
// be another consumer's by now.
func (s *Source) pop(ctx context.Context) (*Delivery, error) {
	for f := &s.feed; len(f.buffer) > 0; f.buffer = f.buffer[1:] {
		d := s.head()
		var err error
		if d.sinceAsked() >= s.minIdle/3 {
			err = d.settler.call(ctx, d.renew)
		}
		switch {
		case err == nil:
			f.buffer = f.buffer[1:]
			return d, nil
		case !isGone(err): // it stays, to be given back
			return nil, err
		}
	}
	return nil, nil
}

// head makes a delivery of the first entry in the buffer.
func (s *Source) head() *Delivery {
	d := s.deliver(s.feed.buffer[0])
	d.fed = true
	return d
}

// fetch fills the buffer with what is there, or waits for something to happen. What
// comes back takes turns with the rest: entries that fail again and again would keep
// all others away.
func (s *Source) fetch(ctx context.Context) error {
	f, now := &s.feed, time.Now()
	others := f.cameBack
	if !others {
		if there, err := s.claimDue(ctx, now); there {
			return err
		}
	}
	f.cameBack = false
	if !now.Before(f.scanAt) {
		return s.scan(ctx)
	}
	if others {
		if there, err := s.fetchBeside(ctx, now); there {
			return err
		}
	}
	return s.waitForMore(ctx, now)
}

// claimDue claims what was given back here and whose time has come.
func (s *Source) claimDue(ctx context.Context, now time.Time) (there bool, err error) {
	ids := s.feed.due(now, s.batch)
	if len(ids) == 0 {
		return false, nil
	}
	s.feed.cameBack = true
	return true, s.claim(ctx, ids)
}

// fetchBeside takes what has been read by now, else what comes back.
func (s *Source) fetchBeside(ctx context.Context, now time.Time) (there bool, err error) {
	select {
	case r := <-s.readInBackground(ctx):
		if err := s.feed.take(r); err != nil || len(r.entries) > 0 {
			return true, err
		}
	default:
	}
	return s.claimDue(ctx, now)
}

// take puts into the buffer what was read.
func (f *feed) take(r read) error {
	f.reading = nil
	f.buffer = append(f.buffer, r.entries...)
	return r.err
}

// waitForMore waits for something to happen.
func (s *Source) waitForMore(ctx context.Context, now time.Time) error {
	f := &s.feed
	timer := time.NewTimer(f.nextClaim().Sub(now))
	defer timer.Stop()
	select {
	case r := <-s.readInBackground(ctx):
		return f.take(r)
	case <-timer.C:
	case <-f.wake:
	case <-ctx.Done():
	}
	return nil
}

// readInBackground begins a read, unless one is under way.
func (s *Source) readInBackground(ctx context.Context) <-chan read {
	if s.feed.reading == nil {
		s.feed.reading = s.read(ctx)
	}
	return s.feed.reading
}

// read asks for new entries, in the background: meanwhile others can be claimed, and
// what it has read when nobody asks any longer is there for the next call.
func (s *Source) read(ctx context.Context) chan read {
	ctx = context.WithoutCancel(ctx)
	answer := make(chan read, 1)
	go func() {
		streams, err := s.client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: s.place.Group, Consumer: s.place.Name, Streams: []string{s.place.Stream, ">"},
			Count: s.batch, Block: blockFor,
		}).Result()
		var r read
		if !errors.Is(err, redis.Nil) { // nothing new
			r.err = err
		}
		at := time.Now()
		for _, stream := range streams {
			for _, msg := range stream.Messages {
				r.entries = append(r.entries, fetched{msg: msg, count: 1, at: at})
			}
		}
		answer <- r
	}()
	return answer
}

// scan looks a step further for what was left pending.
func (s *Source) scan(ctx context.Context) error {
	f, at := &s.feed, time.Now()
	cursor := ""
	msgs, err := await(ctx, func(ctx context.Context) (msgs []redis.XMessage, err error) {
		msgs, cursor, err = s.client.XAutoClaim(ctx, &redis.XAutoClaimArgs{
			Stream: s.place.Stream, Group: s.place.Group, Consumer: s.place.Name,
			MinIdle: s.minIdle, Start: f.cursor, Count: s.batch,
		}).Result()
		return msgs, err
	})
	if err != nil {
		return err
	}
	if f.cursor = cursor; cursor == scanStart {
		f.scanAt = at.Add(min(s.minIdle/2, longestLook))
	}
	return s.count(ctx, msgs, at)
}

// claim takes back what was given back here. What another consumer has taken by
// then, its idle time keeps.
func (s *Source) claim(ctx context.Context, ids []string) error {
	at := time.Now()
	msgs, err := await(ctx, func(ctx context.Context) ([]redis.XMessage, error) {
		return s.client.XClaim(ctx, &redis.XClaimArgs{
			Stream: s.place.Stream, Group: s.place.Group, Consumer: s.place.Name,
			MinIdle: s.minIdle, Messages: ids,
		}).Result()
	})
	if err != nil {
		return err
	}
	return s.count(ctx, msgs, at)
}

// count puts claimed entries into the buffer, with the count of their deliveries:
// that tells one delivery from the next.
func (s *Source) count(ctx context.Context, msgs []redis.XMessage, at time.Time) error {
	if len(msgs) == 0 {
		return nil
	}
	held, err := await(ctx, func(ctx context.Context) ([]redis.Cmder, error) {
		return s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, msg := range msgs {
				p.XPendingExt(ctx, &redis.XPendingExtArgs{
					Stream: s.place.Stream, Group: s.place.Group, Start: msg.ID, End: msg.ID, Count: 1, Consumer: s.place.Name,
				})
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	for i, cmd := range held {
		if pending := cmd.(*redis.XPendingExtCmd).Val(); len(pending) == 1 {
			s.feed.buffer = append(s.feed.buffer, fetched{msg: msgs[i], count: pending[0].RetryCount, at: at})
		}
	}
	return nil
}

// GiveBack gives back what was fetched ahead and not handed out, so that other
// consumers find it in seconds: call it when Consume has returned. What isn't given
// back is claimed once it has been idle for long enough. Next may be called again.
func (s *Source) GiveBack(ctx context.Context) error {
	if err := enter(ctx, s.feed.turn); err != nil {
		return fmt.Errorf("idemredis: giving back entries of %s: %w", s.destination, err)
	}
	defer func() { <-s.feed.turn }()
	err := s.awaitRead(ctx)
	for f := &s.feed; len(f.buffer) > 0 && err == nil; f.buffer = f.buffer[1:] {
		err = s.head().Requeue(ctx, nil)
	}
	return err
}

// awaitRead waits for the read that is under way, if there is one. A read that has
// failed has nothing to give back.
func (s *Source) awaitRead(ctx context.Context) error {
	f := &s.feed
	if f.reading == nil {
		return nil
	}
	select {
	case r := <-f.reading:
		_ = f.take(r)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("idemredis: giving back entries of %s: %w", s.destination, ctx.Err())
	}
}

// expect notes when an entry that was given back can be claimed.
func (f *feed) expect(id string, at time.Time) {
	f.mu.Lock()
	i, _ := slices.BinarySearchFunc(f.comebacks, at, func(c comeback, at time.Time) int { return c.at.Compare(at) })
	f.comebacks = slices.Insert(f.comebacks, i, comeback{id, at})
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// due takes up to n of the entries that can be claimed.
func (f *feed) due(now time.Time, n int64) (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.comebacks) > 0 && !f.comebacks[0].at.After(now) && int64(len(ids)) < n {
		ids = append(ids, f.comebacks[0].id)
		f.comebacks = f.comebacks[1:]
	}
	return ids
}

// nextClaim is when there is something to claim, or to look for.
func (f *feed) nextClaim() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.comebacks) > 0 && f.comebacks[0].at.Before(f.scanAt) {
		return f.comebacks[0].at
	}
	return f.scanAt
}
