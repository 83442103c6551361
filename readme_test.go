package idem_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// The README's code stands in the Examples, line for line, which are compiled
// and run.
func TestTheReadmesCodeIsInTheExamples(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	examples, err := os.ReadFile("example_test.go")
	require.NoError(t, err)

	blocks := goBlock.FindAllSubmatch(readme, -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		assert.Contains(t, unindented(string(examples)), unindented(string(block[1])))
	}
}

// unindented is text without the white space at the beginning of its lines.
func unindented(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimLeft(line, "\t ")
	}
	return strings.Join(lines, "\n")
}
