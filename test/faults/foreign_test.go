//go:build faults

package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/faults/tracer"
	"github.com/chandler-cni/chandler/test/rig"
)

// installer is a model of other software that writes the same names: a line of shell that does for each name n what it does.
type installer struct {
	name   string
	script string
	whole  bool // no reader of the names ever sees one of its files half written, or a name go missing
	links  bool // it installs links
	moves  bool // it takes the directory itself away
	ours   bool // it is another chandler
}

// installers are those that were found in the wild. $n is the name, $SRC the directory that it installs from.
var installers = []installer{
	{name: "temporary file and rename", script: `cp $SRC/$n $DIR/.$n.$$ && mv -f $DIR/.$n.$$ $DIR/$n`, whole: true},
	{name: "copy in place", script: `cp -f $SRC/$n $DIR/$n`},
	{name: "install", script: `install -m 755 $SRC/$n $DIR/$n`},
	{name: "rename away, then write", script: `mv -f $DIR/$n $DIR/$n.old 2>/dev/null; cp $SRC/$n $DIR/$n`},
	{name: "one temporary name for two", script: `for i in 1 2; do (cp $SRC/$n $DIR/$n.tmp && mv -f $DIR/$n.tmp $DIR/$n) 2>/dev/null & done; wait`},
	{name: "extract an archive", script: `tar -xf $SRC/all.tar -C $DIR $n`},
	{name: "link", script: `ln -sfn $SRC/$n $DIR/$n`, links: true},
	{name: "remove the directory", script: `rm -rf $DIR`, moves: true},
	{name: "replace the directory", script: `if [ $n = static ]; then rm -rf $DIR.was; mv $DIR $DIR.was; mkdir $DIR; chmod 755 $DIR; fi; cp $SRC/$n $DIR/$n`, moves: true},
	{name: "another chandler", ours: true, whole: true},
}

// command is what it does once to all names of a directory.
func (in installer) command(d *desk, src string) *exec.Cmd {
	if in.ours {
		cmd := exec.Command(d.chandler, stageArgs(ring.older, "--lock-wait", "0s", "--termination-log=")(d)...)
		cmd.Env = []string{}
		return cmd
	}
	return in.shell(d, src, `for n in `+strings.Join(ring.names, " ")+`; do `+in.script+"; done")
}

func (in installer) shell(d *desk, src, script string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "DIR="+d.dir, "SRC="+src)
	return cmd
}

