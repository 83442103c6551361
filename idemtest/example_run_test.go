package idemtest_test

import (
	"os"
	"testing"
)

// passes runs test as go test would, and says whether it passes. An Example has no
// *testing.T of its own. What -v prints is none of the example's output.
func passes(test func(t *testing.T)) bool {
	stdout := os.Stdout
	defer func() { os.Stdout = stdout }()
	os.Stdout = os.Stderr
	all := func(string, string) (bool, error) { return true, nil }
	return testing.RunTests(all, []testing.InternalTest{{Name: "TestInExample", F: test}})
}
