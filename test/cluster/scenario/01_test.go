package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

// bare brings the plugins' directory to what the container runtime and the default network need.
func (c *cluster) bare(t *testing.T) {
	t.Helper()
	dir := c.Dir.Host(binDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains([]string{"loopback", "ptp", "host-local", "multus-shim", "passthru"}, e.Name()) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
}

const bridgeSubnet = "10.55.0.0/24"

// waiting makes the pod of the first two scenarios: its network is a bridge's.
func (c *cluster) waiting(t *testing.T) place {
	p := c.in(t, "demo")
	p.network(t, "lan", node.Object{
		"cniVersion": "1.0.0", "name": "lan", "type": "bridge", "bridge": "lan0",
		"ipam": node.Object{"type": "host-local", "subnet": bridgeSubnet},
	})
	p.remove(t, "first")
	p.start(t, "first", "lan")
	return p
}

const noBridge = `failed to find plugin "bridge" in path [/opt/cni/bin]`

// stuck waits until the pod's events say why it does not start, and holds that it has not.
func (p place) stuck(t *testing.T, pod string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		events := p.events(pod)
		if slices.ContainsFunc(events, func(e string) bool {
			return strings.HasPrefix(e, "FailedCreatePodSandBox: ") && strings.Contains(e, noBridge)
		}) {
			return nil
		}
		return fmt.Errorf("no event says so: %q", events)
	})
	// The kubelet says so in its own time, which may be after the event.
	eventually(t, time.Minute, func() error {
		object, err := p.API.Get(p.pods() + "/" + pod)
		if err != nil {
			return err
		}
		statuses := node.List(object, "status", "containerStatuses")
		if node.Text(object, "status", "phase") != "Pending" || len(statuses) != 1 ||
			node.Text(statuses[0], "state", "waiting", "reason") != "ContainerCreating" {
			return fmt.Errorf("the pod is not in ContainerCreating: %v", object["status"])
		}
		return nil
	})
}

func TestScenario01(t *testing.T) {
	scenario(t, 1, "without staging a pod on a bridge network stays in ContainerCreating and says why", func(t *testing.T) {
		ring.bare(t)
		ring.staging(t, false)
		ring.waiting(t).stuck(t, "first")
	})
}
