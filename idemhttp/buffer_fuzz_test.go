package idemhttp_test

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
)

// script is a handler, byte by byte: what it does to its ResponseWriter, and
// what it is told.
type script struct {
	ops  []byte
	told []string
	done chan struct{}
}

func (s *script) run(w http.ResponseWriter) {
	defer close(s.done)
	header, rest := w.Header(), s.ops
	names := []string{"Etag", "Link", "Content-Type", "Content-Length", "Content-Encoding", "X-Other", "Cache-Control", "Trailer", "X-Sum", http.TrailerPrefix + "X-Late"}
	values := []string{"a", "b", "text/css", "5", "7", "", "gzip", "X-Sum"}
	statuses := []int{200, 201, 204, 302, 304, 400, 404, 500, 102, 103, 205}
	texts := []string{"", "x", "plain text", "<html>", "{}", "\x00\x01", strings.Repeat("y", 300), strings.Repeat("z", 2048), strings.Repeat("<p>", 1000)}
	for len(rest) >= 3 {
		op, a, b := rest[0], int(rest[1]), int(rest[2])
		rest = rest[3:]
		name, value := names[a%len(names)], values[b%len(values)]
		switch op % 8 {
		case 0:
			header.Set(name, value)
		case 1:
			header.Add(name, value)
		case 2:
			header.Del(name)
		case 3:
			header[name] = nil
		case 4:
			w.WriteHeader(statuses[a%len(statuses)])
		default:
			n, err := io.WriteString(w, texts[b%len(texts)])
			s.told = append(s.told, fmt.Sprint(n, err))
		}
	}
}

// twoServers serve the same scripts, one of them through the middleware.
type twoServers struct {
	plain, buffered *httptest.Server
	mu              sync.Mutex
	current         *script
	keys            int
}

func newTwoServers(t testing.TB) *twoServers {
	s := new(twoServers)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { s.current.run(w) })
	e, err := idemhttp.New(idemhttp.NewMemoryStore(), "script", idemhttp.Policy{
		Scope: public, Logger: slog.New(slog.DiscardHandler), Keep: func(int) bool { return true },
	})
	require.NoError(t, err)
	serve := func(h http.Handler) *httptest.Server {
		srv := httptest.NewUnstartedServer(h)
		srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // superfluous WriteHeader calls
		srv.Start()
		srv.Client().Transport.(*http.Transport).DisableCompression = true // it would see other bytes
		t.Cleanup(srv.Close)
		return srv
	}
	s.plain, s.buffered = serve(handler), serve(e.DeduplicateWithResponse(handler))
	return s
}

// got is all that a client and the handler see of a response.
type got struct {
	status   int
	header   http.Header
	trailer  http.Header
	length   int64
	encoding []string
	body     string
	err      string
	told     []string
}

func (s *twoServers) ask(t testing.TB, srv *httptest.Server, ops []byte, key string) got {
	s.current = &script{ops: ops, done: make(chan struct{})}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, strings.NewReader("body"))
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", key)
	resp, err := srv.Client().Transport.RoundTrip(r)
	if err != nil {
		<-s.current.done
		return got{err: "transport", told: s.current.told}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.Header.Get(idemhttp.HeaderReplayed) == "" {
		<-s.current.done // a client that can't read the response may be done before
	}
	resp.Header.Del("Date")
	g := got{resp.StatusCode, resp.Header, resp.Trailer, resp.ContentLength, resp.TransferEncoding, string(body), "", s.current.told}
	if err != nil {
		g.err = "body"
	}
	return g
}

// compare runs a script on both servers, and its replay.
func (s *twoServers) compare(t testing.TB, ops []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys++
	key := fmt.Sprintf("k%d", s.keys)
	plain := s.ask(t, s.plain, ops, key)
	buffered := s.ask(t, s.buffered, ops, key)
	if plain.err == "body" || plain.err != buffered.err { // too short: net/http ends the connection
		assert.Equal(t, http.StatusInternalServerError, buffered.status, "script %v", ops)
		assert.Equal(t, plain.told, buffered.told, "script %v", ops)
		return
	}
	require.Equal(t, plain, buffered, "script %v", ops)
	replay := s.ask(t, s.buffered, ops, key)
	assert.Equal(t, plain.status, replay.status, "script %v", ops)
	assert.Equal(t, plain.body, replay.body, "script %v", ops)
	assert.Equal(t, plain.header["Content-Type"], replay.header["Content-Type"], "script %v", ops)
	assert.Equal(t, "true", replay.header.Get(idemhttp.HeaderReplayed))
}

// FuzzTheBufferIsLikeNetHTTP gives the same handler to net/http and to the
// middleware: status, headers, body and what the handler is told must be alike. What
// net/http cuts off, so that nobody takes it for whole, has failed.
func FuzzTheBufferIsLikeNetHTTP(f *testing.F) {
	f.Add([]byte{5, 0, 3})
	f.Add([]byte{0, 3, 3, 5, 0, 2, 5, 0, 1, 5, 0, 6})
	f.Add([]byte{0, 3, 3})
	f.Add([]byte{0, 3, 3, 1, 3, 0}) // no client can read that
	f.Add([]byte{0, 3, 3, 5, 0, 1})
	f.Add([]byte{4, 2, 0, 5, 0, 1})
	f.Add([]byte{4, 9, 0, 0, 0, 0, 4, 1, 0, 4, 6, 0, 0, 0, 1, 5, 0, 7, 5, 0, 7})
	f.Add([]byte{3, 2, 0, 5, 0, 3})
	f.Add([]byte{0, 4, 6, 5, 0, 3})
	rng := rand.New(rand.NewPCG(7, 7))
	for range 200 {
		ops := make([]byte, 3*(1+rng.IntN(8)))
		for i := range ops {
			ops[i] = byte(rng.Uint32())
		}
		f.Add(ops)
	}
	s := newTwoServers(f)
	f.Fuzz(func(t *testing.T, ops []byte) { s.compare(t, ops) })
}
