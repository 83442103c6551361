// Package idem keeps a message consumer from handling the same message twice,
// when its listener is not durable: when it settles natively with the broker and
// remembers nothing on disk.
//
// Brokers deliver at least once. After a rolling deploy, a lost ack, a cut
// connection, a slow handler or a retrying publisher, some messages come twice.
// A [Generational] guard in memory drops the second: it is asked once per
// delivery, by a [Receiver] or by hand.
//
//	claim, state, err := idem.Begin(ctx, guard, idem.ID(d.MessageId))
//	// Completed: ack. Rejected: reject. An error: give back.
//	defer guard.Release(claim) // changes nothing once settled
//	if err := handle(ctx, d); err != nil {
//		guard.Release(claim) // before the nack: the copy can come back at once
//		return d.Nack(false, true)
//	}
//	guard.Complete(claim)
//	return d.Ack(false)
//
// The rule of thumb of the whole API: a nil error means the message is handled,
// ack it; anything else, give it back. Code that forgets a case ends up
// at-least-once, never lossy.
//
// # What it can't do
//
// The guard lives in this process. A restart empties it, a sibling node never
// knew what it knows, a failover starts empty. Who needs more takes the next
// rung of the ladder: claims in PostgreSQL, in idemhttp/pgstore.
//
// # What is remembered
//
// A message is unknown, in flight, completed or rejected:
//
//	(unknown) --TryBegin--> in flight --Complete--> completed
//	    ^                       |-------Reject----> rejected
//	    '--------Release--------'
//
// Completed and rejected are terminal: the broker won't undo them. A terminal id
// is remembered for at least half the window and at most all of it. An id in
// flight stays there until it is settled, or for at least one lease and at most
// two, so that a claim that leaked does not shut its message out for ever.
//
// Only the holder of a claim can settle it, and only once. Whatever comes later
// changes nothing, in any order, with one exception: a handler that outlives its
// lease and completes after all has done the work, and that is remembered. For
// this the guard keeps the tokens of claims whose lease ran out, some 30 bytes each and
// about maxTracked, or 512 if that is more, at the most, until they are settled or
// newer ones take their place.
//
// # Two generations
//
// Ids carry no times, and no list orders them. They lie in two generations of
// sets, a young one that takes new ids and an old one that is only consulted. W
// is the window:
//
//	time          0         W/2         W        3W/2        2W
//	              |----------|----------|----------|----------|
//	generation 1  [== takes =|= is consulted ======] gone
//	generation 2             [== takes =|= is consulted ======] gone
//	generation 3                        [== takes =|= is cons…
//
//	id a          .a~~~~~~~~~~~~~~~~~~~~]            lands early: nearly W
//	id b          ........b~~~~~~~~~~~~~]            lands late: more than W/2
//
// A generation's life begins with the first id that lands in it. It takes ids
// until half a window later, is consulted until a whole window later, and then it
// is gone, however late the next call comes: an idle guard remembers nothing it
// shouldn't. When the young one closes it becomes the old one, and the set of the
// one before is emptied and used again. So one call costs the same however much
// is remembered, no list is kept, and there is no goroutine and no Close.
//
// A generation also closes when it holds half of maxTracked. The sum never
// passes maxTracked, and the newest half of it is always remembered: a flood
// costs old ids only. [Stats].Horizon tells how far back that still reaches.
//
// Ids in flight have two generations of their own, with the lease in the place of
// half the window and the same numbers. A flood of the one kind never evicts the
// other.
//
// # Shards, and who turns the generations
//
// Ids are spread over up to 64 shards by their hash. All that is known of an id
// is in its shard, behind the shard's mutex, so that of any number of concurrent
// calls one gets the claim. A call about an id takes that one lock, does little there
// and calls no foreign code, and lets go.
//
// The generations are the whole guard's, not a shard's, so turning them takes the
// locks of all shards: first the guard's own mutex, then theirs. Nobody holds more
// than one shard's lock without that mutex, so no order can be wrong. It happens
// when time has ended something or an id finds no place, some dozens of times for
// each generation however many ids it has. The call that meets it lets go of its shard,
// takes all locks and begins again: whatever others did meanwhile, it then sees.
// With all locks held the rules for one set of ids are those for all, and every
// shard leaves with the same two generations, its outdated set emptied.
//
// Between two turns a shard need not look at the others. It knows from when to
// when time changes nothing, and it has been dealt a part of the places that the
// young generation has left. Once its part is used up the call takes all locks,
// counts what is left everywhere and deals anew; only when nothing is left does the
// generation close. So the bounds are exact for the guard as a whole, at any
// maxTracked, and no count is shared.
//
// A call reads the clock before it has the lock, and may be late. It can't make a
// generation begin before the last id landed in the one it closes: that would close
// the next one early, and take that id with it before its time. See Time for clocks
// of which this isn't so.
//
// # Ids
//
// An id is any bytes. It is compared byte for byte, with its destination; only
// for a pair of more than 64 bytes its SHA-256 stands. The guard copies what it
// needs, so an id may be cut out of a large payload. A message without an id is
// never a duplicate.
//
// # Time
//
// A clock is read once a call, outside the lock. With the standard clock all is
// reckoned on the monotonic reading. An injected clock may stand still, jump and
// step back: a generation that began in the future begins now.
//
// From an injected clock a call that was late and a step back look alike. Of one with
// monotonic readings what is a second older at the most is taken for late, so that
// such a step can make lives longer by as much. Everything else is taken for a step,
// so that such a call can make them shorter.
package idem
