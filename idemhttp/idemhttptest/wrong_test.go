package idemhttptest

import (
	"bytes"
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
)

type testClock struct{ now atomic.Int64 }

func (c *testClock) Now() time.Time          { return time.Unix(0, c.now.Load()) }
func (c *testClock) advance(d time.Duration) { c.now.Add(int64(d)) }

// wrong is a store with one fault: the functions that are set replace those of
// the memory store.
type wrong struct {
	*idemhttp.MemoryStore
	clock *testClock

	claim   func(w *wrong, ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error)
	answer  func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error
	release func(w *wrong, ctx context.Context, id idemhttp.ID, t idemhttp.Token) error
	lookup  func(w *wrong, ctx context.Context, id idemhttp.ID) (idemhttp.Record, bool, error)
	forget  func(w *wrong, ctx context.Context, id idemhttp.ID) (bool, error)
	reap    func(w *wrong, ctx context.Context) (int64, error)
}

func (w *wrong) Claim(ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
	if w.claim != nil {
		return w.claim(w, ctx, c, ttl)
	}
	return w.MemoryStore.Claim(ctx, c, ttl)
}

func (w *wrong) Answer(ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
	if w.answer != nil {
		return w.answer(w, ctx, c, r, ttl)
	}
	return w.MemoryStore.Answer(ctx, c, r, ttl)
}

func (w *wrong) Release(ctx context.Context, id idemhttp.ID, t idemhttp.Token) error {
	if w.release != nil {
		return w.release(w, ctx, id, t)
	}
	return w.MemoryStore.Release(ctx, id, t)
}

func (w *wrong) Lookup(ctx context.Context, id idemhttp.ID) (idemhttp.Record, bool, error) {
	if w.lookup != nil {
		return w.lookup(w, ctx, id)
	}
	return w.MemoryStore.Lookup(ctx, id)
}

func (w *wrong) Forget(ctx context.Context, id idemhttp.ID) (bool, error) {
	if w.forget != nil {
		return w.forget(w, ctx, id)
	}
	return w.MemoryStore.Forget(ctx, id)
}

func (w *wrong) Reap(ctx context.Context) (int64, error) {
	if w.reap != nil {
		return w.reap(w, ctx)
	}
	return w.MemoryStore.Reap(ctx)
}

// clear removes a claim whatever its state and token.
func (w *wrong) clear(ctx context.Context, id idemhttp.ID) {
	if rec, found, _ := w.MemoryStore.Lookup(ctx, id); found {
		_ = w.MemoryStore.Release(ctx, id, rec.Token)
		_, _ = w.MemoryStore.Forget(ctx, id)
	}
}

