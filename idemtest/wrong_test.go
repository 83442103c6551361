package idemtest_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// wrong is something that breaks one promise, and which checks of a suite must
// notice.
type wrong struct {
	bug    string
	breaks string   // the check that must fail
	also   []string // checks that can't but fail with it
	may    []string // checks that fail or not, as the scheduler has it
	wide   bool     // so coarse that any other check may see it too
}

// childEnv tells this test binary that it is to run the wrong ones.
const childEnv = "IDEMTEST_RUN_THE_WRONG_ONES"

// expectFailures runs a suite against wrong ones in a process of its own: a check
// ends by t.FailNow and a synctest bubble, which only a real *testing.T has, and a
// real one's failure is a failure of this test too. The child's report says which
// checks failed; anything but those that must fails this test.
func expectFailures(t *testing.T, suite func(t *testing.T, bug string), all []wrong) {
	if os.Getenv(childEnv) != "" {
		for _, w := range all {
			t.Run(w.bug, func(t *testing.T) {
				t.Parallel()
				suite(t, w.bug)
			})
		}
		return
	}
	report := runChild(t)
	caught := map[string]bool{}
	for _, w := range all {
		failed := failedChecks(report, t.Name()+"/"+subtestName(w.bug))
		if err := w.check(failed); err != nil {
			t.Errorf("%q: %v", w.bug, err)
		}
		caught[w.breaks] = true
	}
	for _, check := range checksIn(report) {
		if !caught[check] {
			t.Errorf("nothing in this test breaks the check %s", check)
		}
	}
	if t.Failed() {
		t.Logf("the report:\n%s", report)
	}
}

func runChild(t *testing.T) string {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.parallel=64", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 1 || strings.Contains(string(out), "\npanic: ") {
		t.Fatalf("the child ended with %v (exit code %d), want failed tests and no panic:\n%s", err, code, out)
	}
	return string(out)
}

func (w wrong) check(failed []string) error {
	for _, must := range append([]string{w.breaks}, w.also...) {
		if !slices.Contains(failed, must) {
			return fmt.Errorf("%s has not failed", must)
		}
	}
	for _, check := range failed {
		if !w.wide && check != w.breaks && !slices.Contains(w.also, check) && !slices.Contains(w.may, check) {
			return fmt.Errorf("these have failed: %v; %s should not", failed, check)
		}
	}
	return nil
}

func failedChecks(report, test string) (names []string) {
	re := regexp.MustCompile(`(?m)^\s*--- FAIL: ` + regexp.QuoteMeta(test) + `/(\w+) `)
	for _, m := range re.FindAllStringSubmatch(report, -1) {
		names = append(names, m[1])
	}
	return names
}

func checksIn(report string) []string {
	re := regexp.MustCompile(`(?m)^=== RUN   [^/\s]+/[^/\s]+/(\w+)$`)
	seen := map[string]bool{}
	var names []string
	for _, m := range re.FindAllStringSubmatch(report, -1) {
		if !seen[m[1]] {
			seen[m[1]] = true
			names = append(names, m[1])
		}
	}
	return names
}

// subtestName is what t.Run makes of a name.
func subtestName(name string) string { return strings.ReplaceAll(name, " ", "_") }
