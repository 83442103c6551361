package idemredis_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// missing ends a test whose server isn't there: a skip that says what to do,
// and in CI, where every server must be there, a failure.
func missing(t testing.TB, service, variable, at string, err error) {
	t.Helper()
	text := fmt.Sprintf("%s MISSING at %s: %v; run scripts/services up, or set %s", service, at, err, variable)
	if os.Getenv("CI") == "true" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// The example has no output comment: without a Redis it couldn't be skipped.
func TestExample(t *testing.T) {
	opts := options()
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		missing(t, "Redis", "IDEM_REDIS_URL", opts.Addr, err)
	}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	Example()
	require.NoError(t, w.Close())
	printed, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "billed order-1\nbilled order-2\nbilled order-3\ncontext canceled\ncopies dropped: 1\n", string(printed))
}
