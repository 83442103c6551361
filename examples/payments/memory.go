package main

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/idem-go/idem/idemhttp"
)

// inMemory is the service with nothing but this process.
func inMemory(s settings, log *slog.Logger) (http.Handler, error) {
	svc := &service{books: new(memoryBooks), mode: s.mode, faults: s.faults, log: log}
	endpoint, err := idemhttp.New(idemhttp.NewMemoryStore(), "create-payment", svc.policy())
	if err != nil {
		return nil, err
	}
	return svc.routes(endpoint.DeduplicateWithResponse(http.HandlerFunc(svc.plain))), nil
}

// memoryBooks keeps payments by user.
type memoryBooks struct {
	mu     sync.Mutex
	byUser map[string][]payment
}

func (m *memoryBooks) pay(ctx context.Context, user string, p payment, beforeCommit func() error) error {
	if err := beforeCommit(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byUser == nil {
		m.byUser = make(map[string][]payment)
	}
	m.byUser[user] = append(m.byUser[user], p)
	// From here on the request must never be run again, whatever happens to it.
	idemhttp.Committed(ctx)
	return nil
}

func (m *memoryBooks) list(_ context.Context, user string) ([]payment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]payment{}, slices.Clone(m.byUser[user])...), nil
}
