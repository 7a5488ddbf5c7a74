package scenario

import (
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestScenario08(t *testing.T) {
	scenario(t, 8, "a restart of Multus with nothing changed writes no byte to the plugins' directory", func(t *testing.T) {
		ring.staging(t, true)
		before := ring.written(t)
		pod := ring.restart(t)
		if message := terminationMessage(pod); !strings.HasSuffix(message, ": 0 new, 0 replaced, 14 unchanged") {
			t.Errorf("the termination message is %q", message)
		}
		after := ring.written(t)
		for name := range maps.Keys(after) {
			if before[name] != after[name] {
				t.Errorf("%s was written: %s before, %s after", name, before[name], after[name])
			}
		}
		if len(before) != len(after) {
			t.Errorf("%d files before, %d after", len(before), len(after))
		}
	})
}

// written says of everything in the plugins' directory which file it is and when it was last changed; the change time, which
// nothing can set. Multus' own two programs are installed by Multus.
func (c *cluster) written(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	root := c.Dir.Host(binDir)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if name == "." || name == "multus-shim" || name == "passthru" {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		all[name] = fmt.Sprintf("inode %d changed %d.%09d", stat.Ino, stat.Ctim.Sec, stat.Ctim.Nsec)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
