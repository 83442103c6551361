# make help lists the targets. Nothing needs installing by hand: tools are
# built into .tools at the versions pinned here, services come by scripts/services.

GOLANGCI_LINT := v2.15.0
GOTESTSUM     := v1.13.0

golangci-lint := $(CURDIR)/.tools/$(GOLANGCI_LINT)/golangci-lint
gotestsum     := $(CURDIR)/.tools/$(GOTESTSUM)/gotestsum

# The race detector needs cgo and a C compiler; this asks for just that.
race = $(shell go build -race runtime/race 2>/dev/null && echo -race)

# More flags for the tests: make test TESTFLAGS='-run Rabbit'
TESTFLAGS ?=

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

## Tests

.PHONY: test
test: modules services $(gotestsum) ## test every module, raced where cgo is there
	$(if $(race),,@echo 'make: no cgo or no C compiler here: testing without -race')
	$(gotestsum) --format pkgname-and-test-fails -- -count=1 $(race) $(TESTFLAGS) work

# Without the services their tests are skipped, which gotestsum lists at the end.
.PHONY: services
services: ## find or start RabbitMQ, PostgreSQL, Redis, pgbouncer
	@scripts/services up || test "$$CI" != true

# Each rule of the HTTP modules switched off in turn: a test must notice.
.PHONY: mutants-http
mutants-http: ## prove that the tests of idemhttp can fail (needs PostgreSQL, takes minutes)
	cd idemhttp && go run ./internal/mutants
	cd idemhttp/pgstore && test ! -f mutants.txt || go run github.com/idem-go/idem/idemhttp/internal/mutants

.PHONY: invariants
invariants: ## test the root module with its structure checked after each step, and without assembly
	go test -count=1 -tags invariants,purego ./...

# The words of atomic operations, and an int, are smaller on 386 and on arm.
# Most amd64 machines can run 386 tests; where the kernel can't, they are built and
# that is said. Arm can only be built.
.PHONY: narrow
narrow: export CGO_ENABLED = 0
narrow: ## test the root module on 386, build it for arm
	@GOARCH=386 go test -c -o narrow.test . && { ./narrow.test -test.run '^$$' >/dev/null 2>&1; rc=$$?; rm -f narrow.test; \
		if [ $$rc = 126 ]; then echo "NOT RUN: this kernel runs no 386 programs; the tests were built only"; GOARCH=386 go vet ./...; \
		else GOARCH=386 go test -count=1 ./...; fi; }
	GOARCH=arm go vet ./...
	GOARCH=arm go build -o /dev/null ./...

# A workspace tests one set of versions that nobody imports.
.PHONY: alone
alone: ## build every module without the workspace, as who imports it does
	GOWORK=off scripts/modules each 'go mod tidy -diff && go build -o /dev/null ./... && go vet ./... && go test -run "^$$" ./...'

.PHONY: quickstart
quickstart: ## run the first example
	go run ./examples/quickstart

## Checks

.PHONY: check
check: modules fmt vet lint ## all checks that run nothing

.PHONY: modules
modules: ## check that go.work names every module
	@scripts/modules check

.PHONY: fmt
fmt: ## check that gofmt has nothing to say
	@files=$$(gofmt -l $$(find . -name '*.go' -not -path './.*/*')); \
	test -z "$$files" || { echo "gofmt -w these:"; echo "$$files"; exit 1; } >&2

.PHONY: vet
vet: ## go vet, every module
	go vet work
	go vet -tags invariants ./...
	go vet -tags invariants,purego . # as make invariants builds it
	GOARCH=arm64 go vet . # whose assembly is its own

.PHONY: lint
lint: $(golangci-lint) ## golangci-lint, every module
	@scripts/modules each '$(golangci-lint) run --allow-parallel-runners ./...'

## Benchmarks

.PHONY: bench-smoke
bench-smoke: ## run every benchmark for a moment
	go test -run '^$$' -bench . -benchtime 10x -short work

# Every benchmark once, then all again: what disturbs the machine for a while
# disturbs all of them. bench.out is benchstat's format; report turns it into docs.
# What takes long and hardly varies is left out of every other pass.
# BENCH=FirstSeen measures a part, and prints it.
COUNT     ?= 5
BENCH     ?= .
BENCHTIME ?= 50ms

.PHONY: bench
bench: ## run benchmarks/ side by side, rewrite docs/performance.md
	@{ date -u +'date: %Y-%m-%d'; \
		echo "commit: $$(git rev-parse --short HEAD)$$(git diff --quiet HEAD -- ':(glob)*.go' benchmarks || echo ', changed')"; \
		echo "go: $$(go env GOVERSION)"; echo "cores: $$(getconf _NPROCESSORS_ONLN)"; } >bench.out
	@go test -c -o bench.test ./benchmarks # once, so that every pass measures the same
	@for pass in $$(seq $(COUNT)); do \
		echo "pass $$pass of $(COUNT)"; \
		skip=$$(test $$((pass % 2)) = 1 || echo 'Large|Memory|Promises'); \
		./bench.test -test.run '^$$' -test.bench '$(BENCH)' -test.skip "$$skip" -test.benchtime $(BENCHTIME) -test.benchmem \
			>>bench.out || { tail -n 20 bench.out; exit 1; }; \
	done
	go run ./benchmarks/report bench.out

## Tools

$(golangci-lint):
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT)

$(gotestsum):
	GOBIN=$(@D) go install gotest.tools/gotestsum@$(GOTESTSUM)

.PHONY: ci
ci: ## all that CI runs
	CI=true bash .ci/run
