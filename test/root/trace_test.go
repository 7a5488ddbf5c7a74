//go:build root

package root

import (
	"bufio"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/test/rig"
)

// event is one system call of a traced program. Begin and end are lines of the trace: what of two calls in different threads
// came first is known only if the one ended before the other began.
type event struct {
	begin, end int
	pid        int
	name       string
	args       string
	result     string // as strace prints it: a number, an errno, empty if the call never returned
}

func (e event) ok() bool {
	return e.result != "" && !strings.HasPrefix(e.result, "-1") && e.result != "?"
}

var (
	traceLine = regexp.MustCompile(`^(\d+) +(.*)$`)
	wholeCall = regexp.MustCompile(`^(\w+)\((.*)\) += (.*)$`)
	startCall = regexp.MustCompile(`^(\w+)\((.*?),? *<unfinished \.\.\.>$`)
	endCall   = regexp.MustCompile(`^<\.\.\. (\w+) resumed>(.*)\) += (.*)$`)
)

// parseTrace reads what strace -f wrote. Calls are in the order in which they began.
func parseTrace(t testing.TB, path string) []event {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var events []event
	open := make(map[int]int) // of a thread: its unfinished call
	n := 0
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for ; s.Scan(); n++ {
		m := traceLine.FindStringSubmatch(s.Text())
		if m == nil {
			t.Fatalf("trace line %d: %q", n+1, s.Text())
		}
		pid, _ := strconv.Atoi(m[1])
		text := m[2]
		switch {
		case strings.HasPrefix(text, "+++") || strings.HasPrefix(text, "---") || strings.HasPrefix(text, "???("):
			// An exit, a signal, a thread that ended inside a call.
		case endCall.MatchString(text):
			m := endCall.FindStringSubmatch(text)
			i, ok := open[pid]
			if !ok || events[i].name != m[1] {
				t.Fatalf("trace line %d ends a call that did not begin: %q", n+1, s.Text())
			}
			delete(open, pid)
			events[i].end, events[i].args, events[i].result = n, events[i].args+m[2], m[3]
		case wholeCall.MatchString(text):
			m := wholeCall.FindStringSubmatch(text)
			events = append(events, event{n, n, pid, m[1], m[2], m[3]})
		case startCall.MatchString(text):
			m := startCall.FindStringSubmatch(text)
			open[pid] = len(events)
			events = append(events, event{begin: n, pid: pid, name: m[1], args: m[2]})
		default:
			t.Fatalf("trace line %d: %q", n+1, s.Text())
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	for i := range events {
		if events[i].result == "" {
			events[i].end = n
		}
	}
	return events
}

// traced runs a staging under strace.
func traced(t testing.TB, c rig.Call, calls string) (rig.Outcome, []event) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace")
	c.Wrap = []string{"strace", "-f", "-y", "-qq", "-s", "32", "-e", "signal=none", "-e", "trace=" + calls, "-o", path}
	o := c.Run(t)
	return o, parseTrace(t, path)
}

var (
	fdArg     = regexp.MustCompile(`^(-?\w+)<([^>]*)>`)
	renameArg = regexp.MustCompile(`^-?\w+<([^>]*)>, "([^"]*)", -?\w+<([^>]*)>, "([^"]*)"`)
	openArg   = regexp.MustCompile(`^-?\w+(?:<([^>]*)>)?, "([^"]*)", (\S+)`)
	copyArg   = regexp.MustCompile(`^-?\w+<[^>]*>, [^,]+, -?\w+<([^>]*)>`)
	execArg   = regexp.MustCompile(`^"[^"]*", \["([^"]*)"`)
)

func (e event) fdPath() string {
	if m := fdArg.FindStringSubmatch(e.args); m != nil {
		return m[2]
	}
	return ""
}

// Guarantees 1, 2 and 3 in the order of the shipped program's own system calls, for each plugin: created exclusively, written,
// made executable, synced, closed, run, renamed into place, and the directory synced; and no process is started while any
// file is open for writing.
func TestOrderOfSystemCalls(t *testing.T) {
	for _, c := range []struct {
		name   string
		bundle string
		update bool
	}{
		{"fresh", ring.bundle, false}, {"update", ring.bundle, true},
		{"one file under all names, fresh", ring.shared, false}, {"one file under all names, update", ring.shared, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, update := t.TempDir(), c.update
			want := "new"
			if update {
				rig.Place(t, ring.older, dir)
				want = "replaced"
			}
			o, events := traced(t, rig.Call{Bundle: c.bundle, Dir: dir},
				"openat,open,creat,write,pwrite64,writev,copy_file_range,sendfile,ftruncate,fchmod,fchmodat,chmod,fsync,fdatasync,sync,syncfs,"+
					"close,execve,execveat,renameat,renameat2,rename,linkat,link,unlinkat,unlink,clone,clone3,fork,vfork")
			for _, r := range o.Report.Plugins {
				if r.Action != want {
					t.Fatalf("%s: %s\n%s", r.Name, r.Action, o.Stderr)
				}
			}
			tmp := filepath.Join(dir, ".chandler/tmp")

			// What is open for writing, and when.
			type span struct {
				path       string
				begin, end int
			}
			var writing []span
			// By number and path: another thread can get the number before this one's close is seen to have ended.
			writable := make(map[string]int)
			for _, e := range events {
				switch e.name {
				case "openat":
					m := openArg.FindStringSubmatch(e.args)
					if m == nil || !e.ok() || !strings.Contains(m[3], "O_WRONLY") && !strings.Contains(m[3], "O_RDWR") {
						continue
					}
					r := fdArg.FindStringSubmatch(e.result)
					if r == nil {
						t.Fatalf("no descriptor in %q", e.result)
					}
					if strings.HasPrefix(r[2], dir) {
						writable[r[0]] = len(writing)
						writing = append(writing, span{r[2], e.begin, len(events) * 2})
					}
				case "close":
					m := fdArg.FindStringSubmatch(e.args)
					if m == nil {
						continue
					}
					if i, ok := writable[m[0]]; ok {
						writing[i].end = e.end
						delete(writable, m[0])
					}
				}
			}
			if len(writing) < 14 {
				t.Fatalf("%d files were opened for writing; the trace is not whole", len(writing))
			}
			execs := make(map[string][]event)
			for _, e := range events {
				starts := e.name == "execve" || e.name == "execveat" || e.name == "fork" || e.name == "vfork" ||
					strings.HasPrefix(e.name, "clone") && !strings.Contains(e.args, "CLONE_THREAD")
				if !starts {
					continue
				}
				for _, w := range writing {
					if w.begin < e.end && e.begin < w.end {
						t.Errorf("a process was started (%s, trace line %d) while %s was open for writing (lines %d to %d)",
							e.name, e.begin+1, w.path, w.begin+1, w.end+1)
					}
				}
				if m := execArg.FindStringSubmatch(e.args); m != nil && strings.HasPrefix(e.name, "exec") {
					execs[m[1]] = append(execs[m[1]], e)
				}
			}

			last := 0 // the end of the last rename into the directory
			placed := make(map[string]event)
			for _, e := range events {
				if strings.HasPrefix(e.name, "rename") || strings.HasPrefix(e.name, "link") {
					m := renameArg.FindStringSubmatch(e.args)
					if m == nil || !e.ok() {
						t.Fatalf("%s(%s) = %s", e.name, e.args, e.result)
					}
					if m[3] == dir {
						if _, ok := placed[m[4]]; ok {
							t.Errorf("%s was put in place twice", m[4])
						}
						placed[m[4]] = e
						last = max(last, e.end)
					}
				}
			}
			for _, name := range rig.Reference {
				var steps []event
				var run string // the run's folder
				step := func(what string, of event, found bool) {
					t.Helper()
					if !found {
						t.Fatalf("%s: no %s in the trace", name, what)
					}
					if len(steps) > 0 && steps[len(steps)-1].end >= of.begin {
						before := steps[len(steps)-1]
						t.Fatalf("%s: %s (line %d) did not wait for %s(%s) (line %d)", name, what, of.begin+1, before.name, before.args, before.end+1)
					}
					steps = append(steps, of)
				}
				first := func(what string, match func(event) bool) {
					t.Helper()
					for _, e := range events {
						if match(e) {
							step(what, e, true)
							return
						}
					}
					step(what, event{}, false)
				}
				first("exclusive create", func(e event) bool {
					m := openArg.FindStringSubmatch(e.args)
					if e.name != "openat" || m == nil || m[2] != name || !strings.HasPrefix(m[1], tmp+"/") || !e.ok() {
						return false
					}
					run = m[1]
					return strings.Contains(m[3], "O_CREAT") && strings.Contains(m[3], "O_EXCL") && strings.Contains(m[3], "O_NOFOLLOW") &&
						strings.Contains(m[3], "O_CLOEXEC") && strings.Contains(e.args, "0600")
				})
				file := filepath.Join(run, name)
				var lastWrite event
				for _, e := range events {
					switch e.name {
					case "write", "pwrite64", "writev", "copy_file_range", "sendfile", "ftruncate":
						to := e.fdPath()
						if m := copyArg.FindStringSubmatch(e.args); e.name == "copy_file_range" && m != nil {
							to = m[1]
						}
						if to == file {
							lastWrite = e
						}
					}
				}
				step("write", lastWrite, lastWrite.name != "")
				first("fchmod 0755", func(e event) bool {
					return e.name == "fchmod" && e.fdPath() == file && strings.HasSuffix(e.args, ", 0755") && e.ok()
				})
				first("fsync", func(e event) bool { return e.name == "fsync" && e.fdPath() == file && e.ok() })
				first("close", func(e event) bool { return e.name == "close" && e.fdPath() == file && e.ok() })
				probed := name
				if c.bundle == ring.shared { // one probe serves every name of a file
					probed = rig.Reference[0]
				}
				if len(execs[probed]) != 1 || len(execs) != map[bool]int{false: 14, true: 1}[c.bundle == ring.shared]+1 { // with the program itself
					t.Fatalf("%s was run %d times, want once; run were %v", probed, len(execs[probed]), slices.Sorted(maps.Keys(execs)))
				}
				step("probe", execs[probed][0], execs[probed][0].ok())
				e, ok := placed[name]
				step("rename into place", e, ok)
				if e.name != "renameat2" || !strings.Contains(e.args, map[bool]string{false: "RENAME_NOREPLACE", true: "RENAME_EXCHANGE"}[update]) {
					t.Fatalf("%s was put in place by %s(%s)", name, e.name, e.args)
				}
			}
			synced := false
			for _, e := range events {
				synced = synced || e.name == "fsync" && e.fdPath() == dir && e.ok() && e.begin > last
			}
			if !synced {
				t.Fatal("the directory was not synced after the last rename")
			}
			for name := range placed {
				if name != ".chandler" && rig.WrongAs(c.bundle, dir, name) != "" {
					t.Fatalf("%s was put in place and is not the bundle's", name)
				}
			}
			t.Logf("%d system calls in order", len(events))
		})
	}
}

