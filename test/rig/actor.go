package rig

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// Role is this program as another process: one of the ring's roles.
func Role(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	Must(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+name)
	return cmd
}

// Actor is a role that answers each line with one, and ends when its standard input does.
type Actor struct {
	t      testing.TB
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	ended  <-chan error
}

// Act starts a role for as long as the test lasts.
func Act(t testing.TB, name string, args ...string) *Actor {
	t.Helper()
	cmd := Role(t, name, args...)
	a := &Actor{t: t}
	cmd.Stderr = &a.stderr
	out, outErr := cmd.StdoutPipe()
	in, err := cmd.StdinPipe()
	Must(t, outErr, err)
	a.in, a.out = in, bufio.NewReader(out)
	a.ended = StartOnThread(t, cmd)
	return a
}

// Tell sends one line and waits for one in return.
func (a *Actor) Tell(line string) string {
	a.t.Helper()
	_, err := io.WriteString(a.in, line+"\n")
	answer, readErr := a.out.ReadString('\n')
	if err := errors.Join(err, readErr); err != nil {
		a.t.Fatalf("%v: %s", err, a.stderr.String())
	}
	return strings.TrimSpace(answer)
}

// End ends it, and fails if that was not well.
func (a *Actor) End() {
	a.t.Helper()
	a.in.Close()
	if err := <-a.ended; err != nil {
		a.t.Fatalf("%v: %s", err, a.stderr.String())
	}
}

// StartOnThread starts a command on a thread that does nothing else until it has ended, and returns where that is told. A tracer
// takes for its own whatever the thread that it is on has started. What has not ended with the test is killed.
func StartOnThread(t testing.TB, cmd *exec.Cmd) <-chan error {
	t.Helper()
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
		close(ended)
	}()
	Must(t, <-started)
	t.Cleanup(func() {
		cmd.Process.Kill()
		for range ended {
		}
	})
	return ended
}

// Lines are those of standard input, for a role. The channel is closed at its end.
func Lines() <-chan string {
	all := make(chan string)
	go func() {
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			all <- s.Text()
		}
		close(all)
	}()
	return all
}
