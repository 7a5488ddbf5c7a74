//go:build root

package root

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

// The tests of this file attach networks through the staged files with the library that runtimes use. The node is the ring's
// own network namespace; containers are further ones.

// attached is which plugins have attached a network, for the ring's last words.
var attached struct {
	sync.Mutex
	names map[string]bool
}

func attachedPlugins() []string {
	attached.Lock()
	defer attached.Unlock()
	return slices.Sorted(maps.Keys(attached.names))
}

// network is one CNI configuration and a runtime for it.
type network struct {
	t      testing.TB
	list   *libcni.NetworkConfigList
	cni    *libcni.CNIConfig
	leases string // host-local's
}

// newNetwork takes the plugins part of a configuration list. LEASES in it is where host-local keeps its leases.
func newNetwork(t testing.TB, dir, name, plugins string) network {
	t.Helper()
	// As runtimes do it, but with what plugins say on stderr in the test's own output.
	run := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: t.Output()}}
	n := network{t: t, leases: t.TempDir(), cni: libcni.NewCNIConfigWithCacheDir([]string{dir}, t.TempDir(), run)}
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, name, strings.ReplaceAll(plugins, "LEASES", n.leases))
	var err error
	if n.list, err = libcni.NetworkConfFromBytes([]byte(conf)); err != nil {
		t.Fatalf("%v\n%s", err, conf)
	}
	return n
}

// container is one network namespace that is attached as eth0.
func (n network) runtime(id, ns string, ports ...map[string]any) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: "/run/netns/" + ns, IfName: "eth0", CapabilityArgs: map[string]any{"portMappings": ports}}
}

func (n network) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	n.t.Cleanup(cancel)
	return ctx
}

// add attaches and returns the address that eth0 got.
func (n network) add(rt *libcni.RuntimeConf) net.IPNet {
	n.t.Helper()
	got, err := n.cni.AddNetworkList(n.context(), n.list, rt)
	if err != nil {
		n.t.Fatalf("ADD: %v", err)
	}
	n.t.Cleanup(func() { n.cni.DelNetworkList(context.Background(), n.list, rt) }) // for when the test fails
	result, err := types100.NewResultFromResult(got)
	if err != nil || len(result.IPs) == 0 {
		n.t.Fatalf("ADD: %v, %v", got, err)
	}
	attached.Lock()
	defer attached.Unlock()
	if attached.names == nil {
		attached.names = make(map[string]bool)
	}
	for _, p := range n.list.Plugins {
		attached.names[p.Network.Type] = true
		if p.Network.IPAM.Type != "" {
			attached.names[p.Network.IPAM.Type] = true
		}
	}
	return result.IPs[0].Address
}

func (n network) check(rt *libcni.RuntimeConf) {
	n.t.Helper()
	if err := n.cni.CheckNetworkList(n.context(), n.list, rt); err != nil {
		n.t.Fatalf("CHECK: %v", err)
	}
}

func (n network) del(rt *libcni.RuntimeConf) {
	n.t.Helper()
	if err := n.cni.DelNetworkList(n.context(), n.list, rt); err != nil {
		n.t.Fatalf("DEL: %v", err)
	}
}

// leased lists the addresses that host-local holds.
func (n network) leased() []string {
	n.t.Helper()
	var held []string
	paths, _ := filepath.Glob(filepath.Join(n.leases, "*/*"))
	for _, p := range paths {
		if net.ParseIP(filepath.Base(p)) != nil {
			held = append(held, filepath.Base(p))
		}
	}
	return held
}

// namespace makes a network namespace for as long as the test lasts.
func namespace(t testing.TB, name string) string {
	t.Helper()
	rig.Sh(t, "ip", "netns", "add", name)
	t.Cleanup(func() { rig.Sh(t, "ip", "netns", "del", name) })
	within(t, name, "ip", "link", "set", "lo", "up")
	return name
}

// within runs a command in a network namespace, and in no other mount namespace than this.
func within(t testing.TB, ns string, args ...string) string {
	t.Helper()
	return rig.Sh(t, "nsenter", append([]string{"--net=/run/netns/" + ns, "--"}, args...)...)
}

