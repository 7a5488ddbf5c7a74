//go:build faults

package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/faults/tracer"
)

// errnos are what a call fails with. Not every file system gives each of them for each call; a program that can be trusted
// does not depend on that.
var errnos = []unix.Errno{unix.ENOSPC, unix.EIO, unix.EROFS, unix.EACCES, unix.EPERM, unix.EDQUOT, unix.EMFILE, unix.ENOMEM,
	unix.EINTR, unix.ETXTBSY, unix.EXDEV, unix.ESTALE}

// Every file system call of the shipped program fails, with every errno, and is cut short where it moves bytes. In the sampled
// mode every call of a scene does, but those of long rows, and every kind of call with every errno. What the directory then
// shows, what the program said of it, and what the next run makes of it are held to the guarantees.
func TestEverySystemCallFails(t *testing.T) {
	var met coverage
	ring.reported = append(ring.reported, met.String)
	all := scenes()
	d := newTestDesk(t, ring.chandler)
	for _, s := range all {
		if err := s.prepare(d); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
	}
	// Drawn for all of them, whichever are asked for: then a seed draws the same for each.
	draw, drawn, ran := newLottery(all), make(map[string][]fault), 0
	for _, s := range all {
		if ring.full {
			drawn[s.name] = s.every()
		} else {
			drawn[s.name] = draw.faults(s)
		}
	}
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			ran++
			known := s.known(t)
			faults := append(known, drawn[s.name]...)
			unmet := make([]bool, len(faults))
			inParallel(t, len(faults), func(d *desk, i int) error {
				try, problems, err := s.run(d, faults[i])
				if err != nil {
					return err
				}
				met.add(try)
				unmet[i] = len(try.hits) == 0
				if len(problems) > 0 {
					t.Errorf("%s\n%v\n%s\n%s", faults[i], try.hits, list(problems), try.outcome)
				}
				return nil
			})
			t.Logf("%d calls, %d faults", len(s.calls), len(faults))
			holdMet(t, faults, unmet, len(known))
		})
	}
	if ran < len(all) {
		return // not all of them were asked for
	}
	// A pair that was never met is a hole in the matrix.
	for _, name := range slices.Sorted(maps.Keys(met.names)) {
		for _, errno := range errnos {
			if !answers(name, errno) && !met.triples[triple{name, errno, "once"}] {
				t.Errorf("%s never failed with %s", name, unix.ErrnoName(errno))
			}
		}
	}
}

// holdMet says which faults met no call: whoever is to be held to what it makes of them was not. The first ones, of which each is
// there for a reason, have to be met; of the others a few may come too late, since two threads share what is counted, and a run does
// not always make as many calls.
func holdMet(t *testing.T, faults []fault, unmet []bool, known int) {
	t.Helper()
	missed := 0
	for i, f := range faults {
		switch {
		case !unmet[i]:
		case i < known:
			t.Errorf("%s met no call", f)
		default:
			missed++
			t.Logf("%s met no call", f)
		}
	}
	if missed*20 > len(faults) {
		t.Errorf("%d of %d faults met no call", missed, len(faults))
	}
}

func list(problems []problem) string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, "  "+p.String())
	}
	return strings.Join(lines, "\n")
}

