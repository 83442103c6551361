package idemhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

// byUser says that a key belongs to the user who sends it. A real one asks the
// authentication.
func byUser(r *http.Request) (idemhttp.Scope, error) {
	user := r.Header.Get("X-User")
	if user == "" {
		return nil, errors.New("not authenticated")
	}
	return idemhttp.Scope{{Name: "user", Value: user}}, nil
}

func Example() {
	endpoint, err := idemhttp.New(idemhttp.NewMemoryStore(), "create-payment", idemhttp.Policy{Scope: byUser})
	if err != nil {
		log.Fatal(err)
	}
	payments := 0
	mux := http.NewServeMux()
	mux.Handle("POST /payments", endpoint.DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "payment %d", payments)
	})))

	post := func(key, body string) {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
		r.Header.Set("X-User", "ann")
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code == http.StatusCreated {
			fmt.Printf("%d %s replayed=%t\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed") == "true")
		} else {
			fmt.Println(w.Code)
		}
	}
	post("k1", "5 dollars")
	post("k1", "5 dollars")
	post("k1", "9 dollars")
	post("k2", "9 dollars")
	// Output:
	// 201 payment 1 replayed=false
	// 201 payment 1 replayed=true
	// 422
	// 201 payment 2 replayed=false
}

// provider stands for a payment provider: its work can't be rolled back.
type provider struct{}

func (provider) charge(context.Context, string) error { return nil }

// Work that isn't in a database of this process is marked by hand.
func ExampleCommitted() {
	endpoint, err := idemhttp.New(idemhttp.NewMemoryStore(), "charge", idemhttp.Policy{
		Scope:    byUser,
		ClaimTTL: time.Minute, // a charge takes no longer
	})
	if err != nil {
		log.Fatal(err)
	}
	var p provider
	_ = endpoint.DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		idemhttp.Committing(ctx) // from here on nobody knows, until it answers
		if err := p.charge(ctx, r.Header.Get("Idempotency-Key")); err != nil {
			http.Error(w, "the provider didn't answer", http.StatusBadGateway)
			return // a repeat gets 409: it may have been charged
		}
		idemhttp.Committed(ctx)
		_, _ = io.WriteString(w, "charged")
	}))
}

func ExamplePublic() {
	// An endpoint without users: whoever knows a key is given its answer.
	_, err := idemhttp.New(idemhttp.NewMemoryStore(), "sign-up", idemhttp.Policy{
		Scope: func(*http.Request) (idemhttp.Scope, error) { return idemhttp.Public(), nil },
	})
	fmt.Println(err)
	// Output: <nil>
}

func ExampleNew_mistakes() {
	_, err := idemhttp.New(idemhttp.NewMemoryStore(), "create-payment", idemhttp.Policy{
		Scope:   byUser,
		Headers: []string{"Set-Cookie"},
	})
	fmt.Println(err)
	// Output: idemhttp: invalid policy: Policy.Headers[0] "Set-Cookie" belongs to one caller or one connection and is never stored
}
