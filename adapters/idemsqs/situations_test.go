package idemsqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSuccessIsDeletedOnce(t *testing.T) {
	r, runs := newRig(t), tally{}
	r.publish("a", "b", "c")
	r.consume(r.receiver(runs.counting), r.source())
	r.settled()
	assert.ElementsMatch(t, []string{"a", "b", "c"}, runs.all())
	assert.Equal(t, 3, r.sqs.count("DeleteMessage"))
	assert.Zero(t, r.sqs.count("ChangeMessageVisibility"))
	assert.Equal(t, uint64(3), r.guard.Stats().Completed)
}

func TestFailureComesBackAfterTheDelay(t *testing.T) {
	r, runs := newRig(t), tally{}
	var failedAt, cameBack time.Time
	var delivered []int
	r.publish("a")
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		delivered = append(delivered, d.Delivered())
		if runs.add(bodyOf(d)) == 1 {
			failedAt = time.Now()
			return errHandler
		}
		cameBack = time.Now()
		return nil
	}), r.source(WithRequeueDelay(time.Second)))
	r.settled()
	assert.Equal(t, 2, runs.of("a"))
	assert.GreaterOrEqual(t, cameBack.Sub(failedAt), time.Second)
	assert.Less(t, cameBack.Sub(failedAt), defaultVisibility)
	assert.Equal(t, []int{1, 2}, delivered)
	assert.Equal(t, uint64(1), r.guard.Stats().Released)
}

func poison(_ context.Context, d *Delivery) error {
	if bodyOf(d) == "poison" {
		return idem.WithOutcome(errHandler, idem.Reject)
	}
	return nil
}

func TestPoisonIsCopiedAndDeletedOnce(t *testing.T) {
	r := newRig(t)
	r.publish("poison", "good")
	r.consume(r.receiver(poison), r.source())
	r.settled()
	assert.Equal(t, []string{"poison"}, r.deadLetters())
	assert.Equal(t, 2, r.sqs.count("DeleteMessage"))
	assert.Equal(t, uint64(1), r.guard.Stats().Rejected)
}

// The dead-letter copy fails: the original is not deleted, nor remembered as
// rejected. It comes again, and runs.
func TestAFailedCopyGivesBack(t *testing.T) {
	r, runs := newRig(t), tally{}
	r.publish("poison")
	copies := 0
	r.sqs.meddle(func(op string, _ request) (fate, error) {
		if op == "SendMessage" {
			if copies++; copies < 3 {
				return refuseIt, errFault
			}
		}
		return goOn, nil
	})
	r.consume(r.receiver(func(ctx context.Context, d *Delivery) error {
		runs.add(bodyOf(d))
		assert.Empty(t, r.deadLetters())
		return poison(ctx, d)
	}), r.source())
	r.settled()
	assert.Equal(t, 3, runs.of("poison"), "at once: its visibility timeout is half a minute")
	assert.Equal(t, []string{"poison"}, r.deadLetters())
	assert.Equal(t, 1, r.sqs.count("DeleteMessage"), "after the copy, and only then")
	assert.Equal(t, uint64(1), r.guard.Stats().Rejected)
	assert.Equal(t, uint64(2), r.guard.Stats().Released)
}

// Without a queue for dead letters the redrive policy counts. Each further delivery
// is rejected again, and the handler doesn't see it.
func TestRejectLeavesItToTheRedrivePolicy(t *testing.T) {
	r, runs := newRigOf(t, "", &redrive{"dead", 4}), tally{}
	s, err := New(r.client(), r.queue)
	require.NoError(t, err)
	t.Cleanup(func() { giveUp(s) })
	r.publish("poison")
	r.consume(r.receiver(func(ctx context.Context, d *Delivery) error {
		runs.add(bodyOf(d))
		return poison(ctx, d)
	}), s)
	r.settled()
	assert.Equal(t, []string{"poison"}, r.deadLetters())
	assert.Equal(t, 1, runs.of("poison"))
	stats := r.guard.Stats()
	assert.Equal(t, uint64(3), stats.DuplicatesRejected+stats.DuplicatesInFlight)
	assert.Zero(t, r.sqs.count("DeleteMessage"))
}

func TestDuplicateAfterSuccessIsDeletedUnrun(t *testing.T) {
	r, runs := newRig(t), tally{}
	r.consume(r.receiver(runs.counting), r.source(WithID(body)))
	r.publish("a")
	r.settled()
	r.publish("a", "b")
	r.settled()
	assert.ElementsMatch(t, []string{"a", "b"}, runs.all())
	assert.Equal(t, uint64(1), r.guard.Stats().DuplicatesCompleted)
}

// body is an id from the payload.
func body(msg types.Message) (string, error) { return aws.ToString(msg.Body), nil }

