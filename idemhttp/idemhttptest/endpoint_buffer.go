package idemhttptest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

// bufferTests are about the response writer that an endpoint is given.
var bufferTests = []endpointTest{
	{"headers are those of the first WriteHeader", testHeaderSnapshot},
	{"a content type is found as net/http does", testSniffing},
	{"informational statuses are not final", testInformational},
	{"switching protocols is refused", testSwitching},
	{"an invalid status panics at once", testInvalidStatus},
	{"204 and 304 have no body", testNoBody},
	{"a declared length holds", testContentLength},
	{"fewer bytes than declared are a failure", testShortBody},
	{"flush and hijack are not supported", testNoFlush},
	{"nothing is sent while the endpoint runs", testNothingEarly},
	{"deadlines and full duplex are forwarded", testForwarded},
	{"headers from outside are seen, kept and removed", testOuterHeaders},
	{"trailers reach the first client only", testTrailers},
	{"nothing written is an empty 200", testEmpty},
	{"a response over the limit", testTooLarge},
}

// twice sends the same request twice; both answers must be alike.
func (g *rig) twice(status int, body string) (first, second answer) {
	g.Helper()
	first = g.post().expect(status, body).expectRan()
	second = g.post().expect(status, body).expectReplayed()
	return first, second
}

func testHeaderSnapshot(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Etag", "1")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("Etag", "2")
		w.Header().Set("Link", "late")
		w.WriteHeader(http.StatusInternalServerError) // superfluous: ignored
		_, _ = io.WriteString(w, "x")
	})
	first, second := g.twice(201, "x")
	for _, a := range []answer{first, second} {
		a.expectHeader("Etag", "1").expectHeader("Link", "")
	}
}

func testSniffing(g *rig, _ EndpointConfig) {
	cases := map[string]func(http.ResponseWriter){
		"text/html; charset=utf-8":  func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") },
		"text/plain; charset=utf-8": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "plain") },
		"own/type": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "own/type")
			_, _ = io.WriteString(w, "<html>")
		},
		"": func(w http.ResponseWriter) { // asked not to
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "<html>")
		},
		"application/octet-stream": func(w http.ResponseWriter) {
			_, _ = w.Write([]byte{0, 1, 2})
			_, _ = w.Write([]byte(strings.Repeat("<html>", 100)))
		},
	}
	for want, write := range cases {
		g.serve(g.subject("sniff"+want, policy()).Full(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w) })))
		g.post().expectRan().expectHeader("Content-Type", want)
		g.post().expectReplayed().expectHeader("Content-Type", want)
	}
}

func testInformational(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusProcessing)
		w.Header().Set("Etag", "1")
		w.WriteHeader(http.StatusCreated)
	})
	first, second := g.twice(201, "")
	first.expectHeader("Etag", "1")
	second.expectHeader("Etag", "1").expectHeader("Link", "</style.css>")
}

func testSwitching(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusSwitchingProtocols)
		if _, err := io.WriteString(w, "raw"); err == nil {
			g.Error("Write after 101 returned no error")
		}
	})
	for range 2 {
		g.post().expectProblem(500, idemhttp.Failed)
	}
	g.expectRuns(2)
}

func testInvalidStatus(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		for _, code := range []int{-1, 0, 99, 1000} {
			func() {
				defer func() {
					if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), fmt.Sprint(code)) {
						g.Errorf("WriteHeader(%d) panicked with %v", code, v)
					}
				}()
				w.WriteHeader(code)
			}()
		}
		w.WriteHeader(999)
	})
	g.post().expect(999, "")
}

func testNoBody(g *rig, _ EndpointConfig) {
	for _, status := range []int{204, 304} {
		p := policy()
		p.Keep = func(int) bool { return true }
		g.serve(g.subject(fmt.Sprint(status), p).Full(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				g.Errorf("Write after %d returned %v", status, err)
			}
		})))
		g.twice(status, "")
	}
}

func testContentLength(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "3")
		_, _ = io.WriteString(w, "abc")
		if _, err := io.WriteString(w, "d"); !errors.Is(err, http.ErrContentLength) {
			g.Errorf("Write past the declared length returned %v", err)
		}
	})
	g.twice(200, "abc")
}

// testShortBody: net/http cuts the connection after a body that ends early, so that
// no client takes it for whole. A replay would look whole.
func testShortBody(g *rig, _ EndpointConfig) {
	var parts []string
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "3")
		for _, part := range parts {
			_, _ = io.WriteString(w, part)
		}
	})
	for _, parts = range [][]string{nil, {"ab"}, {"ab", "refused"}} {
		g.post().expectProblem(500, idemhttp.Failed)
	}
	parts = []string{"ab", "c"}
	g.twice(200, "abc")
}

