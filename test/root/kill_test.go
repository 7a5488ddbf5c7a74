//go:build root

package root

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/rig"
)

// Guarantees 1 and 3: whenever staging is killed, each name is the old file or the new one, whole, and other processes that
// look it up and execute it never see anything else. The next plain run heals, nothing is left behind, and what stood there
// before anybody staged is kept as it was.
func TestKilledAtAnyInstant(t *testing.T) {
	cases := []struct {
		name   string
		first  string // placed there by somebody else
		second string // then staged
		killed string
		rounds int
	}{
		{name: "fresh", killed: ring.bundle, rounds: 8},
		{name: "update", first: ring.older, killed: ring.bundle, rounds: 8},
		{name: "back", first: ring.older, second: ring.bundle, killed: ring.older, rounds: 6},
		{name: "one file under all names", first: ring.older, killed: ring.shared, rounds: 6},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prepare := func() (string, map[string]rig.Identity) {
				dir := filepath.Join(t.TempDir(), "bin")
				rig.Mkdir(t, dir)
				before := make(map[string]rig.Identity)
				if c.first != "" {
					rig.Place(t, c.first, dir)
					for _, name := range rig.Reference {
						before[name] = rig.Identify(t, filepath.Join(dir, name))
					}
				}
				if c.second != "" {
					rig.Stage(t, c.second, dir).Counts(t, 0, 14, 0, 0)
				}
				return dir, before
			}
			w := rig.StartWatchers(t, 3, ring.bundle, ring.older, ring.shared)
			took := time.Hour
			for range 2 {
				dir, _ := prepare()
				w.Over(dir, c.first != "")
				start := time.Now()
				o := rig.Stage(t, c.killed, dir)
				took = min(took, time.Since(start))
				w.Over("", false)
				if o.Code != 0 || len(o.Failed()) > 0 {
					t.Fatal(o.Stderr)
				}
			}
			// A machine that others use runs now faster, now slower: what came too late is tried again, earlier.
			late := 0
			for i := 0; i < c.rounds && late < 5*c.rounds; {
				dir, before := prepare()
				w.Over(dir, c.first != "")
				// Every second instant is derived from the run's length, the others are random.
				at := took * time.Duration(i+1) / time.Duration(c.rounds+1)
				if i%2 == 1 {
					at = rand.N(took)
				}
				p := rig.Call{Bundle: c.killed, Dir: dir}.Start(t)
				time.Sleep(at)
				if p.Kill().Signal != syscall.SIGKILL {
					late++
					took = took * 9 / 10
				} else {
					i++
				}
				rig.Whole(t, dir, c.first == "", c.killed, cmp.Or(c.second, c.first, c.killed))
				if i%3 == 0 { // killed again on what the first has left
					p := rig.Call{Bundle: c.killed, Dir: dir}.Start(t)
					time.Sleep(rand.N(took))
					p.Kill()
					rig.Whole(t, dir, c.first == "", c.killed, cmp.Or(c.second, c.first, c.killed))
				}
				o := rig.Stage(t, c.killed, dir)
				w.Check()
				w.Over("", false)
				if o.Code != 0 || len(o.Failed()) > 0 || len(o.Report.Warnings) > 0 {
					t.Fatalf("the run after a kill at %s of %s: exit %d\n%s", at, took, o.Code, o.Stderr)
				}
				rig.Holds(t, c.killed, dir)
				rig.Clean(t, c.killed, dir)
				rig.Stage(t, c.killed, dir).Counts(t, 0, 0, 14, 0)
				for name, was := range before {
					rig.Kept(t, dir, name, was)
				}
				os.RemoveAll(filepath.Dir(dir))
			}
			w.End()
			t.Logf("a run takes %s; killed %d times, and %d times too late", took.Round(time.Millisecond), c.rounds, late)
			if late >= 5*c.rounds {
				t.Fatalf("%d kills came after the run's end: nothing is proved", late)
			}
		})
	}
}

