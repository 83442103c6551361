package pgstore

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// reapBatch bounds what one statement of the reaper deletes, so that it holds
// its locks for a moment only and leaves no burst of work to autovacuum.
const reapBatch = 1000

// Reap deletes the claims that have expired and returns how many there were. It
// is housekeeping: an expired claim counts as absent, reaped or not. Any number
// of nodes may reap at once; each skips what another one has locked.
//
// It works in batches of a transaction each and stops between two of them when
// ctx ends.
func (s *Store) Reap(ctx context.Context) (int64, error) {
	var total int64
	for {
		n, err := s.reapOnce(ctx)
		total += n
		if err != nil {
			return total, err
		}
		if n < reapBatch {
			return total, nil
		}
	}
}

func (s *Store) reapOnce(ctx context.Context) (int64, error) {
	var reap *query
	err := s.attempt(ctx, "reap", func(f *flush) { reap = f.add(s.sql.reap, int8Param(reapBatch)) })
	if err != nil {
		return 0, err
	}
	return reap.tag.RowsAffected(), nil
}

// RunReaper calls Reap at once and then every interval, until ctx ends, whose
// error it returns. A Reap that fails is logged, and tried again an interval
// later. The interval has to be above 0; a minute to an hour is usual.
func (s *Store) RunReaper(ctx context.Context, every time.Duration) error {
	if every <= 0 {
		return fmt.Errorf("idem: RunReaper: the interval is %v, it has to be above 0", every)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if _, err := s.Reap(ctx); err != nil && ctx.Err() == nil {
			s.log(ctx, slog.LevelWarn, "expired claims could not be deleted", errAttr(err))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
