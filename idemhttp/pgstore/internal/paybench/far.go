package main

import (
	"context"
	"net"
	"time"
)

// dialFar returns a dialer for connections to a server that is away: a message and
// its answer take so long on the way.
func dialFar(away time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return farConn{conn, away}, nil
	}
}

// farConn has all of the way on the way back: who waits for an answer can't tell. The
// server sends what it has to say to one flush at once, so one read is one answer.
type farConn struct {
	net.Conn
	away time.Duration
}

func (c farConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(c.away)
	return n, err
}
