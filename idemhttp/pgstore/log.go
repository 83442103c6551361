package pgstore

import (
	"context"
	"log/slog"
)

// log writes to the store's logger, or to the default one as it is now.
func (s *Store) log(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	logger := s.logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.LogAttrs(ctx, level, "idem: "+msg, attrs...)
}

func errAttr(err error) slog.Attr { return slog.Any("error", err) }
