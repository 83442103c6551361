package idemsqs

import (
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// bury is the two steps that SQS has in place of a dead-letter call. The order
// decides: between them there are two messages, not none.
func (d *Delivery) bury(ctx context.Context) error {
	if !d.copied {
		if _, err := d.source.client.SendMessage(ctx, d.letter()); err != nil {
			return errors.Join(err, d.giveBack(ctx, d.source.requeueDelay))
		}
		d.copied = true // a second try has to delete only
	}
	return d.delete(ctx)
}

// letter is the copy. Nothing is added: the message may be as large, and have as
// many attributes, as SQS allows.
func (d *Delivery) letter() *sqs.SendMessageInput {
	in := &sqs.SendMessageInput{
		QueueUrl:          &d.source.dead,
		MessageBody:       d.msg.Body,
		MessageAttributes: d.msg.MessageAttributes,
	}
	if trace, ok := d.attribute(types.MessageSystemAttributeNameAWSTraceHeader); ok {
		in.MessageSystemAttributes = map[string]types.MessageSystemAttributeValue{
			string(types.MessageSystemAttributeNameForSendsAWSTraceHeader): {DataType: aws.String("String"), StringValue: &trace},
		}
	}
	if group, ok := d.attribute(types.MessageSystemAttributeNameMessageGroupId); ok {
		in.MessageGroupId = &group
	}
	if isFIFO(d.source.dead) {
		in.MessageDeduplicationId = d.msg.MessageId // a second copy of the same message is dropped
	}
	return in
}

func (d *Delivery) attribute(name types.MessageSystemAttributeName) (string, bool) {
	value, ok := d.msg.Attributes[string(name)]
	return value, ok
}

func isFIFO(queue string) bool { return strings.HasSuffix(queue, ".fifo") }