// pair makes two linked interfaces, the one here up and the other in the namespace ns with an address.
func pair(t testing.TB, here, there, ns, address string) {
	t.Helper()
	rig.Sh(t, "ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", ns)
	t.Cleanup(func() {
		if rig.Exists("/sys/class/net/" + here) {
			rig.Sh(t, "ip", "link", "del", here)
		}
	})
	rig.Sh(t, "ip", "link", "set", here, "up")
	within(t, ns, "ip", "address", "add", address, "dev", there)
	within(t, ns, "ip", "link", "set", there, "up")
}

func ping(t testing.TB, ns, to string) {
	t.Helper()
	within(t, ns, "busybox", "ping", "-c", "1", "-W", "5", to)
}

// enter runs do on a thread in the network namespace ns, which is given up afterwards. Sockets stay where they were made.
func enter(t testing.TB, ns string, do func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		f, err := os.Open("/run/netns/" + ns)
		if err == nil {
			defer f.Close()
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// serve answers every connection to address in ns with a word, for as long as the test lasts.
func serve(t testing.TB, ns, address, word string) {
	t.Helper()
	err := enter(t, ns, func() error {
		l, err := net.Listen("tcp4", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, word)
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// hear connects from ns and returns the word.
func hear(t testing.TB, ns, address string, wait time.Duration) (word string, err error) {
	t.Helper()
	err = enter(t, ns, func() error {
		c, err := net.DialTimeout("tcp4", address, wait)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(wait))
		data, err := io.ReadAll(c)
		word = string(data)
		return err
	})
	return word, err
}

func links(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// bridgeGone removes a bridge, which the plugin leaves for the next container.
func bridgeGone(t testing.TB, name string) {
	t.Cleanup(func() {
		if rig.Exists("/sys/class/net/" + name) {
			rig.Sh(t, "ip", "link", "del", name)
		}
	})
}

func staged(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	rig.Stage(t, rig.Bundle, dir).Counts(t, 14, 0, 0, 0)
	return dir
}

const hostLocal = `{"type": "host-local", "dataDir": "LEASES", "ranges": [[{"subnet": "10.61.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}`

func TestAttachBridgeAndHostLocal(t *testing.T) {
	before := links(t)
	n := newNetwork(t, staged(t), "bridged", `{"type": "bridge", "bridge": "ringbr0", "isGateway": true, "ipMasq": true, "ipam": `+hostLocal+`}`)
	bridgeGone(t, "ringbr0")
	one, two := n.runtime("one", namespace(t, "one")), n.runtime("two", namespace(t, "two"))
	a, b := n.add(one), n.add(two)
	if a.IP.Equal(b.IP) || !strings.HasPrefix(a.String(), "10.61.0.") {
		t.Fatalf("addresses %s and %s", a.String(), b.String())
	}
	if leases := n.leased(); !slices.Equal(leases, []string{a.IP.String(), b.IP.String()}) {
		t.Fatalf("leases %v", leases)
	}
	ping(t, "one", b.IP.String())
	ping(t, "two", a.IP.String())
	ping(t, "one", "10.61.0.1")
	n.check(one)
	n.check(two)
	if rules := rig.Sh(t, "iptables", "-t", "nat", "-S"); !strings.Contains(rules, a.IP.String()) {
		t.Fatalf("no masquerading of %s:\n%s", a.IP, rules)
	}
	// CHECK sees what is no longer as ADD left it.
	within(t, "two", "ip", "address", "flush", "dev", "eth0")
	if err := n.cni.CheckNetworkList(n.context(), n.list, two); err == nil {
		t.Fatal("CHECK does not see that the address is gone")
	}
	within(t, "two", "ip", "address", "add", b.String(), "dev", "eth0") // DEL goes by it
	for _, rt := range []*libcni.RuntimeConf{one, two, two} {           // DEL may come again
		n.del(rt)
	}
	if leases := n.leased(); len(leases) > 0 {
		t.Fatalf("left: leases %v", leases)
	}
	if left := rig.Without(links(t), append(before, "ringbr0")); len(left) > 0 {
		t.Fatalf("left: links %v", left)
	}
	for _, ns := range []string{"one", "two"} {
		if out := within(t, ns, "ip", "-o", "link"); strings.Contains(out, "eth0") {
			t.Fatalf("left in %s: %s", ns, out)
		}
	}
	if rules := rig.Sh(t, "iptables-save"); strings.Contains(rules, "10.61.0") || strings.Contains(rules, "bridged") {
		t.Fatalf("left: rules\n%s", rules)
	}
}

func TestAttachPtp(t *testing.T) {
	before := links(t)
	n := newNetwork(t, staged(t), "pointed", `{"type": "ptp", "ipMasq": true, "mtu": 1300, "ipam": `+hostLocal+`}`)
	rt := n.runtime("three", namespace(t, "three"))
	a := n.add(rt)
	ping(t, "three", "10.61.0.1")
	rig.Sh(t, "busybox", "ping", "-c", "1", "-W", "5", a.IP.String())
	if out := within(t, "three", "ip", "link", "show", "eth0"); !strings.Contains(out, "mtu 1300") {
		t.Fatal(out)
	}
	n.check(rt)
	n.del(rt)
	if left := rig.Without(links(t), before); len(left) > 0 || len(n.leased()) > 0 {
		t.Fatalf("left: links %v, leases %v", left, n.leased())
	}
	if routes := rig.Sh(t, "ip", "route"); strings.Contains(routes, a.IP.String()) {
		t.Fatalf("left: routes\n%s", routes)
	}
	if rules := rig.Sh(t, "iptables-save"); strings.Contains(rules, "10.61.0") {
		t.Fatalf("left: rules\n%s", rules)
	}
}

func TestAttachMacvlanAndStatic(t *testing.T) {
	outside := namespace(t, "outside")
	pair(t, "ringmv0", "peer0", outside, "10.62.0.1/24")
	n := newNetwork(t, staged(t), "maced", `{"type": "macvlan", "master": "ringmv0", "mode": "bridge", "ipam": {"type": "static",
		"addresses": [{"address": "10.62.0.2/24", "gateway": "10.62.0.1"}], "routes": [{"dst": "192.0.2.0/24"}]}}`)
	rt := n.runtime("four", namespace(t, "four"))
	if a := n.add(rt); a.String() != "10.62.0.2/24" {
		t.Fatalf("address %s", a.String())
	}
	ping(t, "four", "10.62.0.1")
	ping(t, outside, "10.62.0.2")
	if out := within(t, "four", "ip", "-d", "link", "show", "eth0"); !strings.Contains(out, "macvlan mode bridge") {
		t.Fatal(out)
	}
	if out := within(t, "four", "ip", "route"); !strings.Contains(out, "192.0.2.0/24 via 10.62.0.1") {
		t.Fatal(out)
	}
	n.check(rt)
	n.del(rt)
	if out := within(t, "four", "ip", "-o", "link"); strings.Contains(out, "eth0") {
		t.Fatalf("left: %s", out)
	}
}

func TestAttachHostDevice(t *testing.T) {
	outside := namespace(t, "outside")
	pair(t, "ringhd0", "peer0", outside, "10.63.0.1/24")
	n := newNetwork(t, staged(t), "device", `{"type": "host-device", "device": "ringhd0", "ipam": {"type": "static",
		"addresses": [{"address": "10.63.0.2/24"}]}}`)
	rt := n.runtime("five", namespace(t, "five"))
	n.add(rt)
	if slices.Contains(links(t), "ringhd0") {
		t.Fatal("the device is still on the node")
	}
	ping(t, "five", "10.63.0.1")
	n.check(rt)
	n.del(rt)
	if !slices.Contains(links(t), "ringhd0") {
		t.Fatal("the device did not come back to the node")
	}
}

// The chain that clusters use, with what each link of it is for.
func TestAttachChain(t *testing.T) {
	before := links(t)
	const port = 18080
	n := newNetwork(t, staged(t), "chained", `
		{"type": "bridge", "bridge": "ringbr1", "isGateway": true, "hairpinMode": true, "ipam": `+hostLocal+`},
		{"type": "tuning", "sysctl": {"net.core.somaxconn": "517"}, "mtu": 1280, "mac": "c2:b0:57:49:47:f1"},
		{"type": "bandwidth", "ingressRate": 80000000, "ingressBurst": 8000000, "egressRate": 40000000, "egressBurst": 4000000},
		{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
		{"type": "firewall", "backend": "iptables"}`)
	bridgeGone(t, "ringbr1")
	outside := namespace(t, "outside")
	pair(t, "ringout0", "peer0", outside, "198.51.100.2/24")
	rig.Sh(t, "ip", "address", "add", "198.51.100.1/24", "dev", "ringout0")
	within(t, outside, "ip", "route", "add", "10.61.0.0/24", "via", "198.51.100.1")
	// The node forwards nothing by itself but what portmap has redirected.
	rig.Sh(t, "iptables", "-P", "FORWARD", "DROP")
	rig.Sh(t, "iptables", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT")
	t.Cleanup(func() {
		rig.Sh(t, "iptables", "-P", "FORWARD", "ACCEPT")
		rig.Sh(t, "iptables", "-F", "FORWARD")
	})
	six := namespace(t, "six")
	rt := n.runtime("chain-six", six, map[string]any{"hostPort": port, "containerPort": 80, "protocol": "tcp"})
	somaxconn := within(t, six, "cat", "/proc/sys/net/core/somaxconn")
	a := n.add(rt)
	n.check(rt)

	// tuning
	if got := strings.TrimSpace(within(t, six, "cat", "/proc/sys/net/core/somaxconn")); got != "517" {
		t.Errorf("somaxconn is %s, was %s", got, somaxconn)
	}
	if out := within(t, six, "ip", "link", "show", "eth0"); !strings.Contains(out, "mtu 1280") || !strings.Contains(out, "c2:b0:57:49:47:f1") {
		t.Errorf("eth0: %s", out)
	}
	// bandwidth
	qdiscs := rig.Sh(t, "tc", "qdisc", "show")
	for _, rate := range []string{"rate 80Mbit", "rate 40Mbit", "ingress"} {
		if !strings.Contains(qdiscs, rate) {
			t.Errorf("no %s:\n%s", rate, qdiscs)
		}
	}
	// portmap: from outside the node, by the node's address and port
	serve(t, six, a.IP.String()+":80", "from the container")
	if word, err := hear(t, outside, fmt.Sprintf("198.51.100.1:%d", port), 5*time.Second); err != nil || word != "from the container" {
		t.Errorf("through the port: %q, %v\n%s", word, err, rig.Sh(t, "iptables-save"))
	}
	// firewall: from the container outward, which the node would not forward
	serve(t, outside, "198.51.100.2:81", "from outside")
	seven := namespace(t, "seven")
	bare := newNetwork(t, staged(t), "bare", `{"type": "bridge", "bridge": "ringbr1", "isGateway": true, "ipam": `+
		strings.Replace(hostLocal, `"subnet": "10.61.0.0/24"`, `"subnet": "10.61.0.0/24", "rangeStart": "10.61.0.200"`, 1)+`}`)
	unguarded := bare.runtime("chain-seven", seven)
	bare.add(unguarded)
	if word, err := hear(t, seven, "198.51.100.2:81", 500*time.Millisecond); err == nil {
		t.Errorf("without firewall in its chain a container reaches the outside: %q; the test proves nothing", word)
	}
	bare.del(unguarded)
	if word, err := hear(t, six, "198.51.100.2:81", 5*time.Second); err != nil || word != "from outside" {
		t.Errorf("out of the container: %q, %v\n%s", word, err, rig.Sh(t, "iptables-save"))
	}
	if rules := rig.Sh(t, "iptables", "-S", "CNI-FORWARD"); !strings.Contains(rules, "-s "+a.IP.String()+"/32 -j ACCEPT") {
		t.Errorf("the firewall's chain:\n%s", rules)
	}

	n.del(rt)
	if leases := n.leased(); len(leases) > 0 {
		t.Errorf("left: leases %v", leases)
	}
	if left := rig.Without(links(t), append(before, "ringbr1", "ringout0")); len(left) > 0 {
		t.Errorf("left: links %v", left)
	}
	for line := range strings.Lines(rig.Sh(t, "iptables-save")) {
		for _, trace := range []string{a.IP.String(), "chain-six", fmt.Sprint(port)} {
			if strings.Contains(line, trace) {
				t.Errorf("left: rule %s", line)
			}
		}
	}
	if _, err := hear(t, outside, fmt.Sprintf("198.51.100.1:%d", port), 500*time.Millisecond); err == nil {
		t.Error("the port still answers")
	}
}

// Without CHECK: bridge's looks for its default route in the table that sbr has taken it from.
func TestAttachSbr(t *testing.T) {
	n := newNetwork(t, staged(t), "sourced", `{"type": "bridge", "bridge": "ringbr3", "isGateway": true, "ipam": `+hostLocal+`}, {"type": "sbr"}`)
	bridgeGone(t, "ringbr3")
	ns := namespace(t, "eight")
	rt := n.runtime("eight", ns)
	a := n.add(rt)
	if out := within(t, ns, "ip", "rule"); !strings.Contains(out, "from "+a.IP.String()+" lookup 100") {
		t.Errorf("rules of the container:\n%s", out)
	}
	if out := within(t, ns, "ip", "route", "show", "table", "100"); !strings.Contains(out, "default via 10.61.0.1") {
		t.Errorf("table 100 of the container:\n%s", out)
	}
	rig.Sh(t, "busybox", "ping", "-c", "1", "-W", "5", a.IP.String())
	n.del(rt)
	if out := within(t, ns, "ip", "rule"); strings.Contains(out, "lookup 100") || len(n.leased()) > 0 {
		t.Errorf("left: rules of the container:\n%s\nleases %v", out, n.leased())
	}
}

// Networks are attached and taken down without a failure while the plugins that do it are replaced, back and forth.
func TestAttachWhileStaging(t *testing.T) {
	dir := staged(t)
	n := newNetwork(t, dir, "busy", `{"type": "bridge", "bridge": "ringbr2", "isGateway": true, "ipam": `+hostLocal+`},
		{"type": "tuning", "sysctl": {"net.core.somaxconn": "519"}}`)
	bridgeGone(t, "ringbr2")
	ns := namespace(t, "busy")
	stop := make(chan struct{})
	ended := make(chan error)
	rounds := 0
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			rt := n.runtime(fmt.Sprint("busy", i), ns)
			for _, err := range []error{
				func() error { _, err := n.cni.AddNetworkList(context.Background(), n.list, rt); return err }(),
				n.cni.CheckNetworkList(context.Background(), n.list, rt),
				n.cni.DelNetworkList(context.Background(), n.list, rt),
			} {
				if err != nil {
					ended <- fmt.Errorf("round %d: %w", i, err)
					return
				}
			}
			rounds++
		}
	}()
	for i := range 10 {
		rig.Stage(t, []string{ring.older, rig.Bundle}[i%2], dir).Counts(t, 0, 14, 0, 0)
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if rounds < 3 || len(n.leased()) > 0 {
		t.Fatalf("%d rounds, leases %v", rounds, n.leased())
	}
	rig.Holds(t, rig.Bundle, dir)
	rig.Clean(t, rig.Bundle, dir)
	t.Logf("attached, checked and taken down %d times during 10 stagings", rounds)
}

// Each of the fourteen answers from its staged file with the versions that it speaks, by its own name.
func TestStagedPluginsAnswer(t *testing.T) {
	dir := staged(t)
	cni := libcni.NewCNIConfigWithCacheDir([]string{dir}, t.TempDir(), nil)
	for _, name := range rig.Reference {
		info, err := cni.GetVersionInfo(context.Background(), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		versions, _ := json.Marshal(info.SupportedVersions())
		if !slices.Contains(info.SupportedVersions(), "1.0.0") {
			t.Fatalf("%s speaks %s", name, versions)
		}
	}
}
