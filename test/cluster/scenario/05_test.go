package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestScenario05(t *testing.T) {
	scenario(t, 5, "a staging that cannot do its work does not keep Multus from starting, and says why", func(t *testing.T) {
		ring.staging(t, true)
		bridge := filepath.Join(ring.Dir.Host(binDir), "bridge")

		t.Run("a directory named bridge", func(t *testing.T) {
			if err := os.Remove(bridge); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(bridge, 0o755); err != nil {
				t.Fatal(err)
			}
			ring.restart(t)
			ring.described(t, "failed to install: bridge", "bridge: is a directory, left as it is")
			if err := os.Remove(bridge); err != nil {
				t.Fatal(err)
			}
			if message := terminationMessage(ring.restart(t)); !strings.HasSuffix(message, ": 1 new, 0 replaced, 13 unchanged") {
				t.Errorf("without the directory the termination message is %q", message)
			}
		})

		t.Run("a flag of a later chart", func(t *testing.T) {
			later := *ring
			later.charts = filepath.Join(ring.work, "later")
			if err := os.RemoveAll(later.charts); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(later.charts, os.DirFS(ring.charts)); err != nil {
				t.Fatal(err)
			}
			replace(t, filepath.Join(later.charts, "multus/templates/_customise.tpl"), `"--bundle=/cni-plugins"`, `"--of-a-later-chart=1" "--bundle=/cni-plugins"`)
			later.staging(t, true)
			ring.described(t, "--of-a-later-chart")
		})
		ring.staging(t, true)
	})
}

// described holds that `kubectl describe pod` shows the texts for the pod of Multus, which is Ready.
func (c *cluster) described(t *testing.T, texts ...string) {
	t.Helper()
	out, err := c.kubectl("-n", namespace, "describe", "pod", "-l", "name=multus")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("kubectl describe pod does not say %q:\n%s", text, out)
		}
	}
}

// replace changes the one place of a file that has the text.
func replace(t *testing.T, file, from, to string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(data), from) != 1 {
		t.Fatalf("%s has %q not once", file, from)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(data), from, to, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}
