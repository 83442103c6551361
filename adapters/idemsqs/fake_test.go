package idemsqs

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is SQS by its JSON protocol, as far as these tests need it: visibility
// timeouts, receipt handles that age, redrive policies, the groups and the
// deduplication of FIFO queues, long polls.
type fake struct {
	*httptest.Server

	mu      sync.Mutex // protects what follows
	queues  map[string]*fakeQueue
	changed chan struct{} // closed when there may be more to receive
	serial  int
	polls   int                                       // requests that wait
	calls   []string                                  // operations that were carried out or refused
	fault   func(op string, in request) (fate, error) // what is to happen in place of the ordinary
}

// fate is what becomes of a request that a test meddles with.
type fate uint8

const (
	goOn       fate = iota
	refuseIt        // answer with an error, and do nothing
	loseAnswer      // do it, and answer with an error
)

type fakeQueue struct {
	name     string
	messages []*fakeMessage
	seen     map[string]time.Time // deduplication ids of a FIFO queue
	redrive  *redrive
}

type redrive struct {
	dead       string
	maxReceive int
}

type fakeMessage struct {
	id, body, group, dedup string
	attributes             map[string]json.RawMessage
	trace                  string
	visibleAt              time.Time
	handle                 string // of the last receipt
	received               int
}

// request is what any operation may be given.
type request struct {
	QueueUrl                    string
	ReceiptHandle               string
	VisibilityTimeout           int
	MaxNumberOfMessages         int
	WaitTimeSeconds             int
	MessageBody                 string
	MessageAttributes           map[string]json.RawMessage
	MessageSystemAttributes     map[string]struct{ StringValue string }
	MessageGroupId              string
	MessageDeduplicationId      string
	MessageAttributeNames       []string
	MessageSystemAttributeNames []string
}

type failure struct {
	Type    string `json:"__type"`
	Message string `json:"message"`
}

func fail(code, format string, args ...any) *failure {
	return &failure{"com.amazonaws.sqs#" + code, fmt.Sprintf(format, args...)}
}

func newFake(t testing.TB) *fake {
	f := &fake{queues: make(map[string]*fakeQueue), changed: make(chan struct{})}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// queue makes a queue, and returns its URL.
func (f *fake) queue(name string, policy *redrive) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queues[name] = &fakeQueue{name: name, seen: make(map[string]time.Time), redrive: policy}
	return f.URL + "/000000000000/" + name
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
	var in request
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		respond(w, nil, fail("InvalidParameterValue", "%v", err))
		return
	}
	what, err := f.note(op, in)
	if what == refuseIt {
		respond(w, nil, fail("ServiceUnavailable", "%v", err))
		return
	}
	out, failed := f.do(r, op, in)
	if what == loseAnswer {
		failed = fail("ServiceUnavailable", "%v", err)
	}
	respond(w, out, failed)
}

func respond(w http.ResponseWriter, out any, failed *failure) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if failed != nil {
		_, code, _ := strings.Cut(failed.Type, "#")
		w.Header().Set("X-Amzn-Query-Error", code+";Sender")
		w.WriteHeader(http.StatusBadRequest)
		out = failed
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (f *fake) note(op string, in request) (fate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, op)
	if f.fault == nil {
		return goOn, nil
	}
	return f.fault(op, in)
}

func (f *fake) do(r *http.Request, op string, in request) (any, *failure) {
	_, name, _ := cutLast(in.QueueUrl, "/")
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[name]
	if q == nil {
		return nil, fail("QueueDoesNotExist", "there is no queue %q", name)
	}
	switch op {
	case "SendMessage":
		return f.send(q, in)
	case "ReceiveMessage":
		return f.receive(r, q, in)
	case "DeleteMessage":
		return struct{}{}, f.delete(q, in)
	case "ChangeMessageVisibility":
		return struct{}{}, f.change(q, in)
	default:
		return nil, fail("UnsupportedOperation", "%s", op)
	}
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

func (f *fake) send(q *fakeQueue, in request) (any, *failure) {
	f.serial++
	m := &fakeMessage{
		id: fmt.Sprintf("00000000-0000-4000-8000-%012d", f.serial), body: in.MessageBody,
		group: in.MessageGroupId, dedup: in.MessageDeduplicationId, attributes: in.MessageAttributes,
		trace: in.MessageSystemAttributes["AWSTraceHeader"].StringValue,
	}
	if isFIFO(q.name) {
		if m.group == "" || m.dedup == "" {
			return nil, fail("MissingParameter", "The request must contain the parameters MessageGroupId and MessageDeduplicationId.")
		}
		if since, seen := q.seen[m.dedup]; seen && time.Since(since) < 5*time.Minute {
			return map[string]string{"MessageId": m.id, "MD5OfMessageBody": digest(m.body)}, nil // accepted, and dropped
		}
		q.seen[m.dedup] = time.Now()
	}
	q.messages = append(q.messages, m)
	f.wake()
	return map[string]string{"MessageId": m.id, "MD5OfMessageBody": digest(m.body)}, nil
}

func digest(body string) string {
	sum := md5.Sum([]byte(body))
	return hex.EncodeToString(sum[:])
}

func (f *fake) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// receive gives the lock back while it waits.
func (f *fake) receive(r *http.Request, q *fakeQueue, in request) (any, *failure) {
	f.polls++
	defer func() { f.polls-- }()
	end := time.Now().Add(time.Duration(in.WaitTimeSeconds) * time.Second)
	for {
		if r.Context().Err() != nil {
			return nil, fail("RequestCanceled", "nobody listens")
		}
		if found := f.take(q, in); len(found) > 0 || !time.Now().Before(end) {
			return map[string]any{"Messages": found}, nil
		}
		f.sleep(r, min(time.Until(end), q.untilVisible()))
	}
}

func (f *fake) sleep(r *http.Request, d time.Duration) {
	changed := f.changed
	f.mu.Unlock()
	defer f.mu.Lock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-r.Context().Done():
	}
}

