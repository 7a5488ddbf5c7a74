//go:build faults

package faults

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roles are the other processes of the tests.
var roles = map[string]func() int{"watch": watch}

// actor is another process. It answers each line with one, and ends when its standard input does.
type actor struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	ended  chan error
}

// start starts another process of this program.
func start(t testing.TB, name string) *actor {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := &actor{t: t, cmd: exec.Command(self)}
	a.cmd.Env = append(os.Environ(), roleEnv+"="+name)
	a.cmd.Stderr = &a.stderr
	out, outErr := a.cmd.StdoutPipe()
	a.in, err = a.cmd.StdinPipe()
	if err := errors.Join(outErr, err); err != nil {
		t.Fatal(err)
	}
	a.out = bufio.NewReader(out)
	a.ended = startOnThread(t, a.cmd)
	t.Cleanup(func() {
		a.in.Close()
		a.cmd.Process.Kill()
		<-a.ended
	})
	return a
}

func (a *actor) tell(line string) string {
	a.t.Helper()
	if _, err := io.WriteString(a.in, line+"\n"); err != nil {
		a.t.Fatalf("%v: %s", err, a.stderr.String())
	}
	answer, err := a.out.ReadString('\n')
	if err != nil {
		a.t.Fatalf("%v: %s", err, a.stderr.String())
	}
	return strings.TrimSpace(answer)
}

// watchers are processes that look names up, read them whole and execute them, without a pause, as the kubelet and Multus do.
type watchers struct {
	t   testing.TB
	all []*actor
}

func startWatchers(t testing.TB, n int) *watchers {
	t.Helper()
	w := &watchers{t: t}
	for range n {
		w.all = append(w.all, start(t, "watch"))
	}
	return w
}

// watched is what they look at, and what may be found there: the checksums of each name's files.
type watched struct {
	Dir   string              `json:"dir"`
	Right map[string][]uint32 `json:"right"`
	Must  bool                `json:"must"` // every name is there already, and is never to be absent
}

// over makes them look at something from now on, and at nothing if that is the zero value. None of them looks at anything
// else once it returns.
func (w *watchers) over(what watched) {
	w.t.Helper()
	line, err := json.Marshal(what)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range w.all {
		if answer := a.tell(string(line)); answer != "ok" {
			w.t.Fatalf("a watcher: %s", answer)
		}
	}
}

type sight struct {
	Looks, Runs int
	Wrong       []string
}

// saw returns what they have seen since it was asked last.
func (w *watchers) saw() sight {
	w.t.Helper()
	var sum sight
	for _, a := range w.all {
		var s sight
		if err := json.Unmarshal([]byte(a.tell("report")), &s); err != nil {
			w.t.Fatal(err)
		}
		sum.Looks += s.Looks
		sum.Runs += s.Runs
		sum.Wrong = append(sum.Wrong, s.Wrong...)
	}
	return sum
}

// watch is the watcher's program.
func watch() int {
	syscall.Setpriority(syscall.PRIO_PROCESS, 0, 5) // what is under test gets the processor first
	lines := make(chan string)
	go func() {
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	var (
		what watched
		must map[string]bool
		seen sight
		buf  = make([]byte, 256<<10)
	)
	answer := func(line string) {
		if line == "report" {
			text, _ := json.Marshal(seen)
			fmt.Println(string(text))
			seen = sight{}
			return
		}
		what, must = watched{}, make(map[string]bool)
		if err := json.Unmarshal([]byte(line), &what); err != nil {
			fmt.Println(err)
			return
		}
		for name := range what.Right {
			must[name] = what.Must
		}
		fmt.Println("ok")
	}
	wrong := func(format string, args ...any) {
		if len(seen.Wrong) < 5 {
			seen.Wrong = append(seen.Wrong, fmt.Sprintf(format, args...))
		}
	}
	for {
		if what.Dir == "" {
			line, ok := <-lines
			if !ok {
				return 0
			}
			answer(line)
		}
		for name, right := range what.Right {
			select {
			case line, ok := <-lines:
				if !ok {
					return 0
				}
				answer(line)
				right = nil
			default:
			}
			if right == nil { // what is to be watched has changed
				break
			}
			path := filepath.Join(what.Dir, name)
			f, err := os.Open(path)
			if errors.Is(err, os.ErrNotExist) && !must[name] {
				time.Sleep(50 * time.Microsecond)
				continue
			}
			seen.Looks++
			if err != nil {
				wrong("lookup: %v", err)
				continue
			}
			must[name] = true
			info, err := f.Stat()
			if err != nil || info.Mode() != 0o755 {
				wrong("%s: mode %v (%v)", path, info.Mode(), err)
			}
			h := crc32.New(castagnoli)
			if _, err := io.CopyBuffer(h, onlyReader{f}, buf); err != nil {
				wrong("read: %v", err)
			}
			f.Close()
			known := false
			for _, sum := range right {
				known = known || sum == h.Sum32()
			}
			if !known {
				wrong("%s: %d bytes that are nobody's", path, info.Size())
			}
			var stdout bytes.Buffer
			cmd := exec.Cmd{Path: path, Args: []string{path}, Env: []string{"CNI_COMMAND=VERSION"}, Stdout: &stdout}
			err = cmd.Run()
			seen.Runs++
			if err != nil || !strings.Contains(stdout.String(), "supportedVersions") {
				wrong("execute: %v %q", err, stdout.String())
			}
		}
	}
}

// onlyReader hides a file's other ways to be copied.
type onlyReader struct{ io.Reader }
