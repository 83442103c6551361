package idemtest

import (
	"testing"
	"testing/synctest"

	"github.com/idem-go/idem"
)

// DeliveryInBubble is TestDelivery where waiting takes no time, and no machine is
// too slow: for a broker in memory.
func DeliveryInBubble[D idem.Delivery](t *testing.T, broker func(t *testing.T) Broker[D]) {
	testDelivery(t, broker, func(t *testing.T, check func(t *testing.T)) { synctest.Test(t, check) })
}
