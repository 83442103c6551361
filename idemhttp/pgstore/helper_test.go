package pgstore

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idem-go/idem/idemhttp/pgstore/internal/pgtest"
)

// bouncer is started once: it is the same for all tests.
var bouncer struct {
	sync.Once
	change poolChange
}

// holder outlives the tests: what it starts is ended by TestMain.
var holder *pgtest.Holder

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		childMain()
	}
	holder = pgtest.NewHolder()
	code := m.Run()
	holder.Close()
	os.Exit(code)
}

func viaBouncer(t *testing.T) poolChange {
	t.Helper()
	bouncer.Do(func() { bouncer.change = pgtest.Bouncer(holder.As(t)) })
	if bouncer.change == nil {
		t.Fatal("pgbouncer did not start for an earlier test")
	}
	return func(cfg *pgxpool.Config) {
		bouncer.change(cfg)
		pgtest.Mode(pgx.QueryExecModeExec)(cfg)
	}
}

// quiet is a logger that speaks only where a test fails.
func quiet(t testing.TB) *slog.Logger {
	log := &logText{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", log)
		}
	})
	return log.logger()
}

// logText is what was logged.
type logText struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logText) has(text string) bool { return strings.Contains(l.String(), text) }

func (l *logText) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
