package pgtest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Message is one message of the wire protocol.
type Message struct {
	Kind byte // 'Q', 'P', 'S' and so on
	Body []byte
}

// Verdict is what the proxy does with a message.
type Verdict int

const (
	Pass Verdict = iota
	// CutBefore closes both sides; the message isn't delivered.
	CutBefore
	// CutAfter delivers the message and closes both sides.
	CutAfter
	// Split delivers what came before in the same burst, has the server answer it,
	// and asks again.
	Split
)

// flushMessage has the server send what it has to say, without a Sync.
const flushMessage = "H\x00\x00\x00\x04"

// Proxy stands between a pool and the server. It counts round trips: writes of
// the client at a time when it owes the server nothing to read.
type Proxy struct {
	target   string
	listener net.Listener
	trips    atomic.Int64
	down     atomic.Bool
	deaf     atomic.Bool // to cancel requests

	mu         sync.Mutex
	fromClient func(Message) Verdict
	fromServer func(Message) Verdict
	conns      map[net.Conn]bool
}

// NewProxy starts a proxy in front of target, "host:port", until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, listener: listener, conns: map[net.Conn]bool{}}
	go p.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		p.CutAll()
	})
	return p
}

// Use makes a pool connect through the proxy.
func (p *Proxy) Use() func(*pgxpool.Config) {
	addr := p.listener.Addr().(*net.TCPAddr)
	return Via("127.0.0.1", uint16(addr.Port))
}

// Trips returns how many round trips there were, connecting not counted.
func (p *Proxy) Trips() int64 { return p.trips.Load() }

// OnClient asks f about every message a client sends. Nil: all pass.
func (p *Proxy) OnClient(f func(Message) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fromClient = f
}

// OnServer asks f about every message the server sends. Nil: all pass.
func (p *Proxy) OnServer(f func(Message) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fromServer = f
}

func (p *Proxy) ask(client bool, m Message) Verdict {
	p.mu.Lock()
	f := p.fromServer
	if client {
		f = p.fromClient
	}
	p.mu.Unlock()
	if f == nil {
		return Pass
	}
	return f(m)
}

// SetDown makes the proxy refuse new connections, and cuts all there are.
func (p *Proxy) SetDown(down bool) {
	p.down.Store(down)
	if down {
		p.CutAll()
	}
}

// DropCancels keeps requests to cancel a statement from the server.
func (p *Proxy) DropCancels() { p.deaf.Store(true) }

// CutAll closes all connections.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) track(c net.Conn, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.conns[c] = true
	} else {
		delete(p.conns, c)
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.down.Load() {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		go (&pair{proxy: p, client: client, server: server}).serve()
	}
}

// pair is one proxied connection.
type pair struct {
	proxy          *Proxy
	client, server net.Conn
	owed           atomic.Int64 // ReadyForQuery messages still to come
	ready          atomic.Bool  // the session is set up
}

func (c *pair) serve() {
	c.proxy.track(c.client, true)
	c.proxy.track(c.server, true)
	defer c.proxy.track(c.client, false)
	defer c.proxy.track(c.server, false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.pumpServer()
	}()
	c.pumpClient()
	<-done
}

func (c *pair) cut() {
	_ = c.client.Close()
	_ = c.server.Close()
}

// pumpClient forwards what the client writes, a burst at a time.
func (c *pair) pumpClient() {
	defer c.cut()
	in := bufio.NewReaderSize(c.client, 1<<20)
	startup, err := readStartup(in)
	if err != nil || isCancel(startup) && c.proxy.deaf.Load() {
		return
	}
	if _, err := c.server.Write(startup); err != nil {
		return
	}
	for {
		burst, cut, err := c.readBurst(in)
		if _, werr := c.server.Write(burst); werr != nil || err != nil || cut {
			return
		}
	}
}

// readBurst reads messages for as long as some are there already.
func (c *pair) readBurst(in *bufio.Reader) (burst []byte, cut bool, err error) {
	var waits int64
	for first := true; first || in.Buffered() > 0; first = false {
		m, raw, err := readMessage(in)
		if err != nil {
			return burst, false, err
		}
		verdict := c.proxy.ask(true, m)
		for verdict == Split {
			if _, err := c.server.Write(append(burst, flushMessage...)); err != nil {
				return nil, false, err
			}
			burst = nil
			verdict = c.proxy.ask(true, m)
		}
		if verdict == CutBefore {
			return burst, true, nil
		}
		burst = append(burst, raw...)
		if m.Kind == 'S' || m.Kind == 'Q' || m.Kind == 'F' {
			waits++
		}
		if verdict == CutAfter {
			return burst, true, nil
		}
	}
	if owed := c.owed.Add(waits); waits > 0 && owed == waits && c.ready.Load() {
		c.proxy.trips.Add(1)
	}
	return burst, false, nil
}

func (c *pair) pumpServer() {
	defer c.cut()
	in := bufio.NewReaderSize(c.server, 1<<20)
	for {
		m, raw, err := readMessage(in)
		if err != nil {
			return
		}
		verdict := c.proxy.ask(false, m)
		if verdict == CutBefore {
			return
		}
		if m.Kind == 'Z' && c.ready.Swap(true) {
			c.owed.Add(-1)
		}
		if _, err := c.client.Write(raw); err != nil || verdict == CutAfter {
			return
		}
	}
}

// readStartup reads the first message, which has no kind. A cancel request is such a
// message and nothing else.
func readStartup(in *bufio.Reader) ([]byte, error) {
	head, err := in.Peek(4)
	if err != nil {
		return nil, err
	}
	startup := make([]byte, binary.BigEndian.Uint32(head))
	_, err = io.ReadFull(in, startup)
	return startup, err
}

func isCancel(startup []byte) bool {
	const code = 80877102 // in the place of the protocol's version
	return len(startup) >= 8 && binary.BigEndian.Uint32(startup[4:]) == code
}

func readMessage(in *bufio.Reader) (Message, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return Message{}, nil, err
	}
	raw := make([]byte, 1+int(binary.BigEndian.Uint32(head[1:])))
	copy(raw, head[:])
	if _, err := io.ReadFull(in, raw[5:]); err != nil {
		return Message{}, nil, err
	}
	return Message{Kind: head[0], Body: raw[5:]}, raw, nil
}