// wrongStores are the faults, each with the check that must notice it. A fault
// may fail other checks too.
var wrongStores = []struct {
	fault string
	check string
	make  func(*wrong)
}{
	{"loses the version of the fingerprint", "a claim is found as it was written", func(w *wrong) {
		w.claim = func(w *wrong, ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
			c.Sum.Version = ""
			return w.MemoryStore.Claim(ctx, c, ttl)
		}
	}},
	{"lets the holder claim again", "a second claim loses", func(w *wrong) {
		w.claim = func(w *wrong, ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
			won, err := w.MemoryStore.Claim(ctx, c, ttl)
			rec, _, _ := w.MemoryStore.Lookup(ctx, c.ID)
			return won || rec.Token == c.Token, err
		}
	}},
	{"overwrites the fingerprint when a claim loses", "a second claim loses", func(w *wrong) {
		w.claim = func(w *wrong, ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
			won, err := w.MemoryStore.Claim(ctx, c, ttl)
			if rec, _, _ := w.MemoryStore.Lookup(ctx, c.ID); !won && rec.State == idemhttp.Running {
				w.clear(ctx, c.ID)
				rec.Sum = c.Sum
				_, _ = w.MemoryStore.Claim(ctx, rec.Claim, ttl)
			}
			return won, err
		}
	}},
	{"compares half of the id", "claims of different ids do not meet", func(w *wrong) {
		half := func(id idemhttp.ID) idemhttp.ID { clear(id[16:]); return id }
		w.claim = func(w *wrong, ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
			c.ID = half(c.ID)
			return w.MemoryStore.Claim(ctx, c, ttl)
		}
	}},
	{"looks, then writes", "one of many concurrent claims wins", func(w *wrong) {
		w.claim = func(w *wrong, ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
			if _, found, err := w.MemoryStore.Lookup(ctx, c.ID); found || err != nil {
				return false, err
			}
			time.Sleep(time.Millisecond) // widens the gap that the fault is
			w.clear(ctx, c.ID)
			return w.MemoryStore.Claim(ctx, c, ttl)
		}
	}},
	{"stores only the first value of a header", "an answer is found as it was written", func(w *wrong) {
		w.answer = func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
			return w.MemoryStore.Answer(ctx, c, withHeader(r, func(v []string) []string { return v[:1] }), ttl)
		}
	}},
	{"stores headers as UTF-8", "an answer keeps every byte", func(w *wrong) {
		w.answer = func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
			utf8 := func(v []string) []string {
				out := make([]string, len(v))
				for i := range v {
					out[i] = string(bytes.ToValidUTF8([]byte(v[i]), []byte("?")))
				}
				return out
			}
			return w.MemoryStore.Answer(ctx, c, withHeader(r, utf8), ttl)
		}
	}},
	{"takes an empty body for no answer", "no answer is not an empty answer", func(w *wrong) {
		w.answer = func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
			if r != nil && len(r.Body) == 0 {
				r = nil
			}
			return w.MemoryStore.Answer(ctx, c, r, ttl)
		}
	}},
	{"lets anybody answer", "only the holder answers", func(w *wrong) {
		w.answer = func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
			w.clear(ctx, c.ID)
			return w.MemoryStore.Answer(ctx, c, r, ttl)
		}
	}},
	{"updates only, never inserts", "an answer without a claim writes one", func(w *wrong) {
		w.answer = func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
			if _, found, err := w.MemoryStore.Lookup(ctx, c.ID); !found {
				return err
			}
			return w.MemoryStore.Answer(ctx, c, r, ttl)
		}
	}},
	{"keeps the claim's ttl", "an answer brings its own ttl", func(w *wrong) {
		w.answer = func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
			return w.MemoryStore.Answer(ctx, c, r, long)
		}
	}},
	{"never releases", "a release removes a running claim", func(w *wrong) {
		w.release = func(*wrong, context.Context, idemhttp.ID, idemhttp.Token) error { return nil }
	}},
	{"releases without looking at the token", "only the holder releases", func(w *wrong) {
		w.release = func(w *wrong, ctx context.Context, id idemhttp.ID, _ idemhttp.Token) error {
			w.clear(ctx, id)
			return nil
		}
	}},
	{"releases an answered claim", "a release leaves what is settled", func(w *wrong) {
		w.release = func(w *wrong, ctx context.Context, id idemhttp.ID, t idemhttp.Token) error {
			if rec, found, _ := w.MemoryStore.Lookup(ctx, id); found && rec.Token == t {
				w.clear(ctx, id)
			}
			return nil
		}
	}},
	{"finds an expired claim", "an expired claim counts as absent", expiredStays(idemhttp.Running)},
	{"finds an expired answer", "an expired answer counts as absent", expiredStays(idemhttp.Answered)},
	{"refuses its holder's late answer", "an expired claim is written anew by its answer", func(w *wrong) {
		w.answer = func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
			if _, found, _ := w.MemoryStore.Lookup(ctx, c.ID); !found {
				return idemhttp.ErrNotHolder
			}
			return w.MemoryStore.Answer(ctx, c, r, ttl)
		}
	}},
	{"lets a late answer win", "an expired claim that was taken over stays", func(w *wrong) {
		w.answer = func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
			w.clear(ctx, c.ID)
			return w.MemoryStore.Answer(ctx, c, r, ttl)
		}
	}},
	{"forgets what is running", "forget removes what is settled, and only that", func(w *wrong) {
		w.forget = func(w *wrong, ctx context.Context, id idemhttp.ID) (bool, error) {
			_, found, err := w.MemoryStore.Lookup(ctx, id)
			w.clear(ctx, id)
			return found, err
		}
	}},
	{"never reaps", "reap removes what has expired, and only that", func(w *wrong) {
		w.reap = func(*wrong, context.Context) (int64, error) { return 0, nil }
	}},
	{"overflows on a long ttl", "any ttl works", func(w *wrong) {
		w.claim = func(w *wrong, ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
			if ttl > 100*365*24*time.Hour {
				ttl = -1
			}
			return w.MemoryStore.Claim(ctx, c, ttl)
		}
	}},
	{"ignores its context", "a context that is done is an error", func(w *wrong) {
		w.claim = func(w *wrong, ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
			return w.MemoryStore.Claim(context.WithoutCancel(ctx), c, ttl)
		}
	}},
}

