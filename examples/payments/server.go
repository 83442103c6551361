package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// stopTimeout is how long running requests have when the service is stopped.
const stopTimeout = 10 * time.Second

// serve runs the service until ctx ends.
func serve(ctx context.Context, s settings, log *slog.Logger) error {
	handler, closeAll, err := build(ctx, s, log)
	if err != nil {
		return err
	}
	defer closeAll()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.addr)
	if err != nil {
		return err
	}
	log.Info("listening", "addr", listener.Addr().String(), "mode", s.mode, "database", s.dsn != "", "faults", s.faults)
	return serveAt(ctx, listener, handler, log)
}

func serveAt(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelError),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Info("stopping")
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := srv.Shutdown(grace)
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	log.Info("stopped")
	return err
}

// build puts the service together on what the settings name.
func build(ctx context.Context, s settings, log *slog.Logger) (http.Handler, func(), error) {
	if s.dsn != "" {
		return onPostgres(ctx, s, log)
	}
	handler, err := inMemory(s, log)
	return handler, func() {}, err
}
