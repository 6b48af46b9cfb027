# Everything that is done with this repository. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
BIN      := $(CURDIR)/.bin
LINT     := $(BIN)/golangci-lint
LINT_VERSION := v2.15.0

# Further arguments of the command that `make run`, `demo`, `chaos`, `soak` and `overload` run, such as ARGS="--instances 3".
ARGS ?=
# Run only tests and benchmarks whose names match.
RUN  ?= .
# HAProxy for the integration tests: a path, or a version (3.0, 3.2, 3.4) to fetch.
# Empty: the one in PATH.
HAPROXY ?=
# Redis for them: empty for the one in PATH, or valkey to fetch that.
REDIS ?=
# PostgreSQL for `make test-postgres`: empty for the newest that is installed, a version (17, 18) to
# fetch, or a directory of its programs.
POSTGRES ?=
# How long each fuzz test runs.
FUZZTIME ?= 20s
# What random tests (pgregory.net/rapid) draw from: the same each time, so that a change's tests
# do not fail by chance. `make random` looks for what other seeds find.
export RAPID_SEED ?= 1
# How many histories each random test draws in `make test`, and in `make random`.
export RAPID_CHECKS ?= 20
CHECKS ?= 2000

# The adapters of job queues, each a Go module of its own.
QUEUES := jobs/asynqos jobs/riverqos
# Modules apart from the workspace, in deploy: their libraries choose no version of ours.
APART := containers helm

# Pure packages: no goroutine, no clock (see lint).
PURE := ./pkg/ratelimit ./pkg/concurrency ./pkg/bandwidth ./pkg/cost ./pkg/credit ./pkg/quota ./pkg/limits ./pkg/limits/limitfile
# Packages whose goroutines share state: their tests run with the race detector.
SHARED := ./pkg/jobs/... ./internal/redisbus/... ./internal/agent/... ./internal/polygen/...
# The other packages, without whole clusters, a browser and benchmarks.
UNIT = $$($(GO) list ./... | grep -v -x -F -e "$$($(GO) list $(SHARED))" | grep -v -e /bench$$ -e /test/integration$$ -e /test/full$$ -e /test/page$$)
# Packages whose random tests start no HAProxy, Redis or PostgreSQL: only these can try thousands
# of histories.
RANDOM := $(PURE) ./pkg/internal/... ./pkg/jobs ./cmd/sluice/internal/check ./cmd/sluice/internal/diff \
	./internal/polygen ./internal/polygen/view ./internal/agent ./internal/agent/peers ./internal/agent/spop ./internal/terminal ./bench/load
# Packages of the unit tests that another HAProxy may fail.
ONHAPROXY := ./haproxy/... ./internal/agent/peers/... ./internal/agent/runtimeapi/... ./internal/agent/spop/...
# And those that another Redis may fail.
ONREDIS := ./internal/redisbus ./pkg/jobs/redisslots

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
	$(GO) build -trimpath -o bin/ ./cmd/...

test: setup ## what to run before each push: unit tests, real clusters on the installed HAProxy, jobs on PostgreSQL
	@scripts/setup promtool postgresql pgbouncer
	$(MAKE) -j 3 test-unit test-shared test-queues
	$(GO) test -trimpath -count=1 -parallel 3 ./test/integration

# These three run side by side, because they mostly wait. Without the race detector everything is compiled as
# `make build` compiles it, and so only once.
test-unit:
	$(GO) test -trimpath -p 2 -parallel 4 -shuffle=on $(UNIT)

# Without atexit_sleep_ms the race detector sleeps for a second at the end of each test program.
test-shared test-queues: export GORACE := atexit_sleep_ms=0

test-shared:
	$(GO) test -race -p 2 -shuffle=on $(SHARED)

test-queues:
	for module in $(QUEUES); do (cd $$module && $(GO) test -race -short -shuffle=on .); done

test-all: setup ## everything that make test leaves out: other versions, Kubernetes, containers, the page in Chromium, long histories
	$(MAKE) test-integration CLUSTERS=./test/full/...
	$(MAKE) test-integration HAPROXY=3.0 CLUSTERS='$(ONHAPROXY) ./test/integration'
	$(MAKE) test-integration HAPROXY=3.2 CLUSTERS='$(ONHAPROXY) ./test/integration'
	$(MAKE) test-integration HAPROXY=3.4 CLUSTERS='$(ONHAPROXY) ./test/integration'
	$(MAKE) test-integration REDIS=valkey CLUSTERS='$(ONREDIS) ./test/integration'
	$(MAKE) test-postgres
	$(MAKE) test-postgres POSTGRES=17
	$(MAKE) test-postgres POSTGRES=18
	$(MAKE) test-page $(APART:%=test-%)
	$(MAKE) simulate SEED=1 HISTORIES=2000
	$(MAKE) random SEED=1 CHECKS=200

