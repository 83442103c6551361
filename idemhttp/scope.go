package idemhttp

import (
	"errors"
	"fmt"

	"github.com/idem-go/idem/idemhttp/internal/storageid"
)

// Scope says who may share a key. Two requests with the same key are only taken
// for the same request when their scopes are equal, part by part, names and
// values: usually one part, the authenticated user or tenant.
//
// Scope is hashed into the claim's [ID]. Changing it makes every stored claim
// unfindable.
type Scope []Part

// Part is one part of a [Scope]. Neither the name nor the value may be empty: an
// empty user id would put all strangers into one scope.
type Part struct{ Name, Value string }

// Public is one scope for all callers: anybody who knows or guesses a key is
// given the answer to it. It is there to be said on purpose.
func Public() Scope { return Scope{publicPart} }

// publicPart has the empty name that no other part may have.
var publicPart = Part{Name: "", Value: "public"}

var errNoScope = errors.New("idemhttp: the request has no scope")

func (s Scope) check() error {
	if len(s) == 0 {
		return errNoScope
	}
	if len(s) == 1 && s[0] == publicPart {
		return nil
	}
	for i, p := range s {
		if p.Name == "" || p.Value == "" {
			return fmt.Errorf("%w: part %d of %d (%q=%q) is empty", errNoScope, i+1, len(s), p.Name, p.Value)
		}
	}
	return nil
}

// storageID is the claim's primary key.
func storageID(endpoint string, s Scope, key string) ID {
	fields := make([]string, 0, 2+2*len(s))
	fields = append(fields, endpoint)
	for _, p := range s {
		fields = append(fields, p.Name, p.Value)
	}
	return storageid.New(storageid.HTTP, append(fields, key)...)
}
