package scenario

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

func TestScenario02(t *testing.T) {
	scenario(t, 2, "staging on: the same pod starts, its network works, and its address goes back", func(t *testing.T) {
		p := place{ring, "demo"}
		before, err := p.API.Get(p.pods() + "/first")
		if node.NotFound(err) || err == nil && node.Text(before, "status", "phase") != "Pending" {
			ring.bare(t)
			ring.staging(t, false)
			p = ring.waiting(t)
			p.stuck(t, "first")
			before, err = p.API.Get(p.pods() + "/first")
		}
		if err != nil {
			t.Fatal(err)
		}

		ring.staging(t, true)
		message := terminationMessage(ring.multusPod(t))
		if !strings.HasPrefix(message, "staged 14 plugins v1.9.1 (bundle sha256:") || !strings.Contains(message, ") into /opt/cni/bin: 12 new, 2 ") {
			t.Errorf("the termination message is %q", message)
		}

		first := p.running(t, "first")
		if node.Text(first, "metadata", "uid") != node.Text(before, "metadata", "uid") {
			t.Error("it is another pod")
		}
		p.start(t, "second", "lan")
		second := p.running(t, "second")
		address := p.onlyAddress(t, first, "net1")
		if !strings.HasPrefix(address, "10.55.0.") || !strings.HasSuffix(address, "/24") {
			t.Errorf("net1 has %s", address)
		}
		address, _, _ = strings.Cut(address, "/")
		status := attachments(t, first)
		if len(status) != 2 || !status[0].Default || status[1].Name != "demo/lan" || status[1].Interface != "net1" || !slices.Equal(status[1].IPs, []string{address}) {
			t.Errorf("network-status: %+v", status)
		}
		from, _, _ := strings.Cut(p.onlyAddress(t, second, "net1"), "/")
		if answer, err := p.exec("second", "call", address+":7000", "hello"); err != nil || answer != from {
			t.Errorf("the first pod sees the second as %q, want %s (%v)", answer, from, err)
		}

		if leases := ring.leases(t, "lan"); len(leases) != 2 {
			t.Errorf("two pods have the addresses %v", leases)
		}
		p.remove(t, "first", "second")
		eventually(t, 30*time.Second, func() error {
			if leases := ring.leases(t, "lan"); len(leases) != 0 {
				return fmt.Errorf("the addresses %v were not given back", leases)
			}
			return nil
		})
	})
}

// onlyAddress is the one IPv4 address of an interface of a pod.
func (p place) onlyAddress(t *testing.T, pod node.Object, device string) string {
	t.Helper()
	all := p.addresses(t, pod, device)
	if len(all) != 1 {
		t.Fatalf("%s of pod %s has the addresses %v", device, node.Text(pod, "metadata", "name"), all)
	}
	return all[0]
}
