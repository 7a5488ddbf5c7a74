//go:build faults

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

// standing is what stands under one name before the run whose power is cut.
type standing struct {
	old  rig.Identity   // the zero value if there is nothing
	keep []rig.Identity // what was somebody else's, and may not be lost: under the name, or among the originals
	may  []rig.Identity // originals that the run may remove, being more than three
}

// scenario is a run whose power is cut.
type scenario struct {
	name    string
	full    bool // only if every cut is to be examined
	bundle  string
	names   []string
	prepare func(t *testing.T, dir string) map[string]standing
	synced  bool // what another program put there is synced by itself alone, a moment before the run
	beside  bool // another program syncs small writes to the same disk all the time, and with them whatever has been done by then
	restore bool // what is cut is the restoring of what was staged
	args    []string

	left []string // what lies in the directory after a run that is not cut
}

var scenarios = []scenario{
	{name: "fresh", bundle: "few", names: fewNames, prepare: nothing, args: []string{"--create"}},
	{name: "update", bundle: "few", names: fewNames, prepare: mixture},
	{name: "update of what was just written", bundle: "few", names: fewNames, prepare: mixture, synced: true},
	{name: "update beside a program that syncs", bundle: "few", names: fewNames, prepare: mixture, beside: true},
	{name: "one file under all names", bundle: "linked", names: linkedNames, prepare: older},
	{name: "restore", bundle: "few", names: fewNames, prepare: mixture, restore: true},
	{name: "restore beside a program that syncs", bundle: "few", names: fewNames, prepare: mixture, restore: true, beside: true},
	{name: "one file linked to all names", full: true, bundle: "linked", names: linkedNames, prepare: older, args: []string{"--layout", "linked"}},
}

// nothing is a node where nobody has made the directory yet.
func nothing(*testing.T, string) map[string]standing { return nil }

// older is somebody else's older file under each name.
func older(t *testing.T, dir string) map[string]standing {
	before := make(map[string]standing)
	for _, name := range linkedNames {
		rig.Place(t, rig.Separate, rig.Mkdir(t, dir), name)
		before[name] = theirs(t, dir, name)
	}
	return before
}

// mixture is all that an update meets: our own older file, somebody's file and somebody's link in the place of it, nothing
// at all, and a fourth original where three are kept.
func mixture(t *testing.T, dir string) map[string]standing {
	at := func(name string) string { return filepath.Join(rig.Mkdir(t, dir), name) }
	put := func(name, text string) {
		rig.Write(t, at(name+".new"), text, 0o755)
		rig.Must(t, os.Rename(at(name+".new"), at(name)))
	}
	fourth := standing{}
	for i := range 3 {
		put("vrf", fmt.Sprintf("#!/bin/sh\n# the foreign file %d\n", i))
		id := rig.Identify(t, at("vrf"))
		if i == 0 {
			fourth.may = append(fourth.may, id)
		} else {
			fourth.keep = append(fourth.keep, id)
		}
		if o := rig.Stage(t, ring.fewOlder, dir); o.Code != 0 || len(o.Failed()) > 0 {
			t.Fatal(o.Stderr)
		}
	}
	put("vrf", "#!/bin/sh\n# the foreign file 3\n")
	put("sbr", rig.Read(t, filepath.Join(rig.Separate, "bin/bridge")))
	rig.Must(t,
		unix.Setxattr(at("sbr"), "user.ring", []byte("theirs"), 0),
		os.Chown(at("sbr"), 100, 200),
		syscall.Chmod(at("sbr"), 0o6711),
		os.Chtimes(at("sbr"), time.Unix(1e9, 1), time.Unix(1e9, 2)),
		os.Remove(at("static")),
		os.Symlink("../lib/cni", at("static")),
		os.Remove(at("tuning")),
	)
	fourth.keep = append(fourth.keep, rig.Identify(t, at("vrf")))
	fourth.old = rig.Identify(t, at("vrf"))
	return map[string]standing{
		"host-local": {old: rig.Identify(t, at("host-local"))},
		"sbr":        theirs(t, dir, "sbr"),
		"static":     theirs(t, dir, "static"),
		"vrf":        fourth,
	}
}

