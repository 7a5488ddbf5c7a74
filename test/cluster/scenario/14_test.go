package scenario

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestScenario14(t *testing.T) {
	scenario(t, 14, "on k3s only what is missing is staged, and k3s' own links stay", func(t *testing.T) {
		ring.staging(t, true)
		shared, leave := ring.layK3s(t)
		dir := ring.onNode(k3sData + "/cni")
		before := contents(t, shared)
		ring.staging(t, true, "--set", "distribution=k3s")
		message := terminationMessage(ring.multusPod(t))
		if strings.Contains(message, "failed to install") || !strings.Contains(message, " into "+k3sData+"/cni: 9 new, 0 replaced, 0 unchanged") {
			t.Errorf("the termination message is %q", message)
		}
		untouched := func() {
			t.Helper()
			if links := ring.linked(t); !slices.Equal(links, k3sLinks) {
				t.Errorf("links are %v", links)
			}
			if after := contents(t, shared); !slices.Equal(before, after) {
				t.Errorf("the shared executable was touched:\n%q\n%q", before, after)
			}
		}
		untouched()
		ring.podOnBridge(t, "k3s-own", "10.76.0.0/24") // by k3s' bridge and host-local, which Multus has to find behind the links

		// What somebody has taken since is theirs; what somebody has removed is missing.
		if err := os.WriteFile(filepath.Join(dir, ".put"), []byte("not a plugin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, ".put"), filepath.Join(dir, "vlan")); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "vrf")); err != nil {
			t.Fatal(err)
		}
		message = terminationMessage(ring.restart(t))
		if !strings.Contains(message, ": 1 new, 0 replaced, 7 unchanged") {
			t.Errorf("after somebody took vlan and removed vrf the termination message is %q", message)
		}
		untouched()

		ring.multus(t, ring.platform(t, "networking.stageCniPlugins=false", "networking.restoreCniPlugins=true"), "--set", "distribution=k3s")
		if message := lastWords(ring.multusPod(t), "restore-cni-plugins"); !strings.Contains(message, ": 0 put back, 8 removed, ") {
			t.Errorf("the restore said %q", message)
		}
		untouched()
		leave()
	})
}
