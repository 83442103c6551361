// Package storageid derives the primary key of a claim from what names it.
//
// It is a storage format: changing anything here forgets every stored claim.
package storageid

import (
	"crypto/sha256"
	"encoding/binary"
)

// The domains keep claims of different kinds apart, which share one table.
const (
	HTTP  = "idem/http/1"
	Inbox = "idem/inbox/1"
)

// New hashes the domain and the fields, each with its length in front: no two
// different lists of fields have the same id, short of a collision in SHA-256.
func New(domain string, fields ...string) [sha256.Size]byte {
	buf := make([]byte, 0, 256)
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(fields)))
	buf = appendField(buf, domain)
	for _, f := range fields {
		buf = appendField(buf, f)
	}
	return sha256.Sum256(buf)
}

func appendField(buf []byte, f string) []byte {
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(f)))
	return append(buf, f...)
}
