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
// both sides of the bound.
func TestAnswersThatWaitAreBounded(t *testing.T) {
	const body = "done"
	for name, test := range map[string]struct {
		held int64 // by others
		want State
	}{
		"up to the bound": {maxWaiting - int64(len(body)), Answered},
		"over it":         {maxWaiting - int64(len(body)) + 1, Unanswered},
	} {
		t.Run(name, func(t *testing.T) {
			store := &blipStore{Store: NewMemoryStore()}
			store.fail.Store(1)
			e, err := New(store, "x", Policy{Scope: func(*http.Request) (Scope, error) { return Public(), nil }})
			require.NoError(t, err)
			e.waiting.Store(test.held)
			r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
			r.Header.Set(DefaultHeader, "k")
			w := httptest.NewRecorder()
			e.DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(body))
			})).ServeHTTP(w, r)
			require.Equal(t, body, w.Body.String())
			id, err := e.identify(r)
			require.NoError(t, err)
			var rec Record
			require.Eventually(t, func() bool {
				rec, _, _ = store.Lookup(t.Context(), id)
				return rec.State != Running
			}, 20*time.Second, 5*time.Millisecond)
			assert.Equal(t, test.want, rec.State)
			require.Eventually(t, func() bool { return e.waiting.Load() == test.held }, 20*time.Second, 5*time.Millisecond,
				"what has been stored is held no longer")
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
// that is down has one for each of its requests.
func TestWhatGoesOnInTheBackgroundHoldsNoRequest(t *testing.T) {
	for name, store := range map[string]Store{"claims": downStore{NewMemoryStore()}, "answers": deafStore{NewMemoryStore()}} {
		const requests, size = 20, 1 << 20
		synctest.Test(t, func(t *testing.T) {
			e, err := New(store, "x", Policy{
				Scope:  func(*http.Request) (Scope, error) { return Public(), nil },
				Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			h := e.Deduplicate(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			before := heapAfterGC()
			for i := range requests {
				r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(make([]byte, size)))
				r.Header.Set(DefaultHeader, fmt.Sprint(i))
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
			synctest.Wait()
			assert.EqualValues(t, requests, e.retries.Load(), name)
			assert.Less(t, heapAfterGC()-before, int64(requests*size/4), name)
			time.Sleep(2 * retryFor) // in the bubble: they give up
			assert.Zero(t, e.retries.Load(), name)
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

func heapAfterGC() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestRetriesAreBounded, on both sides: one that is too many is told of and left to
// ClaimTTL.
func TestRetriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		e := &Endpoint{store: downStore{}, policy: Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		h := holding{endpoint: e, ctx: t.Context(), since: time.Now()}
		e.retries.Store(maxRetries - 1)
		h.retryRelease()
		assert.EqualValues(t, maxRetries, e.retries.Load())
		h.retryRelease()
		assert.Contains(t, log.String(), "claim not released: repeats get 409 until it expires")
		h.retryAnswer(&Response{Body: []byte("done")})
		assert.Contains(t, log.String(), "answer not stored: a repeat runs again when the claim expires")
		assert.Equal(t, 2, strings.Count(log.String(), errTooMany.Error()))
		assert.Zero(t, e.waiting.Load())
		assert.EqualValues(t, maxRetries, e.retries.Load(), "the one before goes on")
		time.Sleep(2 * retryFor) // in the bubble: it gives up
		assert.EqualValues(t, maxRetries-1, e.retries.Load())
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
