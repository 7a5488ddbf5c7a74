//go:build root

package root

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

// Everything that staging promises holds on the file systems that nodes have: fresh, update, unchanged, back, with what was
// replaced kept as the very file that it was.
func TestFileSystems(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			at := ""
			if kind == "tmpfs" {
				at = tmpfs(t, "size=512m")
			} else {
				at, _ = rig.Disk(t, kind, 512<<20)
			}
			exerciseFileSystem(t, at, true)
		})
	}
	t.Run("overlayfs", func(t *testing.T) {
		lower := t.TempDir()
		bin := rig.Mkdir(t, filepath.Join(lower, "bin"))
		five := []string{"bridge", "firewall", "host-local", "portmap", "tuning"}
		rig.Place(t, ring.older, bin, five...)
		before := rig.Tree(t, lower)
		bytes := make(map[string]rig.Identity)
		for _, name := range five {
			bytes[name] = rig.Identify(t, filepath.Join(bin, name))
		}
		upper := t.TempDir()
		at := rig.Mounted(t, "overlay", t.TempDir(), "overlay", 0,
			fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, rig.Mkdir(t, filepath.Join(upper, "upper")), rig.Mkdir(t, filepath.Join(upper, "work"))))
		dir := filepath.Join(at, "bin")
		w := rig.StartWatchers(t, 1, ring.bundle, ring.older)
		w.Over(dir, false)
		rig.Stage(t, ring.bundle, dir).Counts(t, 9, 5, 0, 0)
		rig.Holds(t, ring.bundle, dir)
		rig.Clean(t, ring.bundle, dir)
		for _, name := range five {
			kept := rig.Originals(t, dir, name)
			if len(kept) != 1 {
				t.Fatalf("%s: kept %v", name, kept)
			}
			// The lower layer's file has been copied up; all but its inode is as it was.
			id := rig.Identify(t, kept[0])
			id.Ino = bytes[name].Ino
			if id != bytes[name] {
				t.Fatalf("%s: kept %+v, was %+v", name, id, bytes[name])
			}
		}
		rig.Unchanged(t, before, rig.Tree(t, lower))
		was := rig.Tree(t, dir)
		rig.Stage(t, ring.bundle, dir).Counts(t, 0, 0, 14, 0)
		rig.Unchanged(t, was, rig.Tree(t, dir))
		rig.Stage(t, ring.older, dir).Counts(t, 0, 14, 0, 0)
		rig.Holds(t, ring.older, dir)
		rig.Clean(t, ring.older, dir)
		w.End()

		exerciseFileSystem(t, rig.Mkdir(t, filepath.Join(at, "other")), false)
		rig.Unchanged(t, before, rig.Tree(t, lower))
	})
}

func exerciseFileSystem(t *testing.T, at string, inodes bool) {
	t.Helper()
	t.Run("fresh", func(t *testing.T) {
		dir := rig.Mkdir(t, filepath.Join(at, "fresh"))
		rig.Stage(t, ring.bundle, dir).Counts(t, 14, 0, 0, 0)
		rig.Holds(t, ring.bundle, dir)
		rig.Clean(t, ring.bundle, dir)
		before := rig.Tree(t, dir)
		rig.Stage(t, ring.bundle, dir).Counts(t, 0, 0, 14, 0)
		rig.Unchanged(t, before, rig.Tree(t, dir))
		if code, out := verify(t, ring.bundle, dir); code != 0 {
			t.Fatalf("verify: exit %d\n%s", code, out)
		}
		// Our own files are not anybody's originals.
		rig.Stage(t, ring.older, dir).Counts(t, 0, 14, 0, 0)
		rig.Holds(t, ring.older, dir)
		rig.Clean(t, ring.older, dir)
		for _, name := range rig.Reference {
			if kept := rig.Originals(t, dir, name); len(kept) > 0 {
				t.Fatalf("%s: kept %v", name, kept)
			}
		}
	})
	t.Run("update", func(t *testing.T) {
		dir := rig.Mkdir(t, filepath.Join(at, "update"))
		rig.Place(t, ring.older, dir)
		old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		before := make(map[string]rig.Identity)
		for i, name := range rig.Reference {
			path := filepath.Join(dir, name)
			for _, err := range []error{
				unix.Setxattr(path, "user.ring", []byte(name), 0),
				os.Chown(path, 100+i, 200+i),
				syscall.Chmod(path, uint32([]int{0o755, 0o700, 0o6755, 0o000}[i%4])),
				os.Chtimes(path, old, old.Add(time.Duration(i)*time.Nanosecond)),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			before[name] = rig.Identify(t, path)
		}
		w := rig.StartWatchers(t, 1, ring.bundle)
		rig.Stage(t, ring.bundle, dir).Counts(t, 0, 14, 0, 0)
		w.Over(dir, true)
		rig.Holds(t, ring.bundle, dir)
		rig.Clean(t, ring.bundle, dir)
		for _, name := range rig.Reference {
			kept := rig.Originals(t, dir, name)
			if len(kept) != 1 {
				t.Fatalf("%s: kept %v", name, kept)
			}
			id := rig.Identify(t, kept[0])
			if !inodes {
				id.Ino = before[name].Ino
			}
			if id != before[name] {
				t.Fatalf("%s: kept %+v, was %+v", name, id, before[name])
			}
			value := make([]byte, 64)
			n, err := unix.Getxattr(kept[0], "user.ring", value)
			if err != nil || string(value[:n]) != name {
				t.Fatalf("%s: its attribute is %q (%v)", name, value[:max(n, 0)], err)
			}
		}
		rig.Stage(t, ring.bundle, dir).Counts(t, 0, 0, 14, 0)
		w.End()
	})
	t.Run("at most three originals", func(t *testing.T) {
		dir := rig.Mkdir(t, filepath.Join(at, "three"))
		for i := range 5 {
			rig.Write(t, filepath.Join(dir, "static"), fmt.Sprintf("#!/bin/sh\n# the foreign file %d\n", i), 0o755)
			if o := rig.Stage(t, ring.few, dir); o.Code != 0 || len(o.Failed()) > 0 {
				t.Fatal(o.Stderr)
			}
		}
		kept := rig.Originals(t, dir, "static")
		if len(kept) != 3 {
			t.Fatalf("kept %v", kept)
		}
		for i, path := range kept {
			if !strings.Contains(rig.Read(t, path), fmt.Sprintf("file %d", i+2)) {
				t.Fatalf("%s holds %q", path, rig.Read(t, path))
			}
		}
		rig.Holds(t, ring.few, dir)
		rig.Clean(t, ring.few, dir)
	})
}
