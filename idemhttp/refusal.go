package idemhttp

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// Reason says why a request was refused, or failed.
type Reason uint8

const (
	// NoScope: [Policy.Scope] found nobody to ask for (401).
	NoScope Reason = iota
	// KeyMissing: the key is required and there is none (400).
	KeyMissing
	// KeyInvalid: blank, sent twice, over 255 bytes, unbalanced quotes or with
	// parameters (400).
	KeyInvalid
	// BodyTooLarge: the request's body is over [Policy.MaxBody] (413).
	BodyTooLarge
	// BodyUnreadable: the request's body ended early, or can't be read (400).
	BodyUnreadable
	// BodyConsumed: something outside the endpoint has read the body, so that
	// every body would look alike. It is a fault in the server (500).
	BodyConsumed
	// NoFingerprint: [Fingerprint.Of] returned an error (400).
	NoFingerprint
	// KeyReused: the key belongs to a different request (422).
	KeyReused
	// InProgress: the first request is still running. Retry later (409, with
	// Retry-After).
	InProgress
	// NoAnswer: the work was done before, and its answer isn't stored. Don't
	// retry (409).
	NoAnswer
	// ReplayDenied: [Policy.ReplayCheck] returned an error (403).
	ReplayDenied
	// StoreDown: whether the request was seen before can't be told (503).
	StoreDown
	// OutcomeUnknown: the connection was lost and the work may or may not be
	// done. A retry tells (503).
	OutcomeUnknown
	// Failed: the endpoint failed without an answer of its own. A repeat runs it
	// again, unless its work was committed before it failed. The default OnError
	// answers with it (500).
	Failed
)

// String returns the last part of the problem's type, such as "key-missing", or
// "Reason(n)" for a value that has none.
func (r Reason) String() string {
	if int(r) < len(problems) {
		return problems[r].slug
	}
	return enumName("Reason", uint8(r))
}

// ProblemBase is what the types of all problems begin with. Behind it comes the
// reason, as [Reason.String] has it. The page explains each of them.
const ProblemBase = "https://github.com/idem-go/idem/blob/main/docs/idempotent-http.md#"

var problems = [...]struct {
	slug   string
	status int
	title  string
	sayWhy bool // the error is about what the client sent, in words of this package
}{
	NoScope:        {"no-scope", http.StatusUnauthorized, "The caller is not known", false},
	KeyMissing:     {"key-missing", http.StatusBadRequest, "The idempotency key is missing", true},
	KeyInvalid:     {"key-invalid", http.StatusBadRequest, "The idempotency key is not valid", true},
	BodyTooLarge:   {"body-too-large", http.StatusRequestEntityTooLarge, "The request body is too large", true},
	BodyUnreadable: {"body-unreadable", http.StatusBadRequest, "The request body can't be read to its end", false},
	BodyConsumed:   {"body-consumed", http.StatusInternalServerError, "The request body was read before the endpoint", false},
	NoFingerprint:  {"no-fingerprint", http.StatusBadRequest, "The request can't be compared with others", false},
	KeyReused:      {"key-reused", http.StatusUnprocessableEntity, "The idempotency key belongs to a different request", false},
	InProgress:     {"in-progress", http.StatusConflict, "The first request with this key is still running", false},
	NoAnswer:       {"no-answer", http.StatusConflict, "The request was handled before and its answer is not stored", false},
	ReplayDenied:   {"replay-denied", http.StatusForbidden, "The stored answer is not for this caller", false},
	StoreDown:      {"store-down", http.StatusServiceUnavailable, "Whether the request was seen before can't be told", false},
	OutcomeUnknown: {"outcome-unknown", http.StatusServiceUnavailable, "Whether the request was handled can't be told: retry it", false},
	Failed:         {"failed", http.StatusInternalServerError, "The request failed", false},
}

// Refusal is an answer that the middleware gives instead of the endpoint.
type Refusal struct {
	Reason     Reason
	Status     int
	RetryAfter time.Duration // 0: no such header
	Detail     string        // for the client; never what the store or the server said
	Err        error         // for the log; may be nil
}

// Type is the refusal's problem type, a URL.
func (f Refusal) Type() string { return ProblemBase + f.Reason.String() }

// Title says in a few words what the reason means.
func (f Refusal) Title() string {
	if int(f.Reason) < len(problems) {
		return problems[f.Reason].title
	}
	return f.Reason.String()
}

// retryAfter is what a client is told that comes while the first runs.
const retryAfter = time.Second

func newRefusal(reason Reason, err error) Refusal {
	f := Refusal{Reason: reason, Status: problems[reason].status, Err: err}
	if reason == InProgress {
		f.RetryAfter = retryAfter
	}
	if err != nil && problems[reason].sayWhy {
		f.Detail = err.Error()
	}
	return f
}

// WriteProblem writes f as application/problem+json (RFC 9457). It is what
// happens where [Policy.Refuse] is nil.
func WriteProblem(w http.ResponseWriter, f Refusal) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Del("Content-Length")
	if f.RetryAfter > 0 {
		seconds := (f.RetryAfter + time.Second - 1) / time.Second
		h.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	w.WriteHeader(f.Status)
	body, _ := json.Marshal(problem{f.Type(), f.Title(), f.Status, f.Detail}) // strings and an int: no error
	_, _ = w.Write(append(body, '\n'))
}

type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}
