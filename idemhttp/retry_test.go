package idemhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// blipStore fails its first answers.
type blipStore struct {
	Store
	fail atomic.Int64
}

func (b *blipStore) Answer(ctx context.Context, c Claim, resp *Response, ttl time.Duration) error {
	if b.fail.Add(-1) >= 0 {
		return errors.New("a blip")
	}
	return b.Store.Answer(ctx, c, resp, ttl)
}

// TestAnswersThatWaitAreBounded: what a store doesn't take is held in memory, on
// both sides of the bound. Headers count, and so does room that isn't used.
func TestAnswersThatWaitAreBounded(t *testing.T) {
	const size = 64 + int64(len("Link")+48+len("</a>")+16)
	for name, test := range map[string]struct {
		held int64 // by others
		want State
	}{
		"up to the bound": {maxBacklogBytes - size, Answered},
		"over it":         {maxBacklogBytes - size + 1, Unanswered},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &blipStore{Store: NewMemoryStore()}
				store.fail.Store(1)
				e := &Endpoint{store: store, policy: Policy{Window: DefaultWindow}}
				e.backlog.bytes = test.held
				h := holding{endpoint: e, since: time.Now()}
				resp := &Response{Status: 201, Header: http.Header{"Link": {"</a>"}}, Body: make([]byte, 4, 64)}
				require.Error(t, h.answer(t.Context(), resp))
				h.retryAnswer(t.Context(), resp, errDown)
				time.Sleep(firstRetry) // in the bubble
				synctest.Wait()
				rec, _, err := store.Lookup(t.Context(), h.claim.ID)
				require.NoError(t, err)
				assert.Equal(t, test.want, rec.State)
				_, held := e.backlog.waiting()
				assert.Equal(t, test.held, held, "what has been stored is held no longer")
			})
		})
	}
}

// downStore takes nothing.
type downStore struct{ Store }

var errDown = errors.New("down")

func (downStore) Claim(context.Context, Claim, time.Duration) (bool, error)     { return false, errDown }
func (downStore) Lookup(context.Context, ID) (Record, bool, error)              { return Record{}, false, errDown }
func (downStore) Release(context.Context, ID, Token) error                      { return errDown }
func (downStore) Answer(context.Context, Claim, *Response, time.Duration) error { return errDown }

// deafStore takes claims, and no answer.
type deafStore struct{ Store }

func (deafStore) Answer(context.Context, Claim, *Response, time.Duration) error { return errDown }

// TestWhatGoesOnInTheBackgroundHoldsNoRequest: its body may be large, and a store
// that is down has one for each of its requests. Frameworks keep it in the context,
// too.
func TestWhatGoesOnInTheBackgroundHoldsNoRequest(t *testing.T) {
	type inContext struct{}
	const requests, size = 20, 1 << 20
	for name, store := range map[string]Store{"claims": downStore{NewMemoryStore()}, "answers": deafStore{NewMemoryStore()}} {
		synctest.Test(t, func(t *testing.T) {
			e, err := New(store, "x", Policy{
				Scope:  func(*http.Request) (Scope, error) { return Public(), nil },
				Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			h := e.DeduplicateWithResponse(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			before, goroutines := heapAfterGC(), runtime.NumGoroutine()
			for i := range requests {
				r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(make([]byte, size)))
				r = r.WithContext(context.WithValue(r.Context(), inContext{}, make([]byte, size)))
				r.Header.Set(DefaultHeader, fmt.Sprint(i))
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
			assertWaiting(t, requests, &e.backlog)
			assert.LessOrEqual(t, runtime.NumGoroutine(), goroutines+maxTries, name)
			assert.Less(t, heapAfterGC()-before, int64(requests*size/4), name)
			time.Sleep(2 * retryFor) // in the bubble: they give up
			synctest.Wait()
			assertWaiting(t, 0, &e.backlog)
		})
	}
}

// lockedText is what was logged, from any goroutine.
type lockedText struct {
	mu   sync.Mutex // protects text
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// waiting tells how many tasks there are, and how many bytes they hold.
func (b *backlog) waiting() (tasks int, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tasks) + b.trying, b.bytes
}

func assertWaiting(t *testing.T, want int, b *backlog) {
	t.Helper()
	got, _ := b.waiting()
	assert.Equal(t, want, got, "tasks in the background")
}

func heapAfterGC() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestRetriesAreBounded: releases that are too many are told of once, and left to
// ClaimTTL. Work that is done still finds room, and is told of each time when it
// doesn't.
func TestRetriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		e := &Endpoint{store: downStore{}, policy: Policy{Logger: slog.New(slog.NewTextHandler(&log, nil)), ClaimTTL: time.Hour}}
		h := holding{endpoint: e, since: time.Now()}
		for range maxReleases {
			h.retryRelease(t.Context(), errDown)
		}
		assert.Empty(t, log.String())
		for range 3 {
			h.retryRelease(t.Context(), errDown)
		}
		assertWaiting(t, maxReleases, &e.backlog)
		assert.Equal(t, 1, strings.Count(log.String(), "level=WARN msg=\"idemhttp: claims not released"))
		for range maxBacklog - maxReleases {
			h.retryAnswer(t.Context(), &Response{}, errDown)
		}
		assert.NotContains(t, log.String(), "not stored")
		for range 3 {
			h.retryAnswer(t.Context(), &Response{}, errDown)
		}
		assertWaiting(t, maxBacklog, &e.backlog)
		assert.Equal(t, 3, strings.Count(log.String(), "answer not stored: a repeat runs again when the claim expires"))
		assert.Equal(t, 4, strings.Count(log.String(), errTooMany.Error()))

		time.Sleep(2 * retryFor) // in the bubble: all of them give up
		synctest.Wait()
		assertWaiting(t, 0, &e.backlog)
		assert.Equal(t, maxReleases, strings.Count(log.String(), "claim not released: repeats get 409 until it expires"))
		assert.True(t, e.backlog.firstDrop(), "the next time it is told of anew")
	})
}

