package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// document replaces what stands between the marks of a Markdown file: the marks
// are comments that begin with "mutants", and the list's folder.
func document(name, list string, mutants []mutant) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	folder, err := filepath.Abs(filepath.Dir(list))
	if err != nil {
		return err
	}
	begin := fmt.Sprintf("<!-- mutants of %s -->\n", filepath.Base(folder))
	head, rest, found := strings.Cut(string(text), begin)
	_, tail, ended := strings.Cut(rest, "<!-- /mutants -->")
	if !found || !ended {
		return fmt.Errorf("%s has no line %q with an end behind it", name, strings.TrimSpace(begin))
	}
	out := head + begin + table(mutants) + "<!-- /mutants -->" + tail
	return os.WriteFile(name, []byte(out), 0o644)
}

func table(mutants []mutant) string {
	var out bytes.Buffer
	out.WriteString("| rule | in | switched off by | tests that then fail |\n|---|---|---|---|\n")
	for _, m := range mutants {
		var tests []string
		for _, t := range m.tests {
			tests = append(tests, code(t.pattern))
		}
		to := code(m.to)
		if m.to == "" {
			to = "nothing"
		}
		fmt.Fprintf(&out, "| %s | %s | %s → %s | %s |\n", m.rule, m.file, code(m.from), to, strings.Join(tests, ", "))
	}
	return out.String()
}

// code is text in a cell of a table.
func code(text string) string {
	text = strings.ReplaceAll(text, "|", `\|`)
	if strings.Contains(text, "`") {
		return "`` " + text + " ``"
	}
	return "`" + text + "`"
}
