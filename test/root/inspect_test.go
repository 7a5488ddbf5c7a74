//go:build root

package root

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chandler-cni/chandler/test/rig"
)

// Debian's package containernetworking-plugins is built with GOPATH and stripped: its files say which plugin they are, and of
// which version not.
func TestInspectDebian(t *testing.T) {
	out, err := exec.Command(rig.Chandler, "inspect", "--output", "json", "/usr/lib/cni").Output()
	if err != nil {
		t.Fatal(err)
	}
	var found []struct {
		Path, Name, Version, VersionFrom, Go string
		Static                               bool
	}
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range found {
		names = append(names, filepath.Base(f.Path))
		if f.Name != filepath.Base(f.Path) || f.Go == "" {
			t.Errorf("%+v", f)
		}
		// A package of another day may say more: then it is no worse.
		if (f.Version == "") != (f.VersionFrom == "unknown") {
			t.Errorf("%+v", f)
		}
	}
	for _, name := range rig.Reference {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not among %q", name, names)
		}
	}
}
