package idemhttp

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReplayCheckReadsTheBodyAfterALostRace: what pgstore does when the endpoint
// has run and lost.
func TestReplayCheckReadsTheBodyAfterALostRace(t *testing.T) {
	var seen string
	e, err := New(NewMemoryStore(), "x", Policy{
		Scope: func(*http.Request) (Scope, error) { return Public(), nil },
		ReplayCheck: func(r *http.Request) error {
			body, err := io.ReadAll(r.Body)
			seen = string(body)
			return err
		},
	})
	require.NoError(t, err)
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader("the body"))
	r.Header.Set(DefaultHeader, "k")
	x, ok := e.open(w, r)
	require.True(t, ok)
	_, err = io.ReadAll(x.Request.Body)
	require.NoError(t, err)
	x.AnswerFrom(Record{Claim: x.Claim, State: Answered, Response: &Response{Status: http.StatusCreated}})
	assert.Equal(t, http.StatusCreated, w.Code)
	assert.Equal(t, "the body", seen)
}
