package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// play runs the scene small, with what the flags say.
func play(t *testing.T, args ...string) []result {
	t.Helper()
	s, err := parse(append([]string{"-messages", "64"}, args...), io.Discard)
	require.NoError(t, err)
	results, err := runAll(t.Context(), s, io.Discard, io.Discard)
	require.NoError(t, err)
	require.Len(t, results, len(s.guards))
	return results
}

// requireSumsUp checks what must hold of every run, whatever the guard does.
func requireSumsUp(t *testing.T, r result) {
	t.Helper()
	assert.Equal(t, 64, r.events)
	assert.Equal(t, 13, r.twice, "the broker took every fifth event twice")
	assert.Equal(t, 1, r.rebuilt)
	assert.Equal(t, r.arrived, r.started+r.suppressed+r.givenBack, "each arrival ran, was suppressed or was given back")
	assert.Equal(t, r.started, r.done+r.again+r.failed, "each run was the first, one more, or a failure")
	assert.Equal(t, r.events, r.done+r.lost)
	assert.GreaterOrEqual(t, r.acksLost, 8, "every eighth event's first ack is lost")
	assert.Zero(t, r.running)
}

func TestWithoutGuardDoneEventsRunAgain(t *testing.T) {
	t.Parallel()
	r := play(t, "-guard=off")[0]
	requireSumsUp(t, r)
	assert.GreaterOrEqual(t, r.again, r.twice+8, "the ones published twice, and the ones whose ack was lost")
	assert.Positive(t, r.concurrent, "slow ones are delivered again while they run")
	assert.Positive(t, r.overCents)
	assert.Zero(t, r.suppressed)
	assert.Zero(t, r.lost)
}

func TestWithGuardEachEventRunsOnce(t *testing.T) {
	for _, policy := range []string{"hold", "requeue"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			r := play(t, "-guard=on", "-in-flight="+policy)[0]
			requireSumsUp(t, r)
			assert.Zero(t, r.again)
			assert.Zero(t, r.concurrent)
			assert.Zero(t, r.lost)
			assert.Zero(t, r.overCents)
			assert.GreaterOrEqual(t, r.suppressed, r.twice)
			assert.Positive(t, r.failed, "failures are tried again")
		})
	}
}

// An event that takes longer than AckWait and fails at first is lost by a
// consumer that acks the copy meanwhile.
func TestAckInFlightLoses(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	results := play(t, "-guard=on", "-in-flight=ack")
	requireSumsUp(t, results[0])
	assert.Zero(t, results[0].again)
	assert.Positive(t, results[0].lost)
	assert.Equal(t, 1, verdict(&out, results))
	assert.Contains(t, out.String(), "FAILED")
	assert.Contains(t, out.String(), "may be the last")
}

func TestVerdict(t *testing.T) {
	for name, tt := range map[string]struct {
		r    result
		code int
		text string
	}{
		"clean":              {result{guarded: true}, 0, "each once"},
		"again":              {result{guarded: true, totals: totals{again: 1}}, 1, "FAILED: 1 ran again"},
		"concurrent":         {result{guarded: true, totals: totals{concurrent: 1}}, 1, "1 ran concurrently"},
		"lost":               {result{guarded: true, totals: totals{lost: 1}}, 1, "1 lost"},
		"unguarded may fail": {result{totals: totals{again: 3, lost: 1}}, 0, "3 ran again"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			assert.Equal(t, tt.code, verdict(&out, []result{tt.r}))
			assert.Contains(t, out.String(), tt.text)
		})
	}
}

func TestLedgerCountsWhatHandlersDo(t *testing.T) {
	events := []event{{ID: "a", Cents: 100}, {ID: "b", Cents: 5}, {ID: "c"}}
	l := newLedger(events)
	assert.Equal(t, 1, l.start("a", 1))
	assert.Equal(t, 2, l.start("a", 2), "beside the first")
	assert.Equal(t, 1, l.finish("a", true))
	assert.Equal(t, 1, l.finish("a", true), "done already")
	l.start("b", 3)
	l.finish("b", false)
	assert.Equal(t, 2, l.start("b", 4))
	assert.Equal(t, 2, l.finish("b", true))
	l.noteAck(4)
	l.noteAck(5)
	l.noteNak(3)
	l.noteNak(6)
	assert.Equal(t, totals{
		suppressed: 1, givenBack: 1, started: 4, failed: 1, again: 1, concurrent: 1, done: 2, lost: 1, overCents: 100,
	}, l.totals(events))
}

func TestFlags(t *testing.T) {
	for _, args := range []string{"-messages=0", "-messages=1000001", "-messages=x", "-guard=maybe", "-in-flight=drop", "-nope", "more"} {
		var stderr bytes.Buffer
		assert.Equal(t, 2, quickstart(t.Context(), strings.Fields(args), io.Discard, &stderr), args)
		assert.NotEmpty(t, stderr.String(), args)
	}
	assert.Equal(t, 0, quickstart(t.Context(), []string{"-h"}, io.Discard, io.Discard))

	s, err := parse(nil, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, settings{messages: 300, guards: []bool{false, true}, inFlight: idem.HoldInFlight}, s)
}

func TestPrintsATableAndProgress(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, quickstart(t.Context(), []string{"-messages=8"}, &stdout, &stderr))
	for _, line := range rows {
		assert.Contains(t, stdout.String(), line.label)
	}
	assert.Contains(t, stdout.String(), "guard on: every event was handled, and each once.")
	assert.Contains(t, stderr.String(), "guard off [##############################] 8 of 8 done")
	assert.Contains(t, stderr.String(), "guard on  [##############################] 8 of 8 done")
}

func TestStopsWhenInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr bytes.Buffer
	assert.Equal(t, 1, quickstart(ctx, nil, io.Discard, &stderr))
	assert.Contains(t, stderr.String(), context.Canceled.Error())
}