func theirs(t *testing.T, dir, name string) standing {
	id := rig.Identify(t, filepath.Join(dir, name))
	return standing{old: id, keep: []rig.Identity{id}}
}

// Guarantees 1, 3 and 8 after a power cut, at any instant of what the disk was told. The disk is rebuilt as the cut has left it,
// which is up to it where it had not been told to flush; its file system comes up, and what was under a name is under it, whole,
// or the new file is; what was reported as staged is there; what was somebody else's is there or among the originals; and the
// next run puts everything right.
func TestPowerIsCut(t *testing.T) {
	total := make(map[string]int)
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		for _, s := range scenarios {
			if s.full && !ring.full {
				continue
			}
			t.Run(kind+"/"+s.name, func(t *testing.T) { s.cut(t, kind, total) })
		}
	}
	if !t.Failed() && (total["new"] == 0 || total["old"] == 0 || total["absent"] == 0) {
		t.Errorf("no cut came in the middle of anything, %v: this shows nothing", total)
	}
}

const binDir = "opt/cni/bin"

// The disk dies at one of its flushes: what is reported as staged, or as restored, is on it all the same, and the rest holds as
// after a cut.
func TestDiskDies(t *testing.T) {
	lot := rand.New(rand.NewPCG(ring.seed, 0))
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		flushes := []int{1, 2 + lot.IntN(8), 10 + lot.IntN(8), 99}
		if ring.full {
			flushes = nil
			for n := range 32 {
				flushes = append(flushes, n+1)
			}
			flushes = append(flushes, 99)
		}
		for _, n := range flushes {
			for _, s := range scenarios {
				if s.name == "update" || s.name == "restore" {
					t.Run(fmt.Sprintf("%s/%s, at flush %d", kind, s.name, n), func(t *testing.T) { s.die(t, kind, n) })
				}
			}
		}
	}
}

func (s scenario) die(t *testing.T, kind string, n int) {
	d := newDisk(t, sizes[kind])
	d.format(kind)
	dir, run := filepath.Join(d.at, binDir), rig.Call{Bundle: ring.few}
	before := s.prepare(t, dir)
	examine := s.examine
	if s.restore {
		rig.Stage(t, ring.few, dir).Counts(t, 1, 4, 0, 0)
		run, examine = rig.Call{Verb: "restore"}, s.examineRestored
	}
	d.sync()
	d.ask("Begin", false, new(bool))
	d.ask("Die", n, new(bool))
	run.Dir = dir
	o := run.Run(t)
	if o.Code != 0 || o.Report.Outcome == "refused" {
		t.Fatalf("exit %d: %s", o.Code, o.Stderr)
	}
	var reported []string
	for _, p := range o.Report.Plugins {
		if p.Action != "failed" {
			reported = append(reported, p.Name)
		}
	}
	if n == 1 && len(reported) > 0 || n == 99 && len(reported) != len(s.names) {
		t.Errorf("reported as done: %v; %s", reported, o.Stderr)
	}
	var log []Step
	d.ask("Log", false, &log)
	d.unmount()
	d.ask("Cut", Cut{At: len(log), Lose: 1}, new(int))
	d.mount("cut")
	if err := examine(t, dir, ring.few, before, reported, make(map[string]int)); err != nil {
		t.Errorf("reported as done: %v; %v\n%s", reported, err, o.Stderr)
	}
}

