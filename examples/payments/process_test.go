package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The test binary is the program itself where this is set.
const asProgram = "PAYMENTS_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// process is the service in a process of its own.
type process struct {
	shop
	cmd  *exec.Cmd
	done chan error
}

var listening = regexp.MustCompile(`msg=listening addr=(\S+)`)

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], append([]string{"-addr", "127.0.0.1:0", "-faults"}, args...)...), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	addr := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				addr <- m[1]
			}
		}
		p.done <- p.cmd.Wait()
	}()
	select {
	case a := <-addr:
		p.shop = shop{t, "http://" + a}
	case err := <-p.done:
		require.Fail(t, "the service ended", "%v", err)
	case <-time.After(30 * time.Second):
		require.Fail(t, "the service doesn't listen")
	}
	return p
}

func (p *process) stop(sig os.Signal) error {
	p.Helper()
	require.NoError(p, p.cmd.Process.Signal(sig))
	select {
	case err := <-p.done:
		return err
	case <-time.After(30 * time.Second):
		return fmt.Errorf("the service doesn't stop on %v", sig)
	}
}

func TestSIGTERMLetsARunningRequestEnd(t *testing.T) {
	p := start(t)
	// Of two copies one runs; the other is refused at once, which tells that the
	// first is running.
	answered := make(chan reply, 2)
	for range 2 {
		go func() { answered <- p.pay("k", fiveDollars, "X-Fault", "slow=500ms") }()
	}
	require.Equal(t, 409, (<-answered).status)
	require.NoError(t, p.stop(syscall.SIGTERM), "the exit code is 0")
	assert.Equal(t, 201, (<-answered).status)
	_, err := net.Dial("tcp", p.url[len("http://"):])
	assert.Error(t, err)
}

// dsn is the server that scripts/services finds or starts.
func dsn(t *testing.T) string {
	t.Helper()
	at := os.Getenv("IDEM_POSTGRES_DSN")
	if at == "" {
		at = "postgres://postgres:postgres@127.0.0.1:5432/test?sslmode=disable"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		if os.Getenv("CI") == "true" {
			require.Fail(t, "no PostgreSQL", "%v", err)
		}
		t.Skipf("no PostgreSQL: %v (scripts/services up finds or starts one; IDEM_POSTGRES_DSN names one)", err)
	}
	require.NoError(t, conn.Close(ctx))
	return at
}

// schema is one for this test alone.
func schema(t *testing.T, at string) string {
	t.Helper()
	name := "payments_" + newID()
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), at)
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close(context.Background())
		_, err = conn.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
		assert.NoError(t, err)
	})
	return name
}

func TestOnPostgres(t *testing.T) {
	at := dsn(t)
	for mode, again := range map[string]int{release: 409, inTx: 201} {
		t.Run(mode, func(t *testing.T) {
			testShop(t, func(t *testing.T) shop {
				return start(t, "-dsn", at, "-mode", mode, "-schema", schema(t, at)).shop
			}, again)
		})
	}
}

func TestAPanicAfterTheCommitOnPostgres(t *testing.T) {
	at := dsn(t)
	p := start(t, "-dsn", at, "-schema", schema(t, at))
	assert.Zero(t, p.pay("k", fiveDollars, "X-Fault", "after").status)
	r := p.pay("k", fiveDollars)
	assert.Equal(t, 409, r.status)
	assert.Equal(t, "no-answer", r.problem())
	assert.Len(t, p.paid("ann"), 1)
}

// TestKilled kills the service while a payment is being made, and retries it at
// a new one, on the same tables.
func TestKilled(t *testing.T) {
	at := dsn(t)
	for _, mode := range []string{release, inTx} {
		t.Run(mode, func(t *testing.T) {
			args := []string{"-dsn", at, "-mode", mode, "-schema", schema(t, at)}
			p := start(t, args...)
			require.Equal(t, 201, p.pay("before", fiveDollars).status)
			answered := make(chan reply, 1)
			go func() { answered <- p.pay("k", fiveDollars, "X-Fault", "slow=20s") }()
			waitForPayment(t, at, args[5])
			assert.Error(t, p.stop(syscall.SIGKILL))
			assert.Zero(t, (<-answered).status)

			p = start(t, args...)
			r := p.pay("k", fiveDollars)
			if mode == inTx { // nothing was left behind
				assert.Equal(t, 201, r.status)
				assert.Len(t, p.paid("ann"), 2)
			} else { // whether it was paid can't be told: refused until ClaimTTL is over
				assert.Equal(t, 409, r.status)
				assert.Equal(t, "in-progress", r.problem())
				assert.Len(t, p.paid("ann"), 1)
			}
			replay := p.pay("before", fiveDollars)
			assert.Equal(t, http.StatusCreated, replay.status)
			assert.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
		})
	}
}

// waitForPayment waits until a transaction has written a payment and not
// committed it: it holds a lock on the table.
func waitForPayment(t *testing.T, at, schema string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), at)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	table := pgx.Identifier{schema, "payments"}.Sanitize()
	require.Eventually(t, func() bool {
		var held bool
		err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_locks WHERE relation = $1::text::regclass AND mode = 'RowExclusiveLock')`, table).Scan(&held)
		return assert.NoError(t, err) && held
	}, 10*time.Second, 10*time.Millisecond)
}
