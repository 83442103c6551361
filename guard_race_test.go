//go:build race

package idem

// raceEnabled says that the race detector is at work, which costs a factor of
// ten: what is long without it is made shorter.
const raceEnabled = true
