package idemsqs

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	_ idem.Delivery = (*Delivery)(nil)
	_ idem.Extender = (*Delivery)(nil)
	_ idem.Pauser   = (*Delivery)(nil)
	_ Client        = (*sqs.Client)(nil)
)

const queueURL = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"

// stub is a client without SQS.
type stub struct {
	Client // nil: what is not stubbed panics

	mu       sync.Mutex // protects what follows
	timeouts []int32
	deleted  int
	fail     error
}

func (c *stub) ChangeMessageVisibility(_ context.Context, in *sqs.ChangeMessageVisibilityInput, _ ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timeouts = append(c.timeouts, in.VisibilityTimeout)
	return nil, c.fail
}

func (c *stub) DeleteMessage(context.Context, *sqs.DeleteMessageInput, ...func(*sqs.Options)) (*sqs.DeleteMessageOutput, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted++
	return nil, c.fail
}

func deliver(t *testing.T, c Client, msg types.Message, opts ...Option) *Delivery {
	t.Helper()
	s, err := New(c, queueURL, opts...)
	require.NoError(t, err)
	msg.MessageId = aws.String("id-1")
	return s.Delivery(msg)
}

func TestIdentity(t *testing.T) {
	attributes := func(pairs ...string) types.Message {
		msg := types.Message{MessageId: aws.String("id-1"), Attributes: map[string]string{}}
		for i := 0; i < len(pairs); i += 2 {
			msg.Attributes[pairs[i]] = pairs[i+1]
		}
		return msg
	}
	for name, tt := range map[string]struct {
		msg   types.Message
		queue string
		opts  []Option
		want  string
		err   string
	}{
		"MessageId":           {msg: attributes(), want: "id-1"},
		"MessageId, FIFO":     {msg: attributes("MessageDeduplicationId", "d"), queue: ".fifo", want: "id-1"},
		"no MessageId":        {},
		"deduplication":       {attributes("MessageDeduplicationId", "d", "MessageGroupId", "g"), ".fifo", []Option{WithDeduplicationID()}, "g d", ""},
		"deduplication, none": {attributes("MessageGroupId", "g"), ".fifo", []Option{WithDeduplicationID()}, "", "was that attribute asked for?"},
		"function":            {opts: []Option{WithID(func(types.Message) (string, error) { return "mine", nil })}, want: "mine"},
		"function that fails": {attributes(), "", []Option{WithID(func(types.Message) (string, error) { return "x", errHandler })}, "", "idemsqs: id of message id-1 of " + queueURL + ": handler failed"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(&stub{}, queueURL+tt.queue, tt.opts...)
			require.NoError(t, err)
			id, err := s.Delivery(tt.msg).Identity()
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				require.Equal(t, idem.Identity{}, id)
				return
			}
			require.NoError(t, err)
			require.Equal(t, idem.IDAt(tt.want, queueURL+tt.queue), id)
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		client Client
		url    string
		opt    Option
		text   string
	}{
		"no client":            {nil, "q", WithBatch(1), "the client is nil"},
		"no queue":             {&stub{}, "", WithBatch(1), "the queue's URL is empty"},
		"nil option":           {&stub{}, "q", nil, "option 1 of 1 is nil"},
		"nil function":         {&stub{}, "q", WithID(nil), "WithID must be given a function"},
		"dedupid":              {&stub{}, "q", WithDeduplicationID(), `WithDeduplicationID is for FIFO queues, not "q"`},
		"no timeout":           {&stub{}, "q", WithVisibilityTimeout(0), "between 1s and 12h0m0s, not 0s"},
		"long timeout":         {&stub{}, "q", WithVisibilityTimeout(12*time.Hour + time.Second), "not 12h0m1s"},
		"half a second":        {&stub{}, "q", WithVisibilityTimeout(1500 * time.Millisecond), "must be whole seconds between 1s and 12h0m0s, not 1.5s"},
		"negative delay":       {&stub{}, "q", WithRequeueDelay(-time.Second), "between 0s and 12h0m0s, not -1s"},
		"half a second, delay": {&stub{}, "q", WithRequeueDelay(time.Second / 2), "WithRequeueDelay must be whole seconds"},
		"long delay":           {&stub{}, "q", WithRequeueDelay(13 * time.Hour), "not 13h0m0s"},
		"no batch":             {&stub{}, "q", WithBatch(0), "WithBatch must be between 1 and 10, not 0"},
		"large batch":          {&stub{}, "q", WithBatch(11), "WithBatch must be between 1 and 10, not 11"},
		"batch, FIFO":          {&stub{}, "q.fifo", WithBatch(2), "WithBatch must be 1 for a FIFO queue, not 2"},
		"no wait":              {&stub{}, "q", WithWait(0), "WithWait must be whole seconds between 1s and 20s, not 0s"},
		"long wait":            {&stub{}, "q", WithWait(21 * time.Second), "not 21s"},
		"none unsettled":       {&stub{}, "q", WithMaxUnsettled(0), "WithMaxUnsettled must be at least 1, not 0"},
		"no dead letters":      {&stub{}, "q", WithDeadLetterQueue(""), "WithDeadLetterQueue must be given a URL"},
		"same queue":           {&stub{}, "q", WithDeadLetterQueue("q"), `another queue than "q"`},
		"another kind":         {&stub{}, "q.fifo", WithDeadLetterQueue("dead"), `got "dead", must be of the same kind`},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(tt.client, tt.url, tt.opt)
			require.Nil(t, s)
			require.ErrorIs(t, err, idem.ErrInvalidOption)
			require.ErrorContains(t, err, "idemsqs: ")
			require.ErrorContains(t, err, tt.text)
		})
	}
}

