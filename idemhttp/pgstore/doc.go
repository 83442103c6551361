// Package pgstore keeps idempotency claims in PostgreSQL, through pgx v5: for
// HTTP endpoints (idemhttp), up front or inside the endpoint's own transaction,
// and for message handlers (Inbox).
//
// # Claim and release
//
// A [Store] is an idemhttp.Store. The claim is taken before the endpoint runs
// and answered or given back after it, each in one round trip. Work that was
// committed is never given back; [Tracer] and [Begin] hear of commits.
//
// # In the transaction
//
// [Endpoint.InTx] makes claim and work one transaction:
//
//	BEGIN | look-up | COMMIT AND CHAIN  one flush: is the key known? If not,
//	                                    the endpoint works in the transaction
//	reset | INSERT claim | COMMIT       one flush: the claim, with its answer
//
// Nothing is claimed while the endpoint runs, so nothing is left behind by a
// process that dies. Of two requests with one key that run at the same time one
// commits; the other fails, in whatever way, and then
//
//	ROLLBACK | Sync | look-up | Sync
//
// finds the winner's claim and answers from it. That look-up happens at every
// end that isn't a commit, whatever the error was: at READ COMMITTED the loser of
// a version conflict has updated no row and knows of no error at all. It also
// finds the request's own token where a COMMIT got through and its answer didn't.
//
// The price: a concurrent repeat runs the endpoint too (see [WithExclusive]), so
// effects outside of the database can happen twice, as can writes through another
// connection than the transaction's. Put what must follow a commit in
// [AfterCommit], or in an outbox table. The transaction is open for as long as the
// endpoint runs; idle_in_transaction_session_timeout and
// client_connection_check_interval are worth setting.
//
// # Statements
//
// All exec modes of pgx work, and pgbouncer in transaction mode with those that
// don't prepare. Where the mode is the default one, this package prepares its own
// statements, as pgx does. Its statements don't go through a pool's tracer.
//
// The table is made by [Store.Migrate], or by schema.sql with a tool of your own.
// Run [Store.RunReaper] somewhere, for expired claims to be deleted.
package pgstore
