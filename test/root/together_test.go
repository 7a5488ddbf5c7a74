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
			before := make(map[string]identity)
			if c.older {
				place(t, ring.older, dir)
				for _, name := range reference {
					before[name] = identify(t, filepath.Join(dir, name))
				}
			}
			w := startWatchers(t, 1, ring.bundle, ring.older)
			w.over(dir, c.older)
			var args []string
			if !c.waiting {
				args = []string{"--lock-wait", "0s"}
			}
			var all []*process
			for range c.n {
				all = append(all, call{bundle: ring.bundle, dir: dir, args: args}.start(t))
			}
			changed := 0
			for _, p := range all {
				o := p.wait()
				if o.code != 0 || len(o.failed()) > 0 || len(o.report.Plugins) != 14 {
					t.Fatalf("exit %d\n%s", o.code, o.stderr)
				}
				if c.waiting && len(o.report.Warnings) > 0 {
					t.Fatalf("%v", o.report.Warnings)
				}
				for _, r := range o.report.Plugins {
					if r.Action != "unchanged" {
						changed++
					}
				}
			}
			w.end()
			if c.waiting && changed != 14 {
				t.Fatalf("%d plugins were staged, want each once", changed)
			}
			holds(t, ring.bundle, dir)
			stage(t, ring.bundle, dir).counts(t, 0, 0, 14, 0)
			clean(t, ring.bundle, dir)
			for _, name := range reference {
				kept := originals(t, dir, name)
				if _, was := before[name]; !was {
					if len(kept) > 0 {
						t.Fatalf("nothing of %s was there before, and this was kept: %v", name, kept)
					}
				} else if len(kept) != 1 || identify(t, kept[0]) != before[name] {
					t.Fatalf("%s: kept %v, want the very file that was there alone", name, kept)
				}
			}
		})
	}
}

// Two bundles at once, as while a DaemonSet rolls: the last one wins whole, and what the first one staged never passes for
// somebody else's file.
func TestTwoBundlesAtOnce(t *testing.T) {
	dir := t.TempDir()
	place(t, ring.older, dir, fewNames...)
	before := make(map[string]identity)
	for _, name := range fewNames {
		before[name] = identify(t, filepath.Join(dir, name))
	}
	g := newGate(t, ring.few)
	first := call{bundle: g.bundle, dir: dir}.start(t)
	g.reached(t)
	newer := filepath.Join(t.TempDir(), "newer")
	if err := deriveBundle(newer, "v1.10.0", fewNames, "a newer build"); err != nil {
		t.Fatal(err)
	}
	second := call{bundle: newer, dir: dir}.start(t)
	time.Sleep(300 * time.Millisecond) // it waits for the lock by now
	g.open()
	first.wait().counts(t, 1, 4, 0, 0)
	second.wait().counts(t, 0, 4, 0, 0)
	holds(t, newer, dir)
	clean(t, newer, dir, gateName)
	for _, name := range fewNames {
		kept := originals(t, dir, name)
		if len(kept) != 1 || identify(t, kept[0]) != before[name] {
			t.Fatalf("%s: kept %v, want the very file that was there before both, alone", name, kept)
		}
	}
}

// The same without the lock.
func TestTwoBundlesAtOnceWithoutTheLock(t *testing.T) {
	dir := t.TempDir()
	place(t, ring.older, dir, fewNames...)
	before := make(map[string]identity)
	for _, name := range fewNames {
		before[name] = identify(t, filepath.Join(dir, name))
	}
	newer := filepath.Join(t.TempDir(), "newer")
	if err := deriveBundle(newer, "v1.10.0", fewNames, "a newer build"); err != nil {
		t.Fatal(err)
	}
	g := newGate(t, ring.few)
	first := call{bundle: g.bundle, dir: dir}.start(t)
	g.reached(t)
	stage(t, newer, dir, "--lock-wait", "0s").counts(t, 0, 4, 0, 0)
	g.open()
	first.wait().counts(t, 1, 4, 0, 0)
	holds(t, ring.few, dir)
	clean(t, g.bundle, dir)
	for _, name := range fewNames {
		kept := originals(t, dir, name)
		if len(kept) != 1 || identify(t, kept[0]) != before[name] {
			t.Fatalf("%s: kept %v, want the very file that was there before both, alone", name, kept)
		}
	}
}

