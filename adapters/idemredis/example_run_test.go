package idemredis_test

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/idem-go/idem/adapters/idemredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The example has no output comment: without a Redis it couldn't be skipped.
func TestExample(t *testing.T) {
	opts := options()
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		idemredis.Missing(t, "Redis", "IDEM_REDIS_URL", opts.Addr, err)
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
