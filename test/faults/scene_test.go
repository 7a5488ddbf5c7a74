//go:build faults

package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/faults/tracer"
	"github.com/chandler-cni/chandler/test/rig"
)

// scene is a command line and the directory that it finds.
type scene struct {
	name    string
	args    func(d *desk) []string
	set     func(d *desk) error // makes the directory, with a chandler that nothing is wrong with
	bundle  string              // whose plugins are ours
	foreign []string            // the names under which somebody else's stood before anything was staged
	noFlags bool                // the file system knows no flags of rename
	noLocks bool                // it knows no locks
	back    bool                // it is taken back
	locked  bool                // another process holds the lock of the directory
	dropped bool                // what is replaced is not kept
	kept    map[string]string   // the names that the policy keeps, and what is said of each
	left    map[string]string   // the names that restoring has nothing to do for, and what is said of each
	warns   []string            // what is warned of with nothing wrong
	few     bool                // most of its calls are those of another scene: fewer of them are drawn
	judge   func(s *scene, t *try) []problem
	healed  func(s *scene, t *try) []problem // what the next plain run makes of it

	// Worked out by prepare.
	tree   *template
	before map[string]thing
	after  map[string]thing // what the names are to be when it is done
	ours   map[string]thing
	theirs map[string]thing   // of the foreign names
	older  map[string][]thing // what is kept of them beside that, and stays kept
	calls  []tracer.Call      // of a run that nothing is done to
}

// problem is a guarantee that did not hold.
type problem struct{ check, text string }

func (p problem) String() string { return p.check + ": " + p.text }

// somebody is the program of another installer, which one of the names is a link to. It lies outside the directory.
func somebody() string { return filepath.Join(ring.dir, "somebody/multi") }

const somebodys = "#!/bin/sh\n# somebody's program of many names\n"

func stageArgs(bundle string, more ...string) func(d *desk) []string {
	return func(d *desk) []string {
		return append([]string{"stage", "--bundle", bundle, "--bin-dir", d.dir, "--output", "json", "--termination-log", d.log}, more...)
	}
}

func verifyArgs(bundle string) func(d *desk) []string {
	return func(d *desk) []string {
		return []string{"verify", "--bundle", bundle, "--bin-dir", d.dir, "--output", "json"}
	}
}

// foreignFile puts a file of somebody else's under a name: another build, with its own mode and owner.
func foreignFile(d *desk, name string) error {
	path := filepath.Join(d.dir, name)
	data, err := os.ReadFile(filepath.Join(ring.bundle, "bin", name))
	if err != nil {
		return err
	}
	return asTheirs(path, append(data[:len(data)/4], "theirs"...))
}

// asTheirs puts a file of somebody else's in the place of what is there.
func asTheirs(path string, data []byte) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return errors.Join(os.WriteFile(path, data, 0o700), os.Chmod(path, 0o700), os.Chown(path, 1000, 1000))
}

// foreignBuild puts another build of the bundle's version under a name.
func foreignBuild(d *desk, name string) error {
	data, err := os.ReadFile(filepath.Join(ring.older, "bin", name))
	if err != nil {
		return err
	}
	return asTheirs(filepath.Join(d.dir, name), append(data, " of somebody's"...))
}

// foreignTwice lets somebody come back after staging: two originals are kept.
func foreignTwice(d *desk, name string) error {
	return errors.Join(foreignFile(d, name), stagedBefore(d, ring.bundle), foreignBuild(d, name), stagedBefore(d, ring.bundle))
}

func foreignLink(d *desk, name string) error {
	if err := os.MkdirAll(filepath.Dir(somebody()), 0o755); err != nil {
		return err
	}
	if !rig.Exists(somebody()) {
		if err := os.WriteFile(somebody(), []byte(somebodys), 0o755); err != nil {
			return err
		}
	}
	return os.Symlink(somebody(), filepath.Join(d.dir, name))
}

// stagedBefore stages a bundle in earnest.
func stagedBefore(d *desk, bundle string, more ...string) error {
	good := *d
	good.chandler = ring.chandler
	o, err := good.run(nil, stageArgs(bundle, more...)(d)...)
	if err == nil && (o.code != 0 || !strings.HasPrefix(o.log, "staged ")) {
		err = errors.New(o.String())
	}
	return err
}

// leftovers are what killed runs have left: files that were being written, and a name's exchange that was not made.
func leftovers(d *desk, name string) error {
	tmp := filepath.Join(d.dir, ".chandler/tmp", killedRun)
	slot := filepath.Join(d.dir, ".chandler/originals", name)
	data, err := os.ReadFile(filepath.Join(ring.bundle, "bin", name))
	if err != nil {
		return err
	}
	digest, _ := rig.Digest(filepath.Join(ring.bundle, "bin", name))
	swap := filepath.Join(slot, "swap-"+digest+"-"+killedRun)
	return errors.Join(os.MkdirAll(tmp, 0o700), os.MkdirAll(slot, 0o700), os.Chmod(filepath.Dir(slot), 0o700),
		os.WriteFile(filepath.Join(tmp, name), data[:1000], 0o600), os.WriteFile(swap, data, 0o755), os.Chmod(swap, 0o755))
}

