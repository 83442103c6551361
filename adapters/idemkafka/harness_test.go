package idemkafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 20 * time.Second
	tick     = 2 * time.Millisecond
	quick    = 20 * time.Millisecond // a rest short enough to wait for
	group    = "billing"
	topic    = "orders"
)

var (
	errHandler = errors.New("handler failed")
	discard    = slog.New(slog.DiscardHandler)
)

// rig is a cluster with one topic, and the guard of that endpoint.
type rig struct {
	t        testing.TB
	cluster  *kfake.Cluster
	producer *kgo.Client
	guard    *idem.Generational

	mu        sync.Mutex // protects what follows
	sent      []commit
	mayRewind bool
}

// commit is one offset that a member asked the broker to commit.
type commit struct {
	partition int32
	offset    int64
}

func newRig(t testing.TB, partitions int32) *rig {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic),
		kfake.GroupMinSessionTimeout(time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.consumer.heartbeat.interval.ms": "50"}))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	guard, err := idem.NewGenerational()
	require.NoError(t, err)
	r := &rig{t: t, cluster: cluster, guard: guard}
	r.producer = r.newClient(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(topic))
	r.watchCommits()
	return r
}

// watchCommits notes all commits. None may ever lie before an earlier one.
func (r *rig) watchCommits() {
	r.cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, t := range req.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range t.Partitions {
				r.sent = append(r.sent, commit{p.Partition, p.Offset})
			}
		}
		return nil, nil, false
	})
	r.t.Cleanup(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		last := make(map[int32]int64)
		for _, c := range r.sent {
			assert.True(r.t, r.mayRewind || c.offset >= last[c.partition], "commit moved back: %v", r.sent)
			last[c.partition] = c.offset
		}
	})
}

// commits are the offsets that were asked to be committed.
func (r *rig) commits(partition int32) (offsets []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.sent {
		if c.partition == partition {
			offsets = append(offsets, c.offset)
		}
	}
	return offsets
}

// rewinds says that this test has commits move back on purpose.
func (r *rig) rewinds() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mayRewind = true
}

// newClient makes a client that doesn't wait long for anything.
func (r *rig) newClient(opts ...kgo.Opt) *kgo.Client {
	r.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(r.cluster.ListenAddrs()...),
		kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }),
	}, opts...)...)
	require.NoError(r.t, err)
	r.t.Cleanup(client.CloseAllowingRebalance)
	return client
}

// produce appends records with those ids to a partition.
func (r *rig) produce(partition int32, ids ...string) {
	r.t.Helper()
	var records []*kgo.Record
	for _, id := range ids {
		record := &kgo.Record{Topic: topic, Partition: partition, Value: []byte("payload of " + id)}
		if id != "" {
			record.Headers = []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}
		}
		records = append(records, record)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(r.t, r.producer.ProduceSync(ctx, records...).FirstErr())
}

// member is one member of a group.
type member struct {
	*rig
	source *Source
	client *kgo.Client
}

// join makes a member. The group's other members notice within moments.
func (r *rig) join(opts ...Option) *member {
	r.t.Helper()
	return r.joinAs(HeaderID("id"), nil, opts...)
}

func (r *rig) joinAs(id ID, client []kgo.Opt, opts ...Option) *member {
	r.t.Helper()
	source, err := New(id, append([]Option{WithLogger(discard)}, opts...)...)
	require.NoError(r.t, err)
	source.rest = quick
	c := r.newClient(append(append([]kgo.Opt{
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(20 * time.Millisecond),
		kgo.FetchMaxWait(50 * time.Millisecond),
	}, client...), source.Opts()...)...)
	return &member{r, source, c}
}

// has is how many partitions the member has.
func (m *member) has() int {
	m.source.mu.Lock()
	defer m.source.mu.Unlock()
	return len(m.source.partitions)
}

// leave closes the client, as a service does that stops.
func (m *member) leave() { m.client.Close() }

func (r *rig) receiver(handle func(context.Context, *Delivery) error) *Receiver {
	return &Receiver{Guard: r.guard, Handle: handle, Logger: discard}
}

// consume runs the receiver until the test is over, or until stop, which returns
// what Consume has returned.
func (m *member) consume(receiver *Receiver) (stop func() error) {
	m.t.Helper()
	stopping, wait := m.start(receiver)
	return func() error {
		stopping()
		return wait()
	}
}

// start is consume in steps: when stop has returned, nothing new is begun, and wait
// returns what Consume has returned.
func (m *member) start(receiver *Receiver) (stop func(), wait func() error) {
	m.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	next := m.source.Next(receiver)
	go func() { result <- receiver.Consume(ctx, 4, next) }()
	wait = sync.OnceValue(func() error { return <-result })
	m.t.Cleanup(func() {
		stop()
		_ = wait()
	})
	return stop, wait
}

// next takes one delivery by hand.
func (m *member) next() *Delivery {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := m.source.Next(m.receiver(nothing))(ctx)
	require.NoError(m.t, err)
	return d
}

func nothing(context.Context, *Delivery) error { return nil }

// committed is the group's offset, -1 if it has none.
func (r *rig) committed(partition int32) int64 {
	info := r.cluster.GroupInfo(group)
	if info == nil {
		return -1
	}
	c, ok := info.Commits[topic][partition]
	if !ok {
		return -1
	}
	return c.Offset
}

// settled waits until the group's offset is that.
func (r *rig) settled(partition int32, offset int64) {
	r.t.Helper()
	if !assert.Eventually(r.t, func() bool { return r.committed(partition) == offset }, patience, tick) {
		require.Equal(r.t, offset, r.committed(partition), "committed offset of partition %d", partition)
	}
}

func (r *rig) eventually(condition func() bool) {
	r.t.Helper()
	require.Eventually(r.t, condition, patience, tick)
}

// idOf is the id of the delivered record.
func idOf(d *Delivery) string {
	id, _ := HeaderID("id")(d.Record())
	return id
}

// tally counts runs by id.
type tally struct {
	mu   sync.Mutex // protects runs
	runs map[string]int
}

// add counts a run, and returns how many there were.
func (c *tally) add(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = make(map[string]int)
	}
	c.runs[id]++
	return c.runs[id]
}

func (c *tally) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[id]
}

func (c *tally) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]int)
	for id, n := range c.runs {
		all[id] = n
	}
	return all
}

func (c *tally) handle(_ context.Context, d *Delivery) error { c.add(idOf(d)); return nil }

// gated is a handler that waits at a gate, and then returns what it is told.
type gated struct {
	entered chan string
	gate    chan error
}

func newGated() *gated { return &gated{entered: make(chan string, 100), gate: make(chan error)} }

func (g *gated) handle(_ context.Context, d *Delivery) error {
	g.entered <- idOf(d)
	return <-g.gate
}

// ids makes n of them.
func ids(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return list
}
