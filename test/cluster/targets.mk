# The ring of tests that runs a real Kubernetes node, and the same node for a person. Everything lies in out/cluster; what is
# built for the node is built once, until a pin moves.
CLUSTER := $(OUT)/cluster
ARCH    := $(shell go env GOARCH)

.PHONY: cluster-build
cluster-build: ## etcd, Kubernetes and Helm from their pins; the first time it takes minutes
	@mkdir -p $(CLUSTER)
	@cd test/cluster && CGO_ENABLED=0 go build -trimpath -o $(abspath $(CLUSTER))/cluster .
	@$(CLUSTER)/cluster -dir $(CLUSTER) build

# The image for this machine alone, made anew when anything that is in it has changed.
$(CLUSTER)/image.tar: $(shell git ls-files cmd internal upstream go.mod go.sum | grep -v _test)
	@mkdir -p $(CLUSTER)
	@$(MAKE) --no-print-directory build bundle
	rm -f $@
	$(OUT)/chandlerctl image build --platform linux/$(ARCH) --bundle $(ARCH)=$(OUT)/bundle --out $@

CLUSTER_TEST = cd test/cluster && CLUSTER=$(abspath $(CLUSTER)) IMAGE=$(abspath $(CLUSTER))/image.tar \
	BUNDLE=$(abspath $(OUT))/bundle CHANDLER=$(abspath $(OUT))/chandler CHANDLERCTL=$(abspath $(OUT))/chandlerctl \
	CHARTS=$(abspath charts) go test -v -count=1 -p 1 -timeout 40m

.PHONY: cluster
cluster: cluster-build build bundle $(CLUSTER)/image.tar ## run every scenario on a real Kubernetes node (as root)
	$(CLUSTER_TEST) ./...

.PHONY: cluster-smoke
cluster-smoke: cluster-build build bundle $(CLUSTER)/image.tar ## the failure, the cure and the restart on a real Kubernetes node (as root)
	$(CLUSTER_TEST) -run 'TestScenario(01|02|08)$$' ./scenario

.PHONY: ring-cluster
ring-cluster: cluster ## a real Kubernetes node, the image and the charts

.PHONY: cluster-up
cluster-up: cluster-build $(CLUSTER)/image.tar ## start a Kubernetes node on this machine, leave it running, and say how to use it (as root)
	@$(CLUSTER)/cluster -dir $(CLUSTER) -image $(abspath $(CLUSTER))/image.tar up

.PHONY: cluster-down
cluster-down: cluster-build ## end it, and clear what it left
	@$(CLUSTER)/cluster -dir $(CLUSTER) down

.PHONY: walkthrough
walkthrough: cluster-build $(CLUSTER)/image.tar ## write docs/walkthrough.md from a run on a real Kubernetes node (as root)
	@$(CLUSTER)/cluster -dir $(CLUSTER) -image $(abspath $(CLUSTER))/image.tar walkthrough docs/walkthrough.md
