package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idem-go/idem/idemhttp"
)

// payment is one payment, as clients see it.
type payment struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

// books is where payments are written.
type books interface {
	// pay writes p. beforeCommit is called when it is written and not yet
	// committed; an error of it undoes the payment. An error after which the
	// payment may have been made wraps errOutcomeUnknown.
	pay(ctx context.Context, user string, p payment, beforeCommit func() error) error
	list(ctx context.Context, user string) ([]payment, error)
}

// service is the endpoints without their deduplication.
type service struct {
	books  books
	mode   string
	faults bool
	log    *slog.Logger
}

var errNoUser = errors.New("the header X-User is missing")

// user is who asks. A real service takes it from its authentication.
func user(r *http.Request) (string, error) {
	if u := r.Header.Get("X-User"); u != "" {
		return u, nil
	}
	return "", errNoUser
}

// isText tells whether a database can store s as text.
func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// checkUser refuses a user that can't be one, before anything asks who it is.
func checkUser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, err := user(r); err == nil && !isText(u) {
			problem(w, http.StatusBadRequest, "the header X-User is no text in UTF-8")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// policy is how the service wants its requests deduplicated.
func (s *service) policy() idemhttp.Policy {
	return idemhttp.Policy{
		Scope: func(r *http.Request) (idemhttp.Scope, error) {
			u, err := user(r)
			return idemhttp.Scope{{Name: "user", Value: u}}, err
		},
		ClaimTTL:    30 * time.Second, // a payment takes no longer; a dead process refuses no longer
		Fingerprint: idemhttp.CanonicalJSON(),
		Logger:      s.log,
	}
}

// routes puts the endpoint that pays, deduplicated already, beside the others.
func (s *service) routes(pay http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /payments", pay)
	mux.HandleFunc("GET /payments", s.list)
	mux.HandleFunc("GET /payments/{id}", s.get)
	return logged(s.log, checkUser(mux))
}

// pay handles POST /payments. An error means that nothing is to be kept.
func (s *service) pay(w http.ResponseWriter, r *http.Request) error {
	u, err := user(r)
	if err != nil {
		return err // the scope has seen to it
	}
	p, err := readPayment(r.Body)
	if err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return nil
	}
	f, err := s.faultsOf(r)
	if err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return nil
	}
	if err := s.books.pay(r.Context(), u, p, func() error { return f.beforeCommit(r.Context()) }); err != nil {
		return fmt.Errorf("pay %d cents to %s: %w", p.Cents, p.Account, err)
	}
	f.afterCommit()
	w.Header().Set("Location", "/payments/"+p.ID)
	answer(w, http.StatusCreated, p)
	return nil
}

// plain is pay for release mode, where an error is answered here.
func (s *service) plain(w http.ResponseWriter, r *http.Request) {
	if err := s.pay(w, r); err != nil {
		s.log.Error("payment failed", "error", err)
		problem(w, http.StatusInternalServerError, failure(err))
	}
}

// errOutcomeUnknown is wrapped by the error of a commit: it may have happened,
// and only its answer been lost.
var errOutcomeUnknown = errors.New("whether the payment was made isn't known")

// failure is what the client is told: not that nothing was done, unless that is
// so.
func failure(err error) string {
	if errors.Is(err, errOutcomeUnknown) {
		return "Whether the payment was made isn't known: look at your payments before you try again"
	}
	return "The payment failed and was not made"
}

const maxAccount = 64

func readPayment(body io.Reader) (payment, error) {
	var p payment
	dec := json.NewDecoder(body)
	if err := dec.Decode(&p); err != nil {
		return p, fmt.Errorf("the body is no payment: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return p, errors.New("the body has something behind the payment")
	}
	switch {
	case p.Account == "" || len(p.Account) > maxAccount:
		return p, fmt.Errorf("account must have 1 to %d bytes", maxAccount)
	case !isText(p.Account):
		return p, errors.New("account must be text without NUL")
	case p.Cents < 1:
		return p, fmt.Errorf("cents must be at least 1, not %d", p.Cents)
	}
	p.ID = newID()
	return p, nil
}

func (s *service) list(w http.ResponseWriter, r *http.Request) {
	if all, ok := s.mine(w, r); ok {
		answer(w, http.StatusOK, struct {
			Count    int       `json:"count"`
			Payments []payment `json:"payments"`
		}{len(all), all})
	}
}

func (s *service) get(w http.ResponseWriter, r *http.Request) {
	all, ok := s.mine(w, r)
	if !ok {
		return
	}
	for _, p := range all {
		if p.ID == r.PathValue("id") {
			answer(w, http.StatusOK, p)
			return
		}
	}
	problem(w, http.StatusNotFound, "no such payment")
}

// mine is the caller's payments. ok is false where the answer is written.
func (s *service) mine(w http.ResponseWriter, r *http.Request) (all []payment, ok bool) {
	u, err := user(r)
	if err != nil {
		problem(w, http.StatusUnauthorized, err.Error())
		return nil, false
	}
	if all, err = s.books.list(r.Context(), u); err != nil {
		s.log.Error("listing failed", "error", err)
		problem(w, http.StatusInternalServerError, "The payments can't be listed")
		return nil, false
	}
	return all, true
}
