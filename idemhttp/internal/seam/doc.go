// Package seam lets the packages of this repository reach the parts of idemhttp
// that users don't need. [Pass] is the argument that opens them: its type can't
// be named from outside.
//
// How a package that settles requests in a way of its own (pgstore's InTx) is
// built on idemhttp:
//
//   - Embed the *idemhttp.Endpoint that idemhttp.New returns. It has validated
//     the policy; Endpoint.Policy(seam.Pass{}) returns it with the defaults in.
//   - Per request, call Endpoint.Open(seam.Pass{}, w, r). It decides on method,
//     nesting, scope, key, body and fingerprint, in this order. ok == false: the
//     refusal has been written, return. Exchange.Guarded == false: run the
//     endpoint without a claim (another method, no optional key, or claimed by an
//     outer middleware on the same store).
//   - Exchange.Request is what the endpoint gets: its body can be read again.
//     Exchange.Unread is for who reads it more than once. Give each copy to
//     Exchange.HandBackForm when it is done with.
//     Put Exchange.Context(ctx) around it, so that an inner middleware on the
//     same store passes through.
//   - Exchange.Claim is the row: ID, Token (a fresh one), Fingerprint.
//   - The endpoint writes into Exchange.Buffer(strict). With strict, a response
//     over MaxResponse fails in Write and shows in Buffer.Err. Buffer.Failed
//     tells whether it wrote nothing while its context is done.
//   - Exchange.Response(buf) is what to store of it: kept headers only.
//   - Then exactly one of: buf.Send(w) (the endpoint's answer goes out),
//     Exchange.AnswerFrom(record) (replay, 422 or 409 from somebody's row),
//     Exchange.Refuse(reason, err), Exchange.Fail(err) (OnError).
//     A buffer that isn't sent leaves nothing behind on w, not even a header.
//   - Exchange.Observe reports an Event. AnswerFrom and Refuse report their own.
//   - Package internal/mark is behind idemhttp.Committing and Committed:
//     mark.From(ctx) is nil-safe, and has RolledBack for a commit that is known
//     to have failed (Tracer, Begin).
//   - Package internal/storageid gives storage ids; use storageid.Inbox for
//     message handlers.
package seam

// Pass opens the parts of idemhttp that are for this repository's packages.
type Pass struct{}
