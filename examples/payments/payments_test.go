package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shop is a running service, seen from outside.
type shop struct {
	*testing.T
	url string
}

func inMemoryShop(t *testing.T) shop {
	t.Helper()
	handler, err := inMemory(settings{mode: release, faults: true}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	srv := httptest.NewUnstartedServer(handler)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Start()
	t.Cleanup(srv.Close)
	return shop{t, srv.URL}
}

// reply is what came back: status 0 is no answer.
type reply struct {
	status int
	header http.Header
	body   string
}

const fiveDollars = `{"account":"a1","cents":500}`

// client keeps no connection: on a used one, net/http repeats a request with an
// Idempotency-Key by itself.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}

func (s shop) send(ctx context.Context, method, path, body string, headers ...string) reply {
	s.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if !assert.NoError(s, err) {
		return reply{}
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}
	}
	return reply{resp.StatusCode, resp.Header, string(text)}
}

func (s shop) pay(key, body string, headers ...string) reply {
	s.Helper()
	return s.send(s.Context(), http.MethodPost, "/payments", body, append([]string{"Idempotency-Key", key, "X-User", "ann"}, headers...)...)
}

func (s shop) paid(user string) []payment {
	s.Helper()
	r := s.send(s.Context(), http.MethodGet, "/payments", "", "X-User", user)
	require.Equal(s, 200, r.status)
	var list struct {
		Count    int
		Payments []payment
	}
	require.NoError(s, json.Unmarshal([]byte(r.body), &list))
	require.Len(s, list.Payments, list.Count)
	return list.Payments
}

func (r reply) problem() string {
	var p struct{ Type string }
	_ = json.Unmarshal([]byte(r.body), &p)
	_, slug, _ := strings.Cut(p.Type, "#")
	return slug
}

// testShop is what must be so in every mode. again is what a copy of a running
// request may be answered with, besides 201.
func testShop(t *testing.T, open func(t *testing.T) shop, again int) {
	t.Run("a payment", func(t *testing.T) {
		s := open(t)
		r := s.pay("k", fiveDollars)
		require.Equal(t, 201, r.status, r.body)
		var p payment
		require.NoError(t, json.Unmarshal([]byte(r.body), &p))
		assert.Equal(t, payment{p.ID, "a1", 500}, p)
		assert.Equal(t, "/payments/"+p.ID, r.header.Get("Location"))
		assert.Equal(t, []payment{p}, s.paid("ann"))
		assert.Empty(t, s.paid("bob"))
		got := s.send(t.Context(), http.MethodGet, r.header.Get("Location"), "", "X-User", "ann")
		assert.Equal(t, r.body, got.body)
		assert.Equal(t, 404, s.send(t.Context(), http.MethodGet, "/payments/"+p.ID, "", "X-User", "bob").status)

		for range 3 {
			replay := s.pay("k", fiveDollars)
			assert.Equal(t, r.body, replay.body)
			assert.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
			assert.Equal(t, r.header.Get("Location"), replay.header.Get("Location"))
		}
		assert.Len(t, s.paid("ann"), 1)
	})
	t.Run("refusals", func(t *testing.T) {
		s := open(t)
		post := func(body string, headers ...string) reply {
			return s.send(t.Context(), http.MethodPost, "/payments", body, headers...)
		}
		assert.Equal(t, 401, post(fiveDollars, "Idempotency-Key", "k").status)
		assert.Equal(t, 401, s.send(t.Context(), http.MethodGet, "/payments", "").status)
		assert.Equal(t, 400, post(fiveDollars, "X-User", "ann").status)
		assert.Equal(t, 400, post(fiveDollars, "Idempotency-Key", "k", "X-User", "\xff").status)
		assert.Equal(t, 400, s.send(t.Context(), http.MethodGet, "/payments", "", "X-User", "\xff").status)
		for _, body := range []string{
			``, `{`, `[]`, `{"account":"a1"}`, `{"account":"a1","cents":0}`, `{"account":"a1","cents":-5}`, `{"cents":5}`,
			`{"account":"a1","cents":1.5}`, `{"account":"a1","cents":99999999999999999999}`, fiveDollars + fiveDollars,
			`{"account":"` + strings.Repeat("a", 65) + `","cents":1}`, `{"account":"a\u0000b","cents":1}`,
		} {
			assert.Equal(t, 400, s.pay("bad", body).status, body)
		}
		assert.Equal(t, 400, s.pay("bad", fiveDollars, "X-Fault", "nonsense").status)
		assert.Empty(t, s.paid("ann"))
		assert.Equal(t, 201, s.pay("bad", fiveDollars).status, "a 400 doesn't use up the key")
		assert.Equal(t, 422, s.pay("bad", `{"account":"a1","cents":501}`).status)
		assert.Equal(t, 201, s.pay("bad", `{"cents":500,"account":"a1"}`).status)
		assert.Len(t, s.paid("ann"), 1)
	})
	t.Run("the user is the scope", func(t *testing.T) {
		s := open(t)
		ann, bob := s.pay("k", fiveDollars), s.pay("k", fiveDollars, "X-User", "bob")
		assert.NotEqual(t, ann.body, bob.body)
		assert.Len(t, s.paid("bob"), 1)
	})
	t.Run("a failure before the commit", func(t *testing.T) {
		s := open(t)
		for range 2 {
			assert.Equal(t, 500, s.pay("k", fiveDollars, "X-Fault", "before").status)
		}
		assert.Empty(t, s.paid("ann"))
		assert.Equal(t, 201, s.pay("k", fiveDollars).status)
		assert.Len(t, s.paid("ann"), 1)
	})
	t.Run("sixty copies", func(t *testing.T) {
		s := open(t)
		replies := make([]reply, 60)
		var wg sync.WaitGroup
		for i := range replies {
			wg.Go(func() { replies[i] = s.pay("k", fiveDollars, "X-Fault", "slow=50ms") })
		}
		wg.Wait()
		require.Len(t, s.paid("ann"), 1)
		first := s.pay("k", fiveDollars)
		for _, r := range replies {
			if r.status != again {
				assert.Equal(t, 201, r.status, r.body)
				assert.Equal(t, first.body, r.body)
			}
		}
	})
	t.Run("an impatient client", func(t *testing.T) {
		s := open(t)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		gone := s.send(ctx, http.MethodPost, "/payments", fiveDollars, "Idempotency-Key", "k", "X-User", "ann", "X-Fault", "slow=10s")
		assert.Zero(t, gone.status)
		require.Eventually(t, func() bool { return s.pay("k", fiveDollars).status == 201 }, 10*time.Second, 20*time.Millisecond)
		assert.Len(t, s.paid("ann"), 1)
	})
}