// countingStore counts the releases, and how many there are at once.
type countingStore struct {
	Store
	takes time.Duration
	fail  error

	mu              sync.Mutex // protects what follows
	calls, now, max int
}

func (c *countingStore) Release(context.Context, ID, Token) error {
	_ = c.count(1)
	time.Sleep(c.takes) // in a bubble
	return c.count(-1)
}

func (c *countingStore) count(by int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += by
	c.calls += max(by, 0)
	c.max = max(c.max, c.now)
	return c.fail
}

// TestAStoreThatRecoversIsNotStormed, and is tried slowly until then; but what waits
// for it doesn't wait for long once it is back.
func TestAStoreThatRecoversIsNotStormed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const claims = 1000
		store := &countingStore{takes: 10 * time.Millisecond, fail: errDown}
		e := &Endpoint{store: store, policy: Policy{Logger: slog.New(slog.DiscardHandler), ClaimTTL: time.Hour}}
		for range claims {
			holding{endpoint: e, since: time.Now()}.retryRelease(t.Context(), errDown)
		}
		time.Sleep(time.Minute) // in the bubble
		store.mu.Lock()
		assert.Equal(t, maxTries, store.max)
		assert.Less(t, store.calls, 60*maxTries*10)
		store.fail, store.calls, store.max = nil, 0, 0
		store.mu.Unlock()
		time.Sleep(longRetry + claims/maxTries*store.takes) // in the bubble
		synctest.Wait()
		assertWaiting(t, 0, &e.backlog)
		assert.InDelta(t, claims, store.calls, maxTries)
		assert.Equal(t, maxTries, store.max)
	})
}

// TestAStoreThatHangsIsGivenUpInTime: what is late isn't tried first.
func TestAStoreThatHangsIsGivenUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &countingStore{takes: storeTimeout, fail: errDown}
		e := &Endpoint{store: store, policy: Policy{Logger: slog.New(slog.DiscardHandler), ClaimTTL: time.Hour}}
		for range maxReleases {
			holding{endpoint: e, since: time.Now()}.retryRelease(t.Context(), errDown)
		}
		time.Sleep(retryFor + 3*storeTimeout) // in the bubble
		synctest.Wait()
		assertWaiting(t, 0, &e.backlog)
	})
}

func TestAnswerTimes(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		ttl, ran time.Duration
		bareIn   time.Duration
	}{
		{30 * time.Second, 0, 15 * time.Second},
		{30 * time.Second, 20 * time.Second, -5 * time.Second}, // the claim is half over
		{DefaultWindow, time.Hour, retryFor / 2},
	} {
		h := holding{endpoint: &Endpoint{policy: Policy{ClaimTTL: test.ttl}}, since: now.Add(-test.ran)}
		bareFrom, until := h.answerTimes(now)
		assert.Equal(t, test.bareIn, bareFrom.Sub(now))
		assert.Equal(t, retryFor, until.Sub(now))
	}
}
