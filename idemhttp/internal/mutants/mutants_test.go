package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	list  = "../../mutants.txt"
	guide = "../../../docs/idempotent-http.md"
)

func TestEveryMutantCanBeMade(t *testing.T) {
	mutants, err := read(list)
	require.NoError(t, err)
	assert.Greater(t, len(mutants), 50)
	t.Chdir("../..")
	for _, m := range mutants {
		_, err := m.overlay(t.TempDir())
		assert.NoError(t, err, m.rule)
	}
}

func TestTheGuideHasTheList(t *testing.T) {
	text, err := os.ReadFile(guide)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the guide isn't part of the module: " + guide)
	}
	require.NoError(t, err)
	mutants, err := read(list)
	require.NoError(t, err)
	written := filepath.Join(t.TempDir(), "guide.md")
	require.NoError(t, os.WriteFile(written, text, 0o600))
	require.NoError(t, document(written, list, mutants))
	again, err := os.ReadFile(written)
	require.NoError(t, err)
	assert.True(t, string(text) == string(again), "run: go run ./internal/mutants -into ../docs/idempotent-http.md")
}

func TestParse(t *testing.T) {
	m, err := parse("# why\nrule a rule\nfile f.go\nfrom  x | y\nto\ntest ./p TestA/b\ntest . TestC")
	require.NoError(t, err)
	assert.Equal(t, mutant{rule: "a rule", file: "f.go", from: "x | y", tests: []testRun{{"./p", "TestA/b"}, {".", "TestC"}}}, m)
	row := table([]mutant{m})
	assert.True(t, strings.HasSuffix(row, "| a rule | f.go | `x \\| y` → nothing | `TestA/b`, `TestC` |\n"), row)

	for _, block := range []string{"rule x", "rule x\nfile f\nfrom y", "rule x\nfile f\ntest . T", "what is this"} {
		_, err := parse(block)
		assert.Error(t, err, block)
	}
}

func TestATestThatIsNotThereProvesNothing(t *testing.T) {
	err := testRun{"../mark", "TestNoSuchTest"}.fails(os.DevNull)
	assert.ErrorContains(t, err, "overlay") // an overlay must be JSON
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(overlay, []byte(`{}`), 0o600))
	assert.ErrorContains(t, testRun{"../mark", "TestNoSuchTest"}.fails(overlay), "no test in ../mark matches")
	assert.ErrorContains(t, testRun{"../mark", "TestNoMark"}.fails(overlay), "SURVIVED ../mark TestNoMark")
}
