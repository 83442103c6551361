package idemhttp

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
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
		x := &release{Exchange: &Exchange{endpoint: &Endpoint{policy: Policy{ClaimTTL: test.ttl}}}, since: now.Add(-test.ran)}
		bareFrom, until := x.answerTimes(now)
		assert.Equal(t, test.bareIn, bareFrom.Sub(now))
		assert.Equal(t, retryFor, until.Sub(now))
	}
}
