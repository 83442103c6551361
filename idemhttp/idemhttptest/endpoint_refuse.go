package idemhttptest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

// refusalTests are the answers that the endpoint has no part in.
var refusalTests = []endpointTest{
	{"a required key is missing", testKeyMissing},
	{"a key that is not valid", testKeyInvalid},
	{"a key of 255 bytes is allowed", testKeyLength},
	{"no scope for the caller", testNoScope},
	{"the same key for another request", testKeyReused},
	{"a path that was stripped counts", testStrippedPath},
	{"a body over the limit", testBodyTooLarge},
	{"a body that is cut short", testBodyCutShort},
	{"a body that somebody has read", testBodyConsumed},
	{"a fingerprint that fails", testFingerprintFails},
	{"scope, then key, then body", testOrder},
	{"a replay that is not for the caller", testReplayCheck},
	{"Refuse replaces the problems", testRefuse},
	{"events", testEvents},
}

func testKeyMissing(g *rig, _ EndpointConfig) {
	g.full(policy(), g.created)
	g.post(withKey()).expectProblem(400, idemhttp.KeyMissing)
	g.expectRuns(0)
}

func testKeyInvalid(g *rig, _ EndpointConfig) {
	g.full(policy(), g.created)
	for _, keys := range [][]string{
		{""}, {"  "}, {`""`}, {`"  "`}, {"a", "a"}, {`"abc`}, {`abc"`}, {`a"b`}, {`"a"b"`}, {`"`},
		{`"abc";v=1`}, {`abc;v=1`}, {`"a", "b"`}, {"a,b"}, {`"a\x"`}, {`"a\`}, {`"a\"`},
		{strings.Repeat("x", 256)}, {`"` + strings.Repeat("x", 256) + `"`},
	} {
		a := g.post(withKey(keys...)).expectProblem(400, idemhttp.KeyInvalid)
		if g.Failed() {
			g.Fatalf("with the key %q: %s", keys, a.body)
		}
	}
	g.expectRuns(0)
}

func testKeyLength(g *rig, _ EndpointConfig) {
	g.full(policy(), g.created)
	key := strings.Repeat("x", 254)
	g.post(withKey(key+"y")).expect(201, "run 1")
	g.post(withKey(`"`+key+`y"`)).expect(201, "run 1").expectReplayed()
	g.post(withKey(`"`+key+`\\"`)).expect(201, "run 2").expectRan()
	g.post(withKey(key+"z")).expect(201, "run 3").expectRan()
}

func testNoScope(g *rig, _ EndpointConfig) {
	for name, scope := range map[string]func(*http.Request) (idemhttp.Scope, error){
		"an error":       func(*http.Request) (idemhttp.Scope, error) { return idemhttp.Public(), errors.New("who?") },
		"nil":            func(*http.Request) (idemhttp.Scope, error) { return nil, nil },
		"an empty value": userScope,
		"an empty name":  func(*http.Request) (idemhttp.Scope, error) { return idemhttp.Scope{{Value: "ann"}}, nil },
		"half empty": func(*http.Request) (idemhttp.Scope, error) {
			return append(idemhttp.Public(), idemhttp.Part{Name: "user"}), nil
		},
	} {
		p := policy()
		p.Scope = scope
		g.full(p, g.created)
		g.post(asUser("")).expectProblem(401, idemhttp.NoScope)
		if g.Failed() {
			g.Fatalf("with a scope that is %s", name)
		}
	}
	g.expectRuns(0)
	p := policy()
	p.Scope = func(*http.Request) (idemhttp.Scope, error) { return idemhttp.Public(), nil }
	g.full(p, g.created)
	g.post(asUser("ann")).expect(201, "run 1")
	g.post(asUser("bob")).expect(201, "run 1").expectReplayed()
}

func testKeyReused(g *rig, _ EndpointConfig) {
	p := policy()
	p.Methods = []string{"POST", "PUT"}
	g.full(p, g.created)
	g.post().expect(201, "run 1")
	for _, other := range []reqOption{
		withBodyOf(`{"n":2}`), withBodyOf(""), withMethod("PUT"),
		withPath("/others"), withPath("/things?a=1"), withPath("/things/"),
	} {
		g.post(other).expectProblem(422, idemhttp.KeyReused)
	}
	g.post().expect(201, "run 1").expectReplayed()
	g.expectRuns(1)
}

func testStrippedPath(g *rig, _ EndpointConfig) {
	guarded := g.subject("test", policy()).Full(g.counted(g.created))
	mux := http.NewServeMux()
	for _, prefix := range []string{"/v1/a", "/v1/b"} {
		mux.Handle(prefix+"/", http.StripPrefix(prefix, guarded))
	}
	g.serve(mux)
	g.post(withPath("/v1/a/x")).expect(201, "run 1")
	g.post(withPath("/v1/b/x")).expectProblem(422, idemhttp.KeyReused)
	g.post(withPath("/v1/a/x")).expect(201, "run 1").expectReplayed()
}

func testBodyTooLarge(g *rig, _ EndpointConfig) {
	p := policy()
	p.MaxBody = 8
	g.full(p, g.created)
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	g.post(withBodyOf("12345678")).expect(201, "run 1")
	g.post(withBodyOf("12345678"), chunked).expect(201, "run 1").expectReplayed()
	g.post(withBodyOf("123456789")).expectProblem(413, idemhttp.BodyTooLarge)
	g.post(withBodyOf("123456789"), chunked).expectProblem(413, idemhttp.BodyTooLarge)
	g.expectRuns(1)
}

// testBodyCutShort ends a request's body before its Content-Length.
func testBodyCutShort(g *rig, _ EndpointConfig) {
	g.full(policy(), g.created)
	conn, err := net.Dial("tcp", g.srv.Listener.Addr().String())
	if err != nil {
		g.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, err = io.WriteString(conn, "POST /things HTTP/1.1\r\nHost: x\r\nX-User: ann\r\nIdempotency-Key: k1\r\nContent-Length: 10\r\n\r\nhalf")
	if err != nil {
		g.Fatal(err)
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		g.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	answer{g: g, status: resp.StatusCode, header: resp.Header, body: string(body), err: err}.
		expectProblem(400, idemhttp.BodyUnreadable)
	g.expectRuns(0)
}

func testBodyConsumed(g *rig, _ EndpointConfig) {
	outer := func(read func(*http.Request)) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				read(r)
				next.ServeHTTP(w, r)
			})
		}
	}
	form := withHeaderOf("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	multipart := withHeaderOf("Content-Type", "multipart/form-data; boundary=x")
	parts := withBodyOf("--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--\r\n")

	g.fullInside(policy(), outer(func(r *http.Request) { r.FormValue("a") }), g.created)
	g.post(form, withBodyOf("a=1")).expectProblem(500, idemhttp.BodyConsumed)
	g.post(form, withBodyOf("a=1"), chunked).expectProblem(500, idemhttp.BodyConsumed)
	g.post(multipart, parts).expectProblem(500, idemhttp.BodyConsumed)
	g.expectRuns(0)
	g.post(withBodyOf(`{"a":1}`)).expect(201, "run 1") // FormValue leaves what is no form alone

	g.runs.Store(0)
	g.fullInside(policy(), outer(func(r *http.Request) { _, _ = io.ReadAll(r.Body) }), g.created)
	g.post(withKey("k2")).expectProblem(500, idemhttp.BodyConsumed)
	g.fullInside(policy(), outer(func(r *http.Request) { _, _ = r.Body.Read(make([]byte, 2)) }), g.created)
	g.post(withKey("k2")).expectProblem(500, idemhttp.BodyConsumed)
	for _, none := range []io.ReadCloser{nil, http.NoBody} {
		g.fullInside(policy(), outer(func(r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			r.Body = none
		}), g.created)
		g.post(withKey("k2")).expectProblem(500, idemhttp.BodyConsumed)
	}
	g.expectRuns(0)
	g.post(withKey("k3"), withBodyOf("")).expect(201, "run 1") // there was none
	g.runs.Store(0)
	restored := func(r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
	}
	g.fullInside(policy(), outer(restored), g.created)
	g.post(withKey("k2")).expect(201, "run 1")
}