func TestDelivered(t *testing.T) {
	for count, want := range map[string]int{"": 0, "1": 1, "17": 17, "many": 0} {
		d := deliver(t, &stub{}, types.Message{Attributes: map[string]string{"ApproximateReceiveCount": count}})
		require.Equal(t, want, d.Delivered())
	}
	require.Zero(t, deliver(t, &stub{}, types.Message{}).Delivered())
}

func TestRequeueTimeouts(t *testing.T) {
	for _, row := range []struct {
		opts  []Option
		cause error
		want  int32
	}{
		{nil, nil, 0},
		{nil, errHandler, 1},
		{[]Option{WithRequeueDelay(time.Minute)}, nil, 0},
		{[]Option{WithRequeueDelay(time.Minute)}, errHandler, 60},
		{[]Option{WithRequeueDelay(0)}, errHandler, 0},
	} {
		c := &stub{}
		d := deliver(t, c, types.Message{}, row.opts...)
		require.NoError(t, d.Requeue(t.Context(), row.cause))
		require.NoError(t, d.Requeue(t.Context(), row.cause))
		require.NoError(t, d.Ack(t.Context()))
		require.Equal(t, []int32{row.want}, c.timeouts)
		require.Zero(t, c.deleted)
		require.Equal(t, idem.Requeue, d.Settled())
	}
}

// Its visibility timeout is over, so it is given back already.
func TestRequeueOfWhatIsVisible(t *testing.T) {
	r := newRig(t)
	s := r.source()
	r.publish("a")
	d := r.next(s)
	r.expire()
	require.NoError(t, d.Requeue(t.Context(), nil))
	require.Equal(t, idem.Requeue, d.Settled())
	require.Equal(t, 2, r.next(s).Delivered())

	d = deliver(t, &stub{fail: &types.ReceiptHandleIsInvalid{}}, types.Message{})
	require.Error(t, d.Requeue(t.Context(), nil))
}

func TestExtendAsksEveryThirdOfTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &stub{}
		d := deliver(t, c, types.Message{}) // 30 s
		for i, step := range []struct {
			after, next time.Duration
			sent        int
		}{
			{0, 10 * time.Second, 0}, // fresh
			{4 * time.Second, 6 * time.Second, 0},
			{6*time.Second - 1, 1, 0},
			{1, 10 * time.Second, 1},
			{0, 10 * time.Second, 1},
			{10 * time.Second, 10 * time.Second, 2},
			{time.Hour, 10 * time.Second, 3},
		} {
			time.Sleep(step.after) // of the bubble's own clock
			next, err := d.Extend(t.Context())
			require.NoError(t, err)
			require.Equal(t, step.next, next, i)
			require.Len(t, c.timeouts, step.sent, i)
		}
		c.fail = errHandler
		time.Sleep(11 * time.Second) // of the bubble's own clock
		next, err := d.Extend(t.Context())
		require.ErrorIs(t, err, errHandler)
		require.Equal(t, 10*time.Second, next, "in time for one more try")
		c.fail = nil
		_, err = d.Extend(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int32{30, 30, 30, 30, 30}, c.timeouts, "a failed one doesn't count")

		require.NoError(t, d.Ack(t.Context()))
		time.Sleep(time.Hour) // of the bubble's own clock
		next, err = d.Extend(t.Context())
		require.NoError(t, err)
		require.Zero(t, next, "settled: no more calls")
		require.Len(t, c.timeouts, 5)
	})
}

// A verb was quicker: a sign of life would take back what it has given back.
func TestExtendBesideAVerbDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &stub{}
		d := deliver(t, c, types.Message{})
		time.Sleep(time.Minute) // of the bubble's own clock
		d.busy <- struct{}{}
		extended := make(chan error)
		go func() {
			next, err := d.Extend(t.Context())
			assert.Zero(t, next)
			extended <- err
		}()
		synctest.Wait()
		d.note(idem.Requeue, true)
		<-d.busy
		require.NoError(t, <-extended)
		require.Empty(t, c.timeouts)
	})
}

// SQS answers with an error to a timeout that ends later than this.
func TestExtendKeepsWithinTwelveHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &stub{}
		d := deliver(t, c, types.Message{}, WithVisibilityTimeout(time.Hour))
		time.Sleep(10 * time.Hour) // of the bubble's own clock
		_, err := d.Extend(t.Context())
		require.NoError(t, err)
		time.Sleep(90*time.Minute + time.Second/2) // of the bubble's own clock
		_, err = d.Extend(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int32{3600, 1798}, c.timeouts)
		time.Sleep(29*time.Minute + 59*time.Second) // of the bubble's own clock
		next, err := d.Extend(t.Context())
		require.NoError(t, err)
		require.Zero(t, next)
		require.Len(t, c.timeouts, 2)
	})
}

func TestExtendEndsWithTheReceiptHandle(t *testing.T) {
	for _, kind := range []string{"", ".fifo"} {
		r := newRigOf(t, kind, nil)
		s := r.source()
		r.publish("a")
		d := r.next(s)
		r.expire()
		later := r.next(s)
		d.asked = d.asked.Add(-time.Hour)
		next, err := d.Extend(t.Context())
		require.ErrorContains(t, err, "idemsqs: ChangeMessageVisibility of message ")
		require.ErrorContains(t, err, "expired")
		require.Zero(t, next)
		require.NoError(t, later.Ack(t.Context()))
	}
	d := deliver(t, &stub{fail: &types.MessageNotInflight{}}, types.Message{})
	d.asked = d.asked.Add(-time.Hour)
	next, err := d.Extend(t.Context())
	require.Error(t, err)
	require.Zero(t, next)
}

func TestFailedVerbIsKnownAndMayBeRepeated(t *testing.T) {
	c := &stub{fail: errHandler}
	d := deliver(t, c, types.Message{})
	require.EqualError(t, d.Ack(t.Context()), "idemsqs: DeleteMessage of message id-1 of "+queueURL+": handler failed")
	require.Equal(t, idem.Ack, d.Settled(), "what was called")
	c.fail = nil
	require.NoError(t, d.Requeue(t.Context(), nil))
	require.Equal(t, idem.Requeue, d.Settled(), "what SQS was told")
	require.NoError(t, d.Ack(t.Context()))
	require.Equal(t, 1, c.deleted)
}

