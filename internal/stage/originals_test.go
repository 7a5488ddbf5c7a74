package stage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/chandler-cni/chandler/internal/hostdir"
)

// replacedTwice is a bin dir in which two files of each name were replaced.
func replacedTwice(t *testing.T, names ...string) string {
	t.Helper()
	bin := t.TempDir()
	b := packed(t, "v1", set("v1", names...)...)
	for _, theirs := range []string{"theirs", "theirs too"} {
		for _, name := range names {
			os.Remove(filepath.Join(bin, name))
			write(t, filepath.Join(bin, name), theirs, 0o755)
		}
		stage(t, b, Options{BinDir: bin})
	}
	return bin
}

// One original that cannot be dropped is named, and all others go: of its own name and of others.
func TestPurgeFaults(t *testing.T) {
	bin := replacedTwice(t, "bridge", "ptp", "vlan")
	stuck := originals(t, bin, "ptp")[0]
	swapVar(t, &removeOriginal, func(d *hostdir.Dir, name string) error {
		if name == stuck && filepath.Base(d.Path()) != "bridge" {
			return &fs.PathError{Op: "remove", Path: name, Err: syscall.EPERM}
		}
		return d.Remove(name)
	})
	dropped, _, err := Purge(t.Context(), RestoreOptions{BinDir: bin})
	var failed OriginalErrors
	if !errors.As(err, &failed) || !errors.Is(err, syscall.EPERM) || len(failed) != 2 || len(dropped) != 4 {
		t.Fatalf("dropped %d, %v", len(dropped), err)
	}
	for i, name := range []string{"ptp", "vlan"} {
		at := filepath.Join(storeName, originalsName, name, stuck)
		if f := failed[i]; f.Name != name || f.Path != at || f.Error() != name+": "+at+": "+f.Cause() {
			t.Errorf("%v", f)
		}
		if kept := originals(t, bin, name); len(kept) != 1 || kept[0] != stuck {
			t.Errorf("of %s stays %q", name, kept)
		}
	}
	wantGone(t, filepath.Join(bin, storeName, originalsName, "bridge"))
}

// A signal ends a purge between two names; one that came before drops nothing, and lists nothing.
func TestPurgeInterrupted(t *testing.T) {
	bin := replacedTwice(t, "bridge", "vlan")
	ctx, cancel := context.WithCancel(t.Context())
	swapVar(t, &removeOriginal, func(d *hostdir.Dir, name string) error {
		cancel()
		return d.Remove(name)
	})
	dropped, _, err := Purge(ctx, RestoreOptions{BinDir: bin})
	if !errors.Is(err, context.Canceled) || len(dropped) != 2 || len(originals(t, bin, "vlan")) != 2 {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	same := unchanged(t, bin, true)
	if dropped, _, err = Purge(ctx, RestoreOptions{BinDir: bin}); !errors.Is(err, context.Canceled) || len(dropped) > 0 {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	if list, err := Originals(ctx, RestoreOptions{BinDir: bin}); !errors.Is(err, context.Canceled) || len(list) > 0 {
		t.Errorf("listed %v, %v", list, err)
	}
	same()
}

// What NoKeep dropped is gone; an older original that is still kept comes back in its place.
func TestOlderOriginalComesBack(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	b := packed(t, "v1", ref("bridge", "v1"))
	write(t, path, "older", 0o711)
	older := ident(t, path)
	stage(t, b, Options{BinDir: bin})
	must(t, os.Remove(path))
	write(t, path, "newer", 0o755)
	stage(t, b, Options{BinDir: bin, NoKeep: true})
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:put back")
	wantWarnings(t, r)
	if now := ident(t, path); now != older {
		t.Errorf("bridge is %s\nwas %s", now, older)
	}
}

// A folder that holds nothing any more once what was kept is dropped is taken away; one that knows of what is staged stays.
func TestPurgeTakesTheFolderAway(t *testing.T) {
	bin := replacedTwice(t, "bridge")
	write(t, filepath.Join(bin, storeName, ledgerName), "{", 0o600) // which is nothing to a purge
	_, warnings, err := Purge(t.Context(), RestoreOptions{BinDir: bin})
	if err != nil || len(warnings) > 0 {
		t.Errorf("%q, %v", warnings, err)
	}
	if marks := list(t, filepath.Join(bin, storeName, stagedName)); len(marks) != 1 {
		t.Errorf("marks are %q", marks)
	}
	bin = replacedTwice(t, "bridge")
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back")
	_, warnings, err = Purge(t.Context(), RestoreOptions{BinDir: bin})
	if err != nil || len(warnings) > 0 {
		t.Errorf("%q, %v", warnings, err)
	}
	wantGone(t, filepath.Join(bin, storeName))
}

// A purge takes nothing from under a staging that does not wait for it, whether that has made marks yet or not.
func TestPurgeBesideAStaging(t *testing.T) {
	bin := t.TempDir()
	theirs := old(t, filepath.Join(bin, "bridge"), hostdir.File)
	holder := mustOpen(t, bin)
	must(t, holder.TryLock())
	purges := 0
	purge := func() {
		if purges++; purges == 1 {
			must(t, holder.Close())
		}
		if _, warnings, err := Purge(context.Background(), RestoreOptions{BinDir: bin}); err != nil || len(warnings) > 0 {
			t.Errorf("%q, %v", warnings, err)
		}
	}
	t.Run("staging", func(t *testing.T) {
		write, move := syncFile, publish
		swapVar(t, &syncFile, func(f *os.File) error {
			if purges == 0 {
				purge()
			}
			return write(f)
		})
		swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
			if purges == 1 { // marks and a folder for the original are made
				purge()
			}
			return move(d, from, name, to)
		})
		want(t, stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin}), "bridge:replaced")
	})
	if now := ident(t, newest(t, bin, "bridge")); now != theirs {
		t.Errorf("kept is %s\nwas %s", now, theirs)
	}
}
