package idemnats

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// sleepy is an iterator that does not ask the server in its first calls, which
// then end with their context only. The client's own can't be made by a test.
type sleepy struct {
	jetstream.MessagesContext
	idle  int // calls until it asks
	calls int
	err   error
	ctx   context.Context // ends as the call's own would: options are opaque
}

func (s *sleepy) Next(opts ...jetstream.NextOpt) (jetstream.Msg, error) {
	s.calls++
	if s.calls <= s.idle {
		select {
		case <-time.After(shortWait << (s.calls - 1)):
			return nil, context.DeadlineExceeded
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
	return &stub{}, s.err
}

func TestNextLooksAgainWhenTheClientForgotToAsk(t *testing.T) {
	s, err := New(info())
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		it    sleepy
		calls int
		err   error
		took  time.Duration
	}{
		"at once":            {sleepy{}, 1, nil, 0},
		"forgotten":          {sleepy{idle: 1}, 2, nil, shortWait},
		"forgotten again":    {sleepy{idle: 3}, 4, nil, 7 * shortWait},
		"quiet: to the last": {sleepy{idle: 6}, 7, nil, 63 * shortWait},
		"an error":           {sleepy{err: jetstream.ErrConsumerDeleted}, 1, jetstream.ErrConsumerDeleted, 0},
		"a later error":      {sleepy{idle: 2, err: jetstream.ErrNoHeartbeat}, 3, jetstream.ErrNoHeartbeat, 3 * shortWait},
		"the caller's ctx":   {sleepy{idle: 99}, 5, context.DeadlineExceeded, 1 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if tt.took > time.Second {
					ctx, cancel = context.WithCancel(t.Context())
				}
				defer cancel()
				tt.it.ctx = ctx
				began := time.Now()
				d, err := s.Next(&tt.it)(ctx)
				require.ErrorIs(t, err, tt.err)
				require.Equal(t, tt.err == nil, d != nil)
				require.Equal(t, tt.calls, tt.it.calls)
				require.Equal(t, tt.took, time.Since(began))
			})
		})
	}
}
