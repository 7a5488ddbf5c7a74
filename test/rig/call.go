package rig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Runs counts the runs of chandler, and Kills those that were killed, for a ring's last words.
var Runs, Kills atomic.Int64

// patience is how long a run is waited for. What takes longer hangs, on any machine and on the slowest disk of the tests.
const patience = 2 * time.Minute

// Call is one command line of chandler, by default stage.
type Call struct {
	Verb        string
	Bundle, Dir string
	Args        []string
	Wrap        []string // the command that runs chandler: setpriv, prlimit, strace
	Program     string   // chandler's path where it is another, as in a chroot
	Chroot      string
	NoLog       bool // the caller names the termination log, or none
}

// Outcome is what one run of chandler left for its user.
type Outcome struct {
	Code           int // -1 if a signal ended it
	Signal         syscall.Signal
	Stdout, Stderr string
	Log            string // the termination message
	Report         Report
	Written        int64 // bytes that it caused to be written, by the kernel's count
}

// Report is the JSON result on stdout, of any command, read as a user's program would.
type Report struct {
	Outcome   string   `json:"outcome"`
	Message   string   `json:"message"`
	Plugins   []Result `json:"plugins"`
	Originals []Result `json:"originals"`
	Warnings  []string `json:"warnings"`
	Hints     []string `json:"hints"`
}

// Result is what a report says of one plugin.
type Result struct {
	Name     string                                 `json:"name"`
	Found    struct{ State, Detail, Target string } `json:"found"`
	Action   string                                 `json:"action"`
	OK       bool                                   `json:"ok"` // of verify
	Original string                                 `json:"original"`
	Cause    string                                 `json:"cause"`
}

// Stage runs chandler stage once.
func Stage(t testing.TB, bundle, dir string, args ...string) Outcome {
	t.Helper()
	return Call{Bundle: bundle, Dir: dir, Args: args}.Run(t)
}

// Restore runs chandler restore once.
func Restore(t testing.TB, dir string, args ...string) Outcome {
	t.Helper()
	return Call{Verb: "restore", Dir: dir, Args: args}.Run(t)
}

// Process is a run of chandler under way.
type Process struct {
	Cmd            *exec.Cmd
	Log            string // the path of its termination log; empty with NoLog
	t              testing.TB
	stdout, stderr bytes.Buffer
}

// Command is a run that its caller starts, when it has changed what it wants to.
func (c Call) Command(t testing.TB) *Process {
	t.Helper()
	Runs.Add(1)
	p := &Process{t: t}
	argv := append(slices.Clone(c.Wrap), cmp.Or(c.Program, Chandler), cmp.Or(c.Verb, "stage"), "--output", "json")
	if c.Bundle != "" {
		argv = append(argv, "--bundle", c.Bundle)
	}
	if c.Dir != "" {
		argv = append(argv, "--bin-dir", c.Dir)
	}
	if !c.NoLog {
		p.Log = filepath.Join(t.TempDir(), "termination-log")
		// Longer than any message, so that what is not cut off shows.
		Write(t, p.Log, strings.Repeat("x", 8192), 0o644)
		argv = append(argv, "--termination-log", p.Log)
	}
	p.Cmd = exec.Command(argv[0], append(argv[1:], c.Args...)...)
	p.Cmd.Stdout, p.Cmd.Stderr = &p.stdout, &p.stderr
	p.Cmd.Dir = "/"
	// A group of its own, so that what is under strace ends with strace.
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.Chroot, Setpgid: true}
	return p
}

func (c Call) Start(t testing.TB) *Process {
	t.Helper()
	p := c.Command(t)
	Must(t, p.Cmd.Start())
	t.Cleanup(func() {
		if p.Cmd.ProcessState == nil {
			p.killGroup()
			p.Cmd.Wait()
		}
	})
	return p
}

func (c Call) Run(t testing.TB) Outcome {
	t.Helper()
	return c.Start(t).Wait()
}

func (p *Process) killGroup() { syscall.Kill(-p.Cmd.Process.Pid, syscall.SIGKILL) }

// Kill kills the run, and waits for it.
func (p *Process) Kill() Outcome {
	p.t.Helper()
	p.Cmd.Process.Kill()
	o := p.Wait()
	if o.Signal == syscall.SIGKILL {
		Kills.Add(1)
	}
	return o
}

