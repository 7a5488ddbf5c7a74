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
		id := identify(t, path)
		if !inodes {
			id.ino = 0
		}
		if d.IsDir() {
			id.ino, id.mtime, id.content = 0, 0, ""
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
		value := make([]byte, 256)
		v, _ := unix.Lgetxattr(path, "user.ring", value)
		rel, _ := filepath.Rel(dir, path)
		found[rel] = fmt.Sprintf("%+v gid %d links %d attributes %q user.ring %q", id, st.Gid, st.Nlink, attributes[:n], value[:max(v, 0)])
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
			place(t, ring.older, dir)
			for i, name := range reference {
				built := time.Date(2023, 2, 3, 4, 5, 6, 0, time.UTC).Add(time.Duration(i) * time.Nanosecond)
				if err := os.Chtimes(filepath.Join(dir, name), built, built); err != nil {
					t.Fatal(err)
				}
			}
		},
		// Somebody's own: attributes, owners, modes, hard links, a directory.
		"own": func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "bridge"), "#!/bin/sh\n", 0o4750)
			mkdir(t, filepath.Join(dir, "vlan"))
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
			at, _ = disk(t, kind, 1<<30)
		}
		for name, lay := range layouts {
			t.Run(kind+"/"+name, func(t *testing.T) {
				dir := mkdir(t, filepath.Join(at, name))
				lay(t, dir)
				before := lookOf(t, dir, true)
				for _, bundle := range []string{ring.bundle, ring.older, ring.given} {
					if o := stage(t, bundle, dir); o.code != 0 {
						t.Fatal(o.stderr)
					}
				}
				if name == "Debian" { // no name is ever without its file
					w := startWatchers(t, 1, ring.bundle, ring.older, ring.shared)
					w.over(dir, true)
					defer w.end()
				}
				if o := restore(t, dir); o.code != 0 || len(o.failed()) > 0 {
					t.Fatal(o.stderr)
				}
				unchanged(t, before, lookOf(t, dir, true))
				restore(t, dir).back(t, 0, 0, 0)
			})
		}
	}
}

// On an overlay the image's files are as they were, seen from above, and nothing below is hidden by a whiteout. Both say once that
// the copies above go on hiding them.
func TestRestoreOverlay(t *testing.T) {
	lower := t.TempDir()
	place(t, ring.older, mkdir(t, filepath.Join(lower, "bin")), "bridge", "firewall", "host-local", "portmap")
	if err := os.Symlink("host-local", filepath.Join(lower, "bin", "static")); err != nil {
		t.Fatal(err)
	}
	layers := t.TempDir()
	upper := mkdir(t, filepath.Join(layers, "upper"))
	at := mounted(t, "overlay", t.TempDir(), "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, mkdir(t, filepath.Join(layers, "work"))))
	dir := filepath.Join(at, "bin")
	before, image := lookOf(t, dir, false), tree(t, lower)
	note := "lies on an overlay"
	for range 2 {
		if o := stage(t, ring.bundle, dir); strings.Count(o.log, note) != 1 {
			t.Fatalf("said %d times:\n%s", strings.Count(o.log, note), o.log)
		}
		if o := stage(t, ring.bundle, dir); strings.Contains(o.log, note) {
			t.Fatalf("said for nothing:\n%s", o.log)
		}
		o := restore(t, dir)
		o.back(t, 5, 9, 0)
		if strings.Count(o.log, note) != 1 {
			t.Fatalf("said %d times:\n%s", strings.Count(o.log, note), o.log)
		}
		unchanged(t, before, lookOf(t, dir, false))
	}
	unchanged(t, image, tree(t, lower))
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
				at, _ = disk(t, kind, 400<<20)
			}
			dir := mkdir(t, filepath.Join(at, "bin"))
			place(t, ring.older, dir, "bridge", "macvlan")
			before := lookOf(t, dir, true)
			if o := stage(t, ring.bundle, dir); o.code != 0 {
				t.Fatal(o.stderr)
			}
			fill(t, filepath.Join(at, "filler"))
			restore(t, dir).back(t, 2, 12, 0)
			unchanged(t, before, lookOf(t, dir, true))
			// Nor where nothing is put back, so that nothing makes room.
			if err := os.Remove(filepath.Join(at, "filler")); err != nil {
				t.Fatal(err)
			}
			empty := mkdir(t, filepath.Join(at, "empty"))
			stage(t, ring.bundle, empty).counts(t, 14, 0, 0, 0)
			fill(t, filepath.Join(at, "filler"))
			restore(t, empty).back(t, 0, 14, 0)
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