// killedRun is the run that the leftovers are of.
const killedRun = "KILLEDKILLEDKILLEDKILLEDKI"

// unfiled turns the one original of a name into what a run has left that was killed between the exchange and the filing.
func unfiled(d *desk, name, bundle string) error {
	files, err := kept(d.dir, name)
	if err != nil || len(files) != 1 {
		return fmt.Errorf("%s: kept are %v (%v)", name, files, err)
	}
	digest, _ := rig.Digest(filepath.Join(bundle, "bin", name))
	return os.Rename(files[0], filepath.Join(filepath.Dir(files[0]), "swap-"+digest+"-"+killedRun))
}

// away is where restoring puts what it takes from under a name, and where the mark lies that says that nothing stood there.
func away(dir, name string) string { return filepath.Join(dir, ".chandler/staged", name+"@absent") }

func nothing(*desk) error { return nil }

func restoreArgs(d *desk) []string {
	return []string{"restore", "--bin-dir", d.dir, "--output", "json", "--termination-log", d.log}
}

func originalsArgs(more ...string) func(d *desk) []string {
	return func(d *desk) []string {
		return append([]string{"originals", "--bin-dir", d.dir, "--output", "json"}, more...)
	}
}

// noLocks is warned of where the file system knows none.
const noLocks = "went on without the lock: lock: no locks available"

