package idemhttptest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
)

// logRecorder is a slog.Handler that keeps levels and messages.
type logRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (l *logRecorder) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = nil
}

func (l *logRecorder) logger() *slog.Logger { return slog.New(l) }

// Enabled implements slog.Handler.
func (l *logRecorder) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (l *logRecorder) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, r.Level.String()+" "+r.Message)
	return nil
}

// WithAttrs implements slog.Handler.
func (l *logRecorder) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler.
func (l *logRecorder) WithGroup(string) slog.Handler { return l }

// has tells whether there is a line of that level with that text in it.
func (l *logRecorder) has(level slog.Level, text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.HasPrefix(line, level.String()+" ") && strings.Contains(line, text) {
			return true
		}
	}
	return false
}
