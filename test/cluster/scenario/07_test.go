package scenario

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

// pluginNames are the reference set's.
var pluginNames = strings.Fields("bandwidth bridge firewall host-device host-local ipvlan macvlan portmap ptp sbr static tuning vlan vrf")

// oldImage is the tag of an image that carries an older bundle.
const oldImage = "older"

// another writes a build of the plugins that is not the bundle's: it works as that does and has other bytes.
func (c *cluster) another(t *testing.T, mark string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(c.bundle, "bin", "bridge"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(c.work, mark)
	// What follows an executable's sections is not loaded. The plugins are one executable that goes by its name.
	if err := os.WriteFile(file, append(data, mark...), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// importOlder makes an older bundle, and an image with it, and gives that to the container runtime.
func (c *cluster) importOlder(t *testing.T) {
	t.Helper()
	from, bundle := filepath.Join(c.work, "older-bin"), filepath.Join(c.work, "older-bundle")
	for _, dir := range []string{from, bundle} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(from, 0o755); err != nil {
		t.Fatal(err)
	}
	executable := c.another(t, "older")
	for _, name := range pluginNames {
		if err := os.Link(executable, filepath.Join(from, name)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(c.chandlerctl, "bundle", "pack", "--from", from, "--version", "v1.9.0", "--out", bundle).CombinedOutput(); err != nil {
		t.Fatalf("pack the older bundle: %v: %s", err, out)
	}
	image, err := node.Derive(c.image, runtime.GOARCH, imageRepository+":"+oldImage, "cni-plugins", bundle)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(c.work, "older.tar")
	if err := os.WriteFile(file, image, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Import(t.Context(), file); err != nil {
		t.Fatal(err)
	}
}

func TestScenario07(t *testing.T) {
	scenario(t, 7, "an upgrade replaces the older plugins, and pods start throughout", func(t *testing.T) {
		ring.importOlder(t)
		ring.staging(t, true, "--set", "image.tag="+oldImage)
		if message := terminationMessage(ring.multusPod(t)); !strings.HasPrefix(message, "staged 14 plugins v1.9.0 ") {
			t.Fatalf("the older image's termination message is %q", message)
		}
		p := ring.in(t, "upgrade")
		p.network(t, "lan", node.Object{
			"cniVersion": "1.0.0", "name": "upgrade", "type": "bridge", "bridge": "upgrade0",
			"ipam": node.Object{"type": "host-local", "subnet": "10.58.0.0/16"},
		})

		stop := make(chan struct{})
		var started atomic.Int32
		var failed, bare int
		var events []string
		var wait sync.WaitGroup
		wait.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("pod-%d", i)
				ok, said := p.tryPod(name, "lan", 90*time.Second)
				if started.Add(1); !ok {
					failed++
				}
				// Multus takes its configuration away when it ends, and a pod that starts before the next Multus has its own is not
				// Multus' to attach.
				if !slices.ContainsFunc(said, func(e string) bool { return strings.HasPrefix(e, "AddedInterface: Add net1 ") }) {
					bare++
				}
				events = append(events, said...)
			}
		})
		ring.staging(t, true)
		message := terminationMessage(ring.multusPod(t))
		// Some pods of the newer plugins too, however quickly the upgrade went. One that was under way may be of the older.
		for enough := started.Load() + 4; started.Load() < enough; {
			time.Sleep(100 * time.Millisecond) // each pod has a limit of its own
		}
		close(stop)
		wait.Wait()

		if !strings.HasPrefix(message, "staged 14 plugins v1.9.1 ") || !strings.HasSuffix(message, ": 0 new, 14 replaced, 0 unchanged") {
			t.Errorf("the newer image's termination message is %q", message)
		}
		t.Logf("%d pods started, %d of them while no Multus was there to attach them", started.Load(), bare)
		if failed > 0 {
			t.Errorf("of %d pods %d did not start", started.Load(), failed)
		}
		for _, e := range pluginFailures(events) {
			t.Error(e)
		}
	})
}

// tryPod starts a pod, waits until it runs, and deletes it. It returns whether it ran, and what its events said.
func (p place) tryPod(name, networks string, limit time.Duration) (bool, []string) {
	if err := p.create(name, networks); err != nil {
		return false, []string{err.Error()}
	}
	ran := false
	for deadline := time.Now().Add(limit); !ran && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		pod, err := p.API.Get(p.pods() + "/" + name)
		ran = err == nil && node.Text(pod, "status", "phase") == "Running"
	}
	events := p.events(name)
	if err := p.API.Delete(p.pods() + "/" + name); err != nil {
		events = append(events, err.Error())
	}
	return ran, events
}

// pluginFailures are those events that say that a plugin was missing, torn or busy. That Multus itself is being replaced is
// another matter.
func pluginFailures(events []string) []string {
	var all []string
	for _, e := range events {
		for _, sign := range []string{
			"failed to find plugin", "text file busy", "exec format error", "permission denied", "no such file or directory\": bridge",
			"fork/exec /opt/cni/bin", "netplugin failed", "signal: ", "unexpected end of JSON",
		} {
			if strings.Contains(e, sign) {
				all = append(all, e)
				break
			}
		}
	}
	return all
}
