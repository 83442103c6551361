package idemhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
)

// FuzzCallers sends requests that two callers could have made, with everything
// that tells them apart chosen by the fuzzer, and compares with a model that
// knows nothing of hashes: no answer ever reaches another caller, another
// endpoint, another key or another request.
func FuzzCallers(f *testing.F) {
	f.Add("pay", "ann", "t1", "k", "a", "pay", "ann", "t1", "k", "a", false, false)
	f.Add("pay", "ann", "t1", "k", "a", "pay", "ann", "t1", "k", "b", false, true)
	f.Add("pay", "ann", "t1", "k", "a", "pay", "an", "nt1", "k", "a", true, true)
	f.Add("pay", "ann", "t1", "k", "a", "pa", "yann", "t1", "k", "a", true, false)
	f.Add("pay", "ann", "t1", "k", "a", "pay", "ann", "t1k", "", "a", true, false)
	f.Add("pay", "ann", "", "k", "a", "pay", "", "", "k", "a", true, false)
	f.Add("pay", "ann", "t", " k ", "a", "pay", "ann", "t", "k", "a", false, false)
	f.Add("pay", "ann", "t", `a"b\c`, "a", "pay", "ann", "t", `a"b`, "a", true, true)
	f.Add("pay", "ann", "t", strings.Repeat("k", 255), "a", "pay", "ann", "t", strings.Repeat("k", 256), "a", true, false)
	f.Fuzz(func(t *testing.T, name1, user1, tenant1, key1, body1, name2, user2, tenant2, key2, body2 string, quoted1, quoted2 bool) {
		w := newWorld(t)
		requests := []fuzzRequest{{name1, user1, tenant1, key1, body1, quoted1}, {name2, user2, tenant2, key2, body2, quoted2}}
		for _, i := range []int{0, 1, 0, 1, 1, 0} {
			w.send(requests[i])
		}
	})
}

type fuzzRequest struct {
	name, user, tenant, key, body string
	quoted                        bool
}

// world is a store with endpoints on it, and the model of it.
type world struct {
	*testing.T
	store     *idemhttp.MemoryStore
	endpoints map[string]http.Handler
	runs      int
	model     map[[4]string]known // by name, user, tenant and key
}

type known struct{ body, answer string }

func newWorld(t *testing.T) *world {
	return &world{T: t, store: idemhttp.NewMemoryStore(), endpoints: map[string]http.Handler{}, model: map[[4]string]known{}}
}

func (w *world) endpoint(name string) http.Handler {
	if h, ok := w.endpoints[name]; ok {
		return h
	}
	e, err := idemhttp.New(w.store, name, idemhttp.Policy{Scope: func(r *http.Request) (idemhttp.Scope, error) {
		return idemhttp.Scope{{Name: "user", Value: r.Header["User"][0]}, {Name: "tenant", Value: r.Header["Tenant"][0]}}, nil
	}})
	require.NoError(w, err)
	w.endpoints[name] = e.DeduplicateWithResponse(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.runs++
		body, err := io.ReadAll(r.Body)
		assert.NoError(w, err)
		_, _ = fmt.Fprintf(rw, "run %d for %q at %q with %q", w.runs, r.Header["User"][0], name, body)
	}))
	return w.endpoints[name]
}

func (w *world) send(q fuzzRequest) {
	if strings.TrimSpace(q.name) == "" {
		return
	}
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(q.body))
	header, key := q.header()
	r.Header["Idempotency-Key"], r.Header["User"], r.Header["Tenant"] = []string{header}, []string{q.user}, []string{q.tenant}
	rec := httptest.NewRecorder()
	before := w.runs
	w.endpoint(q.name).ServeHTTP(rec, r)

	id := [4]string{q.name, q.user, q.tenant, key}
	first, repeated := w.model[id]
	switch {
	case q.user == "" || q.tenant == "":
		assert.Equal(w, 401, rec.Code)
	case key == "":
		assert.Equal(w, 400, rec.Code, "%q", header)
	case repeated && first.body != q.body:
		assert.Equal(w, 422, rec.Code)
	case repeated:
		assert.Equal(w, 200, rec.Code)
		assert.Equal(w, first.answer, rec.Body.String())
		assert.Equal(w, "true", rec.Header().Get("Idempotent-Replayed"))
	default:
		assert.Equal(w, 200, rec.Code, "%q: %s", header, rec.Body)
		assert.Equal(w, before+1, w.runs)
		w.model[id] = known{q.body, rec.Body.String()}
		return
	}
	assert.Equal(w, before, w.runs)
}

// header is what the client sends, and the key that it means by it: empty if
// that is no key.
func (q fuzzRequest) header() (header, key string) {
	header, key = q.key, strings.Trim(q.key, " \t")
	if q.quoted {
		key = q.key
		header = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(q.key) + `"`
	} else if strings.ContainsAny(key, `",;`) {
		return header, ""
	}
	if strings.Trim(key, " \t") == "" || len(key) > 255 {
		return header, ""
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] == 0x7f {
			return header, ""
		}
	}
	return header, key
}