// A standard queue may deliver once more what was deleted.
func TestDeliveredAgainAfterItsDeletion(t *testing.T) {
	r, runs := newRig(t), tally{}
	deletions := 0
	r.sqs.meddle(func(op string, in request) (fate, error) {
		if op == "DeleteMessage" {
			if deletions++; deletions == 1 {
				r.sqs.queues["orders"].messages[0].handle = "" // as if deleted, with a copy left
			}
		}
		return goOn, nil
	})
	r.publish("a")
	r.consume(r.receiver(runs.counting), r.source())
	r.eventually(func() bool { return r.guard.Stats().Completed == 1 })
	r.eventually(func() bool { return r.sqs.count("DeleteMessage") == 1 })
	r.expire()
	r.settled()
	assert.Equal(t, []string{"a"}, runs.all())
	assert.Equal(t, uint64(1), r.guard.Stats().DuplicatesCompleted)
}

func TestDuplicateAfterRejectIsRejectedAgain(t *testing.T) {
	r, runs := newRig(t), tally{}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		runs.add(bodyOf(d))
		return idem.WithOutcome(errHandler, idem.Reject)
	}), r.source(WithID(body)))
	r.publish("a")
	r.settled()
	r.publish("a")
	r.settled()
	assert.Equal(t, []string{"a"}, runs.all())
	assert.Equal(t, []string{"a", "a"}, r.deadLetters(), "neither run nor lost")
}

func TestDuplicateInFlight(t *testing.T) {
	for _, policy := range []idem.InFlightPolicy{idem.HoldInFlight, idem.RequeueInFlight, idem.AckInFlight} {
		for _, first := range []error{nil, errHandler} {
			t.Run(fmt.Sprintf("%v, the first run returns %v", policy, first), func(t *testing.T) {
				r, g := newRig(t), newGated()
				receiver := r.receiver(g.handle)
				receiver.OnInFlight = policy
				r.consume(receiver, r.source(WithID(body)))
				r.publish("a")
				require.Equal(t, "a", <-g.entered)
				r.publish("a")
				r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight > 0 })
				switch policy {
				case idem.HoldInFlight:
					assert.Len(t, r.held(), 2, "nothing is settled")
				case idem.RequeueInFlight:
					r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight >= 3 })
				case idem.AckInFlight:
					r.eventually(func() bool { return len(r.held()) == 1 })
				}
				g.gate <- first
				if first != nil {
					require.Equal(t, "a", <-g.entered)
					g.gate <- nil
				}
				r.settled()
				assert.Empty(t, g.entered)
				assert.Equal(t, uint64(1), r.guard.Stats().Completed)
			})
		}
	}
}

// The deletion with the first handle fails, or does nothing because the message was
// received once more: each copy is deleted with a handle of its own.
func TestLostDeletionIsRedeliveredAndDeletedWithTheNewHandle(t *testing.T) {
	for _, kind := range []string{"", ".fifo"} {
		for name, meddle := range map[string]func(r *rig) fate{
			"refused":     func(*rig) fate { return refuseIt },
			"an aged one": func(r *rig) fate { r.sqs.queues["orders"+r.kind].messages[0].handle = "another"; return goOn },
			"answer lost": func(*rig) fate { return loseAnswer },
		} {
			t.Run(name+kind, func(t *testing.T) {
				r, runs := newRigOf(t, kind, nil), tally{}
				var handles []string
				r.sqs.meddle(func(op string, in request) (fate, error) {
					if op != "DeleteMessage" {
						return goOn, nil
					}
					if handles = append(handles, in.ReceiptHandle); len(handles) == 1 {
						return meddle(r), errFault
					}
					return goOn, nil
				})
				r.publish("a")
				r.consume(r.receiver(runs.counting), r.source())
				r.eventually(func() bool { return r.sqs.count("DeleteMessage") == 1 })
				r.expire()
				r.settled()
				assert.Equal(t, []string{"a"}, runs.all())
				if name != "answer lost" {
					require.Len(t, handles, 2)
					assert.NotEqual(t, handles[0], handles[1])
					assert.Equal(t, uint64(1), r.guard.Stats().DuplicatesCompleted)
				}
			})
		}
	}
}

