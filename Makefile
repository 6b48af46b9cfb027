# Everything that is done with this repository. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
BIN      := $(CURDIR)/.bin
LINT     := $(BIN)/golangci-lint
LINT_VERSION := v2.15.0

# Arguments of `sluice up` for `make run`, such as ARGS="--instances 3".
ARGS ?=
# Runs go test, and once more what failed while this machine stood still.
STEADY   := $(BIN)/steady
# Run only tests and benchmarks whose name matches.
RUN  ?= .
# HAProxy for the integration tests: a path, or a version (3.0, 3.2) to fetch.
# Empty: the one in PATH.
HAPROXY ?=
# Redis for the integration tests: empty for the one in PATH, or valkey to fetch that.
REDIS ?=
# PostgreSQL for `make test-postgres`: empty for the newest that is installed, a version (17, 18) to
# fetch, or a directory of its programs.
POSTGRES ?=
# How long each fuzz test runs.
FUZZTIME ?= 20s
# What random tests (pgregory.net/rapid) draw from: the same each time, so that a change's tests
# do not fail by chance. `make random` looks for what other seeds find.
export RAPID_SEED ?= 1
# How many histories each random test tries in `make random`.
CHECKS ?= 2000

# The adapters of job queues, each a Go module of its own.
QUEUES := jobs/asynqos jobs/riverqos
# Modules apart from the workspace, in deploy: their libraries choose no version of ours.
APART := containers helm

# Those first that take longest.
UNIT = $$($(GO) list ./pkg/jobs/... ./internal/bus ./internal/spoa ./internal/up ./... | grep -v -e /test/ -e /bench$$ $(CALM:.%=-e %$$))
# Pure packages, without goroutines (see lint). Their simulations of whole clusters
# take six times as long with the race detector, which has nothing to find in them.
PURE := ./pkg/ratelimit ./pkg/concurrency ./pkg/bandwidth ./pkg/cost ./pkg/credit ./pkg/quota ./pkg/limits ./pkg/limits/limitfile
# Nor has it in haproxy, which only writes files. Its tests mostly wait for HAProxy, and
# leave the processors to the simulations.
CALM := $(PURE) ./haproxy
# Packages whose random tests start no HAProxy, Redis or PostgreSQL: only these can try thousands
# of histories.
RANDOM := $(PURE) ./pkg/internal/... ./pkg/jobs ./internal/limitcheck ./internal/limitdiff ./internal/peers \
	./internal/policy ./internal/polygen/... ./internal/spoa ./internal/spop ./internal/terminal ./bench/load
# Packages of the unit tests that another HAProxy may fail.
ONHAPROXY := ./haproxy/... ./internal/peers/... ./internal/runtimeapi/... ./internal/spop/...
# And those that another Redis may fail.
ONREDIS := ./internal/bus ./pkg/jobs/redisslots

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: ## install what is missing (Debian packages; needs root for that)
	@scripts/setup

run: setup build ## start everything on this machine: HAProxy, agent, polygen, Redis, a demo origin
	@exec bin/sluice up $(ARGS)

demo: setup build ## show in a minute what limits change, in this terminal
	@exec bin/sluice demo $(ARGS)

build: ## build the commands into bin/
	@mkdir -p bin
	$(GO) build -trimpath -o bin/ ./cmd/... ./bench/cmd/...
	$(GO) build -trimpath -o $(STEADY) ./internal/proctest/steady

test: setup test-unit ## run all tests
	$(MAKE) test-integration ONHAPROXY=

# They run side by side, because much of their time is waiting.
test-unit: setup ## run the tests of all packages, with the race detector where there are goroutines
	@scripts/setup promtool postgresql pgbouncer openssl
	$(MAKE) -j 3 test-calm test-race test-queues $(APART:%=test-%)

# Everything that is not compiled for the race detector is compiled with -trimpath, as the
# commands are, and so only once. -parallel 4: what haproxy's tests do is mostly waiting. The simulated
# fleet has so many timers in virtual time that Go's race detector crashes now and then.
test-calm: build
	$(STEADY) -trimpath -parallel 4 -shuffle=on -- $(CALM)
	$(STEADY) -trimpath -shuffle=on -run '^TestSimulated' -- ./internal/spoa

# Else the race detector sleeps for a second when a package's tests are over.
test-race test-queues: export GORACE := atexit_sleep_ms=0

test-race: build compile-race
	$(STEADY) -race -p 3 -shuffle=on -- $(UNIT)

