//go:build !invariants

package idem

const invariants = false
