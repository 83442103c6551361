// Package benchmarks measures the guard beside what a consumer could use in its
// place, on the same work in the same run. It has benchmarks only: run `make bench`,
// which writes what they find into docs/performance.md.
//
// What is measured is one call of [github.com/idem-go/idem/benchmarks/internal/peers]:
// was this id seen within the window; if not, remember it. An iteration is a batch of
// such calls, and all figures are per call: ids are made before the clock runs.
package benchmarks
