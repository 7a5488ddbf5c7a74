package scenario

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// put brings a file to the plugins' directory as a careful installer does, under a plugin's name.
func (c *cluster) put(t *testing.T, file, name string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := c.Dir.Host(binDir)
	tmp := filepath.Join(dir, ".put-"+name)
	if err := os.WriteFile(tmp, data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// is holds that what stands under a plugin's name has the bytes of a file.
func (c *cluster) is(t *testing.T, name, file string) {
	t.Helper()
	if same, err := equal(filepath.Join(c.Dir.Host(binDir), name), file); err != nil || !same {
		t.Errorf("%s is not what %s is (%v)", name, file, err)
	}
}

func TestScenario13(t *testing.T) {
	scenario(t, 13, "declining with restore puts back what was there, removes what was not, and leaves what is somebody else's", func(t *testing.T) {
		ring.bare(t)
		ring.staging(t, false)
		before, theirs := ring.another(t, "before"), ring.another(t, "theirs")
		were := []string{"bridge", "host-local", "ptp"}
		for _, name := range were {
			ring.put(t, before, name)
		}
		ring.staging(t, true)
		if message := terminationMessage(ring.multusPod(t)); !strings.HasSuffix(message, ": 11 new, 3 replaced, 0 unchanged") {
			t.Errorf("the termination message is %q", message)
		}
		ring.podOnBridge(t, "decline", "10.74.0.0/24") // and is drained
		ring.put(t, theirs, "vlan")

		ring.multus(t, ring.platform(t, "networking.stageCniPlugins=false", "networking.restoreCniPlugins=true"))
		pod := ring.multusPod(t)
		if message := lastWords(pod, "restore-cni-plugins"); !strings.HasPrefix(message, "left: vlan\nvlan: left: is not what staging put there: ") ||
			!strings.HasSuffix(message, "restored 13 plugins in /opt/cni/bin: 3 put back, 10 removed, 1 left") {
			t.Errorf("the termination message is %q", message)
		}
		if message := terminationMessage(pod); message != "" {
			t.Errorf("the pod stages as well, and says %q", message)
		}
		asBefore := func() {
			t.Helper()
			for _, name := range pluginNames {
				switch {
				case slices.Contains(were, name):
					ring.is(t, name, before)
				case name == "vlan":
					ring.is(t, name, theirs)
				default:
					if _, err := os.Lstat(filepath.Join(ring.Dir.Host(binDir), name)); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("%s was not removed (%v)", name, err)
					}
				}
			}
		}
		asBefore()
		ring.podOnBridge(t, "declined", "10.75.0.0/24") // by the bridge that was there before

		// Once more has nothing to do: the files are the same ones.
		files := ring.written(t)
		if message := lastWords(ring.restart(t), "restore-cni-plugins"); !strings.Contains(message, ": 0 put back, 0 removed, ") {
			t.Errorf("the second termination message is %q", message)
		}
		again := ring.written(t)
		for _, name := range pluginNames {
			if files[name] != again[name] {
				t.Errorf("%s was written: %q before, %q after", name, files[name], again[name])
			}
		}

		ring.staging(t, false)
		pod = ring.multusPod(t)
		if message := terminationMessage(pod) + lastWords(pod, "restore-cni-plugins"); message != "" {
			t.Errorf("neither is on, and a container says %q", message)
		}
		asBefore()

		// Who changes their mind again gets what they had at first.
		ring.staging(t, true)
		if message := terminationMessage(ring.multusPod(t)); !strings.HasSuffix(message, ": 10 new, 4 replaced, 0 unchanged") {
			t.Errorf("after all of it the termination message is %q", message)
		}
	})
}