// A staging that waits for another one does not depend on what that leaves: here it is ended before it has published, and
// takes its folder away again.
func TestTheOneWaitedForIsEnded(t *testing.T) {
	dir := t.TempDir()
	g := newGate(t, ring.few)
	first := call{bundle: g.bundle, dir: dir}.start(t)
	g.reached(t)
	second := call{bundle: ring.few, dir: dir}.start(t)
	time.Sleep(300 * time.Millisecond) // it waits for the lock by now
	first.cmd.Process.Signal(syscall.SIGTERM)
	if o := first.wait(); o.code != 0 || len(o.failed()) != 5 {
		t.Fatalf("exit %d\n%s", o.code, o.stderr)
	}
	second.wait().counts(t, 4, 0, 0, 0)
	holds(t, ring.few, dir)
	clean(t, ring.few, dir)
}

// The lock is not waited for beyond its time: staging goes on, says so, and clears nothing of the one that holds it.
func TestLockHeldTooLong(t *testing.T) {
	dir := t.TempDir()
	g := newGate(t, ring.few)
	first := call{bundle: g.bundle, dir: dir}.start(t)
	g.reached(t)
	o := call{bundle: ring.few, dir: dir, args: []string{"--lock-wait", "200ms"}}.run(t)
	o.counts(t, 4, 0, 0, 0)
	o.says(t, "warning: another staging held the lock for 200ms; went on without it and cleared no leftovers\n")
	holds(t, ring.few, dir)
	g.open()
	o = first.wait()
	if o.code != 0 || len(o.failed()) > 0 {
		t.Fatalf("exit %d\n%s", o.code, o.stderr)
	}
	holds(t, g.bundle, dir)
	clean(t, g.bundle, dir)
	for _, name := range fewNames {
		if kept := originals(t, dir, name); len(kept) > 0 {
			t.Fatalf("one staging took the other's %s for an original: %v", name, kept)
		}
	}
}

// Other software renames its own portmap and macvlan into place while staging runs, over and over: each name is at every
// instant its file or ours, whole, and of what staging takes away the newest is kept, and no file of ours.
func TestForeignRenames(t *testing.T) {
	theirs := filepath.Join(t.TempDir(), "theirs")
	if err := deriveBundle(theirs, "v0.0.1", []string{"macvlan", "portmap"}, "the co-writer's"); err != nil {
		t.Fatal(err)
	}
	ours := filepath.Join(t.TempDir(), "ours")
	if err := deriveBundle(ours, "v1.9.1", []string{"macvlan", "portmap", "static"}, ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	place(t, theirs, dir)
	other := role(t, "cowrite", dir, theirs, "macvlan", "portmap")
	w := startWatchers(t, 2, ours, theirs)
	w.over(dir, false)
	replaced := 0
	for range 50 {
		o := stage(t, ours, dir)
		if o.code != 0 || len(o.failed()) > 0 {
			t.Fatalf("exit %d\n%s", o.code, o.stderr)
		}
		for _, name := range []string{"macvlan", "portmap"} {
			if o.result(t, name).Action == "replaced" {
				replaced++
			}
		}
	}
	w.end()
	renamed, err := strconv.Atoi(other.tell("how often"))
	if err != nil || renamed < 20 {
		t.Fatalf("the other program came to rename only %d times (%v); the test proves nothing", renamed, err)
	}
	other.end()
	t.Logf("50 stagings replaced %d times while another program renamed %d times", replaced, renamed)
	stage(t, ours, dir)
	holds(t, ours, dir)
	clean(t, ours, dir, ".macvlan.cowriter", ".portmap.cowriter")
	for _, name := range []string{"macvlan", "portmap"} {
		kept := originals(t, dir, name)
		if len(kept) == 0 || len(kept) > 3 {
			t.Fatalf("%s: kept %v", name, kept)
		}
		for _, path := range kept {
			if same, err := sameFiles(path, filepath.Join(theirs, "bin", name)); err != nil || !same {
				t.Fatalf("%s was kept and is not the other program's (%v)", path, err)
			}
		}
	}
}

// What another program tears in place is its own, is found by verify, and is healed by the next staging.
func TestForeignCopyInPlace(t *testing.T) {
	dir := t.TempDir()
	stage(t, ring.bundle, dir).counts(t, 14, 0, 0, 0)
	if code, out := verify(t, ring.bundle, dir); code != 0 {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
	source := filepath.Join(t.TempDir(), "portmap")
	write(t, source, read(t, filepath.Join(ring.older, "bin/portmap"))[:1_000_000], 0o755)
	sh(t, "cp", "-f", source, filepath.Join(dir, "portmap"))
	code, out := verify(t, ring.bundle, dir)
	if code != 1 || !strings.Contains(out, "13 ok, 1 wrong") || !strings.Contains(out, "portmap      wrong  1000000 bytes, not") {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
	o := stage(t, ring.bundle, dir)
	o.counts(t, 0, 1, 13, 0)
	holds(t, ring.bundle, dir)
	kept := originals(t, dir, "portmap")
	if len(kept) != 1 {
		t.Fatalf("kept %v", kept)
	}
	if same, err := sameFiles(kept[0], source); err != nil || !same {
		t.Fatalf("%s is not what was there (%v)", kept[0], err)
	}

	t.Run("of the same size", func(t *testing.T) {
		data := []byte(read(t, filepath.Join(dir, "vrf")))
		data[len(data)/2] ^= 1
		write(t, source, string(data), 0o755)
		sh(t, "cp", "-f", source, filepath.Join(dir, "vrf"))
		if code, out := verify(t, ring.bundle, dir); code != 1 || !strings.Contains(out, "vrf          wrong  other bytes: sha256:") {
			t.Fatalf("verify: exit %d\n%s", code, out)
		}
		stage(t, ring.bundle, dir).counts(t, 0, 1, 13, 0)
		holds(t, ring.bundle, dir)
	})
	t.Run("while it is executed", func(t *testing.T) {
		// The kernel refuses to write to what runs; what staging puts in its place is another file.
		dir := t.TempDir()
		place(t, ring.fewOlder, dir)
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
		stage(t, ring.few, dir).counts(t, 0, 4, 0, 0)
		holds(t, ring.few, dir)
	})
}

// What appears under a name between looking and publishing decides, not what was seen.
func TestAppearsDuringStaging(t *testing.T) {
	dir := t.TempDir()
	place(t, ring.fewOlder, dir, "static")
	old := identify(t, filepath.Join(dir, "static"))
	g := newGate(t, ring.few)
	p := call{bundle: g.bundle, dir: dir}.start(t)
	g.reached(t)
	// A directory where nothing was, one where a file was, a file where nothing was, and nothing where nothing was.
	write(t, filepath.Join(mkdir(t, filepath.Join(dir, "sbr")), "inside"), "theirs", 0o644)
	sh(t, "mv", filepath.Join(dir, "static"), filepath.Join(dir, "static.old"))
	write(t, filepath.Join(mkdir(t, filepath.Join(dir, "static")), "inside"), "theirs", 0o644)
	write(t, filepath.Join(dir, "tuning"), "theirs", 0o700)
	came := make(map[string]identity)
	for _, name := range []string{"sbr", "static", "tuning"} {
		came[name] = identify(t, filepath.Join(dir, name))
	}
	g.open()
	o := p.wait()
	o.counts(t, 2, 1, 0, 2)
	for _, name := range []string{"sbr", "static"} {
		if cause := o.failed()[name]; !strings.HasPrefix(cause, "is a directory, left as it is") {
			t.Fatalf("%s: %s", name, cause)
		}
		if identify(t, filepath.Join(dir, name)) != came[name] || read(t, filepath.Join(dir, name, "inside")) != "theirs" {
			t.Fatalf("%s was changed", name)
		}
	}
	if identify(t, filepath.Join(dir, "static.old")) != old {
		t.Fatal("the file that was moved aside was changed")
	}
	holds(t, g.bundle, dir, "host-local", "tuning", gateName)
	if kept := originals(t, dir, "tuning"); len(kept) != 1 || identify(t, kept[0]) != came["tuning"] {
		t.Fatalf("tuning: kept %v", kept)
	}
	clean(t, g.bundle, dir, "static.old")

	t.Run("and is gone", func(t *testing.T) {
		dir := t.TempDir()
		place(t, ring.fewOlder, dir)
		g := newGate(t, ring.few)
		p := call{bundle: g.bundle, dir: dir}.start(t)
		g.reached(t)
		if err := os.Remove(filepath.Join(dir, "static")); err != nil {
			t.Fatal(err)
		}
		g.open()
		p.wait().counts(t, 2, 3, 0, 0)
		holds(t, g.bundle, dir)
		clean(t, g.bundle, dir)
	})
	t.Run("and ours is taken away before it is put back", func(t *testing.T) {
		dir := t.TempDir()
		place(t, ring.fewOlder, dir)
		g := newGate(t, ring.few)
		p := call{bundle: g.bundle, dir: dir, wrap: []string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2",
			"-e", "inject=renameat2:delay_exit=100ms"}}.start(t)
		g.reached(t)
		path := filepath.Join(dir, "static")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(mkdir(t, path), "inside"), "theirs", 0o644)
		came := identify(t, path)
		g.open()
		eventually(t, "our file stands where the directory was", func() bool {
			info, err := os.Lstat(path)
			return err == nil && info.Mode().IsRegular()
		})
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		o := p.wait()
		o.counts(t, 1, 3, 0, 1)
		if cause := o.failed()["static"]; !strings.HasPrefix(cause, "is a directory, left as it is") {
			t.Fatal(cause)
		}
		if identify(t, path) != came || read(t, filepath.Join(path, "inside")) != "theirs" {
			t.Fatal("the directory was changed")
		}
		clean(t, g.bundle, dir)
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
				o := stage(t, ring.few, dir)
				if o.code != 0 || len(o.failed()) > 1 {
					t.Fatalf("exit %d\n%s", o.code, o.stderr)
				}
				if cause, bad := o.failed()["static"]; bad && !strings.Contains(cause, "left as it is") && !strings.Contains(cause, "replaced by another program at every attempt") {
					t.Fatal(cause)
				}
				holds(t, ring.few, dir, slices.DeleteFunc(slices.Clone(fewNames), func(n string) bool { return n == "static" })...)
			}
		}()
		if o := stage(t, ring.few, dir); o.code != 0 || len(o.failed()) > 0 {
			t.Fatal(o.stderr)
		}
		holds(t, ring.few, dir)
		clean(t, ring.few, dir)
	})
}

