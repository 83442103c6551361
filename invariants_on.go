//go:build invariants

package idem

// invariants makes every call check the structure it leaves behind.
const invariants = true
