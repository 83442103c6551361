// Package idemtest tests implementations of the interfaces of package idem, and
// helps to test code that uses them. It needs the standard library only.
//
//   - [TestGuard] checks an [idem.IdempotencyGuard].
//   - [TestDelivery] checks an [idem.Delivery]: what an adapter makes of a broker's
//     client.
//   - [Queue] is a broker in memory, and [Delivery] what it delivers: for tests of
//     handlers and of an [idem.Receiver].
//
// Both suites make a subtest of every promise, so that the name of a failing one
// says which promise is broken.
package idemtest
