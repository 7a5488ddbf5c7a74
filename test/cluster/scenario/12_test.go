package scenario

import (
	"testing"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

func TestScenario12(t *testing.T) {
	scenario(t, 12, "helm uninstall keeps the cluster's networks, and helm install takes them up again", func(t *testing.T) {
		ring.staging(t, true)
		p := ring.in(t, "kept")
		p.network(t, "lan", node.Object{
			"cniVersion": "1.0.0", "name": "kept", "type": "bridge", "bridge": "kept0",
			"ipam": node.Object{"type": "host-local", "subnet": "10.56.0.0/24"},
		})
		before, err := p.API.Get(p.networks() + "/lan")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ring.helm("uninstall", "multus", "--namespace="+namespace, "--wait"); err != nil {
			t.Fatal(err)
		}
		after, err := p.API.Get(p.networks() + "/lan")
		if err != nil || node.Text(after, "metadata", "uid") != node.Text(before, "metadata", "uid") {
			t.Fatalf("the network did not outlive the release: %v", err)
		}
		ring.staging(t, true)
		after, err = p.API.Get(p.networks() + "/lan")
		if err != nil || node.Text(after, "metadata", "uid") != node.Text(before, "metadata", "uid") {
			t.Fatalf("the network did not outlive the second install: %v", err)
		}
		p.start(t, "pod", "lan")
		pod := p.running(t, "pod")
		p.onlyAddress(t, pod, "net1")
		p.remove(t, "pod")
	})
}