func TestConcurrentVerbsSettleOnce(t *testing.T) {
	for range 100 {
		c := &stub{}
		d := deliver(t, c, types.Message{})
		var workers sync.WaitGroup
		for _, verb := range []func(context.Context) error{
			d.Ack, d.Ack,
			func(ctx context.Context) error { return d.Requeue(ctx, nil) },
			func(ctx context.Context) error { return d.Reject(ctx, errHandler) },
		} {
			workers.Go(func() { assert.NoError(t, verb(t.Context())) })
		}
		workers.Wait()
		require.Equal(t, 1, c.deleted+len(c.timeouts))
	}
}

func TestCopyHasAllThatTheMessageHas(t *testing.T) {
	for _, kind := range []string{"", ".fifo"} {
		r := newRigOf(t, kind, nil)
		c := r.client()
		in := &sqs.SendMessageInput{
			QueueUrl: &r.queue, MessageBody: aws.String(strings.Repeat("x", 1<<17)),
			MessageAttributes: map[string]types.MessageAttributeValue{
				"text":   {DataType: aws.String("String.custom"), StringValue: aws.String("é\n")},
				"binary": {DataType: aws.String("Binary"), BinaryValue: []byte{0, 255}},
			},
			MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{
				"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String("Root=1")},
			},
			MessageGroupId: aws.String("group"),
		}
		if kind != "" {
			in.MessageDeduplicationId = aws.String("once")
		}
		_, err := c.SendMessage(t.Context(), in)
		require.NoError(t, err)
		original := r.held()[0]
		d := r.next(r.source())
		require.NoError(t, d.Reject(t.Context(), errHandler))
		require.Empty(t, r.held())
		letters := r.sqs.list("dead" + kind)
		require.Len(t, letters, 1)
		letter := letters[0]
		require.Equal(t, original.body, letter.body)
		require.Equal(t, decoded(t, original.attributes), decoded(t, letter.attributes))
		require.Len(t, letter.attributes, 2)
		require.Equal(t, "Root=1", letter.trace)
		require.Equal(t, "group", letter.group)
		if kind != "" {
			require.Equal(t, original.id, letter.dedup)
		}
	}
}

func decoded(t *testing.T, attributes map[string]json.RawMessage) map[string]any {
	out := make(map[string]any)
	for name, raw := range attributes {
		var v any
		require.NoError(t, json.Unmarshal(raw, &v))
		out[name] = v
	}
	return out
}

// The copy is there and the deletion fails: a second try only deletes. If there is
// none, the message comes again, and a FIFO queue knows the second copy.
func TestRejectWhoseDeletionFails(t *testing.T) {
	for _, kind := range []string{"", ".fifo"} {
		r := newRigOf(t, kind, nil)
		r.publish("a")
		fails := true
		r.sqs.meddle(func(op string, _ request) (fate, error) {
			if op == "DeleteMessage" && fails {
				return refuseIt, errFault
			}
			return goOn, nil
		})
		s := r.source()
		d := r.next(s)
		require.ErrorContains(t, d.Reject(t.Context(), errHandler), "idemsqs: dead-lettering of message ")
		require.ErrorContains(t, d.Reject(t.Context(), errHandler), errFault.Error())
		require.Equal(t, []string{"a"}, r.deadLetters())
		fails = false
		r.expire()
		require.NoError(t, r.next(s).Reject(t.Context(), errHandler))
		want := []string{"a", "a"}
		if kind == ".fifo" {
			want = want[:1]
		}
		require.Equal(t, want, r.deadLetters())
		require.Empty(t, r.held())
	}
}

func TestFailedCopyTellsBothErrors(t *testing.T) {
	r := newRig(t)
	r.publish("a")
	d := r.next(r.source())
	r.sqs.meddle(func(op string, _ request) (fate, error) { return refuseIt, errors.New(op + " is out") })
	err := d.Reject(t.Context(), errHandler)
	require.ErrorContains(t, err, "SendMessage is out")
	require.ErrorContains(t, err, "ChangeMessageVisibility is out")
	require.Empty(t, r.deadLetters())
	require.Len(t, r.held(), 1)
}