// theirs is where an installer has its files, and what is under a name when it has done its work.
func theirs(t testing.TB) (src string, is map[string]thing) {
	t.Helper()
	src = t.TempDir()
	is = make(map[string]thing)
	for _, name := range ring.names {
		data, err := os.ReadFile(filepath.Join(ring.bundle, "bin", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(src, name), append(data, "of another installer"...), 0o755)
		}
		if err == nil {
			is[name], err = look(filepath.Join(src, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("tar", append([]string{"-cf", filepath.Join(src, "all.tar"), "-C", src}, ring.names...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return src, is
}

// installed says whether it is what the installer puts there.
func (in installer) installed(it, is thing, src, name string) bool {
	if in.links {
		return it.kind == "symlink" && it.target == filepath.Join(src, name)
	}
	return it.kind == "file" && it.size == is.size && it.sum == is.sum
}

// Guarantees 1, 6 and 8: another installer does its work at once, between any two system calls of a staging. Each name is then its
// file or ours, whole; its file is under the name or kept; the report is true of what is not its doing; and one more staging
// brings everything right.
func TestAnotherInstallerAtAnySystemCall(t *testing.T) {
	met := 0
	ring.reported = append(ring.reported, func() string {
		if met == 0 {
			return ""
		}
		return fmt.Sprintf("%d installers came between two system calls, %d times", len(installers), met)
	})
	s := &scene{name: "over somebody's", args: stageArgs(ring.bundle, "--lock-wait", "0s"), bundle: ring.bundle, judge: carriedOut, healed: healed,
		set: func(d *desk) error { return foreignFile(d, ring.names[0]) }, foreign: ring.names[:1]}
	if err := s.prepare(newTestDesk(t, ring.chandler)); err != nil {
		t.Fatal(err)
	}
	src, is := theirs(t)
	for _, in := range installers {
		t.Run(in.name, func(t *testing.T) {
			var at []tracer.Call
			for _, i := range drawn(in.name).Perm(len(s.calls)) {
				c := s.calls[i]
				if c.Name != "read" && c.Name != "pread64" && !(c.Name == "write" && c.K%8 != 1) {
					at = append(at, c)
				}
			}
			// What happens between publishing and the end is the most delicate.
			slices.SortStableFunc(at, func(a, b tracer.Call) int { return delicacy(b) - delicacy(a) })
			if !ring.full {
				at = append(at[:10], at[len(at)-6:]...)
			}
			inParallel(t, len(at), func(d *desk, i int) error {
				problems, err := s.joined(d, in, at[i], src, is)
				if len(problems) > 0 {
					t.Errorf("at %s\n%s", at[i], list(problems))
				}
				return err
			})
			met += len(at)
		})
	}
}

// delicacy puts the calls that change names before the others.
func delicacy(c tracer.Call) int {
	if strings.HasPrefix(c.Name, "rename") || c.Name == "unlinkat" {
		return 1
	}
	return 0
}

// joined runs the scene's command, at one call of which the installer does its work, and judges.
func (s *scene) joined(d *desk, in installer, at tracer.Call, src string, is map[string]thing) ([]problem, error) {
	if err := errors.Join(os.RemoveAll(d.dir+".was"), s.tree.make(d.dir)); err != nil {
		return nil, err
	}
	var opened, done, again bool // the directory was opened before it, and again after it
	var failed error
	o, err := d.run(func(c *tracer.Call) (tracer.Action, unix.Errno) {
		switch {
		case c.Name == at.Name && c.K == at.K:
			done = true
			if out, err := in.command(d, src).CombinedOutput(); err != nil && !in.moves {
				failed = fmt.Errorf("%s: %w: %s", in.name, err, out)
			}
		case c.Name == "openat" && c.Path == d.dir:
			again = opened && done
			opened = opened || !done
		}
		return tracer.Go, 0
	}, s.args(d)...)
	if err = errors.Join(err, failed); err != nil || !done {
		return nil, err
	}
	t := &try{desk: d, outcome: o}
	problems := t.ended()
	add := func(check, format string, args ...any) {
		problems = append(problems, problem{check, fmt.Sprintf(format, args...)})
	}
	if len(problems) > 0 {
		add("end", "%s", o)
	}
	if in.moves {
		if again && (o.report.Outcome != "refused" || o.code != 1) {
			add("report", "the directory is another by now, and that is not said: %s", o)
		}
	} else {
		problems = append(problems, s.mixed(d, in, o, src, is)...)
	}
	o, err = d.run(nil, append(s.args(d), "--create")...)
	if err != nil {
		return problems, err
	}
	if o.code != 0 || o.report.Outcome != "staged" || strings.Contains(o.log, "failed") || len(o.report.Warnings) > 0 {
		add("healed", "the next run: %s", o)
	}
	return append(problems, s.right(d, in)...), nil
}

// mixed judges a directory in which two have worked at once.
func (s *scene) mixed(d *desk, in installer, o outcome, src string, is map[string]thing) []problem {
	var problems []problem
	add := func(check, format string, args ...any) {
		problems = append(problems, problem{check, fmt.Sprintf(format, args...)})
	}
	if o.report.Outcome != "staged" || o.code != 0 {
		add("end", "%s", o)
	}
	for _, name := range ring.names {
		it, err := look(filepath.Join(d.dir, name))
		old, oldErr := staged(ring.older, name)
		if err = errors.Join(err, oldErr); err != nil {
			add("whole", "%v", err)
		}
		if in.ours {
			if it != s.after[name] && it != old && it != s.before[name] {
				add("whole", "%s is %s", name, it)
			}
			continue
		}
		if it != s.after[name] && !in.installed(it, is[name], src, name) {
			add("whole", "%s is %s", name, it)
		}
		places, err := kept(d.dir, name)
		places = append(places, filepath.Join(d.dir, name), filepath.Join(d.dir, name+".old"))
		if err != nil || !slices.ContainsFunc(places, func(path string) bool {
			it, err := look(path)
			return err == nil && in.installed(it, is[name], src, name)
		}) {
			add("kept", "what the other has installed as %s is nowhere (%v)", name, err)
		}
	}
	// Of the two, ours is not named failed for what the other did.
	for _, p := range o.report.Plugins {
		if p.Action == "failed" {
			add("report", "%s failed: %s", p.Name, p.Cause)
		}
	}
	return problems
}

// right judges the directory after one more staging.
func (s *scene) right(d *desk, in installer) []problem {
	var problems []problem
	add := func(format string, args ...any) {
		problems = append(problems, problem{"healed", fmt.Sprintf(format, args...)})
	}
	also := slices.Clone(ring.names)
	for _, name := range ring.names {
		also = append(also, name+".old", name+".tmp")
		it, err := look(filepath.Join(d.dir, name))
		if err != nil || it != s.after[name] {
			add("%s is %s (%v)", name, it, err)
		}
		if !rig.Exists(markOf(d.dir, s.bundle, name)) {
			add("%s has no mark", name)
		}
		// What is ours is kept by nobody.
		files, err := kept(d.dir, name)
		for _, file := range files {
			it, lookErr := look(file)
			if old, oldErr := staged(ring.older, name); err != nil || lookErr != nil || oldErr != nil || it == s.after[name] || in.ours && it == old {
				add("%s is kept: %s", file, it)
			}
		}
	}
	if left, err := rig.Litter(d.dir, also); len(left) > 0 || err != nil {
		add("left over: %v (%v)", left, err)
	}
	return problems
}

// The same in a race, over and over, on the file systems that nodes have: what the other tears is its own, is found by verify
// once it has stopped, and is brought right by one staging; who writes whole files, whoever looks sees whole files only.
func TestAnotherInstallerWithoutPause(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		at := t.TempDir()
		if kind == "ext4" {
			at, _ = rig.Disk(t, kind, 256<<20)
		}
		for i, in := range installers {
			if in.ours {
				continue // held at each system call, and in the ring root
			}
			t.Run(kind+", "+in.name, func(t *testing.T) { in.race(t, filepath.Join(at, fmt.Sprint(i))) })
		}
	}
}

func (in installer) race(t *testing.T, at string) {
	d, err := newDesk(at, ring.chandler)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(at) })
	s := &scene{bundle: ring.bundle, after: make(map[string]thing)}
	for _, name := range ring.names {
		if s.after[name], err = staged(ring.bundle, name); err != nil {
			t.Fatal(err)
		}
	}
	src, is := theirs(t)
	// It stops when it has done its work once more after the last staging, and not in the middle.
	work := `for n in ` + strings.Join(ring.names, " ") + `; do ` + in.script + "; done; echo x >>$SRC/count"
	other := in.shell(d, src, "{ while [ -e $SRC/go ]; do "+work+"; done; "+work+"; } 2>/dev/null")
	if err := os.WriteFile(filepath.Join(src, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ended := rig.StartOnThread(t, other)
	var w *rig.Watchers
	if in.whole {
		w = rig.StartWatchers(t, 1)
		for _, name := range ring.names {
			w.Right[name] = []uint32{is[name].sum, s.after[name].sum}
		}
		w.Over(d.dir, false)
	}
	n := 6
	if ring.full {
		n = 100
	}
	for range n {
		o, err := d.run(nil, append(stageArgs(ring.bundle)(d), "--create")...)
		if err != nil {
			t.Fatal(err)
		}
		if problems := (&try{desk: d, outcome: o}).ended(); len(problems) > 0 || o.torn != nil {
			t.Fatalf("%s\n%s", list(problems), o)
		}
		if o.report.Outcome != "staged" && !in.moves {
			t.Fatalf("%s", o)
		}
	}
	if w != nil {
		w.Over("", false)
		if seen := w.Saw(); len(seen.Wrong) > 0 || seen.Looks == 0 {
			t.Errorf("another process looked %d times and saw: %v", seen.Looks, seen.Wrong)
		}
	}
	os.Remove(filepath.Join(src, "go"))
	if err := <-ended; err != nil && !in.moves {
		t.Fatal(err)
	}
	count, _ := os.ReadFile(filepath.Join(src, "count"))
	if len(count)/2 < 3 {
		t.Fatalf("the other came to its work %d times: the test proves nothing", len(count)/2)
	}
	// It has had the last word.
	o, err := d.run(nil, verifyArgs(ring.bundle)(d)...)
	if err != nil {
		t.Fatal(err)
	}
	if o.code != 1 {
		t.Errorf("verify: %s", o)
	}
	if o, err = d.run(nil, append(stageArgs(ring.bundle)(d), "--create")...); err != nil || o.code != 0 || o.report.Outcome != "staged" {
		t.Fatalf("%s (%v)", o, err)
	}
	problems := s.right(d, in)
	for _, name := range ring.names {
		files, _ := kept(d.dir, name)
		if !in.moves && !slices.ContainsFunc(files, func(file string) bool {
			it, err := look(file)
			return err == nil && in.installed(it, is[name], src, name)
		}) {
			problems = append(problems, problem{"kept", fmt.Sprintf("what the other installed last as %s is not among %v", name, files)})
		}
	}
	if o, err = d.run(nil, verifyArgs(ring.bundle)(d)...); err != nil || o.code != 0 {
		t.Errorf("verify: %s (%v)", o, err)
	}
	if len(problems) > 0 {
		t.Errorf("%s", list(problems))
	}
	t.Logf("%d stagings, while the other did its work %d times", n, len(count)/2)
}
