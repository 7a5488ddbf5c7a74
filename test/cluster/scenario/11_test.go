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

// halting is a plugin whose ADD says that it runs and then takes its time.
const halting = `#!/bin/sh
cat >/dev/null
case "$CNI_COMMAND" in
ADD) : >/var/lib/cni/halting; exec sleep 600 ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
esac
`

func TestScenario11(t *testing.T) {
	scenario(t, 11, "a pod whose ADD was cut off half way can be deleted, and its name is free again", func(t *testing.T) {
		ring.staging(t, true)
		plugin := filepath.Join(ring.Dir.Host(binDir), "halting")
		if err := os.WriteFile(plugin, []byte(halting), 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(plugin)
		mark := ring.Dir.Host("/var/lib/cni/halting")
		if err := os.RemoveAll(mark); err != nil {
			t.Fatal(err)
		}
		p := ring.in(t, "cut")
		p.network(t, "halting", node.Object{"cniVersion": "1.0.0", "name": "halting", "type": "halting"})
		p.network(t, "lan", node.Object{
			"cniVersion": "1.0.0", "name": "cut", "type": "bridge", "bridge": "cut0",
			"ipam": node.Object{"type": "host-local", "subnet": "10.57.0.0/24"},
		})
		p.start(t, "pod", "lan,halting")
		eventually(t, 30*time.Second, func() error { _, err := os.Stat(mark); return err })
		if leases := ring.leases(t, "cut"); len(leases) != 1 {
			t.Fatalf("the first network has the addresses %v", leases)
		}

		// The daemon ends at once, while the second network's ADD runs.
		daemon := ring.process(t, "multus-daemon")
		var pid int
		if _, err := fmt.Sscan(filepath.Base(daemon), &pid); err != nil {
			t.Fatal(err)
		}
		process, err := os.FindProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := p.API.Delete(p.pods() + "/pod"); err != nil {
			t.Fatal(err)
		}
		p.remove(t, "pod")
		ring.rolledOut(t)

		p.start(t, "pod", "lan")
		pod := p.running(t, "pod")
		address := bare(p.onlyAddress(t, pod, "net1"))
		for _, e := range p.events("pod") {
			if strings.Contains(e, "is reserved for") {
				t.Errorf("the name was not free: %s", e)
			}
		}
		p.remove(t, "pod")
		// The address of the pod that was cut off may stay taken: its DEL came while no daemon was there, and Multus' shim tells
		// the container runtime that all is well then, so that it is not called again.
		eventually(t, 30*time.Second, func() error {
			if leases := ring.leases(t, "cut"); slices.Contains(leases, address) {
				return fmt.Errorf("the address %s was not given back", address)
			}
			return nil
		})
	})
}
