package pgstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// childEnv makes the test binary a server: "tx" or "release", and the schema.
const childEnv = "IDEM_PGSTORE_TEST_SERVER"

const childClaimTTL = 5 * time.Second

// childMain serves until it is killed. It prints its address, and "in" whenever
// a request has done its work and hangs before its commit.
func childMain() {
	mode, schema, _ := strings.Cut(os.Getenv(childEnv), " ")
	cfg, err := pgxpool.ParseConfig(pgtest.DSN())
	if err == nil {
		cfg.ConnConfig.RuntimeParams["search_path"] = schema
		err = childServe(mode, schema, cfg)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func childServe(mode, schema string, cfg *pgxpool.Config) error {
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return err
	}
	store, err := New(pool, WithSchema(schema))
	if err != nil {
		return err
	}
	e, err := store.Endpoint("pay", idemhttp.Policy{
		Scope:    func(*http.Request) (idemhttp.Scope, error) { return idemhttp.Public(), nil },
		ClaimTTL: childClaimTTL,
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return http.Serve(l, childHandler(e, mode, schema, pool))
}

func childHandler(e *Endpoint, mode, schema string, pool *pgxpool.Pool) http.Handler {
	work := func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		err := pay(w, r.WithContext(context.WithValue(r.Context(), schemaKey{}, schema)), tx)
		if r.Header.Get("X-Hang") != "" {
			fmt.Println("in")
			select {}
		}
		return err
	}
	if mode == "tx" {
		return e.InTx(work)
	}
	return e.DeduplicateWithResponse(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, err := Begin(r.Context(), pool)
		if err == nil {
			if err = work(w, r, tx); err == nil {
				err = tx.Commit(r.Context())
			}
		}
		if err != nil {
			panic(err)
		}
	}))
}

// child is a server in a process of its own.
type child struct {
	cmd *exec.Cmd
	out *bufio.Scanner
	url string
}

func startChild(t *testing.T, mode, schema string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+mode+" "+schema)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, out: bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	require.True(t, c.out.Scan(), "the server prints its address")
	c.url = "http://" + c.out.Text()
	return c
}

// kill is kill -9.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *child) post(hang bool) (status int, text string, err error) {
	req, err := http.NewRequest(http.MethodPost, c.url, strings.NewReader("{}"))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Idempotency-Key", "k1")
	if hang {
		req.Header.Set("X-Hang", "yes")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text2, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text2), err
}

// TestKilledInMidRequest: kill -9 of the server while a request has done its work
// and not committed, then the retry. In a transaction it runs at once; in release
// mode the claim refuses until ClaimTTL is over.
func TestKilledInMidRequest(t *testing.T) {
	for _, mode := range []string{"tx", "release"} {
		t.Run(mode, func(t *testing.T) {
			a := newApp(t)
			first := startChild(t, mode, a.schema)
			lost := make(chan error, 1)
			go func() {
				_, _, err := first.post(true)
				lost <- err
			}()
			require.True(t, first.out.Scan())
			require.Equal(t, "in", first.out.Text())
			claimed := time.Now()
			first.kill()
			require.Error(t, <-lost)

			second := startChild(t, mode, a.schema)
			status, text, err := second.post(false)
			require.NoError(t, err)
			if mode == "release" {
				assert.Equal(t, 409, status)
				require.Eventually(t, func() bool {
					status, text, err = second.post(false)
					return err == nil && status != 409
				}, 20*time.Second, 20*time.Millisecond)
				assert.Greater(t, time.Since(claimed), childClaimTTL/2)
			}
			assert.Equal(t, 201, status, text)
			assert.Equal(t, 1, a.payments())
			again, replay, err := second.post(false)
			require.NoError(t, err)
			assert.Equal(t, 201, again)
			assert.Equal(t, text, replay)
		})
	}
}

// TestClientHangsUp: over a real connection, in mid-request. Work that was done
// by then is committed and claimed; the retry is answered from it.
func TestClientHangsUp(t *testing.T) {
	a := newApp(t)
	left := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := a.inTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		err := pay(w, r, tx)
		if a.runs.Load() == 1 {
			cancel()
			<-r.Context().Done()
			close(left)
		}
		return err
	})
	settled := make(chan struct{}, 2)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { settled <- struct{}{} }()
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	post := func(ctx context.Context) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL, strings.NewReader("{}"))
		require.NoError(t, err)
		req.Header.Set("Idempotency-Key", "k1")
		return http.DefaultClient.Do(req)
	}
	lost, err := post(ctx)
	if err == nil {
		lost.Body.Close()
	}
	require.Error(t, err)
	<-left
	<-settled
	assert.Equal(t, 1, a.payments())
	resp, err := post(t.Context())
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, 201, resp.StatusCode)
	assert.Equal(t, "true", resp.Header.Get(idemhttp.HeaderReplayed))
	assert.EqualValues(t, 1, a.runs.Load())
}
