package pgstore_test

import (
	"context"
	"log"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	idem "github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore"
)

// A payment, and the claim of its key, in one transaction.
func ExampleEndpoint_InTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	store, err := pgstore.New(pool)
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	go func() { _ = store.RunReaper(ctx, 10*time.Minute) }()

	payments, err := store.Endpoint("create-payment", idemhttp.Policy{
		Scope: func(r *http.Request) (idemhttp.Scope, error) {
			user, _, _ := r.BasicAuth()
			return idemhttp.Scope{{Name: "user", Value: user}}, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /payments", payments.InTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if _, err := tx.Exec(r.Context(), "INSERT INTO payments (cents) VALUES ($1)", 500); err != nil {
			return err
		}
		pgstore.AfterCommit(r.Context(), func(ctx context.Context) error {
			log.Print("paid")
			return nil
		})
		w.WriteHeader(http.StatusCreated)
		return nil
	}))
}

// repository works in whatever transaction the context carries.
type repository struct{ pool *pgxpool.Pool }

func (r repository) addPayment(ctx context.Context, cents int) error {
	_, err := pgstore.DB(ctx, r.pool).Exec(ctx, "INSERT INTO payments (cents) VALUES ($1)", cents)
	return err
}

// A handler as it was before, with a repository that takes part by DB.
func ExampleEndpoint_InTxMiddleware() {
	var (
		endpoint *pgstore.Endpoint
		repo     repository
	)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := repo.addPayment(r.Context(), 500); err != nil {
			pgstore.Fail(r.Context(), err)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	http.Handle("POST /payments", endpoint.InTxMiddleware(handler))
}

// What a consumer moves to when it outgrows one process: the receiver holds and
// settles as before, and the inbox remembers across processes and restarts.
func ExampleInbox_Do() {
	var inbox *pgstore.Inbox // store.Inbox("billing")
	receiver := idem.Receiver[idem.Delivery]{
		Handle: func(ctx context.Context, d idem.Delivery) error {
			id, err := d.Identity()
			if err != nil {
				return err
			}
			_, err = inbox.Do(ctx, id, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "UPDATE accounts SET cents = cents - 500 WHERE id = 1")
				return err
			})
			return err // nil: handled, now or before: ack it
		},
	}
	_ = receiver
}