# Finds or fetches the HAProxy and the Redis that HAPROXY and REDIS name.
choose = haproxy='$(HAPROXY)'; \
	case "$$haproxy" in [0-9].[0-9]) scripts/setup patchelf; haproxy=$$(scripts/fetch-program "haproxy-$$haproxy" | tail -n 1);; esac; \
	export SLUICE_HAPROXY="$$haproxy"; \
	case '$(REDIS)' in valkey) scripts/setup patchelf; PATH=$$(scripts/fetch-program valkey | tail -n 1):$$PATH;; esac; \
	echo "HAProxy: $$("$${haproxy:-haproxy}" -v | head -n 1)"; redis-server -v
# What test-integration tests.
CLUSTERS = ./test/integration ./test/full/...

test-integration: setup ## run whole clusters; RUN= chooses tests, HAPROXY=3.0 or a path another HAProxy, REDIS=valkey another Redis
	@$(choose); $(GO) test -trimpath -count=1 -p 1 -parallel 3 -timeout 20m -run '$(RUN)' $(CLUSTERS)

test-page: setup ## try the page in Chromium
	@scripts/setup chromium
	$(GO) test -trimpath -count=1 -run '$(RUN)' ./test/page

test-postgres: ## run all tests of background jobs; POSTGRES=17 or a directory chooses another PostgreSQL
	@scripts/setup postgresql pgbouncer
	@postgres='$(POSTGRES)'; \
	case "$$postgres" in [0-9][0-9]) scripts/setup patchelf; postgres=$$(scripts/fetch-program "postgresql-$$postgres" | tail -n 1);; esac; \
	export SLUICE_POSTGRES="$$postgres"; \
	[ -z "$$postgres" ] || "$$postgres/postgres" --version; \
	$(GO) test -trimpath -count=1 -run '$(RUN)' ./pkg/jobs/pgslots; \
	for module in $(QUEUES); do (cd $$module && $(GO) test -trimpath -count=1 -run '$(RUN)' ./...); done

# Without -trimpath, as lint wants their libraries compiled: Kubernetes' take longest of all.
$(APART:%=test-%):
	@scripts/setup openssl promtool
	cd deploy/$(@:test-%=%) && GOWORK=off $(GO) test -shuffle=on ./...

# How long `make chaos`, `make soak` and `make overload` take, what their choices are drawn from (0: a new seed), and with which Redis.
DURATION ?= $(if $(filter soak,$@),1h,$(if $(filter overload,$@),5m,20m))
SEED     ?= 0
STORE    ?= all

chaos soak overload: setup
	@mkdir -p bin
	$(GO) build -trimpath -o bin/longrun ./test/longrun
	@exec bin/longrun --seed $(SEED) $@ --duration $(DURATION) $(if $(filter chaos,$@),--store $(STORE)) $(ARGS)

chaos: ## break a cluster under load for DURATION, as SEED says, on Redis STORE=single, sentinel, cluster or all in turn
soak: ## run a cluster under steady load for DURATION, and look whether anything grows
overload: ## offer a cluster more than this machine can serve for DURATION, and very many connections at once

bench: build ## measure accuracy, reaction and cost, and print tables; RUN=Cost chooses
	@$(choose); \
	$(GO) test -count=1 -timeout 60m -run '^$$' -bench '$(RUN)' -benchtime 1x ./bench; \
	$(GO) test -count=1 -timeout 60m -run '^$$' -bench '$(RUN)' -skip Accuracy -benchtime 40000x ./haproxy; \
	$(GO) test -count=1 -timeout 60m -run '^$$' -bench '$(RUN)' -skip CPU -benchtime 1x ./haproxy
	$(GO) test -count=1 -timeout 60m -run '^$$' -bench '$(RUN)' -benchmem ./pkg/limits/limitfile ./pkg/ratelimit ./pkg/concurrency ./pkg/bandwidth ./internal/polygen/view ./internal/agent ./internal/agent/spop ./internal/redisbus
	@scripts/setup postgresql
	$(GO) test -count=1 -run '^$$' -bench '$(RUN)' ./pkg/jobs/...
	for module in $(QUEUES); do (cd $$module && $(GO) test -count=1 -timeout 30m -run '^$$' -bench '$(RUN)' -benchtime 1x .); done
	@scripts/setup chromium
	$(GO) test -count=1 -run '^$$' -bench '$(RUN)' -benchtime 20x ./test/page

fuzz: ## fuzz every parser for FUZZTIME each
	@for module in . $(QUEUES); do cd $(CURDIR)/$$module; for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg | grep ^Fuzz || true); do \
			echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done; done

random: ## try CHECKS histories in each random test, from SEED or a new one, which a failure prints; RUN=TestCluster chooses
	RAPID_SEED=$(SEED) RAPID_CHECKS=$(CHECKS) $(GO) test -count=1 -timeout 60m -run '$(RUN)' $(RANDOM)

# How many histories of a whole cluster are tried, and from which seed on.
HISTORIES ?= 20000

simulate: ## play HISTORIES random histories of a cluster in virtual time, from SEED on; one that fails is shown as short as can be
	$(GO) test -trimpath -count=1 -timeout 60m -run 'TestHistories$$' ./test/simulation -args -histories $(HISTORIES) -seed $(SEED)

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

.PHONY: help setup run demo build test test-unit test-shared test-queues test-all test-integration test-page test-postgres chaos bench soak overload fuzz random simulate lint manifests packages images release test-packages test-images clean $(APART:%=test-%)
