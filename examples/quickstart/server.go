package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// broker is a NATS server in this process. It listens on no port.
type broker struct {
	server *server.Server
	dir    string
}

func startServer() (*broker, error) {
	dir, err := os.MkdirTemp("", "idem-quickstart-")
	if err != nil {
		return nil, fmt.Errorf("a folder for JetStream: %w", err)
	}
	b := &broker{dir: dir}
	b.server, err = server.NewServer(&server.Options{
		ServerName: "quickstart",
		DontListen: true,
		JetStream:  true,
		StoreDir:   dir,
		NoLog:      true,
		NoSigs:     true,
	})
	if err != nil {
		b.stop()
		return nil, fmt.Errorf("the NATS server: %w", err)
	}
	b.server.Start()
	if !b.server.ReadyForConnections(10 * time.Second) {
		b.stop()
		return nil, errors.New("the NATS server did not become ready in 10s")
	}
	return b, nil
}

func (b *broker) stop() {
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
	_ = os.RemoveAll(b.dir) // in the system's folder for such things
}

// connect makes a connection of its own: one can be cut without the others.
func (b *broker) connect() (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect("", nats.InProcessServer(b.server), nats.NoReconnect())
	if err != nil {
		return nil, nil, fmt.Errorf("connecting: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("connecting: %w", err)
	}
	return nc, js, nil
}
