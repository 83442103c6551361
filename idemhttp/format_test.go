package idemhttp

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Both are storage formats: should one of these change, every stored claim is
// forgotten, or refused.
func TestStorageFormats(t *testing.T) {
	id := storageID("pay", Scope{{"user", "ann"}, {"tenant", "t1"}}, "k1")
	assert.Equal(t, "b70748d6a974d2179072c4c20180e6baaf6032e32ec007e08dc2cf4ea9847315", hex.EncodeToString(id[:]))

	r := httptest.NewRequest(http.MethodPost, "/payments?x=1", nil)
	sum, err := rawBody().sum(r, []byte(`{"a":1}`))
	require.NoError(t, err)
	assert.Equal(t, "raw/1", sum.Version)
	assert.Equal(t, "eb860ec548d5a3fd5b20b92fa4ec20a17c7e1ea90581234005a6e4f945dbdb3b", hex.EncodeToString(sum.Hash[:]))

	sum, err = CanonicalJSON().sum(r, []byte(`{"b":[1.50,"é"],"a":null}`))
	require.NoError(t, err)
	assert.Equal(t, "json/1", sum.Version)
	assert.Equal(t, "5c12a36187a6984b25527ab7b15e8ea4afdd683b2373f3c1cc7e98e2055279ca", hex.EncodeToString(sum.Hash[:]))
}

func TestIDsThatAreAlike(t *testing.T) {
	ids := map[ID]string{}
	add := func(what string, id ID) {
		require.NotContains(t, ids, id, "%s has the id of %s", what, ids[id])
		ids[id] = what
	}
	add("plain", storageID("n", Scope{{"a", "b"}}, "k"))
	add("parts swapped", storageID("n", Scope{{"b", "a"}}, "k"))
	add("moved a byte", storageID("n", Scope{{"ab", ""}}, "k"))
	add("moved to the key", storageID("n", Scope{{"a", ""}}, "bk"))
	add("moved to the name", storageID("na", Scope{{"", "b"}}, "k"))
	add("no scope", storageID("n", nil, "k"))
	add("key and scope swapped", storageID("n", Scope{{"a", "k"}}, "b"))
	add("two parts", storageID("n", Scope{{"a", "b"}, {"c", "d"}}, "k"))
	add("two parts, the other way round", storageID("n", Scope{{"c", "d"}, {"a", "b"}}, "k"))
	add("public", storageID("n", Public(), "k"))
}

func TestSentPath(t *testing.T) {
	for target, want := range map[string]string{
		"/a/b?c=/d":                "/a/b",
		"/a%2Fb":                   "/a%2Fb",
		"http://host/a/b?c":        "/a/b",
		"https://host:1/a":         "/a",
		"http://host":              "/",
		"/redirect/http://other/x": "/redirect/http://other/x",
		"*":                        "*",
	} {
		r := httptest.NewRequest(http.MethodPost, "/other", nil)
		r.RequestURI = target
		assert.Equal(t, want, sentPath(r), target)
	}
	made, err := http.NewRequest(http.MethodPost, "http://host/a%2Fb?c", nil)
	require.NoError(t, err)
	assert.Equal(t, "/a%2Fb", sentPath(made), "a request that no server has made")
}

func TestEveryReasonIsADifferentProblem(t *testing.T) {
	types := map[string]bool{}
	for r := NoScope; r <= Failed; r++ {
		f := newRefusal(r, nil)
		assert.NotEmpty(t, f.Title())
		assert.GreaterOrEqual(t, f.Status, 400)
		assert.False(t, types[f.Type()], f.Type())
		types[f.Type()] = true

		w := httptest.NewRecorder()
		w.Header().Set("Content-Length", "7")
		WriteProblem(w, f)
		assert.Equal(t, f.Status, w.Code)
		assert.JSONEq(t, `{"type":"`+f.Type()+`","title":"`+f.Title()+`","status":`+strconv.Itoa(f.Status)+`}`, w.Body.String())
		assert.Empty(t, w.Header().Get("Content-Length"))
	}
	assert.Len(t, types, len(problems))
	assert.Equal(t, "Reason(14)", Reason(14).String())
	assert.Equal(t, "Reason(14)", Refusal{Reason: 14}.Title())
}

func TestEnumsHaveNames(t *testing.T) {
	assert.Equal(t, "Running Unanswered Answered State(3)",
		Running.String()+" "+Unanswered.String()+" "+Answered.String()+" "+State(3).String())
	assert.Equal(t, "LostRace", EventLostRace.String())
	assert.Equal(t, "EventKind(6)", EventKind(6).String())
}

// The type of a problem is an address: there must be something at it.
func TestTheGuideExplainsEveryProblem(t *testing.T) {
	guide, err := os.ReadFile("../docs/idempotent-http.md")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the guide isn't part of the module")
	}
	require.NoError(t, err)
	for r := NoScope; r <= Failed; r++ {
		assert.Contains(t, string(guide), `<a id="`+r.String()+`"></a>`)
	}
}