// scenes are the rows of the matrix. Each command that writes to a node's directory, or says what is in it, is here.
func scenes() []*scene {
	first, second := ring.names[0], ring.names[1]
	foreign := func(d *desk) error { return errors.Join(foreignFile(d, first), foreignLink(d, second)) }
	over := func(d *desk) error { return errors.Join(foreign(d), stagedBefore(d, ring.bundle)) }
	all := []*scene{
		{name: "fresh", args: stageArgs(ring.bundle), bundle: ring.bundle, set: nothing},
		{name: "over somebody's", args: stageArgs(ring.bundle), bundle: ring.bundle, set: foreign, foreign: ring.names},
		{name: "over our own, after a killed run", args: stageArgs(ring.bundle), bundle: ring.bundle,
			set: func(d *desk) error { return errors.Join(stagedBefore(d, ring.older), leftovers(d, first)) }},
		{name: "one file, separate", args: stageArgs(ring.multi), bundle: ring.multi,
			set: func(d *desk) error { return foreignFile(d, second) }, foreign: []string{second}},
		{name: "one file, linked", args: stageArgs(ring.multi, "--layout", "linked"), bundle: ring.multi,
			set: func(d *desk) error { return foreignFile(d, first) }, foreign: []string{first}},
		{name: "without flags of rename", args: stageArgs(ring.bundle), bundle: ring.bundle, noFlags: true,
			set: func(d *desk) error { return foreignLink(d, second) }, foreign: []string{second}},
		{name: "right already", args: stageArgs(ring.bundle), bundle: ring.bundle,
			set: func(d *desk) error { return stagedBefore(d, ring.bundle) }},
		{name: "verify, right", args: verifyArgs(ring.bundle), bundle: ring.bundle, judge: verified,
			set: func(d *desk) error { return stagedBefore(d, ring.bundle) }},
		{name: "verify, one wrong", args: verifyArgs(ring.bundle), bundle: ring.bundle, judge: verified,
			set: func(d *desk) error {
				return errors.Join(stagedBefore(d, ring.bundle), os.Truncate(filepath.Join(d.dir, second), 1<<20))
			}},
		{name: "restore somebody's", args: restoreArgs, bundle: ring.bundle, back: true, set: over, foreign: ring.names},
		{name: "restore a file and nothing", args: restoreArgs, bundle: ring.bundle, back: true, foreign: []string{first},
			set: func(d *desk) error { return errors.Join(foreignFile(d, first), stagedBefore(d, ring.bundle)) }},
		{name: "restore without flags of rename", args: restoreArgs, bundle: ring.bundle, back: true, noFlags: true, foreign: []string{first},
			set: func(d *desk) error { return errors.Join(foreignFile(d, first), stagedBefore(d, ring.bundle)) }},
		{name: "restore after a killed run", args: restoreArgs, bundle: ring.older, back: true, few: true, foreign: ring.names,
			set: func(d *desk) error {
				return errors.Join(foreign(d), stagedBefore(d, ring.older), leftovers(d, first), unfiled(d, second, ring.older),
					os.WriteFile(markOf(d.dir, ring.bundle, first), nil, 0o600))
			}},
		{name: "restore links", args: restoreArgs, bundle: ring.multi, back: true, few: true, foreign: []string{first},
			set: func(d *desk) error {
				return errors.Join(foreignFile(d, first), stagedBefore(d, ring.multi, "--layout", "linked"))
			}},
		{name: "restore one of two originals", args: restoreArgs, bundle: ring.bundle, back: true, few: true, foreign: []string{first},
			set:   func(d *desk) error { return foreignTwice(d, first) },
			warns: []string{"originals of " + first + " stay in .chandler/originals; 'chandler originals' lists them"}},
		{name: "restore after a killed restore", args: restoreArgs, bundle: ring.bundle, back: true, few: true, foreign: []string{second},
			left: map[string]string{second: "is not what staging put there, and nothing is kept to put back: different ("},
			set: func(d *desk) error { // it had taken away ours, and what had come in its place
				return errors.Join(stagedBefore(d, ring.bundle), os.Rename(filepath.Join(d.dir, first), away(d.dir, first)),
					foreignFile(d, second), os.Rename(filepath.Join(d.dir, second), away(d.dir, second)))
			}},
		{name: "over two originals", args: stageArgs(ring.bundle), bundle: ring.bundle, few: true, foreign: []string{first},
			set: func(d *desk) error {
				return errors.Join(foreignTwice(d, first), asTheirs(filepath.Join(d.dir, first), []byte("#!/bin/sh\n# somebody's third\n")))
			}},
		{name: "without the lock", args: stageArgs(ring.bundle, "--lock-wait", "0s"), bundle: ring.bundle, few: true, locked: true,
			set: foreign, foreign: ring.names, warns: []string{"another staging held the lock for 0s; went on without it and cleared no leftovers"}},
		{name: "without locks", args: stageArgs(ring.bundle), bundle: ring.bundle, few: true, noLocks: true, set: foreign, foreign: ring.names,
			warns: []string{noLocks}},
		{name: "restore without locks", args: restoreArgs, bundle: ring.bundle, back: true, few: true, noLocks: true, foreign: []string{first},
			set:   func(d *desk) error { return errors.Join(foreignFile(d, first), stagedBefore(d, ring.bundle)) },
			warns: []string{noLocks}},
		{name: "nothing kept", args: stageArgs(ring.bundle, "--no-keep"), bundle: ring.bundle, few: true, dropped: true, set: foreign, foreign: ring.names},
		{name: "policy missing", args: stageArgs(ring.bundle, "--policy", "missing"), bundle: ring.bundle, few: true, foreign: []string{first},
			kept: map[string]string{first: "policy missing, different ("},
			set:  func(d *desk) error { return errors.Join(stagedBefore(d, ring.older), foreignFile(d, first)) }},
		{name: "policy newer", args: stageArgs(ring.bundle, "--policy", "newer"), bundle: ring.bundle, few: true, foreign: ring.names,
			kept: map[string]string{first: "v1.9.1 (same version, different build)", second: "v1.9.1 (same version, different build)"},
			set: func(d *desk) error {
				return errors.Join(foreignBuild(d, first), os.Symlink(first, filepath.Join(d.dir, second)))
			}},
		{name: "policy newer, unknown kept", args: stageArgs(ring.bundle, "--policy", "newer", "--unknown", "keep"), bundle: ring.bundle, few: true,
			foreign: []string{first}, kept: map[string]string{first: "unknown version, different ("},
			set: func(d *desk) error { return errors.Join(stagedBefore(d, ring.older), foreignFile(d, first)) }},
		{name: "policy never", args: stageArgs(ring.bundle, "--policy", "never"), bundle: ring.bundle, few: true, foreign: []string{first},
			kept: map[string]string{first: "policy never, different (", second: "policy never, nothing stands there"},
			set:  func(d *desk) error { return foreignFile(d, first) }},
		{name: "originals", args: originalsArgs(), bundle: ring.bundle, set: over, foreign: ring.names, judge: listed},
		{name: "originals, purged", args: originalsArgs("--purge"), bundle: ring.bundle, set: over, judge: purged, healed: purgedAll},
	}
	for _, s := range all {
		if s.judge == nil {
			s.judge, s.healed = carriedOut, healed
		}
	}
	return all
}