// Wait fails if the run hangs, or if what it says is no report.
func (p *Process) Wait() Outcome {
	p.t.Helper()
	timer := time.AfterFunc(patience, p.killGroup)
	err := p.Cmd.Wait()
	if !timer.Stop() {
		p.t.Fatalf("it hung, and was killed after %s: %s\n%s", patience, p.Cmd, p.stderr.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	o := Outcome{Code: p.Cmd.ProcessState.ExitCode(), Stdout: p.stdout.String(), Stderr: p.stderr.String(),
		Written: p.Cmd.ProcessState.SysUsage().(*syscall.Rusage).Oublock * 512}
	if ws := p.Cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.Signal = ws.Signal()
		return o
	}
	if p.Log != "" {
		o.Log = Read(p.t, p.Log)
		// Otherwise nothing was reported, as for wrong usage.
		if strings.HasPrefix(o.Log, "xxxx") {
			o.Log = ""
		}
	}
	if o.Stdout != "" {
		if err := json.Unmarshal([]byte(o.Stdout), &o.Report); err != nil {
			p.t.Fatalf("stdout is not one JSON document: %v\n%s\n%s", err, o.Stdout, o.Stderr)
		}
	}
	return o
}

// Counts fails unless the run ended with the exit code 0 and exactly so many new, replaced, unchanged and failed plugins,
// and said so in the termination log.
func (o Outcome) Counts(t testing.TB, fresh, replaced, unchanged, failed int) {
	t.Helper()
	want := map[string]int{"new": fresh, "replaced": replaced, "unchanged": unchanged, "failed": failed}
	got := map[string]int{"new": 0, "replaced": 0, "unchanged": 0, "failed": 0}
	for _, p := range o.Report.Plugins {
		got[p.Action]++
	}
	if o.Code != 0 || !maps.Equal(got, want) {
		t.Fatalf("exit %d, signal %v, %v, want %v\n%s", o.Code, o.Signal, got, want, o.Stderr)
	}
	o.Told(t)
	last := fmt.Sprintf("%d new, %d replaced, %d unchanged", fresh, replaced, unchanged)
	if !strings.HasSuffix(o.LastLine(), last) {
		t.Fatalf("the log ends with %q, want %q", o.LastLine(), last)
	}
}

// Back fails unless the run restored exactly so many plugins, and said so in the termination log.
func (o Outcome) Back(t testing.TB, putBack, removed, left int) {
	t.Helper()
	last := fmt.Sprintf(": %d put back, %d removed, %d left", putBack, removed, left)
	if o.Code != 0 || len(o.Failed()) > 0 || !strings.HasSuffix(o.LastLine(), last) {
		t.Fatalf("exit %d, the log ends with %q, want %q\n%s", o.Code, o.LastLine(), last, o.Stderr)
	}
	o.Told(t)
}

// Told fails unless stderr and the termination log say what the report says, in the same words.
func (o Outcome) Told(t testing.TB) {
	t.Helper()
	if o.Log == "" || !strings.HasSuffix(o.Log, "\n") {
		t.Fatalf("the termination log is not whole: %q", o.Log)
	}
	quiet := (o.Report.Outcome == "staged" || o.Report.Outcome == "restored") && len(o.Failed()) == 0 && len(o.Report.Warnings) == 0
	if quiet {
		if o.Stderr != "" || strings.Count(o.Log, "\n") != 1 {
			t.Fatalf("a run with nothing to tell said %q on stderr and %q in the log", o.Stderr, o.Log)
		}
		return
	}
	if o.Stderr != o.Log && len(o.Stderr) <= 4096 {
		t.Fatalf("stderr and the termination log differ:\n%s\n--\n%s", o.Stderr, o.Log)
	}
	if len(o.Log) > 4096 {
		t.Fatalf("a termination log of %d bytes", len(o.Log))
	}
	if names := slices.Sorted(maps.Keys(o.Failed())); len(names) > 0 {
		failed := "failed to install: "
		if o.Report.Outcome == "restored" {
			failed = "failed to restore: "
		}
		if want := failed + strings.Join(names, " ") + "\n"; !strings.HasPrefix(o.Log, want) {
			t.Fatalf("the log begins\n%s\nwant\n%s", o.Log, want)
		}
		for name, cause := range o.Failed() {
			if cause == "" || len(o.Stderr) <= 4096 && !strings.Contains(o.Log, "\n"+name+": "+cause+"\n") {
				t.Fatalf("the cause of %s, %q, is not in the log:\n%s", name, cause, o.Log)
			}
		}
	}
}

// Failed returns the cause of each plugin that failed.
func (o Outcome) Failed() map[string]string {
	causes := make(map[string]string)
	for _, p := range o.Report.Plugins {
		if p.Action == "failed" {
			causes[p.Name] = p.Cause
		}
	}
	return causes
}

func (o Outcome) Result(t testing.TB, name string) Result {
	t.Helper()
	for _, p := range o.Report.Plugins {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no %s in the report:\n%s", name, o.Stdout)
	return Result{}
}

func (o Outcome) LastLine() string {
	lines := strings.Split(strings.TrimSuffix(o.Log, "\n"), "\n")
	return lines[len(lines)-1]
}

// Says fails unless the termination log has the text.
func (o Outcome) Says(t testing.TB, text string) {
	t.Helper()
	if !strings.Contains(o.Log, text) {
		t.Fatalf("the termination log does not say %q:\n%s", text, o.Log)
	}
}
