package idemhttptest

import (
	"testing"

	"github.com/idem-go/idem/idemhttp"
)

func TestEndpointOnMemory(t *testing.T) {
	RunEndpoint(t, EndpointConfig{Open: func(*testing.T) Builder { return OnStore(idemhttp.NewMemoryStore()) }})
}
