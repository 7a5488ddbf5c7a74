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
			prepare := func() (string, map[string]identity) {
				dir := filepath.Join(t.TempDir(), "bin")
				mkdir(t, dir)
				before := make(map[string]identity)
				if c.first != "" {
					place(t, c.first, dir)
					for _, name := range reference {
						before[name] = identify(t, filepath.Join(dir, name))
					}
				}
				if c.second != "" {
					stage(t, c.second, dir).counts(t, 0, 14, 0, 0)
				}
				return dir, before
			}
			w := startWatchers(t, 3, ring.bundle, ring.older, ring.shared)
			took := time.Hour
			for range 2 {
				dir, _ := prepare()
				w.over(dir, c.first != "")
				start := time.Now()
				o := stage(t, c.killed, dir)
				took = min(took, time.Since(start))
				w.over("", false)
				if o.code != 0 || len(o.failed()) > 0 {
					t.Fatal(o.stderr)
				}
			}
			late := 0
			for i := range c.rounds {
				dir, before := prepare()
				w.over(dir, c.first != "")
				// Every second instant is derived from the run's length, the others are random.
				at := took * time.Duration(i+1) / time.Duration(c.rounds+1)
				if i%2 == 1 {
					at = rand.N(took)
				}
				p := call{bundle: c.killed, dir: dir}.start(t)
				time.Sleep(at)
				if p.kill().signal != syscall.SIGKILL {
					late++
				}
				whole(t, dir, c.first == "", c.killed, cmp.Or(c.second, c.first, c.killed))
				if i%3 == 2 { // killed again on what the first has left
					p := call{bundle: c.killed, dir: dir}.start(t)
					time.Sleep(rand.N(took))
					p.kill()
					whole(t, dir, c.first == "", c.killed, cmp.Or(c.second, c.first, c.killed))
				}
				o := stage(t, c.killed, dir)
				w.check()
				w.over("", false)
				if o.code != 0 || len(o.failed()) > 0 || len(o.report.Warnings) > 0 {
					t.Fatalf("the run after a kill at %s of %s: exit %d\n%s", at, took, o.code, o.stderr)
				}
				holds(t, c.killed, dir)
				clean(t, c.killed, dir)
				stage(t, c.killed, dir).counts(t, 0, 0, 14, 0)
				for name, was := range before {
					kept := originals(t, dir, name)
					if len(kept) != 1 || identify(t, kept[0]) != was {
						t.Fatalf("%s: kept %v, want the very file that was there alone", name, kept)
					}
				}
				os.RemoveAll(filepath.Dir(dir))
			}
			w.end()
			t.Logf("a run takes %s; %d of %d kills came too late", took.Round(time.Millisecond), late, c.rounds)
			if late > c.rounds/2 {
				t.Fatalf("%d of %d kills came after the run's end", late, c.rounds)
			}
		})
	}
}

