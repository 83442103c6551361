package idemtest_test

import (
	"testing"

	"github.com/idem-go/idem/idemtest"
)

func TestStraight(t *testing.T) { idemtest.DeliveryInBubble(t, newCrooked("")) }

func TestWrongDeliveries(t *testing.T) {
	expectFailures(t, func(t *testing.T, bug string) { idemtest.DeliveryInBubble(t, newCrooked(bug)) }, []wrong{
		{bug: "each delivery has its own identity", breaks: "IdentityStays", wide: true},
		{bug: "each call has its own identity", breaks: "IdentityStays"},
		{bug: "the identity goes when it is settled", breaks: "IdentityStays"},
		{bug: "the id is the destination", breaks: "IdentityStays"},
		{bug: "all have one identity", breaks: "IdentitiesDiffer"},
		{bug: "gives up after two redeliveries", breaks: "UnsettledComesAgain"},
		{bug: "says Ack from the beginning", breaks: "UnsettledComesAgain", wide: true},
		{bug: "acks on delivery", breaks: "UnsettledComesAgain", wide: true},

		{bug: "Ack does nothing", breaks: "AckIsFinal", wide: true},
		{bug: "Ack dead-letters", breaks: "AckIsFinal", wide: true},
		{bug: "acks are sent with the next delivery", breaks: "AckIsFinal", wide: true},
		{bug: "Requeue acks", breaks: "RequeueComesAgain", wide: true},
		{bug: "Requeue without a cause acks", breaks: "RequeueComesAgain"},
		{bug: "Requeue makes two copies", breaks: "RequeueComesAgain", wide: true},
		{bug: "Reject gives back", breaks: "RejectIsFinal", wide: true},
		{bug: "Reject acks", breaks: "RejectIsFinal", wide: true},
		{bug: "Reject dead-letters twice", breaks: "RejectIsFinal", wide: true},

		{bug: "a second verb is an error", breaks: "SecondVerbAfterAck", also: []string{"SecondVerbAfterRequeue", "SecondVerbAfterReject", "ConcurrentVerbs", "NativeAck", "NativeRequeue", "NativeReject"}},
		{bug: "a second verb ends the consumer", breaks: "SecondVerbAfterAck", also: []string{"SecondVerbAfterRequeue", "SecondVerbAfterReject", "ConcurrentVerbs", "NativeAck", "NativeRequeue", "NativeReject"}},
		{bug: "Settled tells the last verb", breaks: "SecondVerbAfterAck", also: []string{"SecondVerbAfterRequeue", "SecondVerbAfterReject", "ConcurrentVerbs", "NativeAck", "NativeRequeue", "NativeReject"}},
		{bug: "Requeue after Ack gives back", breaks: "SecondVerbAfterAck", also: []string{"NativeAck"}, may: []string{"ConcurrentVerbs"}},
		{bug: "an earlier delivery settles a later", breaks: "SecondVerbAfterRequeue", also: []string{"NativeRequeue"}, may: []string{"ConcurrentVerbs"}},
		{bug: "Requeue after Reject gives back", breaks: "SecondVerbAfterReject", also: []string{"NativeReject"}, may: []string{"ConcurrentVerbs"}},
		{bug: "checks, then settles", breaks: "ConcurrentVerbs"},
		{bug: "settles in the background", breaks: "ConcurrentVerbs"},
		{bug: "a stale verb never returns", breaks: "StaleDelivery"},
		{bug: "a stale verb ends the consumer", breaks: "StaleDelivery"},
		{bug: "a stale verb makes a copy", breaks: "StaleDelivery"},

		{bug: "a native Ack is not seen", breaks: "NativeAck"},
		{bug: "a native Requeue is not seen", breaks: "NativeRequeue"},
		{bug: "a native Reject is not seen", breaks: "NativeReject"},
		{bug: "Ack in vain loses", breaks: "DoneContextAck"},
		{bug: "Ack in vain says nil", breaks: "DoneContextAck"},
		{bug: "Ack in vain never returns", breaks: "DoneContextAck"},
		{bug: "Requeue in vain loses", breaks: "DoneContextRequeue"},
		{bug: "Requeue in vain says nil", breaks: "DoneContextRequeue"},
		{bug: "Reject in vain loses", breaks: "DoneContextReject"},
		{bug: "Reject in vain says nil", breaks: "DoneContextReject"},
		{bug: "a failed Ack loses", breaks: "FailedAck"},
		{bug: "a failed Requeue loses", breaks: "FailedRequeue"},
		{bug: "a failed Reject loses", breaks: "FailedReject"},
		{bug: "ignores its context while the connection is cut", breaks: "FailedAck", also: []string{"FailedRequeue", "FailedReject"}},

		{bug: "Extend does nothing", breaks: "Extend"},
		{bug: "Extend fails", breaks: "Extend"},
		{bug: "Extend comes too late", breaks: "Extend"},
		{bug: "Extend ends at once", breaks: "Extend"},
		{bug: "Extend settles", breaks: "Extend"},
		{bug: "Extend after Ack revives", breaks: "ExtendAfterVerb"},
		{bug: "Extend after Requeue takes it back", breaks: "ExtendAfterVerb"},
		{bug: "Extend unsettles", breaks: "ExtendAfterVerb"},
	})
}
