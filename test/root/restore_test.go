//go:build root

package root

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

// lookOf is everything below a directory that chandler is to bring back to what it was: bytes, modes, owners, attributes,
// times, links. The directories' own times change with their names.
func lookOf(t testing.TB, dir string, inodes bool) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		id := rig.Identify(t, path)
		if !inodes {
			id.Ino = 0
		}
		if d.IsDir() {
			id.Ino, id.Mtime, id.Content = 0, 0, ""
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		attributes := make([]byte, 4096)
		n, err := unix.Llistxattr(path, attributes)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		found[rel] = fmt.Sprintf("%+v gid %d links %d attributes %q", id, st.Gid, st.Nlink, attributes[:n])
		if d.IsDir() {
			found[rel] = fmt.Sprintf("%+v gid %d attributes %q", id, st.Gid, attributes[:n])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Staging and restoring leaves the layouts of distributions as they were, whatever was staged in between and however.
func TestRestoreLayouts(t *testing.T) {
	layouts := map[string]func(t *testing.T, dir string){
		"empty": func(*testing.T, string) {},
		// k3s: a link for each name to one program, outside the directory.
		"k3s": func(t *testing.T, dir string) {
			for _, name := range []string{"bandwidth", "bridge", "firewall", "flannel", "host-local", "loopback", "portmap"} {
				if err := os.Symlink("/var/lib/rancher/k3s/data/0f3c/bin/cni", filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		},
		// Debian's package: all of them, files of root's, times of the package.
		"Debian": func(t *testing.T, dir string) {
			rig.Place(t, ring.older, dir)
			for i, name := range rig.Reference {
				built := time.Date(2023, 2, 3, 4, 5, 6, 0, time.UTC).Add(time.Duration(i) * time.Nanosecond)
				if err := os.Chtimes(filepath.Join(dir, name), built, built); err != nil {
					t.Fatal(err)
				}
			}
		},
		// Somebody's own: attributes, owners, modes, hard links, a directory.
		"own": func(t *testing.T, dir string) {
			rig.Write(t, filepath.Join(dir, "bridge"), "#!/bin/sh\n", 0o4750)
			rig.Mkdir(t, filepath.Join(dir, "vlan"))
			for _, err := range []error{
				os.Chown(filepath.Join(dir, "bridge"), 12, 34),
				os.Chmod(filepath.Join(dir, "bridge"), os.ModeSetuid|0o750),
				unix.Setxattr(filepath.Join(dir, "bridge"), "user.ring", []byte("mine"), 0),
				os.Link(filepath.Join(dir, "bridge"), filepath.Join(dir, "ptp")),
				os.Link(filepath.Join(dir, "bridge"), filepath.Join(dir, "my-bridge")),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
		},
	}
	for _, kind := range []string{"ext4", "xfs", "btrfs", "tmpfs"} {
		at := ""
		if kind == "tmpfs" {
			at = tmpfs(t, "size=1g")
		} else {
			at, _ = rig.Disk(t, kind, 1<<30)
		}
		for name, lay := range layouts {
			t.Run(kind+"/"+name, func(t *testing.T) {
				dir := rig.Mkdir(t, filepath.Join(at, name))
				lay(t, dir)
				before := lookOf(t, dir, true)
				for _, bundle := range []string{ring.bundle, ring.older, rig.Bundle} {
					if o := rig.Stage(t, bundle, dir); o.Code != 0 {
						t.Fatal(o.Stderr)
					}
				}
				if name == "Debian" { // no name is ever without its file
					w := rig.StartWatchers(t, 1, ring.bundle, ring.older, ring.shared)
					w.Over(dir, true)
					defer w.End()
				}
				if o := rig.Restore(t, dir); o.Code != 0 || len(o.Failed()) > 0 {
					t.Fatal(o.Stderr)
				}
				rig.Unchanged(t, before, lookOf(t, dir, true))
				rig.Restore(t, dir).Back(t, 0, 0, 0)
			})
		}
	}
}

// On an overlay the image's files are as they were, seen from above, and nothing below is hidden by a whiteout. Both say once that
// the copies above go on hiding them.
func TestRestoreOverlay(t *testing.T) {
	lower := t.TempDir()
	rig.Place(t, ring.older, rig.Mkdir(t, filepath.Join(lower, "bin")), "bridge", "firewall", "host-local", "portmap")
	if err := os.Symlink("host-local", filepath.Join(lower, "bin", "static")); err != nil {
		t.Fatal(err)
	}
	layers := t.TempDir()
	upper := rig.Mkdir(t, filepath.Join(layers, "upper"))
	at := rig.Mounted(t, "overlay", t.TempDir(), "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, rig.Mkdir(t, filepath.Join(layers, "work"))))
	dir := filepath.Join(at, "bin")
	before, image := lookOf(t, dir, false), rig.Tree(t, lower)
	note := "lies on an overlay"
	for range 2 {
		if o := rig.Stage(t, ring.bundle, dir); strings.Count(o.Log, note) != 1 {
			t.Fatalf("said %d times:\n%s", strings.Count(o.Log, note), o.Log)
		}
		if o := rig.Stage(t, ring.bundle, dir); strings.Contains(o.Log, note) {
			t.Fatalf("said for nothing:\n%s", o.Log)
		}
		o := rig.Restore(t, dir)
		o.Back(t, 5, 9, 0)
		if strings.Count(o.Log, note) != 1 {
			t.Fatalf("said %d times:\n%s", strings.Count(o.Log, note), o.Log)
		}
		rig.Unchanged(t, before, lookOf(t, dir, false))
	}
	rig.Unchanged(t, image, rig.Tree(t, lower))
	err := filepath.WalkDir(upper, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&os.ModeCharDevice != 0 {
			t.Errorf("a whiteout: %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A disk with no room left at all gives back what is kept on it: for that nothing has to be written.
func TestRestoreOnFullDisk(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			at := ""
			if kind == "tmpfs" {
				at = tmpfs(t, "size=300m")
			} else {
				at, _ = rig.Disk(t, kind, 400<<20)
			}
			dir := rig.Mkdir(t, filepath.Join(at, "bin"))
			rig.Place(t, ring.older, dir, "bridge", "macvlan")
			before := lookOf(t, dir, true)
			if o := rig.Stage(t, ring.bundle, dir); o.Code != 0 {
				t.Fatal(o.Stderr)
			}
			fill(t, filepath.Join(at, "filler"))
			rig.Restore(t, dir).Back(t, 2, 12, 0)
			rig.Unchanged(t, before, lookOf(t, dir, true))
			// Nor where nothing is put back, so that nothing makes room.
			if err := os.Remove(filepath.Join(at, "filler")); err != nil {
				t.Fatal(err)
			}
			empty := rig.Mkdir(t, filepath.Join(at, "empty"))
			rig.Stage(t, ring.bundle, empty).Counts(t, 14, 0, 0, 0)
			fill(t, filepath.Join(at, "filler"))
			rig.Restore(t, empty).Back(t, 0, 14, 0)
			if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
				t.Fatalf("left: %v, %v", left, err)
			}
		})
	}
}

// fill writes until nothing fits any more, blocks and inodes.
func fill(t testing.TB, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		chunk := make([]byte, size)
		for {
			if _, err := f.Write(chunk); err != nil {
				break
			}
		}
	}
	f.Sync()
}
