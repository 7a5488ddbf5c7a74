# Every target is one line in `make help`. Everything that is made lies in out/.
SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help

OUT       := out
GOBUILD   := CGO_ENABLED=0 go build -trimpath -ldflags '-s -w'
FUZZTIME  ?= 10s
RINGS     ?= unit root chart registry
HEAVY     := cluster guest faults
# The modules that are ours: the root, and those whose dependencies the product does not need.
MODULES    = $(shell git ls-files '*go.mod' | grep -vE '(^|/)upstream/' | xargs -n1 dirname)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

include test/cluster/targets.mk test/guest/targets.mk

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 18

.PHONY: build
build: ## build both programs into out/
	@mkdir -p $(OUT)
	$(GOBUILD) -o $(OUT)/ ./cmd/chandler ./cmd/chandlerctl

# The bundles' own files carry a fixed time, so a stamp says when they were made.
$(OUT)/%.stamp: upstream/pins.yaml $(wildcard upstream/plugins/*) $(wildcard internal/bundle/*.go internal/source/*.go)
	@$(MAKE) --no-print-directory build
	rm -rf $(OUT)/$*
	$(OUT)/chandlerctl bundle build --form $(if $(findstring separate,$*),separate,multicall) --out $(OUT)/$*
	@touch $@

# A stamp without its bundle says nothing.
$(foreach b,bundle bundle-separate,$(if $(wildcard $(OUT)/$b/bundle.json),,$(shell rm -f $(OUT)/$b.stamp)))

.PHONY: bundle
bundle: $(OUT)/bundle.stamp ## build the 14 pinned plugins into out/bundle

.PHONY: bundle-separate
bundle-separate: $(OUT)/bundle-separate.stamp ## the same, an executable each

.PHONY: run
run: build bundle ## stage the plugins into out/node and, as root, attach two network namespaces through them
	@$(GOBUILD) -o $(OUT)/demo ./test/demo
	@$(OUT)/demo -chandler $(OUT)/chandler -bundle $(OUT)/bundle -bin-dir $(OUT)/node/opt/cni/bin

.PHONY: test
test: packages ## run the rings of tests that take minutes; fail if one did not run
	@test/rings $(RINGS)

.PHONY: test-all
test-all: packages ## run every ring
	@test/rings $(RINGS) $(HEAVY)

.PHONY: packages
packages: ## install the Debian packages that the tests need (as root), or list those that are missing
	@test/packages

.PHONY: ring-unit
ring-unit: ## no root, no network, seconds
	go test -v ./...

.PHONY: ring-root
ring-root: build bundle bundle-separate ## namespaces, mounts, real plugins
	cd test/root && CHANDLER=$(abspath $(OUT)/chandler) BUNDLE=$(abspath $(OUT)/bundle) OTHER_BUNDLE=$(abspath $(OUT)/bundle-separate) \
		go test -v -tags root -count=1 ./...

.PHONY: sequences
sequences: build bundle bundle-separate ## ten thousand random sequences of staging, foreign writes, kills and restoring; the ring root runs 200
	cd test/root && CHANDLER=$(abspath $(OUT)/chandler) BUNDLE=$(abspath $(OUT)/bundle) OTHER_BUNDLE=$(abspath $(OUT)/bundle-separate) \
		SEQUENCES=$(or $(SEQUENCES),10000) go test -tags root -count=1 -timeout 120m -run TestSequences -v ./...

.PHONY: ring-chart
ring-chart: ## the charts by Helm's own engine, and the pages that quote them
	cd test/chart && go test -v -count=1 ./...

.PHONY: ring-registry
ring-registry: ## the image from a real registry, and what its patch changes in Multus; compiles Multus for both machines
	go test -v -tags registry -count=1 -timeout 60m ./test/registry

.PHONY: ring-faults
ring-faults: build bundle bundle-separate ## every system call fails, kills, other writers: a part, drawn by FAULTS_SEED
	cd test/faults && CHANDLER=$(abspath $(OUT)/chandler) BUNDLE=$(abspath $(OUT)/bundle) OTHER_BUNDLE=$(abspath $(OUT)/bundle-separate) \
		go test -v -tags faults -count=1 -p 1 -timeout $(if $(FAULTS_FULL),12h,30m) ./...

.PHONY: faults-full
faults-full: ## all of it, which takes hours
	@$(MAKE) --no-print-directory ring-faults FAULTS_FULL=1

.PHONY: image
image: build ## build the image for both platforms into out/image.tar
	rm -f $(OUT)/image.tar
	$(OUT)/chandlerctl image build --out $(OUT)/image.tar

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (10s)
	@test/fuzz $(FUZZTIME)

.PHONY: bench
bench: build bundle bundle-separate ## run chandler and the loops it replaces in turn, and write docs/benchmarks.md
	@go run ./test/bench -chandler $(OUT)/chandler -chandlerctl $(OUT)/chandlerctl -separate $(OUT)/bundle-separate -multicall $(OUT)/bundle \
		-dir $(OUT) -page docs/benchmarks.md
	@cat docs/benchmarks.md

.PHONY: reproducible
reproducible: build ## build the bundle twice with separate caches, for each architecture, and compare
	@test/reproducible

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, in every module
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	@for m in $(MODULES); do echo "lint $$m"; (cd $$m && go vet -tags root,registry,faults ./... && go run $(STATICCHECK) -tags root,registry,faults ./...); done

.PHONY: docs
docs: ## write the command reference, the charts' READMEs and docs/distributions.md anew
	go test ./cmd/... -run TestReference -update
	go run ./cmd/chandlerctl chart docs

.PHONY: update
update: ## move what is named to another version: MULTUS=v4.3.0 PLUGINS=v1.9.1
	@test -n "$(MULTUS)$(PLUGINS)" || { echo "say which version: make update MULTUS=v4.3.0, or PLUGINS=v1.9.1"; exit 2; }
	@test -z "$(MULTUS)" || go run ./cmd/chandlerctl chart update multus $(MULTUS)
	@test -z "$(PLUGINS)" || go run ./cmd/chandlerctl pins update plugins $(PLUGINS)

.PHONY: clean
clean: ## remove out/
	rm -rf $(OUT)
