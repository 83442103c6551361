package idem

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyTheStandardLibraryIsImported(t *testing.T) {
	list := func(args ...string) []string {
		out, err := exec.Command("go", append([]string{"list"}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.Fields(string(out))
	}
	// Those that are not of the standard library, of the package with all tags.
	others := []string{"-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}
	for _, tags := range []string{"", "invariants"} {
		require.Equal(t, []string{"github.com/idem-go/idem"}, list(append(others, "-tags="+tags, ".")...))
	}
	require.Contains(t, list(append(others, "-test", ".")...), "github.com/stretchr/testify/require", "the question itself")
}