// prepare makes the scene once, remembers it, and runs the command with nothing wrong.
func (s *scene) prepare(d *desk) error {
	if err := errors.Join(os.RemoveAll(d.dir), os.Mkdir(d.dir, 0o755), s.set(d)); err != nil {
		return err
	}
	s.before, s.after, s.ours, s.theirs = make(map[string]thing), make(map[string]thing), make(map[string]thing), make(map[string]thing)
	s.older = make(map[string][]thing)
	for _, name := range ring.names {
		var err, err2 error
		s.before[name], err = look(filepath.Join(d.dir, name))
		s.ours[name], err2 = staged(s.bundle, name)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		s.after[name] = s.ours[name]
		if s.back {
			s.after[name] = absent
		}
		if _, ok := s.kept[name]; ok {
			s.after[name] = s.before[name]
		}
	}
	for _, name := range s.foreign {
		s.theirs[name] = s.before[name]
		files, err := setAside(d.dir, name)
		if err != nil {
			return err
		}
		var aside []thing
		for _, file := range files {
			it, err := look(file)
			if err != nil {
				return err
			}
			if ours, err := staged(ring.bundle, name); err != nil || it != ours { // which a killed run has left
				aside = append(aside, it)
			}
		}
		if s.before[name] == s.ours[name] || s.before[name] == absent {
			if len(aside) == 0 {
				return fmt.Errorf("%s: nothing of somebody's is kept", name)
			}
			s.theirs[name], aside = aside[len(aside)-1], aside[:len(aside)-1]
		}
		s.older[name] = aside
		if s.back {
			s.after[name] = s.theirs[name]
		}
	}
	var err error
	if s.tree, err = remember(d.dir); err != nil {
		return err
	}
	t := &try{desk: d, fault: fault{}}
	if err := s.command(t); err != nil {
		return err
	}
	s.calls = t.outcome.calls
	problems := s.judge(s, t)
	for _, w := range s.warns {
		if !slices.Contains(t.outcome.report.Warnings, w) {
			problems = append(problems, problem{"told", "it does not warn: " + w})
		}
	}
	if s.healed != nil {
		problems = append(problems, s.healed(s, t)...)
	}
	if len(problems) > 0 {
		return fmt.Errorf("with nothing wrong: %v\n%s", problems, t.outcome)
	}
	return nil
}

