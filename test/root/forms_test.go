//go:build root

package root

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/google/go-cmp/cmp"

	"github.com/chandler-cni/chandler/test/rig"
)

// The tests of this file run the same plugins as executables of their own and as one executable of fourteen names, each in
// surroundings that are made anew, and compare all that a runtime, a container and a node see of them.

// dual is host-local's part of a configuration. DATA is a directory that is made anew.
const dual = `{"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "10.66.0.0/24"}], [{"subnet": "fd66::/64"}]],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`

const fixed = `{"type": "static", "addresses": [{"address": "10.67.0.2/24", "gateway": "10.67.0.1"}, {"address": "fd67::2/64"}],
	"routes": [{"dst": "192.0.2.0/24"}], "dns": {"nameservers": ["10.67.0.1"], "search": ["example.org"]}}`

// formCase is one network. On the node are the linked interfaces up0 and peer0.
type formCase struct {
	name, plugins string
	// CHECK leaves out as many plugins at the beginning of the chain.
	unchecked int
	// The arguments of ip link add for a kind of link that not every kernel has.
	kind string
}

var formCases = []formCase{
	{name: "bridge", plugins: `{"type": "bridge", "bridge": "forms0", "isGateway": true, "ipMasq": true, "hairpinMode": true, "mtu": 1400,
		"dns": {"nameservers": ["10.66.0.1"]}, "ipam": ` + dual + `}`},
	{name: "ptp", plugins: `{"type": "ptp", "ipMasq": true, "mtu": 1300, "ipam": ` + dual + `}`},
	{name: "macvlan", plugins: `{"type": "macvlan", "master": "up0", "mode": "bridge", "ipam": ` + fixed + `}`},
	{name: "host-device", plugins: `{"type": "host-device", "device": "up0", "ipam": ` + fixed + `}`},
	{name: "host-local", plugins: `{"type": "host-local", "ipam": ` + dual + `}`},
	{name: "static", plugins: `{"type": "static", "ipam": ` + fixed + `}`},
	{name: "tuning, bandwidth, portmap, firewall", plugins: `
		{"type": "bridge", "bridge": "forms0", "isGateway": true, "ipam": ` + dual + `},
		{"type": "tuning", "dataDir": "DATA/tuning", "sysctl": {"net.core.somaxconn": "517", "net.ipv4.conf.IFNAME.arp_filter": "1"},
			"mtu": 1280, "mac": "02:00:00:00:00:99", "promisc": true, "allmulti": true, "txQLen": 900},
		{"type": "bandwidth", "ingressRate": 80000000, "ingressBurst": 8000000, "egressRate": 40000000, "egressBurst": 4000000},
		{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
		{"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}`},
	// bridge's CHECK looks for its default route in the table that sbr has taken it from.
	{name: "sbr", unchecked: 1, plugins: `{"type": "bridge", "bridge": "forms0", "isGateway": true, "ipam": ` + dual + `}, {"type": "sbr"}`},
	{name: "ipvlan", kind: "probe0 link up0 type ipvlan", plugins: `{"type": "ipvlan", "master": "up0", "ipam": ` + fixed + `}`},
	{name: "vlan", kind: "probe0 link up0 type vlan id 66", plugins: `{"type": "vlan", "master": "up0", "vlanId": 66, "ipam": ` + fixed + `}`},
	{name: "vrf", kind: "probe0 type vrf table 66", plugins: `{"type": "ptp", "ipam": ` + strings.ReplaceAll(dual, `"routes"`, `"none"`) + `},
		{"type": "vrf", "vrfname": "blue", "table": 66}`},
}

// told is what one run of a plugin said.
type told struct {
	Plugin, Command string
	Exit            int
	Stdout          any // JSON, or else text
	Stderr          []string
}

// lived is what one form did in a case: what its plugins said, and the state after each command, by what it is the state of.
type lived struct {
	Calls   []told
	Effects map[string]any
}

