package scenario

import (
	"errors"
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
		var first node.Object
		for tries := 1; ; tries++ {
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

			values := ring.platform(t, "networking.stageCniPlugins=true")
			p.triedAgain(t, "first")
			ring.multus(t, values)
			message := terminationMessage(ring.multusPod(t))
			if !strings.HasPrefix(message, "staged 14 plugins v1.9.1 (bundle sha256:") || !strings.Contains(message, ") into /opt/cni/bin: 12 new, 2 ") {
				t.Errorf("the termination message is %q", message)
			}

			first = p.running(t, "first")
			if node.Text(first, "metadata", "uid") != node.Text(before, "metadata", "uid") {
				t.Error("it is another pod")
			}
			if node.Text(first, "metadata", "annotations", "k8s.v1.cni.cncf.io/network-status") != "" {
				break
			}
			// While one Multus is replaced by the next, the container runtime knows of none: Multus takes its configuration away
			// when it ends. A pod that the kubelet tries just then starts with the primary network alone. It tries every 10 to
			// 15 s; on a busy machine right after a try is not always time enough.
			if tries == 5 {
				t.Fatal("five times the pod was started while Multus was being replaced")
			}
			t.Logf("try %d: the pod was started while Multus was being replaced, without Multus", tries)
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

// triedAgain waits until the kubelet has failed once more to start a pod.
func (p place) triedAgain(t *testing.T, pod string) {
	t.Helper()
	tries := func() (sum float64) {
		list, err := p.API.Get("/api/v1/namespaces/" + p.name + "/events?fieldSelector=reason%3DFailedCreatePodSandBox,involvedObject.name%3D" + pod)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range node.List(list, "items") {
			count, _ := node.At(e, "count").(float64)
			sum += max(count, 1)
		}
		return sum
	}
	before := tries()
	eventually(t, time.Minute, func() error {
		if tries() == before {
			return errors.New("no further try")
		}
		return nil
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
