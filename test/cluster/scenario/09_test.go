package scenario

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

// debianPlugins is where Debian's package containernetworking-plugins 1.1.1 has them.
const debianPlugins = "/usr/lib/cni"

func TestScenario09(t *testing.T) {
	scenario(t, 9, "staging does right by nodes as k3s, Talos and Debian lay them out", func(t *testing.T) {
		ring.staging(t, true)
		t.Run("k3s", ring.asK3s)
		t.Run("Talos", ring.asTalos)
		t.Run("Debian", ring.asDebian)
		ring.staging(t, true)
	})
}

// k3sLinks are the names that k3s links to its own executable.
var k3sLinks = []string{"bandwidth", "bridge", "firewall", "flannel", "host-local", "loopback", "portmap"}

const k3sData = "/var/lib/rancher/k3s/data"

// onNode is where the machine has a path of the node.
func (c *cluster) onNode(path string) string { return fmt.Sprintf("/proc/%d/root%s", c.PID, path) }

// layK3s lays the node out as k3s does, anew: the names are links to one executable, in a directory that Multus searches and
// the container runtime does not. It returns where the executable is, and what takes Multus back to the usual directories.
func (c *cluster) layK3s(t *testing.T) (shared string, leave func()) {
	t.Helper()
	const conf = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
	if err := os.RemoveAll(c.onNode(k3sData)); err != nil {
		t.Fatal(err)
	}
	shared = c.onNode(k3sData + "/0123abcd")
	for _, dir := range []string{shared + "/bin", c.onNode(k3sData + "/cni"), c.onNode(conf)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	executable, err := os.ReadFile(c.another(t, "k3s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(shared+"/bin/cni", executable, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range k3sLinks {
		// A path of the node's, as k3s has them: whoever sees only the directory does not see where they lead.
		if err := os.Symlink(k3sData+"/0123abcd/bin/cni", c.onNode(k3sData+"/cni/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	// The runtime's folder of configurations is k3s' too; only the plugins are searched for in two places.
	if _, err := c.tool("mount", "--bind", "/etc/cni/net.d", conf); err != nil {
		t.Fatal(err)
	}
	return shared, func() {
		c.staging(t, true)
		if _, err := c.tool("umount", "-l", conf); err != nil {
			t.Fatal(err)
		}
	}
}

// linked are those of k3s' names that are links.
func (c *cluster) linked(t *testing.T) []string {
	t.Helper()
	var links []string
	for _, name := range k3sLinks {
		info, err := os.Lstat(c.onNode(k3sData + "/cni/" + name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			links = append(links, name)
		}
	}
	return links
}

// asK3s: the bundle's plugins are asked for in place of k3s' own.
func (c *cluster) asK3s(t *testing.T) {
	shared, leave := c.layK3s(t)
	before := contents(t, shared)
	c.staging(t, true, "--set", "distribution=k3s", "--set", "stagePolicy=replace")
	if message := terminationMessage(c.multusPod(t)); !strings.HasSuffix(message, " into "+k3sData+"/cni: 9 new, 5 replaced, 0 unchanged") {
		t.Errorf("the termination message is %q", message)
	}
	if after := contents(t, shared); !slices.Equal(before, after) {
		t.Errorf("the shared executable was touched:\n%q\n%q", before, after)
	}
	if links := c.linked(t); !slices.Equal(links, []string{"flannel", "loopback"}) {
		t.Errorf("links are %v", links)
	}
	c.podOnBridge(t, "k3s", "10.71.0.0/24")
	leave()
}

// asTalos: /opt is an overlay whose lower layer, the system's image, carries five plugins.
func (c *cluster) asTalos(t *testing.T) {
	layers := filepath.Join(c.work, "talos-layers")
	lower := filepath.Join(layers, "lower", "cni", "bin")
	for _, dir := range []string{lower, filepath.Join(layers, "upper"), filepath.Join(layers, "work")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	executable, err := os.ReadFile(c.another(t, "talos"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bridge", "firewall", "host-local", "portmap", "loopback"} {
		text := executable
		if name == "loopback" {
			if text, err = os.ReadFile(c.Dir.Tool("loopback")); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(lower, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := contents(t, lower)
	if _, err := c.tool("mount", "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", layers), "/opt"); err != nil {
		t.Fatal(err)
	}
	mounted := true
	t.Cleanup(func() {
		if mounted { // the test has failed, and the next ones are to be about themselves
			c.tool("umount", "-l", "/opt")
		}
	})
	pod := c.restart(t)
	if message := terminationMessage(pod); !strings.HasSuffix(message, " into /opt/cni/bin: 10 new, 4 replaced, 0 unchanged") {
		t.Errorf("the termination message is %q", message)
	}
	c.podOnBridge(t, "talos", "10.72.0.0/24")
	if message := terminationMessage(c.restart(t)); !strings.HasSuffix(message, ": 0 new, 0 replaced, 14 unchanged") {
		t.Errorf("the second termination message is %q", message)
	}
	if after := contents(t, lower); !slices.Equal(before, after) {
		t.Errorf("the lower layer was touched:\n%q\n%q", before, after)
	}
	if _, err := c.tool("umount", "-l", "/opt"); err != nil {
		t.Fatal(err)
	}
	mounted = false
	c.restart(t)
}

// asDebian: a package's older build of every plugin is there already.
func (c *cluster) asDebian(t *testing.T) {
	entries, err := os.ReadDir(debianPlugins)
	if err != nil {
		t.Fatalf("%v; `make packages` installs containernetworking-plugins", err)
	}
	dir := c.Dir.Host(binDir)
	if err := os.RemoveAll(filepath.Join(dir, ".chandler")); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(debianPlugins, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, e.Name())
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if message := terminationMessage(c.restart(t)); !strings.HasSuffix(message, ": 0 new, 14 replaced, 0 unchanged") {
		t.Errorf("the termination message is %q", message)
	}
	for _, name := range []string{"dhcp", "loopback"} {
		if same, err := equal(filepath.Join(dir, name), filepath.Join(debianPlugins, name)); err != nil || !same {
			t.Errorf("%s, which is not chandler's, was touched (%v)", name, err)
		}
	}
	c.podOnBridge(t, "debian", "10.73.0.0/24")
}

// podOnBridge starts a pod on a bridge network of its own.
func (c *cluster) podOnBridge(t *testing.T, name, subnet string) {
	t.Helper()
	p := c.in(t, "layouts")
	p.network(t, name, node.Object{
		"cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": name + "0",
		"ipam": node.Object{"type": "host-local", "subnet": subnet},
	})
	p.start(t, name, name)
	p.onlyAddress(t, p.running(t, name), "net1")
	p.remove(t, name)
}

// contents says of everything below a folder what it is, what it holds and when it was last changed.
func contents(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %s %s", strings.TrimPrefix(path, root), info.Mode(), info.ModTime().Format(time.RFC3339Nano))
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(data))
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