func (s scenario) cut(t *testing.T, kind string, total map[string]int) {
	bundle := map[string]string{"few": ring.few, "linked": ring.linked}[s.bundle]
	d := newDisk(t, sizes[kind])
	d.format(kind)
	dir := filepath.Join(d.at, binDir)
	before := s.prepare(t, dir)
	run := rig.Call{Bundle: bundle, Dir: dir, Args: s.args}
	if s.restore {
		rig.Stage(t, bundle, dir).Counts(t, 1, 4, 0, 0)
		run = rig.Call{Verb: "restore", Dir: dir, Args: s.args}
	}
	d.sync()
	if s.synced {
		s.rewrite(t, dir, before)
	}
	d.ask("Begin", false, new(bool))
	stop := func() {}
	if s.beside {
		// Each rename takes so long that the other program syncs what was done by then.
		run.Wrap = []string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2", "-e", "inject=renameat2:delay_exit=5ms"}
		stop = appending(t, filepath.Join(d.at, "wal"))
	}
	o := run.Run(t)
	d.mark("reported")
	stop()
	if o.Code != 0 || len(o.Failed()) > 0 || len(s.unexpected(o)) > 0 {
		t.Fatalf("exit %d: %s", o.Code, o.Stderr)
	}
	if s.restore {
		s.left = namesBelow(t, dir)
	}
	d.sync() // what the kernel would have written later
	var log []Step
	d.ask("Log", false, &log)
	d.unmount()

	most := 14
	if ring.full {
		most = 300
	}
	cuts := cutsOf(log, most)
	seen := make(map[string]int)
	reported := map[bool][]string{true: s.names}
	for _, c := range cuts {
		var lost int
		d.ask("Cut", c.Cut, &lost)
		d.mount("cut")
		examine := s.examine
		if s.restore {
			examine = s.examineRestored
		}
		if err := examine(t, dir, bundle, before, reported[c.reported], seen); err != nil {
			t.Errorf("the power is cut after %d of %d steps (%s), %d pieces are lost (%+v): %v", c.At, len(log), c.where, lost, c.Cut, err)
		}
		d.unmount()
		if t.Failed() {
			t.Fatalf("the log: %s", describe(log))
		}
	}
	examined.add(kind, len(cuts))
	t.Logf("%d cuts in %s; they left %v", len(cuts), describe(log), seen)
	for state, n := range seen {
		total[state] += n
	}
}

// rewrite has another program put its files there once more, and sync them and the directory.
func (s scenario) rewrite(t *testing.T, dir string, before map[string]standing) {
	sync := func(path string) {
		f, err := os.Open(path)
		rig.Must(t, err)
		defer f.Close()
		rig.Must(t, f.Sync())
	}
	for name, b := range before {
		if b.old.Kind != "file" || len(b.keep) == 0 {
			continue
		}
		path := filepath.Join(dir, name)
		rig.Write(t, path+".new", "#!/bin/sh\n# theirs, "+name+"\n", 0o755)
		sync(path + ".new")
		rig.Must(t, os.Rename(path+".new", path))
		b.old = rig.Identify(t, path)
		b.keep[len(b.keep)-1] = b.old
		before[name] = b
	}
	sync(dir)
}

// appending appends to a file and syncs it until it is told to stop, as a database's log is written.
func appending(t testing.TB, path string) (stop func()) {
	f, err := os.Create(path)
	rig.Must(t, err)
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		defer f.Close()
		for block := make([]byte, 8<<10); !done.Load(); {
			if _, err := f.Write(block); err != nil {
				t.Error(err)
				return
			}
			if err := unix.Fdatasync(int(f.Fd())); err != nil {
				t.Error(err)
				return
			}
		}
	})
	return func() { done.Store(true); wg.Wait() }
}

type placedCut struct {
	Cut
	where    string
	reported bool
}

