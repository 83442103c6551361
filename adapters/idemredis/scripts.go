package idemredis

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Each script first looks who holds the entry, in the same step: between two
// commands another consumer could claim it. What a script answers.
const (
	gone   = iota // not pending: someone has settled it
	theirs        // another consumer's, or a later delivery's
	done
)

var (
	errGone   = errors.New("it is not pending any more")
	errTheirs = errors.New("another consumer has claimed it")
)

func isGone(err error) bool { return errors.Is(err, errGone) || errors.Is(err, errTheirs) }

// holder begins each script. KEYS: the stream. ARGV: group, entry, consumer.
const holder = `
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)[1]
if not pending then return 0 end
if pending[2] ~= ARGV[3] then return 1 end
`

// renewing is for any delivery of ours: a later one in this process is a copy that
// is held, and gains by it too.
var renewing = redis.NewScript(holder + `
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[2], 'JUSTID')
return 2
`)

// returning is for the last delivery only: a later one is in somebody's hands. ARGV
// goes on with the count of deliveries (0: any), the idle time in milliseconds, and
// by how much to lower the count.
var returning = redis.NewScript(holder + `
if ARGV[4] ~= '0' and pending[4] ~= tonumber(ARGV[4]) then return 1 end
local count = math.max(0, pending[4] - tonumber(ARGV[6]))
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[2], 'IDLE', ARGV[5], 'RETRYCOUNT', count, 'JUSTID')
return 2
`)

// burying copies first: a copy that fails, for want of memory or because the key
// holds something else, ends the script, and the entry is pending still. Tried
// again after its answer got lost it does nothing. ARGV goes on with the number of
// fields to add, these, and the entry as we have it, should it have been trimmed. Lua
// hands on some 8,000 arguments at most.
var burying = redis.NewScript(holder + `
local add = {'XADD', KEYS[2], '*'}
local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
local last = 4 + 2 * tonumber(ARGV[4])
local fields = entry and entry[2] or {}
for i = last + 1, entry and 0 or #ARGV do fields[#fields + 1] = ARGV[i] end
if #fields > 7000 then fields = {'dead-fields', cmsgpack.pack(fields)} end
for _, v in ipairs(fields) do add[#add + 1] = v end
for i = 5, last do add[#add + 1] = ARGV[i] end
redis.call(unpack(add))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return 2
`)

// acking is XACK for what is ours.
var acking = redis.NewScript(holder + `
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return 2
`)

func (s *Source) run(ctx context.Context, script *redis.Script, d *Delivery, keys []string, args ...any) (int, error) {
	args = append([]any{s.place.Group, d.msg.ID, s.place.Name}, args...)
	return script.Run(ctx, s.client, append([]string{s.place.Stream}, keys...), args...).Int()
}

// renew begins the idle time anew.
func (s *Source) renew(ctx context.Context, d *Delivery) error {
	answer, err := s.run(ctx, renewing, d, nil)
	switch {
	case err != nil:
		return err
	case answer == gone:
		return errGone
	case answer == theirs:
		return errTheirs
	default:
		return nil
	}
}

// giveBack sets the idle time so that what is left of minIdle is the delay.
func (s *Source) giveBack(ctx context.Context, d *Delivery, delay time.Duration, uncounted int) error {
	idle := s.minIdle - delay
	if delay > 0 {
		idle += time.Millisecond // the server's clock drops fractions
	}
	answer, err := s.run(ctx, returning, d, nil, d.count, idle.Milliseconds(), uncounted)
	if err == nil && answer == done && d.fed {
		s.feed.expect(d.msg.ID, time.Now().Add(delay))
	}
	return err
}

// The fields a dead letter has in addition.
const (
	fieldStream = "dead-stream"
	fieldGroup  = "dead-group"
	fieldEntry  = "dead-entry"
	fieldReason = "dead-reason"
)

// end acknowledges the entry, unless another consumer has it.
func (s *Source) end(ctx context.Context, d *Delivery) error {
	return unlessTheirs(s.run(ctx, acking, d, nil))
}

// unlessTheirs is the error of a script that ends an entry: one that is gone has
// ended.
func unlessTheirs(answer int, err error) error {
	if err == nil && answer == theirs {
		return errTheirs
	}
	return err
}

// bury moves the entry to the dead letters.
func (s *Source) bury(ctx context.Context, d *Delivery, cause error) error {
	args := []any{3, fieldStream, s.place.Stream, fieldGroup, s.place.Group, fieldEntry, d.msg.ID}
	if cause != nil {
		args[0] = 4
		args = append(args, fieldReason, cause.Error())
	}
	for _, name := range slices.Sorted(maps.Keys(d.msg.Values)) {
		args = append(args, name, d.msg.Values[name])
	}
	return unlessTheirs(s.run(ctx, burying, d, []string{s.dead}, args...))
}
