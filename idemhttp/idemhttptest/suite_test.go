package idemhttptest

import (
	"testing"

	"github.com/idem-go/idem/idemhttp"
)

func TestEndpointOnMemory(t *testing.T) {
	RunEndpoint(t, EndpointConfig{Open: func(*testing.T) Builder { return OnStore(idemhttp.NewMemoryStore()) }})
}

func TestReleaseOnMemory(t *testing.T) {
	RunRelease(t, func(*testing.T) idemhttp.Store { return idemhttp.NewMemoryStore() })
}