// diff is what differs, each difference under a heading.
func (l lived) diff(other lived) string {
	var text strings.Builder
	differ := func(what string, a, b any) {
		if diff := cmp.Diff(a, b); diff != "" {
			fmt.Fprintf(&text, "%s:\n%s", what, diff)
		}
	}
	all := maps.Clone(l.Effects)
	maps.Copy(all, other.Effects)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		differ(what, l.Effects[what], other.Effects[what])
	}
	var mine, others []string
	for i, c := range l.Calls {
		if i < len(other.Calls) {
			differ(c.Command+" of "+c.Plugin, c, other.Calls[i])
		}
		mine = append(mine, c.Command+" of "+c.Plugin)
	}
	for _, c := range other.Calls {
		others = append(others, c.Command+" of "+c.Plugin)
	}
	differ("the runs of plugins", mine, others)
	return text.String()
}

func TestFormsGiveTheSameResults(t *testing.T) {
	var called, observed int
	ran := make(map[string]bool) // plugin and command
	compare := func(t *testing.T, live func(t *testing.T, bin string) lived) {
		t.Helper()
		got := make(map[string]lived)
		for _, form := range []struct{ name, dir string }{{"separate", rig.Separate}, {"multicall", rig.Multicall}} {
			if !t.Run(form.name, func(t *testing.T) { got[form.name] = live(t, filepath.Join(form.dir, "bin")) }) {
				t.FailNow()
			}
		}
		if diff := got["separate"].diff(got["multicall"]); diff != "" {
			t.Fatalf("separate (-) and multi-call (+) differ\n%s", diff)
		}
		for _, c := range got["separate"].Calls {
			called++
			ran[c.Plugin+" "+c.Command] = true
		}
		observed += len(got["separate"].Effects)
	}

	t.Run("VERSION", func(t *testing.T) {
		compare(t, func(t *testing.T, bin string) (l lived) {
			for _, name := range rig.Reference {
				for command, stdin := range map[string]string{"VERSION": `{"cniVersion": "1.0.0"}`, "NONE": "{}"} {
					r := recorder{t: t, names: newNames("")}
					r.ExecPlugin(context.Background(), filepath.Join(bin, name), []byte(stdin), []string{"CNI_COMMAND=" + command})
					if (r.calls[0].Exit == 0) != (command == "VERSION") {
						t.Fatalf("%+v", r.calls[0])
					}
					l.Calls = append(l.Calls, r.calls...)
				}
				// Run by hand, a plugin says what it is.
				r := recorder{t: t, names: newNames("")}
				r.ExecPlugin(context.Background(), filepath.Join(bin, name), nil, nil)
				l.Calls = append(l.Calls, r.calls...)
			}
			slices.SortFunc(l.Calls, func(a, b told) int { return strings.Compare(a.Plugin+a.Command, b.Plugin+b.Command) })
			return l
		})
	})
	want := []string{"ADD", "CHECK", "DEL"}
	for _, c := range formCases {
		t.Run(c.name, func(t *testing.T) {
			compare(t, c.live)
			for plugin := range strings.SplitSeq(c.name, ", ") {
				for _, command := range want {
					if !ran[plugin+" "+command] && (c.kind == "" || command == "ADD") {
						t.Errorf("%s of %s was not compared", command, plugin)
					}
				}
			}
		})
	}
	for _, name := range rig.Reference {
		if !t.Failed() && (!ran[name+" VERSION"] || !ran[name+" ADD"]) {
			t.Errorf("%s was not compared", name)
		}
	}
	t.Logf("compared %d runs of plugins and %d states", called, observed)
}

