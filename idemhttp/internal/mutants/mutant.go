package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// mutant switches a rule off: in file, the text from becomes to.
type mutant struct {
	rule, file, from, to string
	tests                []testRun
}

// testRun is what must fail: tests of a package, by a pattern as -run has it.
type testRun struct{ pkg, pattern string }

// read reads a list: blocks of lines "word text", with blank lines between.
func read(name string) ([]mutant, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []mutant
	for i, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		m, err := parse(block)
		if err != nil {
			return nil, fmt.Errorf("%s: block %d (%q): %w", name, i+1, m.rule, err)
		}
		if m.rule != "" {
			all = append(all, m)
		}
	}
	return all, nil
}

func parse(block string) (m mutant, err error) {
	for line := range strings.SplitSeq(block, "\n") {
		word, text, _ := strings.Cut(line, " ")
		text = strings.TrimSpace(text)
		switch word {
		case "#":
		case "rule":
			m.rule = text
		case "file":
			m.file = text
		case "from":
			m.from = text
		case "to":
			m.to = text
		case "test":
			pkg, pattern, _ := strings.Cut(text, " ")
			m.tests = append(m.tests, testRun{pkg, strings.TrimSpace(pattern)})
		default:
			return m, fmt.Errorf("unknown word %q", word)
		}
	}
	if m.rule != "" && (m.file == "" || m.from == "" || len(m.tests) == 0) {
		return m, errors.New("needs file, from and test")
	}
	return m, nil
}

// kill runs the tests against the mutated file. It returns nil if each of them
// has failed.
func (m mutant) kill() error {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return err
	}
	for _, t := range m.tests {
		if err := t.fails(overlay); err != nil {
			return err
		}
	}
	return nil
}

// overlay writes the mutated file, and what tells the go command to use it.
func (m mutant) overlay(dir string) (string, error) {
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.from); n != 1 {
		return "", fmt.Errorf("the text %q is in %s %d times, not once", m.from, m.file, n)
	}
	mutated := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(mutated, []byte(strings.Replace(string(text), m.from, m.to, 1)), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: mutated}})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, replace, 0o600)
}

// fails returns nil if a test that the pattern names has failed. A package that
// doesn't build proves nothing.
func (t testRun) fails(overlay string) error {
	cmd := exec.Command("go", "test", "-count=1", "-failfast", "-timeout=2m", "-overlay", overlay, "-run", t.pattern, t.pkg)
	out, err := cmd.CombinedOutput()
	text := string(out)
	var exit *exec.ExitError
	switch {
	case err == nil && strings.Contains(text, "[no tests to run]"):
		return fmt.Errorf("no test in %s matches %q", t.pkg, t.pattern)
	case err == nil:
		return fmt.Errorf("SURVIVED %s %s", t.pkg, t.pattern)
	case !errors.As(err, &exit):
		return err
	case strings.Contains(text, "--- FAIL") || strings.Contains(text, "panic: "):
		return nil
	}
	return fmt.Errorf("does not build: %s", strings.TrimSpace(text))
}
