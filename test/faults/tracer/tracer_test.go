//go:build linux && amd64

package tracer

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const tracedEnv = "TRACER_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(tracedEnv); dir != "" {
		os.Exit(traced(dir))
	}
	os.Exit(m.Run())
}

// traced is the program under the tracer: two threads that write in turn, a child, and what it makes of failures.
func traced(dir string) int {
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		fmt.Println("create:", err)
		return 1
	}
	var wg sync.WaitGroup
	turn := []chan bool{make(chan bool, 1), make(chan bool, 1)}
	turn[0] <- true
	for i := range 2 {
		wg.Go(func() {
			for range 3 {
				<-turn[i]
				// Not by way of os, which would go on after a short one.
				n, err := syscall.Write(int(f.Fd()), bytes.Repeat([]byte{'a' + byte(i)}, 10))
				fmt.Printf("write %c: %d %v\n", 'a'+i, n, err)
				turn[1-i] <- true
			}
		})
	}
	wg.Wait()
	fmt.Println("close:", f.Close())
	fmt.Println("close again:", f.Close() != nil)
	out, err := exec.Command("/bin/cat", filepath.Join(dir, "file")).Output()
	fmt.Printf("cat: %d %v\n", len(out), err)
	fmt.Println("rename:", os.Rename(filepath.Join(dir, "file"), filepath.Join(dir, "renamed")))
	return 7
}

func run(t *testing.T, decide Decide) (*Trace, string, string) {
	t.Helper()
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	trace, err := Program{Argv: []string{self}, Env: []string{tracedEnv + "=" + dir}, Stdout: out, Stderr: out, Timeout: 20 * time.Second}.Run(decide)
	if err != nil {
		t.Fatal(err)
	}
	if trace.Hung {
		t.Fatal("it hung")
	}
	said, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return trace, string(said), dir
}

// of calls decide for what the program does in its directory with the given call.
func of(name string, decide Decide) Decide {
	k := 0
	return func(c *Call) (Action, unix.Errno) {
		if c.Name != name || !strings.Contains(c.Path, "/file") && c.Name != "execve" {
			return Go, 0
		}
		k++
		mine := *c
		mine.K = k
		return decide(&mine)
	}
}

func nth(k int, action Action, errno unix.Errno) Decide {
	return func(c *Call) (Action, unix.Errno) {
		if c.K == k {
			return action, errno
		}
		return Go, 0
	}
}

const whole = `write a: 10 <nil>
write b: 10 <nil>
write a: 10 <nil>
write b: 10 <nil>
write a: 10 <nil>
write b: 10 <nil>
close: <nil>
close again: true
cat: 60 <nil>
rename: <nil>
`

func TestWatch(t *testing.T) {
	trace, said, dir := run(t, func(*Call) (Action, unix.Errno) { return Watch, 0 })
	if said != whole || trace.Status.ExitStatus() != 7 {
		t.Fatalf("exit %d\n%s", trace.Status.ExitStatus(), said)
	}
	file := filepath.Join(dir, "file")
	var seen []string
	for i, c := range trace.Calls {
		if c.N != i+1 {
			t.Fatalf("call %d is the %dth", c.N, i+1)
		}
		if c.End <= c.Begin {
			t.Fatalf("%s: began %d, ended %d", c, c.Begin, c.End)
		}
		if c.Child != (c.Name == "execve") {
			t.Fatalf("%s: a child's is %v", c, c.Child)
		}
		if c.Name == "close" && c.Wrote != (c.Path == file) {
			t.Fatalf("%s: open for writing is %v", c, c.Wrote)
		}
		if strings.HasPrefix(c.Path, dir) || c.Name == "execve" {
			if c.Name == "openat" {
				c.Result = min(c.Result, 0) // which descriptor it is does not matter
			}
			seen = append(seen, fmt.Sprintf("%s %s %s %d", c.Name, c.Path, c.To, c.Result))
		}
	}
	var want []string
	add := func(format string, args ...any) { want = append(want, fmt.Sprintf(format, args...)) }
	add("openat %s  0", file)
	for range 6 {
		add("write %s  10", file)
	}
	add("close %s  0", file)
	add("execve /bin/cat /bin/cat 0")
	add("newfstatat %s  -2", filepath.Join(dir, "renamed"))
	add("renameat %s %s 0", file, filepath.Join(dir, "renamed"))
	got := strings.Join(seen, "\n")
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("not seen: %s", w)
		}
	}
	if t.Failed() {
		t.Logf("seen:\n%s", got)
	}
}

// The fourth write of both threads together is the second of the second thread.
func TestFailOnce(t *testing.T) {
	_, said, dir := run(t, of("write", nth(4, Fail, unix.ENOSPC)))
	want := strings.Replace(whole, "write a: 10 <nil>\nwrite b: 10 <nil>\nwrite a: 10 <nil>\nwrite b: 10 <nil>\nclose",
		"write a: 10 <nil>\nwrite b: -1 no space left on device\nwrite a: 10 <nil>\nwrite b: 10 <nil>\nclose", 1)
	if want = strings.Replace(want, "cat: 60", "cat: 50", 1); said != want {
		t.Fatalf("said\n%swant\n%s", said, want)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "renamed")); err != nil || string(data) != strings.Repeat("a", 10)+strings.Repeat("b", 10)+strings.Repeat("a", 20)+strings.Repeat("b", 10) {
		t.Fatalf("%q (%v)", data, err)
	}
}

func TestShort(t *testing.T) {
	_, said, dir := run(t, of("write", nth(6, Short, 0)))
	if want := strings.Replace(strings.Replace(whole, "write b: 10 <nil>\nclose", "write b: 5 <nil>\nclose", 1), "cat: 60", "cat: 55", 1); said != want {
		t.Fatalf("said\n%swant\n%s", said, want)
	}
	if info, err := os.Stat(filepath.Join(dir, "renamed")); err != nil || info.Size() != 55 {
		t.Fatal(info, err)
	}
}

// A close that fails has given up its descriptor all the same.
func TestFailedClose(t *testing.T) {
	trace, said, _ := run(t, of("close", nth(1, Fail, unix.EIO)))
	if !strings.Contains(said, "input/output error\nclose again: true\n") {
		t.Fatal(said)
	}
	for _, c := range trace.Calls {
		if c.Name == "close" && strings.HasSuffix(c.Path, "/file") && c.K > 1 {
			t.Fatalf("it was still open: %s", c)
		}
	}
}

func TestFailedExec(t *testing.T) {
	_, said, _ := run(t, of("execve", nth(1, Fail, unix.EACCES)))
	if !strings.Contains(said, "cat: 0 fork/exec /bin/cat: permission denied\n") {
		t.Fatal(said)
	}
}

func TestKill(t *testing.T) {
	for action, name := range map[Action]string{KillBefore: "file", KillAfter: "renamed"} {
		trace, _, dir := run(t, of("renameat", nth(1, action, 0)))
		if !trace.Status.Signaled() || trace.Status.Signal() != unix.SIGKILL {
			t.Fatalf("it ended with %#x", trace.Status)
		}
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// A child that was just made, and stands still for the tracer, does not outlast a program that is killed at that moment.
func TestKillWithAChild(t *testing.T) {
	for _, action := range []Action{KillBefore, KillAfter} {
		if trace, _, _ := run(t, of("execve", nth(1, action, 0))); !trace.Status.Signaled() {
			t.Fatalf("it ended with %#x", trace.Status)
		}
	}
}
