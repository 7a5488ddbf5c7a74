package scenario

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestScenario15(t *testing.T) {
	scenario(t, 15, "under newer a patched build of the bundle's version stays, until it is asked otherwise", func(t *testing.T) {
		ring.bare(t)
		ring.staging(t, false)
		// It has the version of the bundle's and other bytes; Debian's build does not say which version it has.
		patched, unknown := ring.another(t, "patched"), filepath.Join(debianPlugins, "portmap")
		ofBundle := func(name string) string { return filepath.Join(ring.bundle, "bin", name) }
		ring.put(t, patched, "bridge")
		ring.put(t, unknown, "portmap")

		staged := func(sets ...string) {
			t.Helper()
			args := []string{"--set", "stagePolicy=newer"}
			for _, s := range sets {
				args = append(args, "--set", s)
			}
			ring.staging(t, true, args...)
			if message := terminationMessage(ring.multusPod(t)); strings.Contains(message, "failed to install") || !strings.Contains(message, " into /opt/cni/bin: ") {
				t.Errorf("with %v the termination message is %q", sets, message)
			}
		}
		staged()
		ring.is(t, "bridge", patched)
		ring.is(t, "portmap", ofBundle("portmap"))
		ring.is(t, "vlan", ofBundle("vlan"))
		ring.podOnBridge(t, "patched", "10.77.0.0/24") // by the patched bridge

		ring.put(t, unknown, "portmap")
		staged("stageUnknown=keep")
		ring.is(t, "bridge", patched)
		ring.is(t, "portmap", unknown)

		staged("stageUnknown=keep", "stagePolicyFor.bridge=replace", "stagePolicyFor.portmap=never")
		ring.is(t, "bridge", ofBundle("bridge"))
		ring.is(t, "portmap", unknown)
		kept, err := filepath.Glob(filepath.Join(ring.Dir.Host(binDir), ".chandler/originals/bridge/[0-9]*"))
		if err != nil || len(kept) != 1 {
			t.Fatalf("of bridge are kept %q (%v)", kept, err)
		}
		if same, err := equal(kept[0], patched); err != nil || !same {
			t.Errorf("what is kept of bridge is not what was replaced (%v)", err)
		}

		ring.staging(t, true)
		ring.is(t, "portmap", ofBundle("portmap"))
	})
}
