package pgstore

import "io"

var errEOF = io.EOF

// reader is a request's body.
type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }
