//go:build root

package root

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/rig"
)

// Guarantee 6: stagings of one directory at once do not disturb each other, with the lock and, where it is not waited for,
// without: each name is whole at every instant, is reported truly by each of them, and what was there first is kept.
func TestManyAtOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		n       int
		older   bool
		waiting bool
	}{
		{"two, fresh", 2, false, true},
		{"two, update", 2, true, true},
		{"ten, fresh", 10, false, true},
		{"ten, update", 10, true, true},
		{"two that do not wait, update", 2, true, false},
		{"ten that do not wait, fresh", 10, false, false},
		{"ten that do not wait, update", 10, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			before := make(map[string]rig.Identity)
			if c.older {
				rig.Place(t, ring.older, dir)
				for _, name := range rig.Reference {
					before[name] = rig.Identify(t, filepath.Join(dir, name))
				}
			}
			w := rig.StartWatchers(t, 1, ring.bundle, ring.older)
			w.Over(dir, c.older)
			var args []string
			if !c.waiting {
				args = []string{"--lock-wait", "0s"}
			}
			var all []*rig.Process
			for range c.n {
				all = append(all, rig.Call{Bundle: ring.bundle, Dir: dir, Args: args}.Start(t))
			}
			changed := 0
			for _, p := range all {
				o := p.Wait()
				if o.Code != 0 || len(o.Failed()) > 0 || len(o.Report.Plugins) != 14 {
					t.Fatalf("exit %d\n%s", o.Code, o.Stderr)
				}
				if c.waiting && len(o.Report.Warnings) > 0 {
					t.Fatalf("%v", o.Report.Warnings)
				}
				for _, r := range o.Report.Plugins {
					if r.Action != "unchanged" {
						changed++
					}
				}
			}
			w.End()
			if c.waiting && changed != 14 {
				t.Fatalf("%d plugins were staged, want each once", changed)
			}
			rig.Holds(t, ring.bundle, dir)
			rig.Stage(t, ring.bundle, dir).Counts(t, 0, 0, 14, 0)
			rig.Clean(t, ring.bundle, dir)
			for _, name := range rig.Reference {
				if was, had := before[name]; had {
					rig.Kept(t, dir, name, was)
				} else if kept := rig.Originals(t, dir, name); len(kept) > 0 {
					t.Fatalf("nothing of %s was there before, and this was kept: %v", name, kept)
				}
			}
		})
	}
}

// Two bundles at once, as while a DaemonSet rolls: the last one wins whole, and what the first one staged never passes for
// somebody else's file.
func TestTwoBundlesAtOnce(t *testing.T) {
	dir := t.TempDir()
	rig.Place(t, ring.older, dir, fewNames...)
	before := make(map[string]rig.Identity)
	for _, name := range fewNames {
		before[name] = rig.Identify(t, filepath.Join(dir, name))
	}
	g := newGate(t, ring.few)
	first := rig.Call{Bundle: g.bundle, Dir: dir}.Start(t)
	g.reached(t)
	newer := filepath.Join(t.TempDir(), "newer")
	rig.Must(t, rig.Derive(newer, ring.bundle, "v1.10.0", fewNames, "a newer build"))
	second := rig.Call{Bundle: newer, Dir: dir}.Start(t)
	time.Sleep(300 * time.Millisecond) // it waits for the lock by now
	g.open()
	first.Wait().Counts(t, 1, 4, 0, 0)
	second.Wait().Counts(t, 0, 4, 0, 0)
	rig.Holds(t, newer, dir)
	rig.Clean(t, newer, dir, gateName)
	for _, name := range fewNames {
		rig.Kept(t, dir, name, before[name])
	}
}

// The same without the lock.
func TestTwoBundlesAtOnceWithoutTheLock(t *testing.T) {
	dir := t.TempDir()
	rig.Place(t, ring.older, dir, fewNames...)
	before := make(map[string]rig.Identity)
	for _, name := range fewNames {
		before[name] = rig.Identify(t, filepath.Join(dir, name))
	}
	newer := filepath.Join(t.TempDir(), "newer")
	rig.Must(t, rig.Derive(newer, ring.bundle, "v1.10.0", fewNames, "a newer build"))
	g := newGate(t, ring.few)
	first := rig.Call{Bundle: g.bundle, Dir: dir}.Start(t)
	g.reached(t)
	rig.Stage(t, newer, dir, "--lock-wait", "0s").Counts(t, 0, 4, 0, 0)
	g.open()
	first.Wait().Counts(t, 1, 4, 0, 0)
	rig.Holds(t, ring.few, dir)
	rig.Clean(t, g.bundle, dir)
	for _, name := range fewNames {
		rig.Kept(t, dir, name, before[name])
	}
}

// A staging that waits for another one does not depend on what that leaves: here it is ended before it has published, and
// takes its folder away again.
func TestTheOneWaitedForIsEnded(t *testing.T) {
	dir := t.TempDir()
	g := newGate(t, ring.few)
	first := rig.Call{Bundle: g.bundle, Dir: dir}.Start(t)
	g.reached(t)
	second := rig.Call{Bundle: ring.few, Dir: dir}.Start(t)
	time.Sleep(300 * time.Millisecond) // it waits for the lock by now
	first.Cmd.Process.Signal(syscall.SIGTERM)
	if o := first.Wait(); o.Code != 0 || len(o.Failed()) != 5 {
		t.Fatalf("exit %d\n%s", o.Code, o.Stderr)
	}
	second.Wait().Counts(t, 4, 0, 0, 0)
	rig.Holds(t, ring.few, dir)
	rig.Clean(t, ring.few, dir)
}

// The lock is not waited for beyond its time: staging goes on, says so, and clears nothing of the one that holds it.
func TestLockHeldTooLong(t *testing.T) {
	dir := t.TempDir()
	g := newGate(t, ring.few)
	first := rig.Call{Bundle: g.bundle, Dir: dir}.Start(t)
	g.reached(t)
	o := rig.Call{Bundle: ring.few, Dir: dir, Args: []string{"--lock-wait", "200ms"}}.Run(t)
	o.Counts(t, 4, 0, 0, 0)
	o.Says(t, "warning: another staging held the lock for 200ms; went on without it and cleared no leftovers\n")
	rig.Holds(t, ring.few, dir)
	g.open()
	o = first.Wait()
	if o.Code != 0 || len(o.Failed()) > 0 {
		t.Fatalf("exit %d\n%s", o.Code, o.Stderr)
	}
	rig.Holds(t, g.bundle, dir)
	rig.Clean(t, g.bundle, dir)
	for _, name := range fewNames {
		if kept := rig.Originals(t, dir, name); len(kept) > 0 {
			t.Fatalf("one staging took the other's %s for an original: %v", name, kept)
		}
	}
}

// Other software renames its own portmap and macvlan into place while staging runs, over and over: each name is at every
// instant its file or ours, whole, and of what staging takes away the newest is kept, and no file of ours.
func TestForeignRenames(t *testing.T) {
	theirs := filepath.Join(t.TempDir(), "theirs")
	rig.Must(t, rig.Derive(theirs, ring.bundle, "v0.0.1", []string{"macvlan", "portmap"}, "the co-writer's"))
	ours := filepath.Join(t.TempDir(), "ours")
	rig.Must(t, rig.Derive(ours, ring.bundle, "v1.9.1", []string{"macvlan", "portmap", "static"}, ""))
	dir := t.TempDir()
	rig.Place(t, theirs, dir)
	other := rig.Act(t, "cowrite", dir, theirs, "macvlan", "portmap")
	w := rig.StartWatchers(t, 2, ours, theirs)
	w.Over(dir, false)
	replaced := 0
	for range 50 {
		o := rig.Stage(t, ours, dir)
		if o.Code != 0 || len(o.Failed()) > 0 {
			t.Fatalf("exit %d\n%s", o.Code, o.Stderr)
		}
		for _, name := range []string{"macvlan", "portmap"} {
			if o.Result(t, name).Action == "replaced" {
				replaced++
			}
		}
	}
	w.End()
	renamed, err := strconv.Atoi(other.Tell("how often"))
	if err != nil || renamed < 20 {
		t.Fatalf("the other program came to rename only %d times (%v); the test proves nothing", renamed, err)
	}
	other.End()
	t.Logf("50 stagings replaced %d times while another program renamed %d times", replaced, renamed)
	rig.Stage(t, ours, dir)
	rig.Holds(t, ours, dir)
	rig.Clean(t, ours, dir, ".macvlan.cowriter", ".portmap.cowriter")
	for _, name := range []string{"macvlan", "portmap"} {
		kept := rig.Originals(t, dir, name)
		if len(kept) == 0 || len(kept) > 3 {
			t.Fatalf("%s: kept %v", name, kept)
		}
		for _, path := range kept {
			if same, err := rig.SameFiles(path, filepath.Join(theirs, "bin", name)); err != nil || !same {
				t.Fatalf("%s was kept and is not the other program's (%v)", path, err)
			}
		}
	}
}

// What another program tears in place is its own, is found by verify, and is healed by the next staging.
func TestForeignCopyInPlace(t *testing.T) {
	dir := t.TempDir()
	rig.Stage(t, ring.bundle, dir).Counts(t, 14, 0, 0, 0)
	if code, out := verify(t, ring.bundle, dir); code != 0 {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
	source := filepath.Join(t.TempDir(), "portmap")
	rig.Write(t, source, rig.Read(t, filepath.Join(ring.older, "bin/portmap"))[:1_000_000], 0o755)
	rig.Sh(t, "cp", "-f", source, filepath.Join(dir, "portmap"))
	code, out := verify(t, ring.bundle, dir)
	if code != 1 || !strings.Contains(out, "13 ok, 1 wrong") || !strings.Contains(out, "portmap      wrong  1000000 bytes, not") {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
	o := rig.Stage(t, ring.bundle, dir)
	o.Counts(t, 0, 1, 13, 0)
	rig.Holds(t, ring.bundle, dir)
	kept := rig.Originals(t, dir, "portmap")
	if len(kept) != 1 {
		t.Fatalf("kept %v", kept)
	}
	if same, err := rig.SameFiles(kept[0], source); err != nil || !same {
		t.Fatalf("%s is not what was there (%v)", kept[0], err)
	}

	t.Run("of the same size", func(t *testing.T) {
		data := []byte(rig.Read(t, filepath.Join(dir, "vrf")))
		data[len(data)/2] ^= 1
		rig.Write(t, source, string(data), 0o755)
		rig.Sh(t, "cp", "-f", source, filepath.Join(dir, "vrf"))
		if code, out := verify(t, ring.bundle, dir); code != 1 || !strings.Contains(out, "vrf          wrong  other bytes: sha256:") {
			t.Fatalf("verify: exit %d\n%s", code, out)
		}
		rig.Stage(t, ring.bundle, dir).Counts(t, 0, 1, 13, 0)
		rig.Holds(t, ring.bundle, dir)
	})
	t.Run("while it is executed", func(t *testing.T) {
		// The kernel refuses to write to what runs; what staging puts in its place is another file.
		dir := t.TempDir()
		rig.Place(t, ring.fewOlder, dir)
		in, hold, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		defer hold.Close()
		p, err := os.StartProcess(filepath.Join(dir, "tuning"), []string{"tuning"}, &os.ProcAttr{
			Env:   []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=x", "CNI_NETNS=/proc/self/ns/net", "CNI_IFNAME=eth0", "CNI_PATH=" + dir},
			Files: []*os.File{in, nil, nil}, // it waits for its configuration
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Wait()
		defer p.Kill()
		if _, err := os.OpenFile(filepath.Join(dir, "tuning"), os.O_WRONLY, 0); !errors.Is(err, syscall.ETXTBSY) {
			t.Fatalf("the plugin does not run: %v; the test proves nothing", err)
		}
		rig.Stage(t, ring.few, dir).Counts(t, 0, 4, 0, 0)
		rig.Holds(t, ring.few, dir)
	})
}

// What appears under a name between looking and publishing decides, not what was seen.
func TestAppearsDuringStaging(t *testing.T) {
	dir := t.TempDir()
	rig.Place(t, ring.fewOlder, dir, "static")
	old := rig.Identify(t, filepath.Join(dir, "static"))
	g := newGate(t, ring.few)
	p := rig.Call{Bundle: g.bundle, Dir: dir}.Start(t)
	g.reached(t)
	// A directory where nothing was, one where a file was, a file where nothing was, and nothing where nothing was.
	rig.Write(t, filepath.Join(rig.Mkdir(t, filepath.Join(dir, "sbr")), "inside"), "theirs", 0o644)
	rig.Sh(t, "mv", filepath.Join(dir, "static"), filepath.Join(dir, "static.old"))
	rig.Write(t, filepath.Join(rig.Mkdir(t, filepath.Join(dir, "static")), "inside"), "theirs", 0o644)
	rig.Write(t, filepath.Join(dir, "tuning"), "theirs", 0o700)
	came := make(map[string]rig.Identity)
	for _, name := range []string{"sbr", "static", "tuning"} {
		came[name] = rig.Identify(t, filepath.Join(dir, name))
	}
	g.open()
	o := p.Wait()
	o.Counts(t, 2, 1, 0, 2)
	for _, name := range []string{"sbr", "static"} {
		if cause := o.Failed()[name]; !strings.HasPrefix(cause, "is a directory, left as it is") {
			t.Fatalf("%s: %s", name, cause)
		}
		if rig.Identify(t, filepath.Join(dir, name)) != came[name] || rig.Read(t, filepath.Join(dir, name, "inside")) != "theirs" {
			t.Fatalf("%s was changed", name)
		}
	}
	if rig.Identify(t, filepath.Join(dir, "static.old")) != old {
		t.Fatal("the file that was moved aside was changed")
	}
	rig.Holds(t, g.bundle, dir, "host-local", "tuning", gateName)
	rig.Kept(t, dir, "tuning", came["tuning"])
	rig.Clean(t, g.bundle, dir, "static.old")

	t.Run("and is gone", func(t *testing.T) {
		dir := t.TempDir()
		rig.Place(t, ring.fewOlder, dir)
		g := newGate(t, ring.few)
		p := rig.Call{Bundle: g.bundle, Dir: dir}.Start(t)
		g.reached(t)
		if err := os.Remove(filepath.Join(dir, "static")); err != nil {
			t.Fatal(err)
		}
		g.open()
		p.Wait().Counts(t, 2, 3, 0, 0)
		rig.Holds(t, g.bundle, dir)
		rig.Clean(t, g.bundle, dir)
	})
	t.Run("and ours is taken away before it is put back", func(t *testing.T) {
		dir := t.TempDir()
		rig.Place(t, ring.fewOlder, dir)
		g := newGate(t, ring.few)
		p := rig.Call{Bundle: g.bundle, Dir: dir, Wrap: []string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2",
			"-e", "inject=renameat2:delay_exit=100ms"}}.Start(t)
		g.reached(t)
		path := filepath.Join(dir, "static")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		rig.Write(t, filepath.Join(rig.Mkdir(t, path), "inside"), "theirs", 0o644)
		came := rig.Identify(t, path)
		g.open()
		rig.Eventually(t, "our file stands where the directory was", func() bool {
			info, err := os.Lstat(path)
			return err == nil && info.Mode().IsRegular()
		})
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		o := p.Wait()
		o.Counts(t, 1, 3, 0, 1)
		if cause := o.Failed()["static"]; !strings.HasPrefix(cause, "is a directory, left as it is") {
			t.Fatal(cause)
		}
		if rig.Identify(t, path) != came || rig.Read(t, filepath.Join(path, "inside")) != "theirs" {
			t.Fatal("the directory was changed")
		}
		rig.Clean(t, g.bundle, dir)
	})
	t.Run("over and over", func(t *testing.T) {
		dir := t.TempDir()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for path := filepath.Join(dir, "static"); ; {
				select {
				case <-stop:
					os.RemoveAll(path)
					return
				default:
				}
				os.Mkdir(path, 0o755)
				os.Remove(path) // of a file too: then it is staging's that goes
				os.WriteFile(path, []byte("theirs"), 0o755)
				os.Remove(path)
			}
		})
		func() {
			defer wg.Wait()
			defer close(stop)
			for range 15 {
				o := rig.Stage(t, ring.few, dir)
				if o.Code != 0 || len(o.Failed()) > 1 {
					t.Fatalf("exit %d\n%s", o.Code, o.Stderr)
				}
				if cause, bad := o.Failed()["static"]; bad && !strings.Contains(cause, "left as it is") && !strings.Contains(cause, "replaced by another program at every attempt") {
					t.Fatal(cause)
				}
				rig.Holds(t, ring.few, dir, slices.DeleteFunc(slices.Clone(fewNames), func(n string) bool { return n == "static" })...)
			}
		}()
		if o := rig.Stage(t, ring.few, dir); o.Code != 0 || len(o.Failed()) > 0 {
			t.Fatal(o.Stderr)
		}
		rig.Holds(t, ring.few, dir)
		rig.Clean(t, ring.few, dir)
	})
}

// A bundle in which one file has all fourteen names becomes fourteen files on the node, so that what tears one of them tears
// no other.
func TestOneFileUnderAllNames(t *testing.T) {
	dir := t.TempDir()
	rig.Stage(t, ring.shared, dir).Counts(t, 14, 0, 0, 0)
	rig.Holds(t, ring.shared, dir)
	rig.Clean(t, ring.shared, dir)
	inodes := make(map[uint64]string)
	for _, name := range rig.Reference {
		id := rig.Identify(t, filepath.Join(dir, name))
		if other, ok := inodes[id.Ino]; ok {
			t.Fatalf("%s and %s are one file", name, other)
		}
		inodes[id.Ino] = name
	}
	if code, out := verify(t, ring.shared, dir); code != 0 {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
	rig.Stage(t, ring.shared, dir).Counts(t, 0, 0, 14, 0)
	torn := filepath.Join(t.TempDir(), "portmap")
	rig.Write(t, torn, "torn", 0o755)
	rig.Sh(t, "cp", "-f", torn, filepath.Join(dir, "portmap"))
	if code, out := verify(t, ring.shared, dir); code != 1 || !strings.Contains(out, "13 ok, 1 wrong") {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
	rig.Stage(t, ring.shared, dir).Counts(t, 0, 1, 13, 0)
	rig.Holds(t, ring.shared, dir)
	// There and back: what staging itself put there is nobody's original.
	rig.Stage(t, ring.older, dir).Counts(t, 0, 14, 0, 0)
	rig.Stage(t, ring.shared, dir).Counts(t, 0, 14, 0, 0)
	rig.Holds(t, ring.shared, dir)
	rig.Clean(t, ring.shared, dir)
	for _, name := range rig.Reference {
		if kept := rig.Originals(t, dir, name); len(kept) != map[bool]int{true: 1}[name == "portmap"] {
			t.Fatalf("%s: kept %v", name, kept)
		}
	}
}