func TestNextErrors(t *testing.T) {
	r := newRig(t)
	s, err := New(r.client(), r.queue+"-gone")
	require.NoError(t, err)
	_, err = s.Next(t.Context())
	require.ErrorContains(t, err, "idemsqs: next message of "+r.queue+"-gone: ")
	var gone *types.QueueDoesNotExist
	require.ErrorAs(t, err, &gone)
	require.Empty(t, s.slots)
	require.Empty(t, s.feed.turn)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Next(done)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.GiveBack(done), "nothing to give back")
}

func TestGiveBack(t *testing.T) {
	r := newRig(t)
	r.publish("a", "b", "c")
	s := r.source(WithBatch(10))
	require.Equal(t, "a", bodyOf(r.next(s)))
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.GiveBack(done), context.Canceled)
	require.NoError(t, s.GiveBack(t.Context()))
	require.Equal(t, "b", bodyOf(r.next(r.source())))
	require.Equal(t, "c", bodyOf(r.next(s)), "it goes on")
}

// SQS answers a request whose call of Next has ended: what it handed out is given
// back, or is what Next returns next.
func TestRequestThatOutlivesItsCall(t *testing.T) {
	r := newRig(t)
	s := r.source()
	r.nothing(s)
	r.publish("a")
	r.eventually(func() bool { return r.held()[0].received == 1 })
	require.Equal(t, "a", bodyOf(r.next(s)))
	require.Equal(t, 1, r.sqs.count("ReceiveMessage"))

	r.nothing(s)
	r.publish("b")
	require.NoError(t, s.GiveBack(t.Context()))
	d := r.next(r.source())
	require.Equal(t, "b", bodyOf(d))
	require.Equal(t, 2, d.Delivered())
}

// Next is to stop while what was fetched ahead is given more time: that is given back
// all the same.
func TestWhatWasFetchedAheadIsKeptWhereNextIsToStop(t *testing.T) {
	r := newRig(t)
	r.publish("a", "b", "c")
	s := r.source(WithBatch(10))
	require.Equal(t, "a", bodyOf(r.next(s)))
	s.feed.received = s.feed.received.Add(-time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	r.sqs.meddle(func(op string, _ request) (fate, error) {
		if op == "ChangeMessageVisibility" {
			cancel()
			<-ctx.Done()
			return refuseIt, context.Canceled
		}
		return goOn, nil
	})
	_, err := s.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	r.sqs.meddle(nil)
	require.NoError(t, s.GiveBack(t.Context()))
	require.Equal(t, "b", bodyOf(r.next(r.source())))
	require.Equal(t, "c", bodyOf(r.next(s)))
}

// What has waited for a worker for long is given more time before it is handed out,
// or not handed out if there is none.
func TestWhatWasFetchedAheadGrowsOld(t *testing.T) {
	r := newRig(t)
	r.publish("a", "b", "c")
	s := r.source(WithBatch(10))
	require.Equal(t, "a", bodyOf(r.next(s)))
	s.feed.received = s.feed.received.Add(-time.Hour)
	require.Equal(t, "b", bodyOf(r.next(s)))
	require.Equal(t, 1, r.sqs.count("ChangeMessageVisibility"))
	r.expire()
	other := r.source(WithBatch(10))
	for _, body := range []string{"a", "b", "c"} {
		require.Equal(t, body, bodyOf(r.next(other)))
	}
	r.nothing(s)
}

func TestMaxUnsettled(t *testing.T) {
	r := newRig(t)
	s := r.source(WithMaxUnsettled(2))
	r.publish("a", "b", "c", "d")
	a, b := r.next(s), r.next(s)
	r.nothing(s)
	require.NoError(t, a.Ack(t.Context()))
	require.NoError(t, a.Ack(t.Context()), "which makes no more room")
	c := r.next(s)
	r.nothing(s)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, b.Ack(done))
	require.Equal(t, "d", bodyOf(r.next(s)), "a failed verb is an end, too")
	require.NoError(t, c.Ack(t.Context()))
}
