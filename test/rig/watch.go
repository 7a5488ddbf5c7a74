package rig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Watchers are processes that look names up, read them whole and execute them, without a pause, as the kubelet and Multus do.
type Watchers struct {
	Right map[string][]uint32 // what may be found under each name, by its sum; Over tells them

	t     testing.TB
	all   []*Actor
	looks []int // of each, in all
	runs  int
}

// Sight is what they have seen. Wrong is what must never be seen.
type Sight struct {
	Looks, Runs int
	Wrong       []string
}

// StartWatchers starts n of them. What they find under a name has to be a file of one of the bundles.
func StartWatchers(t testing.TB, n int, bundles ...string) *Watchers {
	t.Helper()
	w := &Watchers{Right: make(map[string][]uint32), t: t, looks: make([]int, n)}
	for _, b := range bundles {
		for _, path := range Glob(t, b, "bin/*") {
			name := filepath.Base(path)
			w.Right[name] = append(w.Right[name], Sum([]byte(Read(t, path))))
		}
	}
	for range n {
		w.all = append(w.all, Act(t, watchRole))
	}
	return w
}

// watched is what they are told: where to look, and what is right.
type watched struct {
	Dir   string
	Right map[string][]uint32
	Must  bool
}

// Over makes them watch dir from now on, or nothing if it is empty: none of them looks at anything else once it returns. With must,
// every name is there already, and may never be absent.
func (w *Watchers) Over(dir string, must bool) {
	w.t.Helper()
	line, err := json.Marshal(watched{dir, w.Right, must})
	Must(w.t, err)
	for _, a := range w.all {
		if answer := a.Tell(string(line)); answer != "ok" {
			w.t.Fatalf("a watcher: %s", answer)
		}
	}
}

// Saw returns what they have seen since it was asked last.
func (w *Watchers) Saw() Sight {
	w.t.Helper()
	var sum Sight
	for i, a := range w.all {
		var s Sight
		Must(w.t, json.Unmarshal([]byte(a.Tell("report")), &s))
		w.looks[i] += s.Looks
		w.runs += s.Runs
		sum.Looks += s.Looks
		sum.Runs += s.Runs
		sum.Wrong = append(sum.Wrong, s.Wrong...)
	}
	return sum
}

// Check fails if any of them has seen what must never be seen, or has never looked at all.
func (w *Watchers) Check() {
	w.t.Helper()
	if wrong := w.Saw().Wrong; len(wrong) > 0 {
		w.t.Fatalf("another process saw: %s", strings.Join(wrong, "\n"))
	}
	if slices.Contains(w.looks, 0) {
		w.t.Fatal("a watcher saw nothing: the test proves nothing")
	}
}

// End is Check, and the end of them.
func (w *Watchers) End() {
	w.t.Helper()
	w.Check()
	looks := 0
	for i, a := range w.all {
		a.End()
		looks += w.looks[i]
	}
	w.t.Logf("%d processes looked %d times and executed %d times", len(w.all), looks, w.runs)
}

const watchRole = "watch"

// watch is the watcher's program. What it is told it begins with at once, and what it is asked it answers between two looks.
func watch() int {
	syscall.Setpriority(syscall.PRIO_PROCESS, 0, 5) // what is under test gets the processor first
	told := Lines()
	var (
		what  watched
		there map[string]bool // names that may not be absent any more
		seen  Sight
	)
	answer := func(line string) {
		if line == "report" {
			text, _ := json.Marshal(seen)
			fmt.Println(string(text))
			seen = Sight{}
			return
		}
		what, there = watched{}, make(map[string]bool)
		if err := json.Unmarshal([]byte(line), &what); err != nil {
			fmt.Println(err)
			return
		}
		for name := range what.Right {
			there[name] = what.Must
		}
		fmt.Println("ok")
	}
	for {
		if what.Dir == "" || len(what.Right) == 0 {
			line, ok := <-told
			if !ok {
				return 0
			}
			answer(line)
		}
	pass:
		for name, right := range what.Right {
			select {
			case line, ok := <-told:
				if !ok {
					return 0
				}
				answer(line)
				break pass // what is to be watched may be another
			default:
			}
			path := filepath.Join(what.Dir, name)
			f, err := os.Open(path)
			if errors.Is(err, os.ErrNotExist) && !there[name] {
				time.Sleep(50 * time.Microsecond)
				continue
			}
			there[name] = true
			seen.look(path, f, err, right)
		}
	}
}

var buffer = make([]byte, 256<<10)

// look reads a file that was opened, if it was, and executes it.
func (s *Sight) look(path string, f *os.File, err error, right []uint32) {
	wrong := func(format string, args ...any) {
		if len(s.Wrong) < 5 {
			s.Wrong = append(s.Wrong, fmt.Sprintf(format, args...))
		}
	}
	s.Looks++
	if err != nil {
		wrong("lookup: %v", err)
		return
	}
	info, err := f.Stat()
	if err != nil || info.Mode() != 0o755 {
		wrong("%s: mode %v (%v)", path, info.Mode(), err)
	}
	h := crc32.New(castagnoli)
	if _, err := io.CopyBuffer(h, onlyReader{f}, buffer); err != nil {
		wrong("read: %v", err)
	}
	f.Close()
	if !slices.Contains(right, h.Sum32()) {
		wrong("%s: %d bytes that are nobody's", path, info.Size())
	}
	var stdout bytes.Buffer
	cmd := exec.Cmd{Path: path, Args: []string{path}, Env: []string{"CNI_COMMAND=VERSION"}, Stdout: &stdout}
	err = cmd.Run()
	s.Runs++
	if err != nil || !strings.Contains(stdout.String(), "supportedVersions") {
		wrong("execute: %v %q", err, stdout.String())
	}
}

// onlyReader hides a file's other ways to be copied.
type onlyReader struct{ io.Reader }
