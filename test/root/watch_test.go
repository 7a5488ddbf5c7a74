//go:build root

package root

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
var roles = map[string]func() int{"watch": watch, "cowrite": cowrite}

// role starts this program again as another process. It ends when its standard input does.
func role(t testing.TB, name string, args ...string) *actor {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := &actor{t: t, cmd: exec.Command(self, args...)}
	a.cmd.Env = append(os.Environ(), roleEnv+"="+name)
	a.cmd.Stderr = &a.stderr
	if a.in, err = a.cmd.StdinPipe(); err == nil {
		var out io.ReadCloser
		out, err = a.cmd.StdoutPipe()
		a.out = bufio.NewReader(out)
	}
	if err == nil {
		err = a.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !a.ended {
			a.cmd.Process.Kill()
			a.cmd.Wait()
		}
	})
	return a
}

type actor struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	ended  bool
}

// tell sends one line and waits for one in return.
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

func (a *actor) end() {
	a.t.Helper()
	a.in.Close()
	a.ended = true
	if err := a.cmd.Wait(); err != nil {
		a.t.Fatalf("%v: %s", err, a.stderr.String())
	}
}

// watchers are processes that look names up, read them whole and execute them, without a pause, as the kubelet and Multus do.
type watchers struct {
	t   testing.TB
	all []*actor
}

// startWatchers starts n processes that know the bundles: what they find under a name has to be one of theirs.
func startWatchers(t testing.TB, n int, bundles ...string) watchers {
	t.Helper()
	w := watchers{t: t}
	for i := range n {
		w.all = append(w.all, role(t, "watch", append([]string{fmt.Sprint(i)}, bundles...)...))
	}
	return w
}

// over makes them watch dir from now on, or nothing if it is empty. If all is set, every name is there already, and may
// never be absent.
func (w watchers) over(dir string, all bool) {
	w.t.Helper()
	for _, a := range w.all {
		if answer := a.tell(fmt.Sprintf("%v %s", all, dir)); answer != "ok" {
			w.t.Fatalf("a watcher: %s", answer)
		}
	}
}

type sight struct {
	Looks, Runs int
	Wrong       []string
}

// check fails if any of them has seen what must never be seen, or has not looked at all.
func (w watchers) check() sight {
	w.t.Helper()
	var sum sight
	for _, a := range w.all {
		var s sight
		if err := json.Unmarshal([]byte(a.tell("report")), &s); err != nil {
			w.t.Fatal(err)
		}
		if len(s.Wrong) > 0 {
			w.t.Fatalf("another process saw: %s", strings.Join(s.Wrong, "\n"))
		}
		if s.Looks == 0 {
			w.t.Fatal("a watcher saw nothing: the test proves nothing")
		}
		sum.Looks += s.Looks
		sum.Runs += s.Runs
	}
	return sum
}

func (w watchers) end() sight {
	w.t.Helper()
	s := w.check()
	for _, a := range w.all {
		a.end()
	}
	w.t.Logf("%d processes looked %d times and executed %d times", len(w.all), s.Looks, s.Runs)
	return s
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// watch is the watcher's program: arguments are its number and the bundles whose files are right.
func watch() int {
	// Chandler is what is under test: it gets the processor first.
	syscall.Setpriority(syscall.PRIO_PROCESS, 0, 5)
	right := make(map[string]map[uint32]bool)
	var names []string
	for _, b := range os.Args[2:] {
		paths, _ := filepath.Glob(filepath.Join(b, "bin/*"))
		for _, p := range paths {
			data, err := os.ReadFile(p)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			name := filepath.Base(p)
			if right[name] == nil {
				right[name] = make(map[uint32]bool)
				names = append(names, name)
			}
			right[name][crc32.Checksum(data, castagnoli)] = true
		}
	}
	if n := int(os.Args[1][0] - '0'); n%2 == 1 { // not all in one order
		for i, j := 0, len(names)-1; i < j; i, j = i+1, j-1 {
			names[i], names[j] = names[j], names[i]
		}
	}
	lines := make(chan string)
	go func() {
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	var (
		dir  string
		must map[string]bool
		seen sight
		buf  = make([]byte, 256<<10)
	)
	answer := func(line string) {
		if line == "report" {
			text, _ := json.Marshal(seen)
			fmt.Println(string(text))
			return
		}
		all, path, _ := strings.Cut(line, " ")
		dir, must = path, make(map[string]bool)
		for _, n := range names {
			must[n] = all == "true"
		}
		fmt.Println("ok")
	}
	wrong := func(format string, args ...any) {
		if len(seen.Wrong) < 5 {
			seen.Wrong = append(seen.Wrong, fmt.Sprintf(format, args...))
		}
	}
	for {
		if dir == "" {
			line, ok := <-lines
			if !ok {
				return 0
			}
			answer(line)
		}
		for _, name := range names {
			select {
			case line, ok := <-lines:
				if !ok {
					return 0
				}
				answer(line)
			default:
			}
			if dir == "" {
				break
			}
			path := filepath.Join(dir, name)
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
			if !right[name][h.Sum32()] {
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

// cowrite is other software that owns some of the names: it renames its own files into place, over and over. Arguments are
// the directory, the bundle that its files come from, and the names. It answers each line with how often it has done so.
func cowrite() int {
	dir, from, names := os.Args[1], os.Args[2], os.Args[3:]
	var done int
	lines := make(chan string)
	go func() {
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	for {
		select {
		case _, ok := <-lines:
			if !ok {
				return 0
			}
			fmt.Println(done)
		default:
		}
		for _, name := range names {
			tmp := filepath.Join(dir, "."+name+".cowriter")
			data, err := os.ReadFile(filepath.Join(from, "bin", name))
			if err == nil {
				err = os.WriteFile(tmp, data, 0o755)
			}
			if err == nil {
				err = os.Rename(tmp, filepath.Join(dir, name))
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		done++
		time.Sleep(5 * time.Millisecond)
	}
}