func testNoFlush(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		rc := http.NewResponseController(w)
		if err := rc.Flush(); !errors.Is(err, http.ErrNotSupported) {
			g.Errorf("Flush returned %v", err)
		}
		if _, _, err := rc.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			g.Errorf("Hijack returned %v", err)
		}
		if _, ok := w.(http.Flusher); ok {
			g.Error("the writer is an http.Flusher")
		}
		if _, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			g.Error("the writer can be unwrapped")
		}
		w.WriteHeader(http.StatusCreated)
	})
	g.post().expect(201, "")
}

// watched tells when the client is sent something.
type watched struct {
	http.ResponseWriter
	sent *bool
}

func (w watched) WriteHeader(code int) { *w.sent = true; w.ResponseWriter.WriteHeader(code) }
func (w watched) Write(p []byte) (int, error) {
	*w.sent = true
	return w.ResponseWriter.Write(p)
}

func testNothingEarly(g *rig, _ EndpointConfig) {
	sent := false
	outer := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(watched{w, &sent}, r) })
	}
	g.fullInside(policy(), outer, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
		if sent {
			g.Error("something was sent before the endpoint returned")
		}
	})
	g.post().expect(200, strings.Repeat("x", 10_000))
}

func testForwarded(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		rc := http.NewResponseController(w)
		later := time.Now().Add(time.Minute)
		if err := errors.Join(rc.SetReadDeadline(later), rc.SetWriteDeadline(later), rc.EnableFullDuplex()); err != nil {
			g.Error(err)
		}
	})
	g.post().expect(200, "")
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(-time.Second))
		w.WriteHeader(http.StatusCreated)
	})
	g.post(withKey("k2")).expectNoAnswer()
}

func testOuterHeaders(g *rig, _ EndpointConfig) {
	outer := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request", "outer")
			w.Header().Set("Cache-Control", "outer")
			w.Header().Set("Etag", "outer")
			next.ServeHTTP(w, r)
		})
	}
	g.fullInside(policy(), outer, func(w http.ResponseWriter, _ *http.Request) {
		if w.Header().Get("X-Request") != "outer" {
			g.Error("the endpoint doesn't see a header from outside")
		}
		w.Header().Del("Cache-Control")
		w.Header().Set("Etag", "own")
		w.WriteHeader(http.StatusCreated)
	})
	first, second := g.twice(201, "")
	for _, a := range []answer{first, second} {
		a.expectHeader("X-Request", "outer").expectHeader("Cache-Control", "").expectHeader("Etag", "own")
	}
}

func testTrailers(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "43")
	})
	first, second := g.twice(200, "body")
	if first.trailer.Get("X-Sum") != "42" || first.trailer.Get("X-Late") != "43" {
		g.Errorf("the first client got the trailers %v", first.trailer)
	}
	if len(second.trailer) != 0 || second.header.Get("X-Sum") != "" {
		g.Errorf("the replay has the trailers %v", second.trailer)
	}
}

func testEmpty(g *rig, _ EndpointConfig) {
	g.full(policy(), func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Etag", "e") })
	first, second := g.twice(200, "")
	first.expectHeader("Etag", "e")
	second.expectHeader("Etag", "e").expectHeader("Content-Type", "")
	g.expectRuns(1)
}

func testTooLarge(g *rig, cfg EndpointConfig) {
	p := policy()
	p.MaxResponse = 4
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "<large>")
		body := r.Header.Get("X-Body")
		half := len(body) / 2
		_, _ = io.WriteString(w, body[:half])
		_, _ = io.WriteString(w, body[half:])
	})
	g.post(withHeaderOf("X-Body", "1234")).expect(200, "1234")
	g.post(withHeaderOf("X-Body", "1234")).expect(200, "1234").expectReplayed()
	g.expectRuns(1)
	large := func() answer { return g.post(withKey("k2"), withHeaderOf("X-Body", "12345")) }
	if cfg.InTx {
		for range 2 { // nothing is committed, nothing is kept
			large().expectProblem(500, idemhttp.Failed).expectHeader("Link", "")
		}
		g.expectRuns(3)
		return
	}
	large().expect(200, "12345")
	large().expectProblem(409, idemhttp.NoAnswer)
	g.expectRuns(2)
}