func withHeader(r *idemhttp.Response, change func([]string) []string) *idemhttp.Response {
	if r == nil {
		return nil
	}
	changed := *r
	changed.Header = http.Header{}
	for name, values := range r.Header {
		changed.Header[name] = change(values)
	}
	return &changed
}

// expiredStays is a store that goes on finding claims of one state when they
// have expired.
func expiredStays(state idemhttp.State) func(*wrong) {
	return func(w *wrong) {
		kept := make(map[idemhttp.ID]idemhttp.Record)
		keep := func(rec idemhttp.Record) {
			if rec.State == state {
				kept[rec.ID] = rec
			}
		}
		w.claim = func(w *wrong, ctx context.Context, c idemhttp.Claim, ttl time.Duration) (bool, error) {
			keep(idemhttp.Record{Claim: c})
			return w.MemoryStore.Claim(ctx, c, ttl)
		}
		w.answer = func(w *wrong, ctx context.Context, c idemhttp.Claim, r *idemhttp.Response, ttl time.Duration) error {
			keep(idemhttp.Record{Claim: c, State: idemhttp.Answered, Response: r})
			return w.MemoryStore.Answer(ctx, c, r, ttl)
		}
		w.lookup = func(w *wrong, ctx context.Context, id idemhttp.ID) (idemhttp.Record, bool, error) {
			rec, found, err := w.MemoryStore.Lookup(ctx, id)
			if old, ok := kept[id]; ok && !found {
				return old, true, nil
			}
			return rec, found, err
		}
	}
}

func TestEveryFaultIsNoticed(t *testing.T) {
	noticed := map[string]bool{}
	for _, tt := range wrongStores {
		t.Run(tt.fault, func(t *testing.T) {
			w := newWrong(tt.make)
			check := storeCheckNamed(t, tt.check)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := check.run(&storeRun{ctx: ctx, Store: w, advance: w.clock.advance})
			assert.Error(t, err)
		})
		noticed[tt.check] = true
	}
	for _, check := range storeChecks {
		assert.True(t, noticed[check.name], "no wrong store for %q", check.name)
	}
}

func newWrong(fault func(*wrong)) *wrong {
	clock := new(testClock)
	w := &wrong{MemoryStore: idemhttp.NewMemoryStore(idemhttp.WithClock(clock)), clock: clock}
	fault(w)
	return w
}

func storeCheckNamed(t *testing.T, name string) storeCheck {
	for _, c := range storeChecks {
		if c.name == name {
			return c
		}
	}
	require.Fail(t, "no such check", name)
	return storeCheck{}
}

func TestMemoryStore(t *testing.T) {
	t.Run("injected clock", func(t *testing.T) {
		clock := new(testClock)
		RunStore(t, StoreConfig{
			Open:    func(*testing.T) idemhttp.Store { return idemhttp.NewMemoryStore(idemhttp.WithClock(clock)) },
			Advance: clock.advance,
		})
	})
	t.Run("real clock", func(t *testing.T) {
		RunStore(t, StoreConfig{Open: func(*testing.T) idemhttp.Store { return idemhttp.NewMemoryStore() }})
	})
}
