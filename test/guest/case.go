package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// master is the interface that the networks are made on.
const master = "up0"

// attachment is one network and what a pod's namespace has when it is attached.
type attachment struct {
	name string
	// anywhere says whether build machines' kernels can do it too, so that the two can be compared.
	anywhere bool
	plugins  []map[string]any
	// unchecked is how many of the first plugins are not asked to CHECK.
	unchecked int
	// seen looks at the kernel, from inside the pod's namespace, and says what is not as it should be.
	seen func() error
	// seenOutside does the same from outside.
	seenOutside func() error
}

func hostLocal(subnet string) map[string]any {
	return map[string]any{"type": "host-local", "dataDir": "/run/leases", "subnet": subnet}
}

var attachments = []attachment{
	{
		name:    "ipvlan",
		plugins: []map[string]any{{"type": "ipvlan", "master": master, "mode": "l3", "ipam": hostLocal("10.81.0.0/24")}},
		seen: func() error {
			link, err := netlink.LinkByName("net1")
			if err != nil {
				return err
			}
			if l, ok := link.(*netlink.IPVlan); !ok || l.Mode != netlink.IPVLAN_MODE_L3 {
				return fmt.Errorf("net1 is %T %+v", link, link)
			}
			return hasAddress(link, "10.81.0.2/24")
		},
	},
	{
		name:    "vlan",
		plugins: []map[string]any{{"type": "vlan", "master": master, "vlanId": 7, "ipam": hostLocal("10.82.0.0/24")}},
		seen: func() error {
			link, err := netlink.LinkByName("net1")
			if err != nil {
				return err
			}
			if l, ok := link.(*netlink.Vlan); !ok || l.VlanId != 7 {
				return fmt.Errorf("net1 is %T %+v", link, link)
			}
			return hasAddress(link, "10.82.0.2/24")
		},
	},
	{
		name: "vrf",
		// The VRF takes the address's route out of the table in which the bridge's CHECK looks for it, upstream too.
		unchecked: 1,
		plugins: []map[string]any{
			{"type": "bridge", "bridge": "red0", "ipam": hostLocal("10.83.0.0/24")},
			{"type": "vrf", "vrfname": "red"},
		},
		seen: func() error {
			link, err := netlink.LinkByName("net1")
			if err != nil {
				return err
			}
			over, err := netlink.LinkByName("red")
			if err != nil {
				return err
			}
			if _, ok := over.(*netlink.Vrf); !ok || link.Attrs().MasterIndex != over.Attrs().Index {
				return fmt.Errorf("net1 is not in the VRF: %+v, %T", link.Attrs(), over)
			}
			return hasAddress(link, "10.83.0.2/24")
		},
	},
	{
		name:    "bridge with VLAN filtering",
		plugins: []map[string]any{{"type": "bridge", "bridge": "filter0", "vlan": 100, "ipam": hostLocal("10.84.0.0/24")}},
		seen: func() error {
			link, err := netlink.LinkByName("net1")
			if err != nil {
				return err
			}
			return hasAddress(link, "10.84.0.2/24")
		},
		seenOutside: func() error {
			bridge, err := netlink.LinkByName("filter0")
			if err != nil {
				return err
			}
			if b, ok := bridge.(*netlink.Bridge); !ok || b.VlanFiltering == nil || !*b.VlanFiltering {
				return fmt.Errorf("filter0 does not filter: %+v", bridge)
			}
			vlans, err := netlink.BridgeVlanList()
			if err != nil {
				return err
			}
			for _, of := range vlans {
				for _, v := range of {
					if v.Vid == 100 && v.PortVID() && v.EngressUntag() {
						return nil
					}
				}
			}
			return fmt.Errorf("no port has VLAN 100: %v", vlans)
		},
	},
	{
		name: "bridge", anywhere: true,
		plugins: []map[string]any{{"type": "bridge", "bridge": "plain0", "isGateway": true, "ipam": hostLocal("10.85.0.0/24")}},
		seen:    func() error { return addressOf("net1", "10.85.0.2/24") },
	},
	{
		name: "macvlan", anywhere: true,
		plugins: []map[string]any{{"type": "macvlan", "master": master, "ipam": hostLocal("10.86.0.0/24")}},
		seen:    func() error { return addressOf("net1", "10.86.0.2/24") },
	},
	{
		name: "ptp and tuning", anywhere: true,
		plugins: []map[string]any{
			{"type": "ptp", "ipam": hostLocal("10.87.0.0/24")},
			{"type": "tuning", "mtu": 1300},
		},
		seen: func() error { return addressOf("net1", "10.87.0.2/24") },
	},
}