// command runs the scene's command in the directory as it is, with the try's fault.
func (s *scene) command(t *try) error {
	if s.locked {
		holder, err := os.Open(t.desk.dir)
		if err != nil {
			return err
		}
		defer holder.Close()
		if err := unix.Flock(int(holder.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return err
		}
	}
	var err error
	t.outcome, err = t.desk.run(s.decide(t.fault, &t.hits), s.args(t.desk)...)
	return err
}

// fault is what is done to one run.
type fault struct {
	name   string // of the call
	k      int    // the how-manieth of that name
	path   string // of those alone that are about such a file: the end of its path, or a part of it that ends in a hyphen; any if empty
	action tracer.Action
	errno  unix.Errno
	mode   string // once, on (every later one of that name fails as well), short, killed before, killed after
}

func (f fault) String() string {
	which := fmt.Sprintf("%s %d", f.name, f.k)
	if f.path != "" {
		which += " of " + f.path
	}
	if f.errno != 0 {
		return fmt.Sprintf("%s: %s, %s", which, unix.ErrnoName(f.errno), f.mode)
	}
	return fmt.Sprintf("%s: %s", which, f.mode)
}

// meant says whether a call is one of those that the fault counts.
func (f fault) meant(c *tracer.Call) bool {
	return c.Name == f.name && (strings.HasSuffix(c.Path, f.path) || strings.HasSuffix(f.path, "-") && strings.Contains(c.Path, f.path) ||
		strings.HasSuffix(f.path, "@") && strings.Contains(c.Path, f.path))
}

// decide carries out a fault, and adds to hits the calls that met it.
func (s *scene) decide(f fault, hits *[]tracer.Call) tracer.Decide {
	k := 0
	return func(c *tracer.Call) (tracer.Action, unix.Errno) {
		if f.meant(c) {
			k++
		}
		if f.meant(c) && (k == f.k || f.mode == "on" && k > f.k) && (f.action != tracer.Short || c.Moves()) {
			*hits = append(*hits, *c)
			return f.action, f.errno
		}
		if s.noFlags && c.Name == "renameat2" && c.Args[4] != 0 {
			return tracer.Fail, unix.EINVAL
		}
		if s.noLocks && c.Name == "flock" {
			return tracer.Fail, unix.ENOLCK
		}
		return tracer.Go, 0
	}
}

// try is one run with a fault.
type try struct {
	desk    *desk
	fault   fault
	hits    []tracer.Call // that met it
	outcome outcome
}

// met says whether the fault met a call about the file.
func (t *try) met(path string) bool {
	return slices.ContainsFunc(t.hits, func(c tracer.Call) bool { return c.Path == path })
}

// run makes the scene anew, runs the command with the fault, judges what it left, and what the next plain run makes of that.
func (s *scene) run(d *desk, f fault) (*try, []problem, error) {
	if err := s.tree.make(d.dir); err != nil {
		return nil, nil, err
	}
	t := &try{desk: d, fault: f}
	if err := s.command(t); err != nil {
		return nil, nil, err
	}
	problems := s.judge(s, t)
	if s.healed != nil {
		after := &try{desk: d, fault: f}
		var err error
		if after.outcome, err = d.run(nil, s.args(d)...); err != nil {
			return nil, nil, err
		}
		problems = append(problems, s.healed(s, after)...)
	}
	return t, problems, nil
}

// ended says how the run's end itself was wrong.
func (t *try) ended() []problem {
	o := t.outcome
	switch {
	case o.hung:
		return []problem{{"hung", "it did not end in " + patience.String()}}
	case o.signal != 0:
		return []problem{{"end", "ended by " + o.signal.String()}}
	case o.code != 0 && o.code != 1:
		return []problem{{"end", fmt.Sprintf("exit %d", o.code)}}
	case strings.Contains(o.stderr, "panic") || strings.Contains(o.stderr, "goroutine "):
		return []problem{{"end", "it panicked"}}
	}
	return nil
}

// names holds guarantees 1, 4 and 8 on what is on the disk: each name is what it was or what it is to be, what was somebody's
// is under its name or kept, and what a link points to is untouched. It returns what stands under each name.
func (s *scene) names(d *desk) (map[string]thing, []problem) {
	var problems []problem
	add := func(check, format string, args ...any) {
		problems = append(problems, problem{check, fmt.Sprintf(format, args...)})
	}
	now := make(map[string]thing)
	for _, name := range ring.names {
		it, err := look(filepath.Join(d.dir, name))
		now[name] = it
		switch before, after := s.before[name], s.after[name]; {
		case err != nil:
			add("whole", "%s: %v", name, err)
		case it == s.ours[name] && !rig.Exists(markOf(d.dir, s.bundle, name)):
			add("mark", "%s is in place, and its mark is not: it will pass for somebody's", name)
		case it == before || it == after:
		case it == absent:
			add("absent", "%s is gone; it was %s", name, before)
		default:
			add("whole", "%s is %s; it was %s, and is to be %s", name, it, before, after)
		}
	}
	for _, name := range s.foreign {
		if now[name] == s.theirs[name] {
			continue
		}
		if s.dropped && now[name] == s.ours[name] {
			if rig.Exists(away(d.dir, name)) {
				add("mark", "%s is said to have been absent, and restoring would take for right that nothing is there", name)
			}
			continue
		}
		if n, files, err := s.aside(d, name, s.theirs[name]); n != 1 || err != nil {
			add("kept", "%s was somebody's, and %d of %v are that (%v)", name, n, files, err)
		}
	}
	for name, older := range s.older {
		for _, it := range older {
			if n, files, err := s.aside(d, name, it); n != 1 || err != nil {
				add("kept", "%s: %s was kept, and %d of %v are that (%v)", name, it, n, files, err)
			}
		}
	}
	if slices.ContainsFunc(s.foreign, func(name string) bool { return s.theirs[name].target == somebody() }) {
		data, err := os.ReadFile(somebody())
		if err != nil || string(data) != somebodys {
			add("target", "what the link points to is now %q (%v)", data, err)
		}
	}
	return now, problems
}

// aside counts the files that are set aside of a name and are that thing, one of two names once: until the next run, one can have two.
func (s *scene) aside(d *desk, name string, what thing) (int, []string, error) {
	files, err := setAside(d.dir, name)
	same := make(map[uint64]bool)
	for _, file := range files {
		it, lookErr := look(file)
		err = errors.Join(err, lookErr)
		if it == what {
			same[inode(file)] = true
		}
	}
	return len(same), files, err
}

// setAside lists what lies in the folder of what stood under a name: what is kept, the oldest first, what an exchange has brought, and
// what restoring has taken away.
func setAside(dir, name string) ([]string, error) {
	files, err := kept(dir, name)
	slices.SortFunc(files, func(a, b string) int { // swap- and back- come after the numbers
		return strings.Compare(filepath.Base(a), filepath.Base(b))
	})
	if info, statErr := os.Lstat(away(dir, name)); statErr == nil && info.Size() > 0 {
		files = append(files, away(dir, name))
	}
	return files, err
}

// markOf is the file that says that a bundle's plugin in dir is of chandler's making.
func markOf(dir, bundle, name string) string {
	digest, _ := rig.Digest(filepath.Join(bundle, "bin", name))
	return filepath.Join(dir, ".chandler/staged", name+"@"+digest)
}

// unsettled is why restoring leaves a name alone of which something is still on its way. Why that is so is a warning.
const unsettled = "what an interrupted run has left could not be filed yet"

// carriedOut judges a run of stage or restore that was not killed.
func carriedOut(s *scene, t *try) []problem {
	problems := t.ended()
	add := func(check, format string, args ...any) {
		problems = append(problems, problem{check, fmt.Sprintf(format, args...)})
	}
	now, wrong := s.names(t.desk)
	problems = append(problems, wrong...)
	o, cause := t.outcome, t.fault.errno.Error()
	logged, printed := !t.met(t.desk.log), !t.met(t.desk.stdout) // the last words could be written
	counts := make(map[string]int)
	failed := make(map[string]string)
	for _, p := range o.report.Plugins {
		counts[p.Action]++
		before, after, it := s.before[p.Name], s.after[p.Name], now[p.Name]
		switch {
		case p.Action != "failed" && p.Action != "left" && it != after:
			add("report", "%s is said to be %s and is %s", p.Name, p.Action, it)
		case p.Action == "left" && (s.left[p.Name] == "" || !strings.HasPrefix(p.Cause, s.left[p.Name]) || it != after):
			add("report", "%s is %s and is said to be somebody's: %s", p.Name, it, p.Cause)
		case p.Action == "kept" && (s.kept[p.Name] == "" || !strings.HasPrefix(p.Cause, s.kept[p.Name]) && !strings.Contains(p.Cause, cause)):
			add("report", "%s is said to be kept for %q", p.Name, p.Cause)
		case s.kept[p.Name] != "" && p.Action != "kept" && p.Action != "failed", s.left[p.Name] != "" && p.Action != "left" && p.Action != "failed":
			add("report", "%s is said to be %s", p.Name, p.Action)
		case p.Action == "new" && before != absent, p.Action == "unchanged" && before != after,
			p.Action == "put back" && after == absent, p.Action == "removed" && after != absent,
			p.Action == "replaced" && (before == absent || before == after && p.Found.State != "unreadable"):
			add("report", "%s is said to be %s and was %s", p.Name, p.Action, before)
		case p.Action == "failed":
			failed[p.Name] = p.Cause
			where, stuck := strings.CutPrefix(p.Cause[strings.Index(p.Cause, ";")+1:], " what stood there lies in ")
			switch {
			case p.Cause == unsettled && slices.ContainsFunc(o.report.Warnings, func(w string) bool { return strings.Contains(w, cause) }):
				if it != before {
					add("report", "%s is said to have failed (%s) and is %s; it was %s", p.Name, p.Cause, it, before)
				}
			case !strings.Contains(p.Cause, cause):
				add("cause", "%s failed for %q, and not for %s", p.Name, p.Cause, cause)
			case s.kept[p.Name] != "" && strings.Contains(p.Cause, "in place"):
				add("report", "%s is somebody's and is said to be in place: %s", p.Name, p.Cause)
			case strings.Contains(p.Cause, "may not outlast a power cut"):
				if it != after {
					add("report", "%s is said to be done and is %s", p.Name, it)
				}
			case s.left[p.Name] != "" && it == after: // what the killed run had in its hands got its name before this one looked
			case stuck:
				if !rig.Exists(filepath.Join(t.desk.dir, where)) {
					add("report", "%s: %s: nothing lies there", p.Name, p.Cause)
				}
			case it != before:
				add("report", "%s is said to have failed (%s) and is %s; it was %s", p.Name, p.Cause, it, before)
			}
		}
	}
	last, undone := fmt.Sprintf("%d new, %d replaced, %d unchanged", counts["new"], counts["replaced"], counts["unchanged"]), "nothing was staged"
	if counts["kept"] > 0 {
		last += fmt.Sprintf(", %d kept", counts["kept"])
	}
	if s.back {
		last, undone = fmt.Sprintf("%d put back, %d removed, %d left", counts["put back"], counts["removed"], counts["left"]), "nothing was restored"
	}
	switch o.report.Outcome {
	case "staged", "restored":
		if len(o.report.Plugins) != len(ring.names) {
			add("report", "it speaks of %d plugins", len(o.report.Plugins))
		}
		if logged && !strings.HasSuffix(o.lastLine(), last) {
			add("log", "it ends with %q, and %s were", o.lastLine(), last)
		}
		for name, why := range failed {
			if text := name + ": " + why + "\n"; !strings.Contains(o.stderr, text) || logged && !strings.Contains(o.log, text) {
				add("log", "%s: %s is not in it", name, why)
			}
		}
		for _, p := range o.report.Plugins {
			if text := p.Name + ": kept: " + p.Cause + "\n"; p.Action == "kept" && logged && !strings.Contains(o.log, text) {
				add("log", "%q is not in it", text)
			}
			if p.Action == "put back" && len(s.older[p.Name]) > 0 && !slices.Contains(o.report.Warnings, s.warns[0]) {
				add("told", "nobody is told that older ones of %s stay", p.Name)
			}
		}
	case "refused":
		for name, it := range now {
			if it != s.before[name] && !(s.left[name] != "" && it == s.after[name]) {
				add("report", "%s is said, and %s is %s", undone, name, it)
			}
		}
		if !strings.HasSuffix(o.report.Message, "; "+undone) || !strings.Contains(o.report.Message, cause) {
			add("cause", "it says %q, and nothing of %s", o.report.Message, cause)
		}
		if text := o.report.Message + "\n"; !strings.HasSuffix(o.stderr, text) || logged && !strings.HasSuffix(o.log, text) {
			add("log", "%q is not its end", text)
		}
	default:
		if printed {
			add("report", "there is none: %v", o.torn)
		}
	}
	// A lost result and a directory that cannot be used fail the command; nothing else does.
	if (o.code == 1) != (!printed && o.torn != nil || strings.HasPrefix(o.report.Message, "bin dir ")) {
		add("exit", "it is %d", o.code)
	}
	if o.torn != nil && !t.met(t.desk.stderr) && !strings.Contains(o.stderr, "the result could not be written: ") {
		add("told", "nobody is told that the result is lost")
	}
	if o.torn == nil && !strings.HasSuffix(o.lastLine(), last) && !strings.HasSuffix(o.lastLine(), undone) && !t.met(t.desk.stderr) &&
		!strings.Contains(o.stderr, "termination log: ") {
		add("told", "nobody is told that the termination log is not written")
	}
	unexpected := 0
	for _, w := range o.report.Warnings {
		if slices.Contains(s.warns, w) {
			continue
		}
		unexpected++
		if names, ok := strings.CutPrefix(w, "originals of "); ok { // one that could not be read is kept, and may be ours
			names, _, _ = strings.Cut(names, " stay in ")
			for _, name := range strings.Split(names, ", ") {
				if files, err := kept(t.desk.dir, name); len(files) == 0 || len(failed) == 0 || err != nil {
					add("report", "it warns %q, and kept are %v (%v)", w, files, err)
				}
			}
		} else if !strings.Contains(w, cause) {
			add("cause", "it warns %q, and not of %s", w, cause)
		}
		if text := "warning: " + w + "\n"; !strings.Contains(o.stderr, text) || logged && !strings.Contains(o.log, text) {
			add("log", "%q is not in it", text)
		}
	}
	if len(s.kept) == len(ring.names) && rig.Exists(filepath.Join(t.desk.dir, ".chandler")) {
		add("whole", "it has made a folder, for nothing")
	}
	if o.torn == nil && len(failed) == 0 && unexpected == 0 && o.report.Outcome != "refused" {
		for _, c := range t.hits {
			if t.fault.mustBeTold(c, t.desk) && !strings.Contains(o.stderr, cause) {
				add("told", "nobody is told of %s", c)
				break
			}
		}
		left, err := s.litter(t.desk.dir)
		if s.noFlags { // a name that is published by a link and a removal can keep its old one, until the next run
			left = slices.DeleteFunc(left, func(path string) bool { return s.back || strings.Contains(path, "/swap-") })
		}
		if len(left) > 0 || err != nil {
			add("told", "nobody is told of %v (%v)", left, err)
		}
	}
	return problems
}

// mustBeTold says whether a failure of this call may not be passed over, whatever came of it. Others may, where the outcome is
// right all the same: a look that is only for telling, a descriptor that was only read, an interrupted call that was made again,
// a file that did not fit and was written again once there was room.
func (f fault) mustBeTold(c tracer.Call, d *desk) bool {
	room := f.errno == unix.ENOSPC || f.errno == unix.EDQUOT
	if f.errno == 0 || f.errno == unix.EINTR || room && f.mode == "once" && c.Path != d.dir && c.Path != d.log && c.Path != d.stdout {
		return false
	}
	ours := strings.HasPrefix(c.Path, d.dir)
	switch c.Name {
	case "linkat":
		return ours && !room // the file is written where it could not be linked
	case "write", "pwrite64", "ftruncate", "fchmod", "fchmodat", "mkdirat", "renameat", "renameat2", "symlinkat", "fsync", "fdatasync", "execve":
		return ours || c.Path == d.stdout || c.Path == d.log || c.Name == "execve"
	case "openat":
		return ours && c.Args[2]&unix.O_CREAT != 0
	case "close":
		return ours && c.Wrote
	}
	return false
}

// reads says whether the call that failed is one by which staging finds out what a file is.
func (f fault) reads() bool {
	return slices.Contains([]string{"openat", "read", "fstat", "newfstatat"}, f.name)
}

// litter lists what lies in the directory and is not to once the scene's command has come to its end.
func (s *scene) litter(dir string) ([]string, error) {
	store := filepath.Join(dir, ".chandler")
	switch {
	case s.back && len(s.older) > 0: // older originals stay, and no mark
		left, err := rig.Litter(dir, ring.names)
		marks, globErr := filepath.Glob(filepath.Join(store, "staged/*"))
		return append(left, marks...), errors.Join(err, globErr)
	case s.back && rig.Exists(store):
		return []string{store}, nil
	}
	return rig.Litter(dir, ring.names)
}

// healed judges the next plain run: everything is right, nothing is left over, and what was somebody's is kept once.
func healed(s *scene, t *try) []problem {
	var problems []problem
	add := func(format string, args ...any) {
		problems = append(problems, problem{"healed", fmt.Sprintf(format, args...)})
	}
	now, wrong := s.names(t.desk)
	o := t.outcome
	warned := slices.ContainsFunc(o.report.Warnings, func(w string) bool { return !slices.Contains(s.warns, w) })
	if len(t.ended()) > 0 || o.code != 0 || o.report.Outcome != "staged" && o.report.Outcome != "restored" || strings.Contains(o.log, "failed") || warned {
		add("the next run: %s", o)
	}
	for _, p := range wrong {
		add("%s", p)
	}
	for name, it := range now {
		if it != s.after[name] {
			add("%s is %s", name, it)
		}
		files, err := kept(t.desk.dir, name)
		want := len(s.older[name])
		if slices.Contains(s.foreign, name) && !s.back && s.kept[name] == "" && !s.dropped {
			want++
		}
		// What could not be shown to be ours when it was replaced is kept; so is what could not be dropped.
		more := t.fault.reads() && !s.back && s.kept[name] == "" || s.dropped && t.fault.name != "" && slices.Contains(s.foreign, name)
		if len(files) < want || len(files) > want && !more || err != nil {
			add("%s: kept are %v, and %d are somebody's (%v)", name, files, want, err)
		}
	}
	if left, err := s.litter(t.desk.dir); len(left) > 0 || err != nil {
		add("left over: %v (%v)", left, err)
	}
	return problems
}

// verified judges a run of verify: it never calls right what is not or could not be read, and changes nothing.
func verified(s *scene, t *try) []problem {
	problems := t.ended()
	add := func(check, format string, args ...any) {
		problems = append(problems, problem{check, fmt.Sprintf(format, args...)})
	}
	now, wrong := s.names(t.desk)
	problems = append(problems, wrong...)
	o, cause := t.outcome, t.fault.errno.Error()
	right := true
	for name, it := range now {
		if it != s.before[name] {
			add("whole", "%s was changed to %s", name, it)
		}
		right = right && it == s.after[name]
	}
	for _, p := range o.report.Plugins {
		switch is := now[p.Name] == s.after[p.Name]; {
		case p.OK && !is:
			add("report", "%s is said to be right and is %s", p.Name, now[p.Name])
		case !p.OK && is && !strings.Contains(p.Cause, cause):
			add("cause", "%s is right and said to be wrong: %s", p.Name, p.Cause)
		case !p.OK && p.Cause == "":
			add("report", "%s is said to be wrong, and not why", p.Name)
		}
		right = right && p.OK
	}
	if len(o.report.Plugins) == 0 && !t.met(t.desk.stderr) && !strings.Contains(o.stderr, cause) {
		add("told", "nobody is told why there is no result")
	}
	if (o.code == 0) != (right && len(o.report.Plugins) == len(ring.names)) && !(o.code == 1 && (t.met(t.desk.stderr) || strings.Contains(o.stderr, cause))) {
		add("exit", "it is %d", o.code)
	}
	return problems
}

// listed judges a run of originals: it names all that is kept, or fails, and changes nothing.
func listed(s *scene, t *try) []problem {
	problems := t.ended()
	add := func(check, format string, args ...any) {
		problems = append(problems, problem{check, fmt.Sprintf(format, args...)})
	}
	now, wrong := s.names(t.desk)
	problems = append(problems, wrong...)
	for name, it := range now {
		if it != s.before[name] {
			add("whole", "%s was changed to %s", name, it)
		}
	}
	o := t.outcome
	if o.code == 0 && len(o.report.Originals) != len(s.foreign) {
		add("report", "it lists %d of %d", len(o.report.Originals), len(s.foreign))
	}
	if o.code != 0 && !t.met(t.desk.stderr) && !strings.Contains(o.stderr, t.fault.errno.Error()) {
		add("told", "nobody is told why")
	}
	return problems
}

// purged judges a run of originals --purge: what it names is gone, and what it does not is there.
func purged(s *scene, t *try) []problem {
	problems := t.ended()
	add := func(check, format string, args ...any) {
		problems = append(problems, problem{check, fmt.Sprintf(format, args...)})
	}
	o := t.outcome
	for _, name := range ring.names {
		if it, err := look(filepath.Join(t.desk.dir, name)); err != nil || it != s.before[name] {
			add("whole", "%s was changed to %s (%v)", name, it, err)
		}
		if !rig.Exists(markOf(t.desk.dir, s.bundle, name)) {
			add("mark", "%s has lost its mark", name)
		}
		files, err := kept(t.desk.dir, name)
		said := slices.ContainsFunc(o.report.Originals, func(r rig.Result) bool { return r.Name == name })
		if o.torn == nil && said == (len(files) > 0) || err != nil {
			add("report", "%s: kept are %v, and it is said to be dropped: %v (%v)", name, files, said, err)
		}
		if o.code == 0 && len(files) > 0 {
			add("exit", "it is 0, and %v is there", files)
		}
	}
	if o.code != 0 && !t.met(t.desk.stderr) && !strings.Contains(o.stderr, t.fault.errno.Error()) {
		add("told", "nobody is told why")
	}
	return problems
}

func purgedAll(s *scene, t *try) []problem {
	var problems []problem
	files, err := filepath.Glob(filepath.Join(t.desk.dir, ".chandler/originals/*/*"))
	if t.outcome.code != 0 || len(files) > 0 || err != nil {
		problems = append(problems, problem{"healed", fmt.Sprintf("left are %v (%v); %s", files, err, t.outcome)})
	}
	if left, err := rig.Litter(t.desk.dir, ring.names); len(left) > 0 || err != nil {
		problems = append(problems, problem{"healed", fmt.Sprintf("left over: %v (%v)", left, err)})
	}
	return problems
}