// known are faults that once showed a defect: they are met in every run.
func (s *scene) known(t *testing.T) []fault {
	t.Helper()
	table := []struct {
		scene, call, path string // the end of the path, or a part of it that ends in a hyphen
		errno             unix.Errno
		mode              string
	}{
		// What could not be looked at was written all the same, once there was room, and said to have failed.
		{"over somebody's", "newfstatat", "/bin/tuning", unix.ENOSPC, "once"},
		{"over somebody's", "readlinkat", "/bin/tuning", unix.EDQUOT, "once"},
		// What was in place already was tried again, and said not to be.
		{"over somebody's", "newfstatat", "/swap-", unix.ENOSPC, "once"},
		// What was published and kept its old name too was said to have failed.
		{"without flags of rename", "unlinkat", "/static", unix.EIO, "once"},
		// What had been filed was filed again.
		{"without flags of rename", "unlinkat", "/swap-", unix.EACCES, "once"},
		// What is ours and could not be read was taken for somebody's.
		{"restore somebody's", "openat", "/bin/static", unix.EIO, "once"},
		{"restore a file and nothing", "fstat", "/tuning@absent", unix.EIO, "once"},
		{"restore somebody's", "fstat", "/back-", unix.EIO, "once"},
		{"restore somebody's", "newfstatat", "/back-", unix.EPERM, "once"},
		// What had been taken away was said to stay.
		{"restore a file and nothing", "newfstatat", "/tuning@absent", unix.EPERM, "once"},
		// What stayed of the folder was not told of, and never taken away.
		{"restore somebody's", "getdents64", "/.chandler/staged", unix.EPERM, "once"},
		{"restore somebody's", "unlinkat", "/ledger.json", unix.EIO, "once"},
		{"restore a file and nothing", "unlinkat", "/originals/static", unix.EIO, "once"},
		{"restore without flags of rename", "unlinkat", "/done-", unix.EIO, "once"},
		// A mark that could not be removed stayed for ever, and would have brought back an older original.
		{"restore one of two originals", "unlinkat", "/static@", unix.ESTALE, "once"},
		// That an earlier run's leftovers stay was told once more, and not of what.
		{"restore after a killed run", "getdents64", "/.chandler/tmp", unix.EPERM, "once"},
		// A folder of originals that could not be looked into was said to be somebody's.
		{"restore one of two originals", "openat", "/originals/static", unix.EIO, "once"},
		// Nobody was told that the folder stays, since the directory could not be synced and every name was left.
		{"restore after a killed restore", "fsync", "desk/bin", unix.EIO, "once"},
		// What the policy would have kept was replaced, since its version could not be read.
		{"policy newer", "openat", "desk/bin/static", unix.EMFILE, "once"},
		{"policy newer", "pread64", "desk/bin/static", unix.EIO, "once"},
		{"policy newer", "newfstatat", "desk/bin/static", unix.ENOMEM, "once"},
		// What is ours and could not be read was kept as somebody's.
		{"policy missing", "openat", "desk/bin/tuning", unix.EIO, "once"},
		{"policy missing", "newfstatat", "desk/bin/tuning", unix.EIO, "once"},
		{"policy missing", "openat", "/.chandler/staged", unix.EIO, "once"},
		{"policy newer, unknown kept", "openat", "desk/bin/tuning", unix.EIO, "once"},
		{"policy newer, unknown kept", "fstat", "desk/bin/tuning", unix.ENOMEM, "once"},
		// What the policy keeps was said to be in place, and that it may not outlast a power cut.
		{"policy never", "fsync", "desk/bin", unix.EIO, "once"},
	}
	var known []fault
	for _, row := range table {
		if row.scene != s.name {
			continue
		}
		// Counted by file: which of two files is the first is the threads' to say.
		n := 0
		for _, c := range s.calls {
			if f := (fault{name: row.call, path: row.path}); f.meant(&c) {
				n++
				f = failing(row.call, n, row.errno, row.mode)
				f.path = row.path
				known = append(known, f)
			}
		}
		if n == 0 {
			t.Errorf("no %s of %s any more: find out what has become of it", row.call, row.path)
		}
	}
	return known
}

// answers says whether the errno is not that the call failed but what it has to say: that a link leads out of the directory.
func answers(name string, errno unix.Errno) bool { return name == "openat2" && errno == unix.EXDEV }

func failing(name string, k int, errno unix.Errno, mode string) fault {
	return fault{name: name, k: k, action: tracer.Fail, errno: errno, mode: mode}
}

// every lists all that can be done to the scene's command.
func (s *scene) every() []fault {
	var all []fault
	for _, c := range s.calls {
		for _, errno := range errnos {
			if answers(c.Name, errno) {
				continue
			}
			all = append(all, failing(c.Name, c.K, errno, "once"))
			if errno != unix.EINTR { // a call that is interrupted for ever never ends
				all = append(all, failing(c.Name, c.K, errno, "on"))
			}
		}
		if c.Moves() {
			all = append(all, fault{name: c.Name, k: c.K, action: tracer.Short, mode: "short"})
		}
	}
	return all
}