func addressOf(name, want string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return hasAddress(link, want)
}

func hasAddress(link netlink.Link, want string) error {
	addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	if len(addresses) != 1 || addresses[0].IPNet.String() != want {
		return fmt.Errorf("%s has %v, want %s", link.Attrs().Name, addresses, want)
	}
	return nil
}

// outcome is what came of an attachment, as one line of JSON.
type outcome struct {
	Name string
	// Result is what ADD answered, without what differs from run to run.
	Result string
	Error  string
}

// attach does ADD, CHECK and DEL of one network through the plugins of a directory, and looks at the kernel in between.
func attach(ctx context.Context, binDir string, a attachment) (string, error) {
	name := strings.ReplaceAll(a.name, " ", "-")
	config := func(plugins []map[string]any) (*libcni.NetworkConfigList, error) {
		text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "plugins": plugins})
		if err != nil {
			return nil, err
		}
		return libcni.ConfListFromBytes(text)
	}
	list, err := config(a.plugins)
	if err != nil {
		return "", err
	}
	checked, err := config(a.plugins[a.unchecked:])
	if err != nil {
		return "", err
	}
	namespace, do, err := newNamespace()
	if err != nil {
		return "", err
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{binDir}, "/run/cni-cache", nil)
	rt := &libcni.RuntimeConf{ContainerID: "pod", NetNS: namespace, IfName: "net1"}
	added, err := cni.AddNetworkList(ctx, list, rt)
	if err != nil {
		return "", fmt.Errorf("ADD: %w", err)
	}
	if err := do(a.seen); err != nil {
		return "", fmt.Errorf("after ADD: %w", err)
	}
	if a.seenOutside != nil {
		if err := a.seenOutside(); err != nil {
			return "", fmt.Errorf("after ADD, outside: %w", err)
		}
	}
	if err := cni.CheckNetworkList(ctx, checked, rt); err != nil {
		return "", fmt.Errorf("CHECK: %w", err)
	}
	result, err := types100.NewResultFromResult(added)
	if err != nil {
		return "", err
	}
	if err := cni.DelNetworkList(ctx, list, rt); err != nil {
		return "", fmt.Errorf("DEL: %w", err)
	}
	if err := do(func() error {
		if _, err := netlink.LinkByName("net1"); !errors.As(err, new(netlink.LinkNotFoundError)) {
			return fmt.Errorf("net1 is still there (%v)", err)
		}
		return nil
	}); err != nil {
		return "", fmt.Errorf("after DEL: %w", err)
	}
	leases, err := filepath.Glob("/run/leases/" + name + "/10.*")
	if err != nil || len(leases) > 0 {
		return "", fmt.Errorf("after DEL the addresses %v are taken (%v)", leases, err)
	}
	for _, i := range result.Interfaces {
		i.Mac, i.Sandbox = "", ""
		if strings.HasPrefix(i.Name, "veth") {
			i.Name = "veth"
		}
	}
	text, err := json.Marshal(result)
	return string(text), err
}

// newNamespace makes a network namespace and returns its path, and what runs a function in it.
func newNamespace() (string, func(func() error) error, error) {
	work, done := make(chan func() error), make(chan error)
	go func() {
		// The thread stays in the namespace, and ends with the process.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		done <- err
		if err != nil {
			return
		}
		for f := range work {
			done <- f()
		}
	}()
	if err := <-done; err != nil {
		return "", nil, fmt.Errorf("make a namespace: %w", err)
	}
	do := func(f func() error) error { work <- f; return <-done }
	var path string
	err := do(func() error {
		path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return path, do, err
}
