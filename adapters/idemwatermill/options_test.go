package idemwatermill

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNewRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []Option
		text string
	}{
		"no identity":               {nil, "WithMetadataID, WithUUID and WithID"},
		"nil option":                {[]Option{WithUUID(), nil}, "option 2 of 2 is nil"},
		"empty field":               {[]Option{WithMetadataID("")}, "WithMetadataID"},
		"nil id":                    {[]Option{WithID(nil)}, "WithID"},
		"nil classify":              {[]Option{WithUUID(), WithClassify(nil)}, "WithClassify"},
		"nil logger":                {[]Option{WithUUID(), WithLogger(nil)}, "WithLogger"},
		"unknown policy":            {[]Option{WithUUID(), WithInFlight(3)}, "InFlightPolicy(3)"},
		"no time to hold":           {[]Option{WithUUID(), WithHoldTimeout(0)}, "not 0s"},
		"less than no time to hold": {[]Option{WithUUID(), WithHoldTimeout(-1)}, "not -1ns"},
		"negative pause":            {[]Option{WithUUID(), WithRequeuePause(-1)}, "not -1ns"},
		"no time to settle":         {[]Option{WithUUID(), WithSettleTimeout(0)}, "not 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			guard, err := idem.NewGenerational()
			require.NoError(t, err)
			for _, g := range []idem.IdempotencyGuard{guard, nil} {
				m, err := New(g, tt.opts...)
				require.ErrorIs(t, err, idem.ErrInvalidOption)
				require.ErrorContains(t, err, "idemwatermill: ")
				require.ErrorContains(t, err, tt.text)
				assert.Nil(t, m)
			}
		})
	}
	_, err := New(nil, WithUUID(), WithInFlight(idem.AckInFlight), WithHoldTimeout(1), WithRequeuePause(0), WithSettleTimeout(1))
	require.NoError(t, err)
}

func TestIdentity(t *testing.T) {
	function := WithID(func(msg *message.Message) (string, error) { return string(msg.Payload), nil })
	for name, tt := range map[string]struct {
		opt  Option
		meta message.Metadata
		want string
	}{
		"metadata":                       {WithMetadataID(field), message.Metadata{field: "m"}, "m"},
		"metadata, none":                 {WithMetadataID(field), nil, ""},
		"metadata, other case":           {WithMetadataID(field), message.Metadata{"Event_ID": "m"}, ""},
		"UUID":                           {WithUUID(), nil, "uuid"},
		"function":                       {function, nil, "payload"},
		"requeued":                       {WithUUID(), message.Metadata{requeuer.RetriesKey: "2", middleware.ReasonForPoisonedKey: "x"}, "uuid;trip=2"},
		"moved back by hand":             {WithUUID(), message.Metadata{middleware.ReasonForPoisonedKey: ""}, "uuid;trip=poisoned"},
		"moved back again":               {WithUUID(), message.Metadata{middleware.ReasonForPoisonedKey: "", failuresKey: "2"}, "uuid;trip=/2"},
		"requeued, moved back again":     {WithUUID(), message.Metadata{requeuer.RetriesKey: "1", middleware.ReasonForPoisonedKey: "", failuresKey: "2"}, "uuid;trip=1/2"},
		"failed, and handed in again":    {WithUUID(), message.Metadata{failuresKey: "2"}, "uuid"},
		"unidentified, requeued":         {WithMetadataID(field), message.Metadata{requeuer.RetriesKey: "2"}, ""},
		"an id that looks like requeued": {WithMetadataID(field), message.Metadata{field: "m;trip=2"}, "m;trip=2;trip="},
	} {
		t.Run(name, func(t *testing.T) {
			m := &dedup{}
			require.NoError(t, tt.opt.apply(m))
			msg := message.NewMessage("uuid", []byte("payload"))
			for k, v := range tt.meta {
				msg.Metadata.Set(k, v)
			}
			id, err := m.identity(msg)
			require.NoError(t, err)
			assert.Equal(t, idem.ID(tt.want), id, "outside a router there is no destination")
		})
	}
	assert.NotEqual(t, destination("a", "bc"), destination("ab", "c"))
	assert.NotEqual(t, destination("a/b", "c"), destination("a", "b/c"))
}

// Off, nobody asks for an id, and what the handler says still counts.
func TestNilGuardIsOff(t *testing.T) {
	for name, guard := range map[string]idem.IdempotencyGuard{"nil": nil, "nil Generational": (*idem.Generational)(nil)} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.dedup = newDedup(t, guard, WithID(func(*message.Message) (string, error) { return "", errors.New("asked") }))
			r.start(r.failing(1, idem.WithOutcome(errHandler, idem.Postpone)), r.dedup)
			r.publish("a")
			r.publish("a")
			r.eventually(func() bool { acks, _, _ := r.counts(); return acks == 2 })
			r.settled()
			r.heard(2, 0)
			assert.Equal(t, []string{"a", "a"}, r.ranSoFar())
		})
	}
}

// odd is a guard whose answer is no state.
type odd struct{ idem.IdempotencyGuard }

func (odd) TryBegin(idem.Identity) (idem.Claim, idem.State) { return idem.Claim{}, 99 }

func TestAnUnknownStateIsGivenBack(t *testing.T) {
	r := newRig(t)
	msg := identified("a")
	_, err := newDedup(t, odd{r.guard})(r.ok)(msg)
	require.NoError(t, err)
	assert.True(t, isClosed(msg.Nacked()))
	assert.Empty(t, r.ranSoFar())
}

func TestLogging(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := newRig(t, WithLogger(logger))
	h := r.dedup(r.ok)
	first := identified("a")
	_, err := h(first)
	require.NoError(t, err)
	assert.Empty(t, out.String(), "nothing to say")
	first.Ack()
	_, err = h(identified("a"))
	require.NoError(t, err)
	assert.Contains(t, out.String(), `level=DEBUG msg="idem: duplicate of a completed message acked" id=a`)

	out.Reset()
	_, err = r.dedup(r.failing(1, idem.WithOutcome(errHandler, 99)))(identified("b"))
	require.ErrorIs(t, err, errHandler)
	assert.Contains(t, out.String(), "level=WARN")
	assert.Contains(t, out.String(), "Outcome(99)")
}