test-queues: build compile-race
	for module in $(QUEUES); do (cd $$module && $(STEADY) -race -shuffle=on -- ./...); done

# Without -trimpath, as lint wants their libraries compiled: Kubernetes' take longest of all.
$(APART:%=test-%): build
	cd deploy/$(@:test-%=%) && GOWORK=off $(STEADY) -shuffle=on -- ./...

compile-race: # what all modules need, before two would compile it at the same time
	for module in $(QUEUES); do (cd $$module && $(GO) build -race ./...); done

# -parallel 3: most of their time is waiting. With more of them at a time a machine with two
# cores stalls now and then, and what has to come in time does not.
test-integration: setup build ## run whole clusters of real processes; HAPROXY=3.0 or a path chooses another HAProxy, REDIS=valkey another Redis
	@scripts/setup chromium
	@haproxy='$(HAPROXY)'; \
	case "$$haproxy" in [0-9].[0-9]) scripts/setup patchelf; haproxy=$$(scripts/fetch-program "haproxy-$$haproxy" | tail -n 1);; esac; \
	export SLUICE_HAPROXY="$$haproxy"; \
	case '$(REDIS)' in valkey) scripts/setup patchelf; PATH=$$(scripts/fetch-program valkey | tail -n 1):$$PATH;; esac; \
	echo "HAProxy: $$("$${haproxy:-haproxy}" -v | head -n 1)"; redis-server -v; \
	$(STEADY) -trimpath -count=1 -p 1 -parallel 3 -timeout 20m -run '$(RUN)' -- $(ONHAPROXY) $(if $(REDIS),$(ONREDIS)) ./test/...

test-postgres: build ## run the tests of background jobs; POSTGRES=17 or a directory chooses another PostgreSQL
	@scripts/setup postgresql pgbouncer
	@postgres='$(POSTGRES)'; \
	case "$$postgres" in [0-9][0-9]) scripts/setup patchelf; postgres=$$(scripts/fetch-program "postgresql-$$postgres" | tail -n 1);; esac; \
	export SLUICE_POSTGRES="$$postgres"; \
	[ -z "$$postgres" ] || "$$postgres/postgres" --version; \
	$(STEADY) -count=1 -run '$(RUN)' -- ./pkg/jobs/pgslots; \
	cd jobs/riverqos && $(STEADY) -count=1 -run '$(RUN)' -- ./...

test-matrix: ## run the integration tests on HAProxy 2.6, 3.0 and 3.2, and on Valkey, and those of background jobs on PostgreSQL 15, 17 and 18
	$(MAKE) test-integration
	$(MAKE) test-integration HAPROXY=3.0
	$(MAKE) test-integration HAPROXY=3.2
	$(MAKE) test-integration REDIS=valkey ONHAPROXY=
	$(MAKE) test-postgres
	$(MAKE) test-postgres POSTGRES=17
	$(MAKE) test-postgres POSTGRES=18

# What `make chaos` does: for how long, drawn from what, with which kind of Redis.
DURATION ?= 20m
SEED     ?= 0
STORE    ?= all
USERS    ?=

chaos: setup ## break a cluster under load for DURATION, as SEED says, on Redis STORE=single, sentinel, cluster or all in turn; USERS=talk,cheap,dear: only they send; the last line is the verdict
	@mkdir -p bin
	$(GO) build -trimpath -o bin/chaos ./test/chaos/cmd/chaos
	@exec bin/chaos --duration $(DURATION) --seed $(SEED) --store $(STORE) --users='$(USERS)'

bench: build ## measure accuracy, reaction and cost, and print tables; RUN=Cost chooses
	@haproxy='$(HAPROXY)'; \
	case "$$haproxy" in [0-9].[0-9]) scripts/setup patchelf; haproxy=$$(scripts/fetch-program "haproxy-$$haproxy" | tail -n 1);; esac; \
	export SLUICE_HAPROXY="$$haproxy"; \
	$(GO) test -count=1 -timeout 60m -run '^$$' -bench '$(RUN)' -benchtime 1x ./bench; \
	$(GO) test -count=1 -timeout 60m -run '^$$' -bench '$(RUN)' -skip Accuracy -benchtime 40000x ./haproxy; \
	$(GO) test -count=1 -timeout 60m -run '^$$' -bench '$(RUN)' -skip CPU -benchtime 1x ./haproxy
	$(GO) test -count=1 -timeout 60m -run '^$$' -bench '$(RUN)' -benchmem ./pkg/limits ./pkg/limits/limitfile ./pkg/ratelimit ./pkg/concurrency ./pkg/bandwidth ./internal/polygen/view ./internal/spoa ./internal/spop ./internal/bus
	@scripts/setup postgresql
	$(GO) test -count=1 -run '^$$' -bench '$(RUN)' ./pkg/jobs/...
	for module in $(QUEUES); do (cd $$module && $(GO) test -count=1 -timeout 30m -run '^$$' -bench '$(RUN)' -benchtime 1x .); done
	@scripts/setup chromium
	$(GO) test -count=1 -run '^$$' -bench '$(RUN)' -benchtime 20x ./test/page

