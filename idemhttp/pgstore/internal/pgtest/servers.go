package pgtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func freePort(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// await polls until up says so: another process has no channel to wait on.
func await(t testing.TB, what string, up func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := up(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s did not come up: %v", what, err)
		case <-tick.C:
		}
	}
}

// Bouncer starts a pgbouncer in transaction mode in front of the shared server
// and makes a pool connect through it.
func Bouncer(t testing.TB) func(*pgxpool.Config) {
	t.Helper()
	path, err := bouncerPath()
	if err != nil {
		Missing(t, "pgbouncer", err)
	}
	if err := reachable(); err != nil {
		Missing(t, "PostgreSQL", err)
	}
	port := freePort(t)
	cmd := exec.Command(path, "-q", writeBouncerConfig(t, port))
	if err := unprivileged(cmd); err != nil {
		Missing(t, "the user postgres", err)
	}
	start(t, cmd)
	cfg, err := pgx.ParseConfig(DSN())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Host, cfg.Port, cfg.Fallbacks = "127.0.0.1", port, nil
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	await(t, "pgbouncer", func(ctx context.Context) error {
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	return Via("127.0.0.1", port)
}

// bouncerPath finds pgbouncer, and installs Debian's where that can be done.
func bouncerPath() (string, error) {
	for _, p := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(p); err == nil {
			return path, nil
		}
	}
	if os.Getuid() != 0 {
		return "", exec.ErrNotFound
	}
	out, err := exec.Command("sh", "-c", "apt-get update -qq && apt-get install -y -qq --no-install-recommends pgbouncer").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("apt-get install pgbouncer: %w: %s", err, out)
	}
	return exec.LookPath("/usr/sbin/pgbouncer")
}

func writeBouncerConfig(t testing.TB, port uint16) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(DSN())
	if err != nil {
		t.Fatal(err)
	}
	server := fmt.Sprintf("* = host=%s port=%d user=%s", cfg.Host, cfg.Port, cfg.User)
	if cfg.Password != "" {
		server += " password=" + cfg.Password
	}
	lines := []string{
		"[databases]",
		server,
		"[pgbouncer]",
		"listen_addr = 127.0.0.1",
		fmt.Sprintf("listen_port = %d", port),
		"unix_socket_dir =",
		"auth_type = any",
		"pool_mode = transaction",
		"default_pool_size = 4",
		"ignore_startup_parameters = extra_float_digits,search_path",
	}
	path := filepath.Join(workDir(t), "pgbouncer.ini")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs cmd until the test ends.
func start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s: %s", cmd.Path, out.String())
		}
	})
}

// Cluster is a PostgreSQL server of the test's own.
type Cluster struct {
	t    testing.TB
	dir  string
	port uint16
}

// NewCluster makes and starts a server, on a port of its own.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t, dir: filepath.Join(workDir(t), "data"), port: freePort(t)}
	c.run("initdb", "-D", c.dir, "-A", "trust", "-U", "postgres", "--no-sync")
	c.Start()
	t.Cleanup(func() { _ = c.command("pg_ctl", "-D", c.dir, "-m", "immediate", "-w", "stop").Run() })
	return c
}

// DSN connects to the cluster.
func (c *Cluster) DSN() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", c.port)
}

// Addr is the cluster's host and port.
func (c *Cluster) Addr() string { return fmt.Sprintf("127.0.0.1:%d", c.port) }

// Start starts the server and waits until it answers.
func (c *Cluster) Start() {
	c.t.Helper()
	options := fmt.Sprintf("-p %d -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c shared_buffers=16MB", c.port)
	c.run("pg_ctl", "-D", c.dir, "-o", options, "-l", filepath.Join(filepath.Dir(c.dir), "log"), "-w", "start")
	await(c.t, "the cluster", func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, c.DSN())
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}

// Stop stops the server: "fast" ends its sessions, "immediate" is a crash.
func (c *Cluster) Stop(mode string) {
	c.t.Helper()
	c.run("pg_ctl", "-D", c.dir, "-m", mode, "-w", "stop")
}

func (c *Cluster) command(name string, args ...string) *exec.Cmd {
	path, err := tool(name)
	if err != nil {
		Missing(c.t, name, err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = filepath.Dir(c.dir)
	if err := unprivileged(cmd); err != nil {
		Missing(c.t, "the user postgres", err)
	}
	return cmd
}

func (c *Cluster) run(name string, args ...string) {
	c.t.Helper()
	out, err := c.command(name, args...).CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(filepath.Dir(c.dir), "log"))
		c.t.Fatalf("%s: %v: %s\n%s", name, err, out, log)
	}
}