func testFingerprintFails(g *rig, _ EndpointConfig) {
	p := policy()
	p.Fingerprint = idemhttp.Fingerprint{Version: "mine/1", Of: func(r *http.Request, body []byte) ([]byte, error) {
		if string(body) == "bad" {
			return nil, errors.New("no")
		}
		_, _ = io.ReadAll(r.Body) // allowed to look
		return body[:1], nil
	}}
	g.full(p, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	g.post(withBodyOf("bad")).expectProblem(400, idemhttp.NoFingerprint)
	g.expectRuns(0)
	g.post(withBodyOf("abc")).expect(200, "abc").expectRan()
	g.post(withBodyOf("axx")).expect(200, "abc").expectReplayed()
	g.post(withBodyOf("xbc")).expectProblem(422, idemhttp.KeyReused)

	// Another version isn't compared.
	q := policy()
	q.Fingerprint = idemhttp.Fingerprint{Version: "mine/2", Of: func(*http.Request, []byte) ([]byte, error) { return nil, nil }}
	g.full(q, g.created)
	g.post(withBodyOf("xbc")).expect(200, "abc").expectReplayed()
	g.expectRuns(1)
}

func testOrder(g *rig, _ EndpointConfig) {
	p := policy()
	p.MaxBody = 1
	g.full(p, g.created)
	g.post(asUser(""), withKey()).expectProblem(401, idemhttp.NoScope)
	g.post(withKey()).expectProblem(400, idemhttp.KeyMissing)
	g.post().expectProblem(413, idemhttp.BodyTooLarge)
	g.expectRuns(0)
}

func testReplayCheck(g *rig, _ EndpointConfig) {
	p := policy()
	p.ReplayCheck = func(r *http.Request) error {
		if r.Header.Get("X-Role") == "none" {
			return errors.New("no longer allowed")
		}
		return nil
	}
	g.full(p, g.created)
	role := withHeaderOf("X-Role", "none")
	g.post(role).expect(201, "run 1").expectRan() // it is about replays only
	g.post(role).expectProblem(403, idemhttp.ReplayDenied).expectHeader("Location", "")
	g.post().expect(201, "run 1").expectReplayed()
}

func testRefuse(g *rig, _ EndpointConfig) {
	p := policy()
	p.Refuse = func(w http.ResponseWriter, _ *http.Request, f idemhttp.Refusal) {
		w.WriteHeader(499)
		_, _ = io.WriteString(w, f.Reason.String())
	}
	g.full(p, g.created)
	g.post(asUser("")).expect(499, "no-scope")
	g.post(withKey()).expect(499, "key-missing")
	g.post().expect(201, "run 1")
	g.post(withBodyOf("x")).expect(499, "key-reused")
}

func testEvents(g *rig, _ EndpointConfig) {
	p := policy()
	var seen eventLog
	p.Observe = seen.add
	g.full(p, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Fail") != "" {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		g.created(w, r)
	})
	g.post(withHeaderOf("X-Fail", "1"))
	g.post()
	g.post()
	g.post(withBodyOf("other"))
	g.post(withKey())
	seen.expect(g, "test Released 400", "test Ran 201", "test Replayed 201", "test Refused 422 key-reused", "test Refused 400 key-missing")
}
