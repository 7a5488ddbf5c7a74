package scenario

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

// Every plugin that this machine's kernel can run, each seen at work by what it does. The kernels of build machines have no
// ipvlan, vlan or vrf.
func TestScenario03(t *testing.T) {
	scenario(t, 3, "each plugin that this kernel can run does its work in a pod", func(t *testing.T) {
		ring.staging(t, true)
		p := ring.in(t, "plugins")
		hostLocal := func(subnet string) node.Object {
			return node.Object{"type": "host-local", "subnet": subnet}
		}
		list := func(name string, plugins ...any) node.Object {
			return node.Object{"cniVersion": "1.0.0", "name": name, "plugins": plugins}
		}
		bridge := func(name, subnet string) node.Object {
			return node.Object{"type": "bridge", "bridge": name, "isGateway": true, "ipam": hostLocal(subnet)}
		}

		t.Run("macvlan and static", func(t *testing.T) {
			for name, address := range map[string]string{"mac-a": "10.61.0.11/24", "mac-b": "10.61.0.12/24"} {
				p.network(t, name, node.Object{
					"cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "node0", "mode": "bridge",
					"ipam": node.Object{"type": "static", "addresses": []any{node.Object{"address": address}}},
				})
				p.start(t, name, name)
			}
			a := p.running(t, "mac-a")
			p.running(t, "mac-b")
			if got := p.onlyAddress(t, a, "net1"); got != "10.61.0.11/24" {
				t.Errorf("net1 has %s, not the address of the definition", got)
			}
			if kind := p.inside(t, a, "ip", "-d", "link", "show", "net1"); !strings.Contains(kind, "macvlan mode bridge") {
				t.Errorf("net1 is no macvlan: %s", kind)
			}
			p.answers(t, "mac-b", "10.61.0.11", "10.61.0.12")
			p.remove(t, "mac-a", "mac-b")
		})

		t.Run("ptp and host-local", func(t *testing.T) {
			p.network(t, "ptp", node.Object{"cniVersion": "1.0.0", "name": "ptp", "type": "ptp", "ipam": hostLocal("10.62.0.0/24")})
			p.start(t, "ptp", "ptp")
			pod := p.running(t, "ptp")
			address := bare(p.onlyAddress(t, pod, "net1"))
			if out, err := ring.tool(ring.Dir.Tool("probe"), "call", address+":7000", "words"); err != nil || out != "words\n" {
				t.Errorf("the node does not reach %s: %q %v", address, out, err)
			}
			if leases := ring.leases(t, "ptp"); len(leases) != 1 || leases[0] != address {
				t.Errorf("host-local holds %v", leases)
			}
			p.remove(t, "ptp")
		})

		t.Run("host-device", func(t *testing.T) {
			if _, err := ring.tool("ip", "link", "add", "given0", "type", "veth", "peer", "name", "given1"); err != nil {
				t.Fatal(err)
			}
			p.network(t, "device", node.Object{
				"cniVersion": "1.0.0", "name": "device", "type": "host-device", "device": "given0",
				"ipam": node.Object{"type": "static", "addresses": []any{node.Object{"address": "10.63.0.2/24"}}},
			})
			p.start(t, "device", "device")
			pod := p.running(t, "device")
			if got := p.onlyAddress(t, pod, "net1"); got != "10.63.0.2/24" {
				t.Errorf("net1 has %s", got)
			}
			if _, err := ring.tool("ip", "link", "show", "given0"); err == nil {
				t.Error("the device is still on the node")
			}
			p.remove(t, "device")
			eventually(t, 20*time.Second, func() error {
				_, err := ring.tool("ip", "link", "show", "given0")
				return err
			})
			if _, err := ring.tool("ip", "link", "delete", "given0"); err != nil {
				t.Fatal(err)
			}
		})

		t.Run("bridge and tuning", func(t *testing.T) {
			p.network(t, "tuned", list("tuned", bridge("tuned0", "10.64.0.0/24"),
				node.Object{"type": "tuning", "mtu": 1300, "sysctl": node.Object{"net.ipv4.conf.IFNAME.arp_announce": "2"}}))
			p.start(t, "tuned", "tuned")
			pod := p.running(t, "tuned")
			if link := p.inside(t, pod, "ip", "link", "show", "net1"); !strings.Contains(link, "mtu 1300") {
				t.Errorf("the MTU was not tuned: %s", link)
			}
			if got := p.inside(t, pod, "cat", "/proc/sys/net/ipv4/conf/net1/arp_announce"); got != "2\n" {
				t.Errorf("the setting is %q", got)
			}
			p.remove(t, "tuned")
		})

		t.Run("bridge and bandwidth", func(t *testing.T) {
			const rate, load = 8_000_000, 4_000_000 // bits a second, bytes
			p.network(t, "slow", list("slow", bridge("slow0", "10.65.0.0/24"),
				node.Object{"type": "bandwidth", "ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate}))
			p.start(t, "slow", "slow")
			p.start(t, "slow-2", "slow")
			address := bare(p.onlyAddress(t, p.running(t, "slow"), "net1"))
			p.running(t, "slow-2")
			seconds := p.load(t, "slow-2", address, load)
			// 32 Mbit at 8 Mbit/s are 4 s, less the burst's one second. Without a limit it takes milliseconds.
			if seconds < 2 || seconds > 12 {
				t.Errorf("%d bytes took %.2f s at %d bits a second", load, seconds, rate)
			}
			if free := p.load(t, "slow-2", bare(p.onlyAddress(t, p.running(t, "slow"), "eth0")), load); free > seconds/2 {
				t.Errorf("without the limit it took %.2f s, with it %.2f s", free, seconds)
			}
			p.remove(t, "slow", "slow-2")
		})

		t.Run("bridge and portmap", func(t *testing.T) {
			p.network(t, "mapped", list("mapped", bridge("mapped0", "10.66.0.0/24"),
				node.Object{"type": "portmap", "snat": true, "capabilities": node.Object{"portMappings": true}}))
			p.start(t, "mapped", `[{"name": "mapped", "portMappings": [{"hostPort": 17000, "containerPort": 7000, "protocol": "tcp"}]}]`)
			p.running(t, "mapped")
			if out, err := ring.tool(ring.Dir.Tool("probe"), "call", node.Address+":17000", "words"); err != nil || out != "words\n" {
				t.Errorf("the port is not reached: %q %v", out, err)
			}
			p.remove(t, "mapped")
			if out, err := ring.tool(ring.Dir.Tool("probe"), "call", node.Address+":17000", "words"); err == nil {
				t.Errorf("the port is still reached: %q", out)
			}
		})

		t.Run("bridge and firewall", func(t *testing.T) {
			p.network(t, "fire", list("fire", bridge("fire0", "10.67.0.0/24"), node.Object{"type": "firewall", "backend": "iptables"}))
			p.start(t, "fire", "fire")
			address := bare(p.onlyAddress(t, p.running(t, "fire"), "net1"))
			rule := "-s " + address + "/32 -j ACCEPT"
			if rules, err := ring.tool("iptables", "-S", "CNI-FORWARD"); err != nil || !strings.Contains(rules, rule) {
				t.Errorf("no rule %q: %s %v", rule, rules, err)
			}
			p.remove(t, "fire")
			if rules, err := ring.tool("iptables", "-S", "CNI-FORWARD"); err != nil || strings.Contains(rules, rule) {
				t.Errorf("the rule outlived the pod: %s %v", rules, err)
			}
		})

		t.Run("bridge and sbr", func(t *testing.T) {
			p.network(t, "routed", list("routed", node.Object{
				"type": "bridge", "bridge": "routed0", "isGateway": true,
				"ipam": node.Object{"type": "host-local", "subnet": "10.68.0.0/24", "routes": []any{node.Object{"dst": "10.99.0.0/16"}}},
			}, node.Object{"type": "sbr"}))
			p.start(t, "routed", "routed")
			pod := p.running(t, "routed")
			address := bare(p.onlyAddress(t, pod, "net1"))
			var rules []struct{ Src, Table string }
			if err := json.Unmarshal([]byte(p.inside(t, pod, "ip", "-j", "rule")), &rules); err != nil {
				t.Fatal(err)
			}
			table := ""
			for _, r := range rules {
				if r.Src == address {
					table = r.Table
				}
			}
			if table == "" {
				t.Fatalf("no rule for %s: %v", address, rules)
			}
			if routes := p.inside(t, pod, "ip", "route", "show", "table", table); !strings.Contains(routes, "net1") {
				t.Errorf("table %s has no route through net1: %s", table, routes)
			}
			p.remove(t, "routed")
		})
	})
}

// bare is an address without its prefix.
func bare(address string) string {
	address, _, _ = strings.Cut(address, "/")
	return address
}

// answers holds that a pod reaches an address, and is seen there under another.
func (p place) answers(t *testing.T, from, address, as string) {
	t.Helper()
	if got, err := p.exec(from, "call", address+":7000", "hello"); err != nil || got != as {
		t.Errorf("%s sees pod %s as %q, want %s (%v)", address, from, got, as, err)
	}
}

// load is how many seconds it takes from a pod to an address.
func (p place) load(t *testing.T, from, address string, size int) float64 {
	t.Helper()
	out, err := p.exec(from, "load", address+":7000", fmt.Sprint(size))
	if err != nil {
		t.Fatal(err)
	}
	var seconds float64
	if _, err := fmt.Sscan(out, &seconds); err != nil {
		t.Fatal(err)
	}
	return seconds
}