func (q *fakeQueue) untilVisible() time.Duration {
	d := time.Hour
	for _, m := range q.messages {
		if m.inFlight() {
			d = min(d, time.Until(m.visibleAt))
		}
	}
	return d
}

func (m *fakeMessage) inFlight() bool { return time.Now().Before(m.visibleAt) }

func (f *fake) take(q *fakeQueue, in request) (found []map[string]any) {
	locked := make(map[string]bool) // groups of which a message is in flight
	for _, m := range q.messages {
		if isFIFO(q.name) && m.inFlight() {
			locked[m.group] = true
		}
	}
	for _, m := range slices.Clone(q.messages) {
		if m.inFlight() || locked[m.group] || len(found) >= max(1, in.MaxNumberOfMessages) {
			continue
		}
		if q.redrive != nil && m.received >= q.redrive.maxReceive {
			f.move(q, m)
			continue
		}
		f.serial++
		m.received++
		m.handle = fmt.Sprintf("%s#%d", m.id, f.serial)
		m.visibleAt = time.Now().Add(time.Duration(in.VisibilityTimeout) * time.Second)
		found = append(found, m.asReceived(in))
	}
	return found
}

// move is the redrive policy's: the message keeps its id.
func (f *fake) move(q *fakeQueue, m *fakeMessage) {
	q.messages = slices.DeleteFunc(q.messages, func(other *fakeMessage) bool { return other == m })
	m.received, m.visibleAt = 0, time.Time{}
	dead := f.queues[q.redrive.dead]
	dead.messages = append(dead.messages, m)
	f.wake()
}

func (m *fakeMessage) asReceived(in request) map[string]any {
	out := map[string]any{"MessageId": m.id, "ReceiptHandle": m.handle, "Body": m.body, "MD5OfBody": digest(m.body)}
	if slices.Contains(in.MessageAttributeNames, "All") {
		out["MessageAttributes"] = m.attributes
	}
	if slices.Contains(in.MessageSystemAttributeNames, "All") {
		system := map[string]string{"ApproximateReceiveCount": strconv.Itoa(m.received)}
		for name, value := range map[string]string{"MessageGroupId": m.group, "MessageDeduplicationId": m.dedup, "AWSTraceHeader": m.trace} {
			if value != "" {
				system[name] = value
			}
		}
		out["Attributes"] = system
	}
	return out
}

// lookUp finds the message of a handle, and says whether the handle is the last one.
func (q *fakeQueue) lookUp(handle string) (m *fakeMessage, fresh bool, failed *failure) {
	id, _, ok := cutLast(handle, "#")
	if !ok {
		return nil, false, fail("ReceiptHandleIsInvalid", "The input receipt handle %q is not a valid receipt handle.", handle)
	}
	for _, m := range q.messages {
		if m.id == id {
			return m, m.handle == handle, nil
		}
	}
	return nil, false, nil
}

func expired(handle string) *failure {
	return fail("InvalidParameterValue", "Value %s for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.", handle)
}

// delete succeeds for an old handle, and does nothing, as SQS may. FIFO queues refuse
// one also when its visibility timeout is over.
func (f *fake) delete(q *fakeQueue, in request) *failure {
	m, fresh, failed := q.lookUp(in.ReceiptHandle)
	switch {
	case failed != nil || m == nil:
		return failed
	case isFIFO(q.name) && !(fresh && m.inFlight()):
		return expired(in.ReceiptHandle)
	case !fresh:
		return nil
	}
	q.messages = slices.DeleteFunc(q.messages, func(other *fakeMessage) bool { return other == m })
	f.wake() // the next of its group
	return nil
}

func (f *fake) change(q *fakeQueue, in request) *failure {
	m, fresh, failed := q.lookUp(in.ReceiptHandle)
	switch {
	case failed != nil:
		return failed
	case m == nil:
		return fail("InvalidParameterValue", "Value %s for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", in.ReceiptHandle)
	case isFIFO(q.name) && !(fresh && m.inFlight()), !fresh:
		return expired(in.ReceiptHandle)
	case !m.inFlight():
		return fail("MessageNotInflight", "The specified message isn't in flight.")
	}
	m.visibleAt = time.Now().Add(time.Duration(in.VisibilityTimeout) * time.Second)
	f.wake()
	return nil
}

// What follows is for the tests.

func (f *fake) count(op string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if call == op {
			n++
		}
	}
	return n
}

// waiting is how many requests wait for messages. One that was given up does until
// the server notices.
func (f *fake) waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.polls
}

// meddle sets what is to happen to requests, as they come.
func (f *fake) meddle(fault func(op string, in request) (fate, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// expire ends all visibility timeouts.
func (f *fake) expire(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.queues[name].messages {
		m.visibleAt = time.Time{}
	}
	f.wake()
}

// list returns copies of what a queue holds, in flight or not.
func (f *fake) list(name string) (messages []fakeMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.queues[name].messages {
		messages = append(messages, *m)
	}
	return messages
}
