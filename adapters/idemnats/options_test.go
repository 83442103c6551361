package idemnats

import (
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestNewRefuses(t *testing.T) {
	policy := func(p jetstream.AckPolicy) *jetstream.ConsumerInfo {
		return info(func(i *jetstream.ConsumerInfo) { i.Config.AckPolicy = p })
	}
	stream := func(name string, created time.Time) Option {
		return WithStreamSequence(&jetstream.StreamInfo{Config: jetstream.StreamConfig{Name: name}, Created: created})
	}
	for name, tt := range map[string]struct {
		info *jetstream.ConsumerInfo
		opt  Option
		text string
	}{
		"no info":            {nil, WithDoubleAck(), "the consumer info is nil"},
		"no acks":            {policy(jetstream.AckNonePolicy), WithDoubleAck(), `consumer "billing" acks with policy AckNone, must be AckExplicit`},
		"acks for all":       {policy(jetstream.AckAllPolicy), WithDoubleAck(), "policy AckAll, must be AckExplicit"},
		"nil option":         {info(), nil, "option 1 of 1 is nil"},
		"nil function":       {info(), WithID(nil), "WithID must be given a function"},
		"negative delay":     {info(), WithRequeueDelay(-1), "WithRequeueDelay must be at least 0, not -1ns"},
		"no stream":          {info(), WithStreamSequence(nil), "WithStreamSequence must be given a stream info"},
		"another stream":     {info(), stream("OTHER", time.Now()), `WithStreamSequence got the info of stream "OTHER", must be "ORDERS"`},
		"stream without age": {info(), stream("ORDERS", time.Time{}), "without its time of creation"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(tt.info, tt.opt)
			require.Nil(t, s)
			require.ErrorIs(t, err, idem.ErrInvalidOption)
			require.ErrorContains(t, err, "idemnats: ")
			require.ErrorContains(t, err, tt.text)
		})
	}
}