func TestHandlerSettlesByItself(t *testing.T) {
	ctx := context.Background()
	for name, tt := range map[string]struct {
		settle func(*Delivery) error
		runs   int
		dead   []string
	}{
		"Ack":             {func(d *Delivery) error { return d.Ack(ctx) }, 1, nil},
		"Requeue":         {func(d *Delivery) error { return d.Requeue(ctx, nil) }, 2, nil},
		"Requeue, failed": {func(d *Delivery) error { return d.Requeue(ctx, errHandler) }, 2, nil},
		"Reject":          {func(d *Delivery) error { return d.Reject(ctx, errHandler) }, 1, []string{"a"}},
	} {
		for _, returns := range []error{nil, errHandler} {
			t.Run(fmt.Sprintf("%s, and returns %v", name, returns), func(t *testing.T) {
				r, runs := newRig(t), tally{}
				r.publish("a")
				r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
					if runs.add(bodyOf(d)) > 1 {
						return nil
					}
					assert.NoError(t, tt.settle(d))
					assert.NoError(t, tt.settle(d), "a second time")
					return returns
				}), r.source())
				r.eventually(func() bool { return runs.of("a") == tt.runs })
				r.settled()
				assert.Equal(t, tt.runs, runs.of("a"))
				assert.Equal(t, tt.dead, r.deadLetters())
				assert.Equal(t, 1, r.sqs.count("DeleteMessage"))
			})
		}
	}
}

func TestSlowHandlerIsNotRedelivered(t *testing.T) {
	r, g := newRig(t), newGated()
	r.publish("a")
	r.consume(r.receiver(g.handle), r.source(WithVisibilityTimeout(time.Second)))
	<-g.entered
	r.eventually(func() bool { return r.sqs.count("ChangeMessageVisibility") >= 7 }) // twice its timeout
	assert.Equal(t, 1, r.held()[0].received)
	g.gate <- nil
	r.settled()
	assert.Zero(t, r.guard.Stats().DuplicatesInFlight)
}

// The signs of life get lost: SQS delivers again while the handler runs. Its own
// deletion comes with an old handle, which SQS says nothing about.
func TestSlowHandlerPastItsTimeoutRunsOnce(t *testing.T) {
	for _, first := range []error{nil, errHandler} {
		t.Run(fmt.Sprintf("the first run returns %v", first), func(t *testing.T) {
			r, g := newRig(t), newGated()
			r.sqs.meddle(func(op string, in request) (fate, error) {
				if op == "ChangeMessageVisibility" && in.VisibilityTimeout > 0 {
					return refuseIt, errFault
				}
				return goOn, nil
			})
			r.publish("a")
			r.consume(r.receiver(g.handle), r.source())
			<-g.entered
			for n := range uint64(2) {
				r.expire()
				r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == n+1 })
			}
			assert.Zero(t, r.sqs.count("DeleteMessage"))
			g.gate <- first
			if first != nil {
				<-g.entered
				g.gate <- nil
			}
			r.settled()
			assert.Empty(t, g.entered)
			assert.Equal(t, uint64(1), r.guard.Stats().Completed)
		})
	}
}

func TestShutdownInMidHandler(t *testing.T) {
	r, g := newRig(t), newGated()
	for i := range 50 {
		r.publish(strconv.Itoa(i))
	}
	s := r.source(WithBatch(10))
	stop, wait := r.start(r.receiver(g.handle), s)
	for range 4 {
		<-g.entered
	}
	stop()
	g.gate <- errHandler
	for range 3 {
		g.gate <- nil
	}
	require.ErrorIs(t, wait(), context.Canceled)
	require.NoError(t, s.GiveBack(t.Context())) // there is always more, so it needn't wait
	stats := r.guard.Stats()
	assert.Equal(t, uint64(4), stats.Begun, "what was only fetched ahead doesn't touch the guard")
	assert.Equal(t, uint64(3), stats.Completed, "what was done is deleted, on a context that lives")
	assert.Zero(t, stats.InFlight)

	runs := tally{}
	r.consume(r.receiver(runs.counting), r.source())
	r.settled()
	assert.Len(t, runs.all(), 47, "although the timeout is half a minute")
	assert.Zero(t, r.guard.Stats().DuplicatesCompleted)
}