// lottery draws what is done in the sampled mode.
type lottery struct {
	random *rand.Rand
	scenes map[string]int // by the name of a call, in how many of them it is made
	turn   map[string]int // and how many errnos it has had
}

func newLottery(all []*scene) *lottery {
	l := &lottery{rand.New(rand.NewPCG(ring.seed, 0)), make(map[string]int), make(map[string]int)}
	for _, s := range all {
		for name := range s.count() {
			l.scenes[name]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.scenes)) {
		l.turn[name] = l.random.IntN(len(errnos))
	}
	return l
}

func (s *scene) count() map[string]int {
	count := make(map[string]int)
	for _, c := range s.calls {
		count[c.Name]++
	}
	return count
}

// bulk are the calls that a run makes in long rows of the same: not each of them is drawn, and still fewer of a scene that is much
// like another.
const bulk, fewOfBulk = 12, 3

// faults draws what is done to the scene's command, one a run: each call, unless they are many, and of all scenes together
// each errno with each kind of call.
func (l *lottery) faults(s *scene) []fault {
	var all []fault
	count, most := s.count(), bulk
	if s.few {
		most = fewOfBulk
	}
	for _, name := range slices.Sorted(maps.Keys(count)) {
		ks := l.random.Perm(count[name])
		rest := (len(errnos) + l.scenes[name] - 1) / l.scenes[name]
		for i := range max(rest, min(len(ks), most)) {
			if answers(name, errnos[l.turn[name]%len(errnos)]) {
				l.turn[name]++
			}
			all = append(all, failing(name, ks[i%len(ks)]+1, errnos[l.turn[name]%len(errnos)], "once"))
			l.turn[name]++
		}
		errno := []unix.Errno{unix.ENOSPC, unix.EIO}[l.random.IntN(2)]
		all = append(all, failing(name, ks[0]+1, errno, "on"))
	}
	var moving []tracer.Call
	for _, c := range s.calls {
		if c.Moves() {
			moving = append(moving, c)
		}
	}
	for _, i := range l.random.Perm(len(moving))[:min(len(moving), most)] {
		c := moving[i]
		all = append(all, fault{name: c.Name, k: c.K, action: tracer.Short, mode: "short"})
	}
	return all
}

// triple is a way for a call to fail.
type triple struct {
	name  string
	errno unix.Errno
	mode  string
}

// coverage is what was really met.
type coverage struct {
	mu      sync.Mutex
	triples map[triple]bool
	names   map[string]bool
	runs    int
}

func (c *coverage) add(t *try) {
	if len(t.hits) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.triples == nil {
		c.triples, c.names = make(map[triple]bool), make(map[string]bool)
	}
	c.triples[triple{t.fault.name, t.fault.errno, t.fault.mode}] = true
	c.names[t.fault.name] = true
	c.runs++
}

func (c *coverage) String() string {
	if c.runs == 0 {
		return ""
	}
	return fmt.Sprintf("%d distinct (call, errno, mode) were met in %d runs, of %d calls: %s", len(c.triples), c.runs, len(c.names),
		strings.Join(slices.Sorted(maps.Keys(c.names)), " "))
}

func newTestDesk(t testing.TB, chandler string) *desk {
	t.Helper()
	d, err := newDesk(filepath.Join(t.TempDir(), "desk"), chandler)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// inParallel calls do for every number below n, on two goroutines with a desk each. An error of one ends the test.
func inParallel(t testing.TB, n int, do func(d *desk, i int) error) {
	t.Helper()
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		next  int
		first error
	)
	for range 2 {
		d := newTestDesk(t, ring.chandler)
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := i >= n || first != nil
				mu.Unlock()
				if stop {
					return
				}
				if err := do(d, i); err != nil {
					mu.Lock()
					first = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if first != nil {
		t.Fatal(first)
	}
}