// Guarantee 3: what a run that was killed has left is cleared by the next, whatever it is, and what cannot be cleared is
// neither in the way nor published.
func TestLeftoversOfAKilledRun(t *testing.T) {
	dir := t.TempDir()
	g := newGate(t, ring.few)
	p := rig.Call{Bundle: g.bundle, Dir: dir}.Start(t)
	g.reached(t)
	if o := p.Kill(); o.Signal != syscall.SIGKILL {
		t.Fatalf("it ended before it could be killed: %s", o.Stderr)
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".chandler/tmp/*/*"))
	if len(left) < len(fewNames) {
		t.Fatalf("a run killed before it published left %v; the test proves nothing", left)
	}
	for _, name := range fewNames {
		if rig.Exists(filepath.Join(dir, name)) {
			t.Fatalf("%s was published before everything was checked", name)
		}
	}
	rig.Eventually(t, "the killed run's probe ends with it", func() bool {
		procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range procs {
			if cmdline, _ := os.ReadFile(f); strings.Contains(string(cmdline), gateName) {
				return false
			}
		}
		return true
	})
	run := filepath.Dir(left[0])
	// And what nobody would expect there.
	rig.Mkdir(t, filepath.Join(run, "nested/deep"))
	rig.Write(t, filepath.Join(run, "nested/deep/file"), "x", 0o000)
	rig.Write(t, filepath.Join(dir, ".chandler/tmp/bridge"), "torn", 0o755)
	if err := os.Symlink("/", filepath.Join(run, "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, ".chandler/tmp/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	rig.Stage(t, ring.few, dir).Counts(t, 4, 0, 0, 0)
	rig.Holds(t, ring.few, dir)
	rig.Clean(t, ring.few, dir)

	t.Run("that cannot be removed", func(t *testing.T) {
		dir := t.TempDir()
		stuck := filepath.Join(rig.Mkdir(t, filepath.Join(dir, ".chandler/tmp/gone")), "static")
		rig.Write(t, stuck, "torn", 0o755)
		immutable(t, stuck)
		o := rig.Stage(t, ring.few, dir)
		o.Counts(t, 4, 0, 0, 0)
		o.Says(t, "warning: leftovers of an earlier run stay: remove .chandler/tmp/gone/static: operation not permitted")
		rig.Holds(t, ring.few, dir)
		if rig.Read(t, stuck) != "torn" {
			t.Fatal("what could not be removed was written to")
		}
	})
}

// immutable sets the attribute that chattr +i sets, for as long as the test lasts.
func immutable(t testing.TB, path string) {
	t.Helper()
	rig.Sh(t, "chattr", "+i", path)
	t.Cleanup(func() { rig.Sh(t, "chattr", "-i", path) })
}

// SIGTERM ends a run between two steps: what was done is reported, what was not is said to be interrupted, nothing is left
// over, the exit code is 0 (1 with --strict), and the next run completes.
func TestTerminatedInTheMiddle(t *testing.T) {
	tell := func(t *testing.T, dir string, o rig.Outcome, code, published int) {
		t.Helper()
		if o.Signal != 0 || o.Code != code {
			t.Fatalf("exit %d, signal %v, want exit %d\n%s", o.Code, o.Signal, code, o.Stderr)
		}
		o.Told(t)
		placed := 0
		for _, p := range o.Report.Plugins {
			switch p.Action {
			case "new":
				placed++
				rig.Holds(t, ring.bundle, dir, p.Name)
			case "failed":
				if p.Cause != "interrupted" || rig.Exists(filepath.Join(dir, p.Name)) {
					t.Fatalf("%s: %q, there: %v", p.Name, p.Cause, rig.Exists(filepath.Join(dir, p.Name)))
				}
			default:
				t.Fatalf("%s: %s", p.Name, p.Action)
			}
		}
		if published >= 0 && placed != published {
			t.Fatalf("%d were published, want %d", placed, published)
		}
		rig.Clean(t, ring.bundle, dir)
	}
	heal := func(t *testing.T, dir string) {
		t.Helper()
		if o := rig.Stage(t, ring.bundle, dir); o.Code != 0 || len(o.Failed()) > 0 {
			t.Fatal(o.Stderr)
		}
		rig.Holds(t, ring.bundle, dir)
		rig.Clean(t, ring.bundle, dir)
	}
	for _, strict := range []bool{false, true} {
		var args []string
		code := 0
		if strict {
			args, code = []string{"--strict"}, 1
		}
		t.Run(fmt.Sprintf("while it probes, strict %v", strict), func(t *testing.T) {
			dir := t.TempDir()
			g := newGate(t, ring.bundle)
			p := rig.Call{Bundle: g.bundle, Dir: dir, Args: args}.Start(t)
			g.reached(t)
			p.Cmd.Process.Signal(syscall.SIGTERM)
			tell(t, dir, p.Wait(), code, 0)
			heal(t, dir)
		})
		t.Run(fmt.Sprintf("while it publishes, strict %v", strict), func(t *testing.T) {
			dir := t.TempDir()
			// strace makes each rename take its time, and is no part of what is signalled.
			p := rig.Call{Bundle: ring.bundle, Dir: dir, Args: args,
				Wrap: []string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2", "-e", "inject=renameat2:delay_exit=30ms"}}.Start(t)
			rig.Eventually(t, "three are in place", func() bool {
				names, _ := os.ReadDir(dir)
				return len(names) >= 4 // with the folder
			})
			syscall.Kill(childOf(t, p.Cmd.Process.Pid), syscall.SIGTERM)
			o := p.Wait()
			tell(t, dir, o, code, -1)
			if n := len(o.Failed()); n == 0 || n == 14 {
				t.Fatalf("%d of 14 were interrupted; the signal did not come in the middle", n)
			}
			heal(t, dir)
		})
	}
	t.Run("while it waits for the lock", func(t *testing.T) {
		dir := t.TempDir()
		g := newGate(t, ring.few)
		first := rig.Call{Bundle: g.bundle, Dir: dir}.Start(t)
		g.reached(t)
		second := rig.Call{Bundle: ring.bundle, Dir: dir}.Start(t)
		rig.Eventually(t, "it has begun", func() bool { return began(second, dir) })
		time.Sleep(100 * time.Millisecond)
		second.Cmd.Process.Signal(syscall.SIGTERM)
		o := second.Wait()
		if o.Code != 1 || o.Log != "interrupted; nothing was staged\n" {
			t.Fatalf("exit %d, log %q", o.Code, o.Log)
		}
		g.open()
		first.Wait().Counts(t, 5, 0, 0, 0)
	})
	t.Run("at random instants", func(t *testing.T) {
		start := time.Now()
		rig.Stage(t, ring.bundle, t.TempDir()).Counts(t, 14, 0, 0, 0)
		took := time.Since(start)
		for range 8 {
			dir := t.TempDir()
			p := rig.Call{Bundle: ring.bundle, Dir: dir}.Start(t)
			// Before the program has its handlers, the signal ends it like any other.
			rig.Eventually(t, "it has begun", func() bool { return began(p, dir) })
			time.Sleep(rand.N(took))
			p.Cmd.Process.Signal(syscall.SIGTERM)
			o := p.Wait()
			if o.Report.Outcome == "refused" {
				if o.Code != 1 || o.Log != "interrupted; nothing was staged\n" {
					t.Fatalf("exit %d: %q", o.Code, o.Log)
				}
				rig.Clean(t, ring.bundle, dir)
			} else {
				tell(t, dir, o, 0, -1)
			}
			heal(t, dir)
		}
	})
}

// began says whether a run has the directory open, or has ended already.
func began(p *rig.Process, dir string) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.Cmd.Process.Pid))
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); target == dir {
			return true
		}
	}
	return len(fds) == 0 && rig.Exists(filepath.Join(dir, rig.Reference[0]))
}

// childOf returns the process that strace runs.
func childOf(t testing.TB, pid int) int {
	t.Helper()
	text := rig.Read(t, fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	var child int
	if _, err := fmt.Sscan(text, &child); err != nil {
		t.Fatalf("children of %d: %q: %v", pid, text, err)
	}
	return child
}