// Guarantee 7: a run that has nothing to do does nothing: no call that would change anything below the directory, no byte to
// any disk, and every inode, time and name as it was.
func TestUnchangedRunWritesNothing(t *testing.T) {
	dir := t.TempDir()
	rig.Place(t, ring.older, dir)
	rig.Stage(t, ring.bundle, dir).Counts(t, 0, 14, 0, 0)
	before := rig.Tree(t, dir)
	o, events := traced(t, rig.Call{Bundle: ring.bundle, Dir: dir}, "all")
	o.Counts(t, 0, 0, 14, 0)
	if len(events) < 100 {
		t.Fatalf("a trace of %d calls", len(events))
	}
	changing := regexp.MustCompile(`^(p?writev?(64|2)?|copy_file_range|sendfile|splice|fallocate|f?truncate|rename(at2?)?|unlink(at)?|rmdir|mkdir(at)?|` +
		`mknod(at)?|symlink(at)?|link(at)?|l?f?chown(at)?|f?chmod(at2?)?|utime(s|nsat)?|l?f?setxattr|l?f?removexattr|creat|mount|umount2)$`)
	for _, e := range events {
		switch {
		case e.name == "openat" && (strings.Contains(e.args, "O_WRONLY") || strings.Contains(e.args, "O_RDWR") || strings.Contains(e.args, "O_CREAT")):
			// The termination log, and nothing else.
			if strings.Contains(e.args, dir) {
				t.Errorf("opened for writing: %s(%s)", e.name, e.args)
			}
		case e.name == "execve" && e.begin > 0:
			t.Errorf("something was run: %s", e.args)
		case strings.Contains(e.name, "write") || e.name == "ftruncate":
			// The result on stdout, the termination log, the runtime's wake-ups.
			if strings.HasPrefix(e.fdPath(), dir) {
				t.Errorf("%s(%s) = %s", e.name, e.args, e.result)
			}
		case changing.MatchString(e.name):
			t.Errorf("%s(%s) = %s", e.name, e.args, e.result)
		}
	}
	rig.Unchanged(t, before, rig.Tree(t, dir))
	// Without a termination log there is nothing at all to write.
	o = rig.Call{Bundle: ring.bundle, Dir: dir, NoLog: true, Args: []string{"--termination-log="}}.Run(t)
	if o.Code != 0 || o.Stderr != "" || o.Written != 0 {
		t.Fatalf("exit %d, stderr %q, %d bytes written to disks", o.Code, o.Stderr, o.Written)
	}
	rig.Unchanged(t, before, rig.Tree(t, dir))

	// So does a dry run, whatever there would be to do.
	if err := os.WriteFile(filepath.Join(dir, "bridge"), []byte("torn"), 0o755); err != nil {
		t.Fatal(err)
	}
	before = rig.Tree(t, dir)
	o = rig.Call{Bundle: ring.older, Dir: dir, NoLog: true, Args: []string{"--termination-log=", "--dry-run"}}.Run(t)
	if o.Code != 0 || o.Report.Outcome != "planned" || o.Written != 0 {
		t.Fatalf("exit %d, %s, %d bytes written to disks", o.Code, o.Report.Outcome, o.Written)
	}
	rig.Unchanged(t, before, rig.Tree(t, dir))
}