// live attaches, checks and takes down one container through the plugins in bin, as the only one on a new node.
func (c formCase) live(t *testing.T, bin string) lived {
	node, pod := namespace(t, "formnode"), namespace(t, "formpod")
	for _, ns := range []string{node, pod} {
		// Without addresses that the kernel makes from random ones, and without waiting for another that has the same.
		within(t, ns, "busybox", "sysctl", "-q", "-w", "net.ipv6.conf.default.addr_gen_mode=1", "net.ipv6.conf.default.accept_dad=0")
	}
	within(t, node, "ip", "link", "add", "up0", "address", "02:00:00:00:00:01", "type", "veth",
		"peer", "name", "peer0", "address", "02:00:00:00:00:02")
	within(t, node, "ip", "link", "set", "up0", "up")
	within(t, node, "ip", "link", "set", "peer0", "up")
	lacking := c.kind != "" && exec.Command("ip", append([]string{"-n", node, "link", "add"}, strings.Fields(c.kind)...)...).Run() != nil
	if c.kind != "" && !lacking {
		within(t, node, "ip", "link", "del", "probe0")
	}
	data := filepath.Join(rig.Dir, "forms")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })

	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "forms", "plugins": [%s]}`, strings.ReplaceAll(c.plugins, "DATA", data))
	list, err := libcni.NetworkConfFromBytes([]byte(conf))
	if err != nil {
		t.Fatalf("%v\n%s", err, conf)
	}
	r := &recorder{DefaultExec: invoke.DefaultExec{RawExec: &invoke.RawExec{}}, t: t, node: node, names: newNames(conf)}
	cni := libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(), r)
	rt := &libcni.RuntimeConf{ContainerID: "forms-pod", NetNS: "/run/netns/" + pod, IfName: "eth0", CapabilityArgs: map[string]any{
		"portMappings": []map[string]any{
			{"hostPort": 18066, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": 18067, "containerPort": 53, "protocol": "udp"},
		}}}
	checked := *list
	checked.Plugins = list.Plugins[c.unchecked:]

	l := lived{Effects: make(map[string]any)}
	look := func(when string) { observe(t, r.names, when, []string{node, pod}, data, l.Effects) }
	ctx := network{t: t}.context()
	_, err = cni.AddNetworkList(ctx, list, rt)
	look("after ADD")
	if lacking {
		if err == nil || !strings.Contains(err.Error(), "operation not supported") {
			t.Fatalf("ADD of a kind of link that this kernel has not: %v", err)
		}
		t.Logf("this kernel has no %s: %v", c.name, err)
	} else {
		err = errors.Join(err, cni.CheckNetworkList(ctx, &checked, rt))
	}
	// As after a failed ADD.
	gone := cni.DelNetworkList(ctx, list, rt)
	look("after DEL")
	if !lacking && (err != nil || gone != nil) {
		t.Fatalf("%v; %v", err, gone)
	}
	// What is not there makes plugins fail, each in its own words.
	cni.CheckNetworkList(ctx, &checked, rt)
	l.Calls = r.calls
	return l
}

// recorder runs plugins on the node, if there is one, and remembers what they said.
type recorder struct {
	invoke.DefaultExec
	t     testing.TB
	node  string
	names *names
	calls []told
}

func (r *recorder) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, plugin)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(environ, "PATH="+os.Getenv("PATH")), bytes.NewReader(stdin), &stdout, &stderr
	var err error
	if r.node == "" {
		err = cmd.Run()
	} else {
		err = enter(r.t, r.node, cmd.Run)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("run %s: %w", plugin, err)
	}
	c := told{Plugin: filepath.Base(plugin), Command: "no command", Exit: cmd.ProcessState.ExitCode(), Stdout: r.names.value(stdout.String()),
		Stderr: r.names.lines(logged.ReplaceAllString(stderr.String(), "…"))}
	for _, e := range environ {
		if command, ok := strings.CutPrefix(e, "CNI_COMMAND="); ok {
			c.Command = command
		}
	}
	r.calls = append(r.calls, c)
	if err != nil {
		err = fmt.Errorf("%s: %w: %s%s", c.Plugin, err, &stdout, &stderr)
	}
	return stdout.Bytes(), err
}

// logged is what a log line carries of the run and not of what was done: the time, and where a value lies in memory.
var logged = regexp.MustCompile(`(?m)^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d|0x[0-9a-f]{8,}`)

// names gives what is random by nature a name by the order in which it was first seen, so that two forms can be compared and
// yet something that appears in two places is the same in both: the hardware addresses that the kernel draws, and the names
// of the veths on the node that the plugins draw. Nothing else is random: the surroundings have the same names and paths.
type names struct {
	given string // hardware addresses that were asked for, which stay
	known map[string]string
}

var random = regexp.MustCompile(`\b(?:veth[0-9a-f]{8}|(?:[0-9a-f]{1,2}:){5}[0-9a-f]{1,2})\b`)

func newNames(conf string) *names {
	return &names{conf + " 00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 02:00:00:00:00:01 02:00:00:00:00:02", make(map[string]string)}
}

func (n *names) text(s string) string {
	return random.ReplaceAllStringFunc(s, func(s string) string {
		if octets := strings.Split(s, ":"); len(octets) > 1 {
			for i, o := range octets { // some are written without leading zeros
				octets[i] = strings.Repeat("0", 2-len(o)) + o
			}
			s = strings.Join(octets, ":")
		}
		if strings.Contains(n.given, s) {
			return s
		}
		if n.known[s] == "" {
			kind := "address"
			if strings.HasPrefix(s, "veth") {
				kind = "veth"
			}
			n.known[s] = fmt.Sprintf("%s-%d", kind, len(n.known)+1)
		}
		return n.known[s]
	})
}

func (n *names) lines(s string) []string {
	return strings.FieldsFunc(n.text(s), func(r rune) bool { return r == '\n' })
}

// value is what JSON says, or else text.
func (n *names) value(s string) (v any) {
	if json.Unmarshal([]byte(n.text(s)), &v) == nil {
		return steady(v)
	}
	return n.lines(s)
}

// fleeting are values that change while nothing happens: a bridge's clocks, and the carrier, which the kernel notices a
// moment after the other end is up, and only then adds a route for multicast.
var fleeting = regexp.MustCompile(`^(?:.*_timer|operstate|NO-CARRIER|LOWER_UP|M-DOWN|linkdown)$`)

// steady is v without what is fleeting.
func steady(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if v[key] = steady(value); fleeting.MatchString(key) {
				delete(v, key)
			}
		}
	case []any:
		for i := range v {
			v[i] = steady(v[i])
		}
		return slices.DeleteFunc(v, func(e any) bool {
			flag, _ := e.(string)
			route, _ := e.(map[string]any)
			return fleeting.MatchString(flag) || route["dst"] == "ff00::/8"
		})
	}
	return v
}

// state prints what there is in a network namespace, each part under a heading.
const state = `
part() { printf '\n@@ %s\n' "$*"; "$@"; }
part ip -j -d link
part ip -j addr
part ip -j -4 route show table all
part ip -j -6 route show table all
part ip -j -4 rule
part ip -j -6 rule
part iptables-save
part ip6tables-save
part tc -j qdisc show
for dev in $(tc qdisc show | sed -nE 's/^qdisc (tbf|htb|ingress) .* dev ([^ ]+) .*/\2/p' | sort -u); do
	part tc class show dev $dev
	part tc filter show dev $dev
	part tc filter show dev $dev ingress