// A bundle in which one file has all fourteen names becomes fourteen files on the node, so that what tears one of them tears
// no other.
func TestOneFileUnderAllNames(t *testing.T) {
	dir := t.TempDir()
	stage(t, ring.shared, dir).counts(t, 14, 0, 0, 0)
	holds(t, ring.shared, dir)
	clean(t, ring.shared, dir)
	inodes := make(map[uint64]string)
	for _, name := range reference {
		id := identify(t, filepath.Join(dir, name))
		if other, ok := inodes[id.ino]; ok {
			t.Fatalf("%s and %s are one file", name, other)
		}
		inodes[id.ino] = name
	}
	if code, out := verify(t, ring.shared, dir); code != 0 {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
	stage(t, ring.shared, dir).counts(t, 0, 0, 14, 0)
	torn := filepath.Join(t.TempDir(), "portmap")
	write(t, torn, "torn", 0o755)
	sh(t, "cp", "-f", torn, filepath.Join(dir, "portmap"))
	if code, out := verify(t, ring.shared, dir); code != 1 || !strings.Contains(out, "13 ok, 1 wrong") {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
	stage(t, ring.shared, dir).counts(t, 0, 1, 13, 0)
	holds(t, ring.shared, dir)
	// There and back: what staging itself put there is nobody's original.
	stage(t, ring.older, dir).counts(t, 0, 14, 0, 0)
	stage(t, ring.shared, dir).counts(t, 0, 14, 0, 0)
	holds(t, ring.shared, dir)
	clean(t, ring.shared, dir)
	for _, name := range reference {
		if kept := originals(t, dir, name); len(kept) != map[bool]int{true: 1}[name == "portmap"] {
			t.Fatalf("%s: kept %v", name, kept)
		}
	}
}