func TestHandlerThatHeedsTheShutdownRunsAgain(t *testing.T) {
	r, runs := newRig(t), tally{}
	entered := make(chan struct{}, 1)
	receiver := r.receiver(func(ctx context.Context, _ *Delivery) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	receiver.Drain = time.Millisecond
	r.publish("a")
	s := r.source()
	stop := r.consume(receiver, s)
	<-entered
	require.ErrorIs(t, stop(), context.Canceled)
	require.NoError(t, s.GiveBack(t.Context())) // its request may have got the message
	r.consume(r.receiver(runs.counting), r.source())
	r.settled()
	assert.Equal(t, []string{"a"}, runs.all())
}

// SQS can't be reached when the handlers are done. The guard outlives the receiver,
// and drops what comes again.
func TestReceiverRebuilt(t *testing.T) {
	r, g, w := newRig(t), newGated(), (*wire)(nil)
	w = r.client()
	r.publish("a", "b")
	receiver := r.receiver(g.handle)
	receiver.SettleTimeout = 50 * time.Millisecond
	s := r.sourceOn(w)
	stop := r.consume(receiver, s)
	<-g.entered
	<-g.entered
	w.cut()
	g.gate <- nil
	g.gate <- nil
	require.ErrorIs(t, stop(), context.Canceled)
	giveUp(s) // whose request SQS would answer else
	r.eventually(func() bool { return r.sqs.waiting() == 0 })
	require.Equal(t, uint64(2), r.guard.Stats().Completed, "a failed deletion doesn't undo the work")
	require.Len(t, r.held(), 2)

	runs := tally{}
	r.consume(r.receiver(runs.counting), r.source())
	r.expire()
	r.settled()
	assert.Empty(t, runs.all())
	assert.Equal(t, 2, r.sqs.count("DeleteMessage"))
	assert.Equal(t, uint64(2), r.guard.Stats().DuplicatesCompleted)
}

func TestUnidentifiedMessagesAlwaysRun(t *testing.T) {
	r, runs := newRig(t), tally{}
	noID := WithID(func(msg types.Message) (string, error) {
		return aws.ToString(msg.MessageAttributes["id"].StringValue), nil
	})
	r.consume(r.receiver(runs.counting), r.source(noID))
	r.publish("a", "a")
	r.settled()
	assert.Equal(t, 2, runs.of("a"), "equal bodies are two messages")
	assert.Equal(t, uint64(2), r.guard.Stats().Unidentified)
}

// A failing id function is no reason to delete, nor to run.
func TestFailingIDIsRequeued(t *testing.T) {
	r, runs, calls := newRig(t), tally{}, tally{}
	r.publish("a")
	r.consume(r.receiver(runs.counting), r.source(WithID(func(msg types.Message) (string, error) {
		if calls.add("") == 1 {
			return "", errors.New("no id in the payload")
		}
		return body(msg)
	})))
	r.settled()
	assert.Equal(t, []string{"a"}, runs.all())
	assert.Equal(t, uint64(1), r.guard.Stats().Begun)
}

// The publisher's retry comes later than SQS looks back.
func TestDeduplicationIDOutlivesThatOfSQS(t *testing.T) {
	r, runs := newRigOf(t, ".fifo", nil), tally{}
	r.consume(r.receiver(runs.counting), r.source(WithDeduplicationID()))
	r.publish("a")
	r.publish("a") // which SQS drops
	r.settled()
	r.sqs.mu.Lock()
	clear(r.sqs.queues["orders.fifo"].seen) // five minutes are over
	r.sqs.mu.Unlock()
	r.publish("a")
	r.settled()
	assert.Equal(t, []string{"a"}, runs.all())
	assert.Equal(t, uint64(1), r.guard.Stats().DuplicatesCompleted)
}

// The messages of a group are handled in their order, also when one of them fails, by
// however many workers.
func TestGroupsKeepTheirOrder(t *testing.T) {
	r, runs := newRigOf(t, ".fifo", nil), tally{}
	c := r.client()
	for i := range 10 {
		for _, group := range []string{"x", "y"} {
			_, err := c.SendMessage(t.Context(), &sqs.SendMessageInput{
				QueueUrl: &r.queue, MessageBody: aws.String(group + strconv.Itoa(i)),
				MessageGroupId: &group, MessageDeduplicationId: aws.String(group + strconv.Itoa(i)),
			})
			require.NoError(t, err)
		}
	}
	done := map[byte]string{'x': "", 'y': ""}
	r.consume(r.receiver(func(_ context.Context, d *Delivery) error {
		body := bodyOf(d)
		if runs.add(body) == 1 && body[1]%3 == 0 {
			return errHandler
		}
		runs.mu.Lock()
		defer runs.mu.Unlock()
		done[body[0]] += body[1:]
		return nil
	}), r.source())
	r.settled()
	assert.Equal(t, map[byte]string{'x': "0123456789", 'y': "0123456789"}, done)
	assert.Len(t, runs.all(), 28)
}

// A storm of copies behind a slow one: they run once, and are all settled.
func TestStormOfCopiesRunsOnce(t *testing.T) {
	r, g := newRig(t), newGated()
	r.consume(r.receiver(g.handle), r.source(WithID(body), WithMaxUnsettled(50), WithBatch(10)))
	r.publish("a")
	<-g.entered
	r.publish(slices.Repeat([]string{"a"}, 200)...)
	r.eventually(func() bool { return r.guard.Stats().DuplicatesInFlight == 49 })
	g.gate <- nil
	r.settled()
	assert.Empty(t, g.entered)
	assert.Equal(t, 201, r.sqs.count("DeleteMessage"))
	assert.Equal(t, uint64(1), r.guard.Stats().Completed)
}