func TestInMemory(t *testing.T) { testShop(t, inMemoryShop, 409) }

func TestAPanicAfterTheCommit(t *testing.T) {
	s := inMemoryShop(t)
	assert.Zero(t, s.pay("k", fiveDollars, "X-Fault", "after").status)
	for range 3 {
		r := s.pay("k", fiveDollars)
		assert.Equal(t, 409, r.status)
		assert.Equal(t, "no-answer", r.problem())
	}
	assert.Len(t, s.paid("ann"), 1)
}

func TestFaultsAreOffByDefault(t *testing.T) {
	handler, err := inMemory(settings{mode: release}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	srv := httptest.NewServer(handler)
	defer srv.Close()
	assert.Equal(t, 201, shop{t, srv.URL}.pay("k", fiveDollars, "X-Fault", "before").status)
}

func TestDemo(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, demo(t.Context(), &out), out.String())
	for _, want := range []string{"no answer, 201 replayed", "500, 201", "no answer, 409 no-answer", "201, 422 key-reused", "Each payment was made once."} {
		assert.Contains(t, out.String(), want)
	}
	for _, s := range scenes {
		assert.Contains(t, out.String(), s.what)
	}
}

func TestTheDemoCountsThePayments(t *testing.T) {
	// The same scenes without deduplication: the books must be found wrong.
	svc := &service{books: new(memoryBooks), mode: release, faults: true, log: slog.New(slog.DiscardHandler)}
	srv := httptest.NewUnstartedServer(svc.routes(http.HandlerFunc(svc.plain)))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Start()
	defer srv.Close()
	var out bytes.Buffer
	require.ErrorIs(t, playAll(t.Context(), &out, srv.URL), errBooks)
	assert.Contains(t, out.String(), "should be 1")
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-mode tx":                  "-mode tx needs a database",
		"-mode exclusive":           "-mode must be release or tx",
		"-schema= -dsn postgres://": "-schema must not be empty",
		"extra":                     `unexpected argument "extra"`,
		"-nonsense":                 "flag provided but not defined",
	} {
		var stderr bytes.Buffer
		assert.Equal(t, 2, payments(t.Context(), strings.Fields(args), io.Discard, &stderr), args)
		assert.Contains(t, stderr.String(), want)
	}
	var stderr bytes.Buffer
	assert.Equal(t, 0, payments(t.Context(), []string{"-h"}, io.Discard, &stderr))
	assert.Equal(t, 1, payments(t.Context(), []string{"-addr", "nowhere"}, io.Discard, &stderr))
}

// failingBooks fails each payment with an error of its own.
type failingBooks struct {
	memoryBooks
	err error
}

func (f *failingBooks) pay(context.Context, string, payment, func() error) error { return f.err }

func TestTheClientIsToldWhatIsKnown(t *testing.T) {
	lost := errors.New("connection reset")
	for _, test := range []struct {
		err  error
		says string
	}{
		{errFault, "was not made"},
		{commitError(&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505"}), "was not made"},
		{commitError(&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}), "isn't known"},
		{commitError(pgx.ErrTxCommitRollback), "was not made"},
		{commitError(fmt.Errorf("commit: %w", lost)), "isn't known"},
		{commitError(context.DeadlineExceeded), "isn't known"},
	} {
		s := &service{books: &failingBooks{err: test.err}, mode: release, log: slog.New(slog.DiscardHandler)}
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(fiveDollars))
		r.Header.Set("X-User", "ann")
		s.plain(w, r)
		assert.Equal(t, 500, w.Code)
		assert.Contains(t, w.Body.String(), test.says, test.err)
	}
	assert.NoError(t, commitError(nil))
	assert.ErrorIs(t, commitError(lost), lost)
}
