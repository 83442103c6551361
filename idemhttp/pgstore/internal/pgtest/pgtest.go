// Package pgtest gives tests what they need of PostgreSQL: a schema of their
// own, a proxy that counts round trips and cuts connections, a pgbouncer, and a
// server that may be stopped.
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// defaultDSN is the server that scripts/services starts.
const defaultDSN = "postgres://postgres@127.0.0.1:5432/test?sslmode=disable"

// DSN is the server that the tests share.
func DSN() string {
	if dsn := os.Getenv("IDEM_POSTGRES_DSN"); dsn != "" {
		return dsn
	}
	return defaultDSN
}

// Missing ends a test that lacks a service: a failure where CI is set, a skip
// elsewhere.
func Missing(t testing.TB, what string, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is missing: %v", what, err)
	}
	t.Skipf("SKIPPED, %s is missing (run scripts/services): %v", what, err)
}

var reachable = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, DSN())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
})

// Schema creates a schema on the shared server and drops it after the test. It
// returns its name.
func Schema(t testing.TB) string {
	t.Helper()
	if err := reachable(); err != nil {
		Missing(t, "PostgreSQL", err)
	}
	return SchemaAt(t, DSN())
}

// SchemaAt is Schema on another server.
func SchemaAt(t testing.TB, dsn string) string {
	t.Helper()
	name := "idem_test_" + random()
	exec := func(sql string) error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, sql)
		return err
	}
	if err := exec("CREATE SCHEMA " + name); err != nil {
		t.Fatalf("create schema: %v", err)
	}
	t.Cleanup(func() {
		if err := exec("DROP SCHEMA " + name + " CASCADE"); err != nil {
			t.Logf("drop schema: %v", err)
		}
	})
	return name
}

func random() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Pool opens a pool that is closed after the test. The functions may change its
// configuration.
func Pool(t testing.TB, dsn string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 8
	for _, f := range change {
		f(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Path makes schema the first of the search path, so that tests' tables need no
// qualification.
func Path(schema string) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["search_path"] = schema }
}

// Mode sets the exec mode.
func Mode(mode pgx.QueryExecMode) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode }
}

// MaxConns bounds the pool.
func MaxConns(n int32) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.MaxConns = n }
}

// Via sends the pool's connections to another address.
func Via(host string, port uint16) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) {
		cfg.ConnConfig.Host, cfg.ConnConfig.Port = host, port
		cfg.ConnConfig.Fallbacks = nil
	}
}

// Modes are the five exec modes of pgx.
func Modes() []pgx.QueryExecMode {
	return []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	}
}

// tool finds a program of PostgreSQL, which Debian keeps out of the path.
func tool(name string) (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) > 0 {
		return found[len(found)-1], nil
	}
	return exec.LookPath(name)
}

// unprivileged makes cmd run as the user postgres where the tests run as root,
// which neither PostgreSQL nor pgbouncer accepts.
func unprivileged(cmd *exec.Cmd) error {
	cred, err := credential()
	if err != nil || cred == nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	return nil
}

func credential() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

// workDir is a folder that the unprivileged user owns.
func workDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "idem-pgtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cred, err := credential()
	if err != nil {
		Missing(t, "the user postgres", err)
	}
	if cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Addr is the host and port of DSN.
func Addr() string {
	cfg, err := pgx.ParseConfig(DSN())
	if err != nil {
		return ""
	}
	return net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
}