done
`

// counters of packets, and comments with the time.
var counters = regexp.MustCompile(`(?m) \[\d+:\d+\]$|^# .*$`)

// observe puts the state of namespaces and of the plugins' files into effects.
func observe(t testing.TB, n *names, when string, namespaces []string, data string, effects map[string]any) {
	t.Helper()
	for _, ns := range namespaces {
		var out string
		rig.Eventually(t, "the addresses are settled", func() bool {
			out = within(t, ns, "busybox", "sh", "-c", state)
			return !strings.Contains(out, `"tentative":true`)
		})
		for _, part := range strings.Split(out, "\n@@ ")[1:] {
			heading, text, _ := strings.Cut(part, "\n")
			effects[fmt.Sprintf("%s: %s: %s", when, ns, n.text(heading))] = n.value(counters.ReplaceAllString(text, ""))
		}
		settings := make(map[string]string)
		err := enter(t, ns, func() error {
			return filepath.WalkDir("/proc/sys/net", func(path string, d fs.DirEntry, err error) error {
				// Some can only be written, and what the kernel counts is no setting.
				if value, unreadable := os.ReadFile(path); err == nil && unreadable == nil && d.Name() != "nf_conntrack_count" {
					settings[n.text(path)] = n.text(string(value))
				}
				return err
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		effects[fmt.Sprintf("%s: %s: settings", when, ns)] = settings
	}
	files := make(map[string]string)
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path] = n.text(rig.Read(t, path))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	effects[when+": the plugins' files"] = files
}