// cutsOf chooses where to cut: at each flush; between two flushes with all that was written by then and with parts of it
// lost; and after the report. Of too many, it draws some by lot.
func cutsOf(log []Step, most int) (cuts []placedCut) {
	lot := rand.New(rand.NewPCG(ring.seed, uint64(len(log))))
	reported := slices.IndexFunc(log, func(s Step) bool { return s.Mark == "reported" })
	add := func(where string, at int, lose float64) {
		cuts = append(cuts, placedCut{Cut{at, lose, lot.Uint64()}, where, at > reported})
	}
	var must []placedCut
	last := 0 // the end of the last flush
	for i := range len(log) + 1 {
		if i < len(log) && !log[i].Flush && i != reported {
			continue
		}
		n := i - last // writes that no flush has confirmed
		for _, at := range slices.Compact([]int{last + n/4, last + n/2, last + 3*n/4}) {
			if at > last && at < i {
				add("all that was written is there", at, 0)
				add("half of it is lost", at, 0.5)
			}
		}
		if n > 0 {
			add("all that was written is there", i, 0)
			for _, lose := range []float64{0.1, 0.5, 0.5, 0.9} {
				add(fmt.Sprintf("before a flush, %v is lost", lose), i, lose)
			}
		}
		switch {
		case i == reported:
			n := len(cuts)
			add("after the report", i+1, 1)
			add("after the report", i+1, 0.5)
			must, cuts = slices.Clone(cuts[n:]), cuts[:n]
		case i < len(log):
			add("at a flush", i+1, 1)
			last = i + 1
		}
	}
	if len(cuts) > most {
		lot.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
		cuts = cuts[:most]
	}
	cuts = append(cuts, must...)
	slices.SortStableFunc(cuts, func(a, b placedCut) int { return a.At - b.At })
	return cuts
}

func describe(log []Step) string {
	var writes, flushes, pieces, reported int
	for i, s := range log {
		switch {
		case s.Mark != "":
			reported = i
		case s.Flush:
			flushes++
		default:
			writes++
			pieces += s.Pieces
		}
	}
	return fmt.Sprintf("%d writes of %d pages and %d flushes, reported after %d steps", writes, pieces, flushes, reported)
}

// examine looks at what a cut has left of a run that had reported some names as staged, stages once more, and looks again.
func (s scenario) examine(t *testing.T, dir, bundle string, before map[string]standing, reported []string, seen map[string]int) error {
	for _, name := range s.names {
		b, path := before[name], filepath.Join(dir, name)
		id, err := rig.IdentityOf(path)
		state := "neither the old file nor the new one"
		switch {
		case errors.Is(err, fs.ErrNotExist):
			state = "absent"
		case err != nil:
			return err
		case id == b.old:
			state = "old"
		case rig.WrongAs(bundle, dir, name) == "":
			state = "new"
		}
		seen[state]++
		if state == "absent" && b.old != (rig.Identity{}) || !slices.Contains([]string{"absent", "old", "new"}, state) {
			return fmt.Errorf("%s is %s: %+v (%v, %s)", name, state, id, err, rig.WrongAs(bundle, dir, name))
		}
		if slices.Contains(reported, name) && state != "new" {
			return fmt.Errorf("%s was reported as staged and is %s", name, state)
		}
		has, err := kept(t, dir, name)
		if err != nil {
			return err
		}
		if len(has) > 0 && state == "old" {
			seen["being exchanged"]++
		}
		for _, want := range b.keep {
			if id != want && !slices.Contains(has, want) {
				return fmt.Errorf("of %s this is lost: %+v; there is %+v", name, want, has)
			}
		}
	}
	o := rig.Stage(t, bundle, dir, s.args...)
	if o.Code != 0 || len(o.Failed()) > 0 || len(s.unexpected(o)) > 0 {
		return fmt.Errorf("the next run: exit %d: %s", o.Code, o.Stderr)
	}
	for _, name := range s.names {
		if w := rig.WrongAs(bundle, dir, name); w != "" {
			return fmt.Errorf("after the next run: %s", w)
		}
		has, err := kept(t, dir, name)
		if err != nil {
			return err
		}
		b := before[name]
		for _, id := range has {
			if !slices.Contains(b.keep, id) && !slices.Contains(b.may, id) {
				return fmt.Errorf("the next run kept what was nobody's of %s: %+v", name, id)
			}
		}
		for _, want := range b.keep {
			if !slices.Contains(has, want) {
				return fmt.Errorf("the next run lost of %s: %+v", name, want)
			}
		}
		// The cut may bring back one that was removed. It goes when there is a next one.
		if len(has) > len(b.keep)+len(b.may) {
			return fmt.Errorf("of %s %d originals are kept", name, len(has))
		}
	}
	if left, err := rig.Litter(dir, s.names); len(left) > 0 || err != nil {
		return fmt.Errorf("the next run left %v (%v)", left, err)
	}
	return nil
}

