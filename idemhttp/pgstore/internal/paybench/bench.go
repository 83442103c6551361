package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore"
)

const (
	schema   = "idem_paybench"
	maxConns = 16
	accounts = 1000
)

var clientCounts = []int{1, 8, 32}

// bench is the four variants, each behind a server of its own.
type bench struct {
	load     load
	pool     *pgxpool.Pool
	client   *http.Client
	variants []*variant
	keys     atomic.Int64
}

type variant struct {
	name    string
	srv     *httptest.Server
	results map[int]*result // by clients
	replays *result         // at 8 clients; nil: it has none
}

// result is what was measured, round by round.
type result struct {
	rates     []float64 // requests per second
	latencies []time.Duration
}

func (r *result) perSecond() float64 { return median(r.rates) }

// relative is the median of what each round has, relative to base in the same
// round: what slows the machine down for a while slows both.
func (r *result) relative(base *result) float64 {
	ratios := make([]float64, len(r.rates))
	for i, rate := range r.rates {
		ratios[i] = rate / base.rates[i]
	}
	return median(ratios)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func (r *result) percentile(p int) time.Duration {
	slices.Sort(r.latencies)
	return r.latencies[(len(r.latencies)-1)*p/100]
}

// load is what an endpoint does in its transaction, and how far away the server is:
// how long a message takes there and back.
type load struct {
	name string
	work func(ctx context.Context, tx pgx.Tx) (id int64, err error)
	away time.Duration
}

var loads = []load{
	{"A payment: an UPDATE of the account, an INSERT of the payment, an INSERT into an outbox.", transfer, 0},
	{"The least there is: one INSERT.", insert, 0},
	{"A payment, with PostgreSQL a millisecond away, there and back.", transfer, time.Millisecond},
}

func open(ctx context.Context, l load) (*bench, error) {
	dsn := os.Getenv("IDEM_POSTGRES_DSN")
	if dsn == "" {
		dsn = "postgres://postgres@127.0.0.1:5432/test?sslmode=disable"
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.MinConns = maxConns, maxConns
	if l.away > 0 {
		cfg.ConnConfig.DialFunc = dialFar(l.away)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	b := &bench{load: l, pool: pool, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	_, err = pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+schema+` CASCADE; CREATE SCHEMA `+schema+`; CREATE TABLE `+schema+`.payments
		(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account int, cents bigint);
		CREATE TABLE `+schema+`.accounts (id int PRIMARY KEY, cents bigint);
		CREATE TABLE `+schema+`.outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event text);
		INSERT INTO `+schema+`.accounts SELECT n, 0 FROM generate_series(1, `+fmt.Sprint(accounts)+`) n`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, err
	}
	return b, b.build(ctx)
}

func (b *bench) close(ctx context.Context) {
	for _, v := range b.variants {
		v.srv.Close()
	}
	_, _ = b.pool.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
	b.pool.Close()
}

func (b *bench) build(ctx context.Context) error {
	store, err := pgstore.New(b.pool, pgstore.WithSchema(schema))
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	policy := idemhttp.Policy{
		Scope:  func(*http.Request) (idemhttp.Scope, error) { return idemhttp.Public(), nil },
		Logger: slog.New(slog.DiscardHandler),
	}
	released, err1 := store.Endpoint("released", policy)
	inTx, err2 := store.Endpoint("in-tx", policy)
	exclusive, err3 := store.Endpoint("exclusive", policy, pgstore.WithExclusive())
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	plain := http.HandlerFunc(b.payInItsOwn)
	b.add("no deduplication", plain, false)
	b.add("claim and release", released.DeduplicateWithResponse(plain), true)
	b.add("in the transaction", inTx.InTx(b.pay), true)
	b.add("in the transaction, exclusive", exclusive.InTx(b.pay), true)
	return nil
}

func (b *bench) add(name string, h http.Handler, replays bool) {
	v := &variant{name: name, srv: httptest.NewServer(h), results: map[int]*result{}}
	for _, n := range clientCounts {
		v.results[n] = &result{}
	}
	if replays {
		v.replays = &result{}
	}
	b.variants = append(b.variants, v)
}

// payInItsOwn is the handler that begins and commits by itself.
func (b *bench) payInItsOwn(w http.ResponseWriter, r *http.Request) {
	tx, err := pgstore.Begin(r.Context(), b.pool)
	if err == nil {
		defer func() { _ = tx.Rollback(r.Context()) }()
		var id int64
		if id, err = b.load.work(r.Context(), tx); err == nil {
			if err = tx.Commit(r.Context()); err == nil {
				answer(w, id)
				return
			}
		}
	}
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// pay is the same in a transaction it is given.
func (b *bench) pay(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	id, err := b.load.work(r.Context(), tx)
	if err != nil {
		return err
	}
	answer(w, id)
	return nil
}

func insert(ctx context.Context, tx pgx.Tx) (id int64, err error) {
	row := tx.QueryRow(ctx, "INSERT INTO "+schema+".payments (account, cents) VALUES ($1, $2) RETURNING id", 1, 500)
	return id, row.Scan(&id)
}

func transfer(ctx context.Context, tx pgx.Tx) (id int64, err error) {
	account := 1 + rand.IntN(accounts)
	if _, err := tx.Exec(ctx, "UPDATE "+schema+".accounts SET cents = cents - $1 WHERE id = $2", 500, account); err != nil {
		return 0, err
	}
	row := tx.QueryRow(ctx, "INSERT INTO "+schema+".payments (account, cents) VALUES ($1, $2) RETURNING id", account, 500)
	if err := row.Scan(&id); err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, "INSERT INTO "+schema+".outbox (event) VALUES ($1)", fmt.Sprintf(`{"payment":%d}`, id))
	return id, err
}

func answer(w http.ResponseWriter, id int64) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprintf("/payments/%d", id))
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"id":%d,"account":"a1","cents":500}`, id)
}

// measure lets all variants take turns. The first round only warms up.
func (b *bench) measure(ctx context.Context, slice time.Duration, rounds int) error {
	for round := range rounds + 1 {
		for _, clients := range clientCounts {
			for i := range b.variants {
				v := b.variants[(i+round)%len(b.variants)]
				keep := v.results[clients]
				if round == 0 {
					keep = &result{}
				}
				if err := b.drive(ctx, v, clients, slice, b.newKey, keep); err != nil {
					return fmt.Errorf("%s, %d clients: %w", v.name, clients, err)
				}
			}
		}
		if err := b.measureReplays(ctx, slice, round == 0); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) newKey() string { return fmt.Sprintf("key-%d", b.keys.Add(1)) }

// measureReplays sends requests that were answered before.
func (b *bench) measureReplays(ctx context.Context, slice time.Duration, warmUp bool) error {
	for _, v := range b.variants {
		if v.replays == nil {
			continue
		}
		keep := v.replays
		if warmUp {
			keep = &result{}
		}
		var n atomic.Int64
		again := func() string { return fmt.Sprintf("replayed-%d", n.Add(1)%100) }
		for range 100 {
			if _, err := b.post(ctx, v, again()); err != nil {
				return err
			}
		}
		if err := b.drive(ctx, v, 8, slice, again, keep); err != nil {
			return fmt.Errorf("%s, replays: %w", v.name, err)
		}
	}
	return nil
}

// drive sends requests from so many clients, for one slice.
func (b *bench) drive(ctx context.Context, v *variant, clients int, slice time.Duration, key func() string, into *result) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		errs  error
		done  int
		start = time.Now()
	)
	for range clients {
		wg.Go(func() {
			var own []time.Duration
			var err error
			for err == nil && time.Since(start) < slice {
				var took time.Duration
				took, err = b.post(ctx, v, key())
				own = append(own, took)
			}
			mu.Lock()
			defer mu.Unlock()
			into.latencies = append(into.latencies, own...)
			done += len(own)
			errs = errors.Join(errs, err)
		})
	}
	wg.Wait()
	into.rates = append(into.rates, float64(done)/time.Since(start).Seconds())
	return errs
}

func (b *bench) post(ctx context.Context, v *variant, key string) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.srv.URL+"/payments", strings.NewReader(`{"account":"a1","cents":500}`))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Idempotency-Key", key)
	start := time.Now()
	resp, err := b.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("answered %s: %s", resp.Status, text)
	}
	return time.Since(start), err
}
