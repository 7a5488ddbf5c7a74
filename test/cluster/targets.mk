# The ring of tests that runs a real Kubernetes node, and the same node for a person.
CLUSTER_DIR := $(OUT)/cluster

.PHONY: cluster-tool
cluster-tool:
	@mkdir -p $(OUT)
	@cd test/cluster && CGO_ENABLED=0 go build -trimpath -o $(abspath $(OUT))/cluster-tool .

# The image of the pinned Multus, the bundle and chandler, as an archive that containerd imports.
$(OUT)/image.tar: $(OUT)/bundle.stamp build
	rm -f $@
	$(OUT)/chandlerctl image build --out $@

CLUSTER_TEST = cd test/cluster && CLUSTER=$(abspath $(CLUSTER_DIR)) IMAGE=$(abspath $(OUT)/image.tar) BUNDLE=$(abspath $(OUT)/bundle) \
	CHARTS=$(abspath charts) CHANDLER=$(abspath $(OUT)/chandler) CHANDLERCTL=$(abspath $(OUT)/chandlerctl) \
	go test -v -count=1 -p 1 -timeout 30m

.PHONY: cluster
cluster: $(OUT)/image.tar cluster-build ## run every scenario on a real Kubernetes node (as root)
	$(CLUSTER_TEST) ./...

.PHONY: cluster-smoke
cluster-smoke: $(OUT)/image.tar cluster-build ## the failure, the cure and the restart, on a real Kubernetes node (as root)
	$(CLUSTER_TEST) -run 'TestScenario(01|02|08)$$' ./scenario

.PHONY: cluster-build
cluster-build: cluster-tool ## build Kubernetes, etcd and Helm from their pins into out/cluster, once
	@$(OUT)/cluster-tool -dir $(CLUSTER_DIR) build

.PHONY: cluster-up
cluster-up: cluster-tool ## start a Kubernetes node on this machine, leave it running, and print how to use it (as root)
	@$(OUT)/cluster-tool -dir $(CLUSTER_DIR) up

.PHONY: cluster-down
cluster-down: cluster-tool ## end it, and clear what it left
	@$(OUT)/cluster-tool -dir $(CLUSTER_DIR) down

.PHONY: ring-cluster
ring-cluster: cluster # everything of test/cluster