# For how long `make soak` runs.
SOAK ?= 1h

soak: setup ## run a cluster under steady load for SOAK, from SEED (odd: with the race detector), and look whether anything grows; the last line is the verdict
	@mkdir -p bin
	$(GO) build -trimpath -o bin/soak ./test/soak/cmd/soak
	@exec bin/soak --duration $(SOAK) --seed $(SEED)

# For how long `make overload` floods.
FLOOD ?= 5m

overload: setup ## offer a cluster ten times what this machine can serve for FLOOD, and 20 000 connections at once; the last line is the verdict
	@mkdir -p bin
	$(GO) build -trimpath -o bin/overload ./test/overload/cmd/overload
	@exec bin/overload --duration $(FLOOD) --seed $(SEED)

fuzz: ## fuzz every parser for FUZZTIME each
	@for module in . $(QUEUES); do cd $(CURDIR)/$$module; for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg | grep ^Fuzz || true); do \
			echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done; done

random: ## try CHECKS histories in each random test, from a new seed, which a failure tells; RUN=TestCluster chooses
	RAPID_SEED=0 RAPID_CHECKS=$(CHECKS) $(GO) test -count=1 -timeout 60m -run '$(RUN)' $(RANDOM)

# How many histories of a whole cluster are tried, and from which seed on.
HISTORIES ?= 20000
SEED ?= 1

simulate: ## play HISTORIES random histories of a cluster in virtual time, from SEED on; one that fails is shown as short as can be
	$(GO) test -trimpath -count=1 -timeout 60m -v -run 'TestHistories$$' ./test/simulation -args -histories $(HISTORIES) -seed $(SEED)

mutate: ## count the small mistakes in the cores that their tests miss
	nice $(GO) run ./test/mutate ./pkg/credit ./pkg/bandwidth ./pkg/cost ./pkg/ratelimit ./pkg/concurrency

lint: $(LINT) ## check style, and that imports point one way
	$(LINT) run ./...
	for module in $(QUEUES); do (cd $$module && $(LINT) run --config $(CURDIR)/.golangci.yml ./...); done
	for module in $(APART); do (cd deploy/$$module && GOWORK=off $(LINT) run --config $(CURDIR)/.golangci.yml --build-tags images ./...); done
	@! grep -nE '^[[:space:]]*go [a-z]' $(PURE:=/*.go)
	@test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	$(GO) mod verify >/dev/null
	for module in $(QUEUES); do (cd $$module && $(GO) mod verify >/dev/null); done

$(LINT):
	GOBIN=$(BIN) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

check: lint test ## what must pass before a commit

manifests: ## write deploy/kubernetes/sluice.yaml, the Helm chart with its default values, anew
	cd deploy/helm && GOWORK=off $(GO) test -run '^TestManifests$$' . -update

packages: ## build the debs and rpms of this machine's architecture into dist/
	rm -rf dist
	scripts/package dist

images: ## build the OCI images for amd64 and arm64 into dist/
	rm -rf dist
	scripts/images dist
	cd dist && sha256sum -- * >SHA256SUMS

release: ## build all that a release has into dist/: packages, images, the Helm chart, checksums and a bill of materials
	rm -rf dist
	scripts/package dist amd64
	scripts/package dist arm64
	scripts/images dist
	scripts/chart dist
	cd dist && sha256sum -- * >SHA256SUMS

test-packages: ## try the packages in a new Debian 12 and 13 (needs root); ROOTS=DIR keeps these for the next time
	@scripts/setup debootstrap lintian
	scripts/test-packages $(ROOTS)

test-images: ## try the images and deploy/compose.yaml without a container engine (needs root)
	@scripts/setup promtool openssl
	scripts/test-images

clean: ## remove what was built
	rm -rf bin dist

.PHONY: help setup run demo build test test-unit test-calm test-race test-queues test-containers test-helm compile-race test-integration test-postgres test-matrix chaos soak overload bench fuzz random simulate mutate lint check manifests packages images release test-packages test-images clean