// examineRestored does the same where it is the restoring that was cut: a name is our file, whole, or what stood there before
// staging came, the very file.
func (s scenario) examineRestored(t *testing.T, dir, _ string, before map[string]standing, reported []string, seen map[string]int) error {
	original := func(name string) rig.Identity { // the newest of somebody else's
		if keep := before[name].keep; len(keep) > 0 {
			return keep[len(keep)-1]
		}
		return rig.Identity{}
	}
	for _, name := range s.names {
		id, err := rig.IdentityOf(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		state := "neither the original nor ours"
		switch {
		case id == original(name):
			state = "back"
		case rig.WrongAs(ring.few, dir, name) == "":
			state = "old"
		}
		seen[state]++
		if state != "back" && state != "old" || slices.Contains(reported, name) && state != "back" {
			return fmt.Errorf("%s is %s: %+v (%s); reported %v", name, state, id, rig.WrongAs(ring.few, dir, name), reported)
		}
		has, err := kept(t, dir, name)
		if err != nil {
			return err
		}
		if want := original(name); state == "old" && want != (rig.Identity{}) && !slices.Contains(has, want) {
			return fmt.Errorf("of %s this is lost: %+v; there is %+v", name, want, has)
		}
	}
	o := rig.Restore(t, dir, s.args...)
	if o.Code != 0 || len(o.Failed()) > 0 || len(s.unexpected(o)) > 0 {
		return fmt.Errorf("the next run: exit %d: %s", o.Code, o.Stderr)
	}
	for _, name := range s.names {
		id, err := rig.IdentityOf(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) || id != original(name) {
			return fmt.Errorf("the next run left %s as %+v (%v), want %+v", name, id, err, original(name))
		}
		// The older ones that nothing is to become of are somebody's all the same.
		has, err := kept(t, dir, name)
		if err != nil {
			return err
		}
		for _, want := range before[name].keep {
			if want != original(name) && !slices.Contains(has, want) {
				return fmt.Errorf("the next run lost of %s: %+v", name, want)
			}
		}
	}
	if left := namesBelow(t, dir); s.left != nil && !slices.Equal(left, s.left) {
		return fmt.Errorf("the next run left %v, want %v", left, s.left)
	}
	return nil
}

func namesBelow(t *testing.T, dir string) []string {
	return slices.Sorted(maps.Keys(rig.Tree(t, dir)))
}

// unexpected are a run's warnings, but for what is true of a name that somebody else has had four files under.
func (s scenario) unexpected(o rig.Outcome) []string {
	return slices.DeleteFunc(o.Report.Warnings, func(w string) bool {
		return s.restore && strings.HasPrefix(w, "originals of vrf stay in ") || strings.HasPrefix(w, "vrf: contended: ")
	})
}

// kept identifies what lies among a name's originals, also in the middle of an exchange.
func kept(t *testing.T, dir, name string) (ids []rig.Identity, err error) {
	for _, path := range rig.Originals(t, dir, name) {
		id, err := rig.IdentityOf(path)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// tally counts the cuts that were examined of each file system.
type tally struct {
	mu sync.Mutex
	by map[string]int
}

var examined tally

func (e *tally) add(kind string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.by == nil {
		e.by = make(map[string]int)
	}
	e.by[kind] += n
}

func (e *tally) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var text []string
	for _, kind := range slices.Sorted(maps.Keys(e.by)) {
		text = append(text, fmt.Sprintf("%d on %s", e.by[kind], kind))
	}
	if len(text) == 0 {
		return ""
	}
	return "power cuts examined: " + strings.Join(text, ", ")
}
