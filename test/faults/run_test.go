//go:build faults

package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/chandler-cni/chandler/test/faults/tracer"
	"github.com/chandler-cni/chandler/test/rig"
)

// desk is where one run after the other is made: a directory for plugins, and the files that a run writes its words to. Each
// goroutine that runs something has its own.
type desk struct {
	chandler            string
	dir                 string // the bin dir
	stdout, stderr, log string
}

func newDesk(at, chandler string) (*desk, error) {
	d := &desk{chandler, filepath.Join(at, "bin"), filepath.Join(at, "stdout"), filepath.Join(at, "stderr"), filepath.Join(at, "log")}
	return d, os.MkdirAll(d.dir, 0o755)
}

// outcome is what one run left for its user.
type outcome struct {
	code           int // -1 if a signal ended it
	signal         syscall.Signal
	hung           bool
	stdout, stderr string
	log            string // the termination message; what was there before it, if nothing was written
	report         rig.Report
	torn           error // stdout is no JSON
	calls          []tracer.Call
}

// unwritten is what is in the termination log before a run.
const unwritten = "nothing was written"

const patience = 20 * time.Second

// run runs chandler with the arguments. With decide it is traced.
func (d *desk) run(decide tracer.Decide, args ...string) (outcome, error) {
	rig.Runs.Add(1)
	var o outcome
	stdout, err := os.Create(d.stdout)
	if err != nil {
		return o, err
	}
	defer stdout.Close()
	stderr, err := os.Create(d.stderr)
	if err != nil {
		return o, err
	}
	defer stderr.Close()
	if err := os.WriteFile(d.log, []byte(unwritten), 0o644); err != nil {
		return o, err
	}
	argv := append([]string{d.chandler}, args...)
	var status syscall.WaitStatus
	if decide == nil {
		// The tracer takes the children of its thread for its own, so that none may be left to a thread that goes on to others.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.Cmd{Path: argv[0], Args: argv, Env: []string{}, Dir: "/", Stdout: stdout, Stderr: stderr}
		if err := cmd.Start(); err != nil {
			return o, err
		}
		timer := time.AfterFunc(patience, func() { cmd.Process.Kill(); o.hung = true })
		cmd.Wait()
		timer.Stop()
		status = cmd.ProcessState.Sys().(syscall.WaitStatus)
	} else {
		trace, err := tracer.Program{Argv: argv, Env: []string{}, Stdout: stdout, Stderr: stderr, Timeout: patience}.Run(decide)
		if err != nil {
			return o, err
		}
		status, o.hung, o.calls = trace.Status, trace.Hung, trace.Calls
	}
	o.code = status.ExitStatus()
	if status.Signaled() {
		o.signal = status.Signal()
	}
	for path, text := range map[string]*string{d.stdout: &o.stdout, d.stderr: &o.stderr, d.log: &o.log} {
		data, err := os.ReadFile(path)
		if err != nil {
			return o, err
		}
		*text = string(data)
	}
	o.torn = json.Unmarshal([]byte(o.stdout), &o.report)
	return o, nil
}

func (o outcome) String() string {
	s := fmt.Sprintf("exit %d", o.code)
	if o.signal != 0 {
		s = "ended by " + o.signal.String()
	}
	if o.hung {
		s += ", after " + patience.String()
	}
	return fmt.Sprintf("%s\nstderr: %s\nlog: %s\nstdout: %s", s, o.stderr, o.log, o.stdout)
}

// lastLine is the last line of the termination message.
func (o outcome) lastLine() string {
	lines := strings.Split(strings.TrimSuffix(o.log, "\n"), "\n")
	return lines[len(lines)-1]
}
