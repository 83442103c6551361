package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/adapters/idemamqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// missing ends a test whose server isn't there: a skip that says what to do,
// and in CI, where every server must be there, a failure.
func missing(t testing.TB, service, variable, at string, err error) {
	t.Helper()
	text := fmt.Sprintf("%s MISSING at %s: %v; run scripts/services up, or set %s", service, at, err, variable)
	if os.Getenv("CI") == "true" {
		t.Fatal(text)
	}
	t.Skip(text)
}

func needBroker(t *testing.T) {
	t.Helper()
	conn, err := amqp.Dial(defaultURL())
	if err != nil {
		uri, _ := amqp.ParseURI(defaultURL())
		missing(t, "RabbitMQ", "IDEM_AMQP_URL", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), err)
	}
	require.NoError(t, conn.Close())
}

// try runs the program, and returns its exit code and its last line.
func try(t *testing.T, args ...string) (code int, last totals, output string) {
	t.Helper()
	var stdout bytes.Buffer
	code = rabbitmq(t.Context(), args, &stdout, io.Discard)
	output = stdout.String()
	lines := strings.Split(strings.TrimSpace(output), "\n")
	_, err := fmt.Sscanf(lines[len(lines)-1], "handled=%d runs_again=%d concurrent=%d suppressed=%d redelivered=%d lost=%d",
		&last.handled, &last.runsAgain, &last.concurrent, &last.suppressed, &last.redelivered, &last.lost)
	require.NoError(t, err, output)
	return code, last, output
}

func TestGuarded(t *testing.T) {
	needBroker(t)
	for _, inFlight := range []string{"hold", "requeue"} {
		code, got, _ := try(t, "-messages", "200", "-cuts", "3", "-fail", "0.1", "-in-flight", inFlight)
		assert.Zero(t, code)
		assert.GreaterOrEqual(t, got.suppressed, 20, "one copy in ten messages")
		assert.NotZero(t, got.redelivered)
		got.suppressed, got.redelivered = 0, 0
		assert.Equal(t, totals{handled: 200}, got)
	}
}

func TestUnguarded(t *testing.T) {
	needBroker(t)
	code, got, _ := try(t, "-messages", "200", "-cuts", "3", "-guard", "off")
	assert.Equal(t, 1, code)
	assert.Equal(t, 200, got.handled)
	assert.GreaterOrEqual(t, got.runsAgain, 20)
	assert.Zero(t, got.suppressed)
}

func TestCompare(t *testing.T) {
	needBroker(t)
	code, got, output := try(t, "-messages", "50", "-cuts", "1", "-compare")
	assert.Zero(t, code)
	assert.Equal(t, 50, got.handled)
	for _, column := range []string{"guard off", "in flight: ack", "in flight: requeue", "in flight: hold"} {
		assert.Contains(t, output, column)
	}
}

func TestWithoutABroker(t *testing.T) {
	var stderr bytes.Buffer
	code := rabbitmq(t.Context(), []string{"-url", "amqp://127.0.0.1:1/"}, io.Discard, &stderr)
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr.String(), "rabbitmq: dial tcp 127.0.0.1:1")
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-messages 0":               "-messages must be from 1 to 1000000, not 0",
		"-messages 100 -cuts 11":    "-cuts must be from 0 to a tenth of the messages, not 11",
		"-cuts -1":                  "-cuts must be from 0",
		"-fail 1":                   "-fail must be from 0 to 0.9, not 1",
		"-fail NaN":                 "-fail must be from 0 to 0.9, not NaN",
		"-guard maybe":              `-guard must be on or off, not "maybe"`,
		"-in-flight drop":           `-in-flight must be hold, requeue or ack, not "drop"`,
		"extra":                     `unexpected argument "extra"`,
		"-no-such-flag":             "flag provided but not defined",
		"-guard maybe -messages -1": "-messages must be",
	} {
		var stderr bytes.Buffer
		assert.Equal(t, 2, rabbitmq(t.Context(), strings.Fields(args), io.Discard, &stderr), args)
		assert.Contains(t, stderr.String(), want)
	}
	assert.Zero(t, rabbitmq(t.Context(), []string{"-help"}, io.Discard, io.Discard))
}

func TestVerdict(t *testing.T) {
	s := settings{messages: 3}
	for _, row := range []struct {
		t    totals
		want int
	}{
		{totals{handled: 3, suppressed: 5, redelivered: 9}, 0},
		{totals{handled: 3, runsAgain: 1}, 1},
		{totals{handled: 2, lost: 1}, 1},
	} {
		assert.Equal(t, row.want, verdict(row.t, s), "%v", row.t)
	}
}

type deaf struct{}

func (deaf) Ack(uint64, bool) error        { return nil }
func (deaf) Nack(uint64, bool, bool) error { return nil }
func (deaf) Reject(uint64, bool) error     { return nil }

func TestLedger(t *testing.T) {
	source, err := idemamqp.New("q")
	require.NoError(t, err)
	l := newLedger(4)
	arrive := func(id string, again bool) *idemamqp.Delivery {
		d := source.Delivery(amqp.Delivery{Acknowledger: deaf{}, MessageId: id, Redelivered: again})
		l.arrived(d)
		return d
	}
	ack := func(d *idemamqp.Delivery) { require.NoError(t, d.Ack(context.Background())) }

	a, copyOfA, b, c := arrive("a", false), arrive("a", true), arrive("b", false), arrive("c", false)
	second := l.mark(2)
	assert.Equal(t, 1, l.start(a))
	assert.Equal(t, 2, l.start(copyOfA), "beside the first")
	<-second
	<-l.mark(1)
	assert.Equal(t, 2, l.runningNow())
	l.finish(a, nil)
	l.finish(copyOfA, nil)
	ack(a)
	ack(copyOfA)
	l.start(b)
	l.finish(b, errUnlucky)
	l.start(c)
	l.finish(c, nil)
	ack(arrive("c", false))
	assert.Equal(t, idem.Unsettled, c.Settled())
	assert.Equal(t, totals{handled: 2, runsAgain: 1, concurrent: 1, suppressed: 1, redelivered: 1, lost: 2}, l.totals())
}
