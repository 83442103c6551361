package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// storm sends n requests with keys of their own from many clients, each retried
// until it is answered 201. It returns what each was answered last.
func (a *app) storm(h http.Handler, n, clients int) []string {
	answers := make([]string, n)
	var next, retries atomic.Int64
	together(clients, func(int) struct{} {
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			answers[i] = a.insist(h, fmt.Sprintf("k%d", i), &retries)
		}
		return struct{}{}
	})
	a.t.Logf("%d requests, %d retries, %d runs", n, retries.Load(), a.runs.Load())
	return answers
}

// insist retries as a client does, and returns the answer.
func (a *app) insist(h http.Handler, id string, retries *atomic.Int64) string {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		w := send(h, key(id), header("X-Note", id))
		switch w.Code {
		case 201:
			return w.Body.String()
		case 500, 503:
			retries.Add(1)
			pause := time.NewTimer(time.Duration(rand.IntN(int(5 * time.Millisecond))))
			<-pause.C
		default:
			a.t.Errorf("%s: %d %s", id, w.Code, w.Body)
			return ""
		}
	}
	a.t.Errorf("%s never got through", id)
	return ""
}

// expectOnceEach: as many payments as answered claims as requests, and each
// request was told of its own payment.
func (a *app) expectOnceEach(conn *pgx.Conn, answers []string) {
	t := a.t
	ctx := context.Background()
	var payments, keys, claims int
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(*), count(DISTINCT note) FROM payments").Scan(&payments, &keys))
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM idem_claims WHERE state = 2").Scan(&claims))
	assert.Equal(t, len(answers), payments)
	assert.Equal(t, len(answers), keys)
	assert.Equal(t, len(answers), claims)
	rows, err := conn.Query(ctx, "SELECT note, id FROM payments")
	require.NoError(t, err)
	told := map[string]string{}
	for i, answer := range answers {
		told[fmt.Sprintf("k%d", i)] = answer
	}
	var note string
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&note, &id}, func() error {
		assert.Equal(t, fmt.Sprintf("payment %d", id), told[note], note)
		return nil
	})
	require.NoError(t, err)
}

// TestBackendsKilledUnderLoad: the server ends a random session of the app's
// every few milliseconds, under 3,000 requests.
func TestBackendsKilledUnderLoad(t *testing.T) {
	n := 3000
	if testing.Short() {
		n = 300
	}
	a := newApp(t, func(cfg *poolConfig) { cfg.ConnConfig.RuntimeParams["application_name"] = "idem_killed" })
	stop := make(chan struct{})
	var killer sync.WaitGroup
	var kills int
	killer.Go(func() { kills = a.killEvery(5, stop) })
	answers := a.storm(a.inTx(pay), n, 8)
	close(stop)
	killer.Wait()
	t.Logf("%d backends killed", kills)
	assert.Greater(t, kills, n/100)
	conn := a.connect()
	defer conn.Close(context.Background())
	a.expectOnceEach(conn, answers)
}

// killEvery kills a backend after every so many runs, not after some time: on a slow
// machine they would be killed faster than they can do anything.
func (a *app) killEvery(runs int64, stop <-chan struct{}) (kills int) {
	conn := a.connect()
	defer conn.Close(context.Background())
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for next := runs; ; {
		select {
		case <-stop:
			return kills
		case <-tick.C:
		}
		if a.runs.Load() < next {
			continue
		}
		next = a.runs.Load() + runs
		kills += a.kill(conn)
	}
}

// kill kills one of the app's backends, if there is one.
func (a *app) kill(conn *pgx.Conn) (n int) {
	err := conn.QueryRow(context.Background(), `SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
		WHERE application_name = 'idem_killed' AND query LIKE '%' || $1 || '%' ORDER BY random() LIMIT 1) victims`, a.schema).Scan(&n)
	if err != nil {
		return 0
	}
	return n
}

// TestServerRestartsUnderLoad: a clean restart, and a crash.
func TestServerRestartsUnderLoad(t *testing.T) {
	cluster := pgtest.NewCluster(t)
	for _, how := range []string{"fast", "immediate"} {
		t.Run(how, func(t *testing.T) {
			schema := pgtest.SchemaAt(t, cluster.DSN())
			a := newAppAt(t, cluster.DSN(), schema)
			var done atomic.Bool
			var restarts sync.WaitGroup
			restarts.Go(func() {
				for range 2 {
					before := a.runs.Load()
					for a.runs.Load() < before+50 && !done.Load() {
						<-time.After(time.Millisecond)
					}
					cluster.Stop(how)
					cluster.Start()
				}
			})
			answers := a.storm(a.inTx(pay), 1000, 6)
			done.Store(true)
			restarts.Wait()
			cfg, err := pgx.ParseConfig(cluster.DSN())
			require.NoError(t, err)
			cfg.RuntimeParams["search_path"] = schema
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			require.NoError(t, err)
			defer conn.Close(context.Background())
			a.expectOnceEach(conn, answers)
		})
	}
}
