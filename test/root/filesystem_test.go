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
				at, _ = disk(t, kind, 512<<20)
			}
			exerciseFileSystem(t, at, true)
		})
	}
	t.Run("overlayfs", func(t *testing.T) {
		lower := t.TempDir()
		bin := mkdir(t, filepath.Join(lower, "bin"))
		five := []string{"bridge", "firewall", "host-local", "portmap", "tuning"}
		place(t, ring.older, bin, five...)
		before := tree(t, lower)
		bytes := make(map[string]identity)
		for _, name := range five {
			bytes[name] = identify(t, filepath.Join(bin, name))
		}
		upper := t.TempDir()
		at := mounted(t, "overlay", t.TempDir(), "overlay", 0,
			fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, mkdir(t, filepath.Join(upper, "upper")), mkdir(t, filepath.Join(upper, "work"))))
		dir := filepath.Join(at, "bin")
		w := startWatchers(t, 1, ring.bundle, ring.older)
		w.over(dir, false)
		stage(t, ring.bundle, dir).counts(t, 9, 5, 0, 0)
		holds(t, ring.bundle, dir)
		clean(t, ring.bundle, dir)
		for _, name := range five {
			kept := originals(t, dir, name)
			if len(kept) != 1 {
				t.Fatalf("%s: kept %v", name, kept)
			}
			// The lower layer's file has been copied up; all but its inode is as it was.
			id := identify(t, kept[0])
			id.ino = bytes[name].ino
			if id != bytes[name] {
				t.Fatalf("%s: kept %+v, was %+v", name, id, bytes[name])
			}
		}
		unchanged(t, before, tree(t, lower))
		was := tree(t, dir)
		stage(t, ring.bundle, dir).counts(t, 0, 0, 14, 0)
		unchanged(t, was, tree(t, dir))
		stage(t, ring.older, dir).counts(t, 0, 14, 0, 0)
		holds(t, ring.older, dir)
		clean(t, ring.older, dir)
		w.end()

		exerciseFileSystem(t, mkdir(t, filepath.Join(at, "other")), false)
		unchanged(t, before, tree(t, lower))
	})
}

func exerciseFileSystem(t *testing.T, at string, inodes bool) {
	t.Helper()
	t.Run("fresh", func(t *testing.T) {
		dir := mkdir(t, filepath.Join(at, "fresh"))
		stage(t, ring.bundle, dir).counts(t, 14, 0, 0, 0)
		holds(t, ring.bundle, dir)
		clean(t, ring.bundle, dir)
		before := tree(t, dir)
		stage(t, ring.bundle, dir).counts(t, 0, 0, 14, 0)
		unchanged(t, before, tree(t, dir))
		if code, out := verify(t, ring.bundle, dir); code != 0 {
			t.Fatalf("verify: exit %d\n%s", code, out)
		}
		// Our own files are not anybody's originals.
		stage(t, ring.older, dir).counts(t, 0, 14, 0, 0)
		holds(t, ring.older, dir)
		clean(t, ring.older, dir)
		for _, name := range reference {
			if kept := originals(t, dir, name); len(kept) > 0 {
				t.Fatalf("%s: kept %v", name, kept)
			}
		}
	})
	t.Run("update", func(t *testing.T) {
		dir := mkdir(t, filepath.Join(at, "update"))
		place(t, ring.older, dir)
		old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		before := make(map[string]identity)
		for i, name := range reference {
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
			before[name] = identify(t, path)
		}
		w := startWatchers(t, 1, ring.bundle)
		stage(t, ring.bundle, dir).counts(t, 0, 14, 0, 0)
		w.over(dir, true)
		holds(t, ring.bundle, dir)
		clean(t, ring.bundle, dir)
		for _, name := range reference {
			kept := originals(t, dir, name)
			if len(kept) != 1 {
				t.Fatalf("%s: kept %v", name, kept)
			}
			id := identify(t, kept[0])
			if !inodes {
				id.ino = before[name].ino
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
		stage(t, ring.bundle, dir).counts(t, 0, 0, 14, 0)
		w.end()
	})
	t.Run("at most three originals", func(t *testing.T) {
		dir := mkdir(t, filepath.Join(at, "three"))
		for i := range 5 {
			write(t, filepath.Join(dir, "static"), fmt.Sprintf("#!/bin/sh\n# the foreign file %d\n", i), 0o755)
			if o := stage(t, ring.few, dir); o.code != 0 || len(o.failed()) > 0 {
				t.Fatal(o.stderr)
			}
		}
		kept := originals(t, dir, "static")
		if len(kept) != 3 {
			t.Fatalf("kept %v", kept)
		}
		for i, path := range kept {
			if !strings.Contains(read(t, path), fmt.Sprintf("file %d", i+2)) {
				t.Fatalf("%s holds %q", path, read(t, path))
			}
		}
		holds(t, ring.few, dir)
		clean(t, ring.few, dir)
	})
}