// Guarantee 3: what a run that was killed has left is cleared by the next, whatever it is, and what cannot be cleared is
// neither in the way nor published.
func TestLeftoversOfAKilledRun(t *testing.T) {
	dir := t.TempDir()
	g := newGate(t, ring.few)
	p := call{bundle: g.bundle, dir: dir}.start(t)
	g.reached(t)
	if o := p.kill(); o.signal != syscall.SIGKILL {
		t.Fatalf("it ended before it could be killed: %s", o.stderr)
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".chandler/tmp/*/*"))
	if len(left) < len(fewNames) {
		t.Fatalf("a run killed before it published left %v; the test proves nothing", left)
	}
	for _, name := range fewNames {
		if exists(filepath.Join(dir, name)) {
			t.Fatalf("%s was published before everything was checked", name)
		}
	}
	eventually(t, "the killed run's probe ends with it", func() bool {
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
	mkdir(t, filepath.Join(run, "nested/deep"))
	write(t, filepath.Join(run, "nested/deep/file"), "x", 0o000)
	write(t, filepath.Join(dir, ".chandler/tmp/bridge"), "torn", 0o755)
	if err := os.Symlink("/", filepath.Join(run, "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, ".chandler/tmp/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	stage(t, ring.few, dir).counts(t, 4, 0, 0, 0)
	holds(t, ring.few, dir)
	clean(t, ring.few, dir)

	t.Run("that cannot be removed", func(t *testing.T) {
		dir := t.TempDir()
		stuck := filepath.Join(mkdir(t, filepath.Join(dir, ".chandler/tmp/gone")), "static")
		write(t, stuck, "torn", 0o755)
		immutable(t, stuck)
		o := stage(t, ring.few, dir)
		o.counts(t, 4, 0, 0, 0)
		o.says(t, "warning: leftovers of an earlier run stay: remove: operation not permitted")
		holds(t, ring.few, dir)
		if read(t, stuck) != "torn" {
			t.Fatal("what could not be removed was written to")
		}
	})
}

// immutable sets the attribute that chattr +i sets, for as long as the test lasts.
func immutable(t testing.TB, path string) {
	t.Helper()
	sh(t, "chattr", "+i", path)
	t.Cleanup(func() { sh(t, "chattr", "-i", path) })
}

// SIGTERM ends a run between two steps: what was done is reported, what was not is said to be interrupted, nothing is left
// over, the exit code is 0 (1 with --strict), and the next run completes.
func TestTerminatedInTheMiddle(t *testing.T) {
	tell := func(t *testing.T, dir string, o outcome, code, published int) {
		t.Helper()
		if o.signal != 0 || o.code != code {
			t.Fatalf("exit %d, signal %v, want exit %d\n%s", o.code, o.signal, code, o.stderr)
		}
		o.told(t)
		placed := 0
		for _, p := range o.report.Plugins {
			switch p.Action {
			case "new":
				placed++
				holds(t, ring.bundle, dir, p.Name)
			case "failed":
				if p.Cause != "interrupted" || exists(filepath.Join(dir, p.Name)) {
					t.Fatalf("%s: %q, there: %v", p.Name, p.Cause, exists(filepath.Join(dir, p.Name)))
				}
			default:
				t.Fatalf("%s: %s", p.Name, p.Action)
			}
		}
		if published >= 0 && placed != published {
			t.Fatalf("%d were published, want %d", placed, published)
		}
		clean(t, ring.bundle, dir)
	}
	heal := func(t *testing.T, dir string) {
		t.Helper()
		if o := stage(t, ring.bundle, dir); o.code != 0 || len(o.failed()) > 0 {
			t.Fatal(o.stderr)
		}
		holds(t, ring.bundle, dir)
		clean(t, ring.bundle, dir)
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
			p := call{bundle: g.bundle, dir: dir, args: args}.start(t)
			g.reached(t)
			p.cmd.Process.Signal(syscall.SIGTERM)
			tell(t, dir, p.wait(), code, 0)
			heal(t, dir)
		})
		t.Run(fmt.Sprintf("while it publishes, strict %v", strict), func(t *testing.T) {
			dir := t.TempDir()
			// strace makes each rename take its time, and is no part of what is signalled.
			p := call{bundle: ring.bundle, dir: dir, args: args,
				wrap: []string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2", "-e", "inject=renameat2:delay_exit=30ms"}}.start(t)
			eventually(t, "three are in place", func() bool {
				names, _ := os.ReadDir(dir)
				return len(names) >= 4 // with the folder
			})
			syscall.Kill(childOf(t, p.cmd.Process.Pid), syscall.SIGTERM)
			o := p.wait()
			tell(t, dir, o, code, -1)
			if n := len(o.failed()); n == 0 || n == 14 {
				t.Fatalf("%d of 14 were interrupted; the signal did not come in the middle", n)
			}
			heal(t, dir)
		})
	}
	t.Run("while it waits for the lock", func(t *testing.T) {
		dir := t.TempDir()
		g := newGate(t, ring.few)
		first := call{bundle: g.bundle, dir: dir}.start(t)
		g.reached(t)
		second := call{bundle: ring.bundle, dir: dir}.start(t)
		eventually(t, "it has begun", func() bool { return began(second, dir) })
		time.Sleep(100 * time.Millisecond)
		second.cmd.Process.Signal(syscall.SIGTERM)
		o := second.wait()
		if o.code != 1 || o.log != "interrupted; nothing was staged\n" {
			t.Fatalf("exit %d, log %q", o.code, o.log)
		}
		g.open()
		first.wait().counts(t, 5, 0, 0, 0)
	})
	t.Run("at random instants", func(t *testing.T) {
		start := time.Now()
		stage(t, ring.bundle, t.TempDir()).counts(t, 14, 0, 0, 0)
		took := time.Since(start)
		for range 8 {
			dir := t.TempDir()
			p := call{bundle: ring.bundle, dir: dir}.start(t)
			// Before the program has its handlers, the signal ends it like any other.
			eventually(t, "it has begun", func() bool { return began(p, dir) })
			time.Sleep(rand.N(took))
			p.cmd.Process.Signal(syscall.SIGTERM)
			o := p.wait()
			if o.report.Outcome == "refused" {
				if o.code != 1 || o.log != "interrupted; nothing was staged\n" {
					t.Fatalf("exit %d: %q", o.code, o.log)
				}
				clean(t, ring.bundle, dir)
			} else {
				tell(t, dir, o, 0, -1)
			}
			heal(t, dir)
		}
	})
}

// began says whether a run has the directory open, or has ended already.
func began(p *process, dir string) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); target == dir {
			return true
		}
	}
	return len(fds) == 0 && exists(filepath.Join(dir, reference[0]))
}

// childOf returns the process that strace runs.
func childOf(t testing.TB, pid int) int {
	t.Helper()
	text := read(t, fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	var child int
	if _, err := fmt.Sscan(text, &child); err != nil {
		t.Fatalf("children of %d: %q: %v", pid, text, err)
	}
	return child
}
