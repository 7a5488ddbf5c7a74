package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ProbeTimeout bounds one probe. A plugin answers in some 5 ms; the rest is for a node that is starting everything.
const ProbeTimeout = 20 * time.Second

// The two that tests shorten: the limit of one probe, and how long what a plugin left in another group may hold its
// output open.
var (
	probeTimeout = ProbeTimeout
	waitDelay    = time.Second
)

// maxAnswer bounds what is read of a plugin's answer, in bytes.
const maxAnswer = 64 << 10

// ErrNoInterpreter says that a file could not be started for want of its interpreter or dynamic loader, which may
// still be there on the host when it is missing in a container.
var ErrNoInterpreter = errors.New("its interpreter is not here")

// AnswerError says that a file was started but did not answer VERSION as a CNI plugin does.
type AnswerError struct{ Reason string }

func (e *AnswerError) Error() string { return "does not answer VERSION: " + e.Reason }

// ExecError says that the kernel would not start a file. Err is the errno.
type ExecError struct{ Err error }

func (e *ExecError) Error() string { return "cannot be executed: " + e.Err.Error() }
func (e *ExecError) Unwrap() error { return e.Err }

// Probe runs the open file f as the plugin name with CNI_COMMAND=VERSION, an empty environment, no standard input and
// a time limit, and returns the protocol versions that it answers with.
//
// The file that is run is the one that f has open, whatever its name stands for by now: what was verified through f is
// what is executed. f must not be open for writing anywhere. path is used only where /proc is missing, and only if it
// is still the same file.
//
// Errors are *ExecError, ErrNoInterpreter, *AnswerError, or the context's.
func Probe(ctx context.Context, f *os.File, path, name string) ([]string, error) {
	limited, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	// The descriptor is passed on as number 3 and not closed on exec, so that a script's interpreter can open it too.
	target := "/proc/self/fd/3"
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		if err := sameFile(f, path); err != nil {
			return nil, &ExecError{err}
		}
		target = path
	}
	var stdout, stderr limitedBuffer
	cmd := exec.CommandContext(limited, target)
	cmd.Args = []string{name}
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stdin = strings.NewReader("") // and not /dev/null, which a container can be without
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = waitDelay
	// A group of its own, so that what the plugin may have started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

	// The death signal is bound to the thread that starts the process, so that thread has to stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			return nil, &ExecError{err}
		}
		if errno == syscall.ENOENT {
			return nil, ErrNoInterpreter
		}
		return nil, &ExecError{errno}
	}
	endGroup(cmd.Process.Pid)
	err := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil:
		return nil, &AnswerError{fmt.Sprintf("no end after %s", probeTimeout)}
	}
	versions, parseErr := parseVersions(stdout.Bytes())
	if err != nil {
		return nil, &AnswerError{describeExit(err, stdout.Bytes(), stderr.Bytes())}
	}
	if parseErr != nil {
		return nil, &AnswerError{parseErr.Error()}
	}
	return versions, nil
}

// endGroup waits for the process to end and then ends what it started and did not wait for. Until it is reaped, which is
// the caller's to do, its number is nobody else's.
func endGroup(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
}

// MustAnswer decides what a probe's error means for a plugin: of the reference set a whole answer is demanded, of any
// other only that the node can start it. It returns the failure, or what to warn of.
func MustAnswer(reference bool, err error) (failure, warning error) {
	var answer *AnswerError
	switch {
	case err == nil:
		return nil, nil
	case !reference && (errors.As(err, &answer) || errors.Is(err, ErrNoInterpreter)):
		return nil, err
	}
	return err, nil
}

func sameFile(f *os.File, path string) error {
	held, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(held, named) {
		return fmt.Errorf("%s: replaced while it was checked", path)
	}
	return nil
}

func parseVersions(out []byte) ([]string, error) {
	var answer struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("stdout is not JSON: %s", quote(out))
	}
	if len(answer.SupportedVersions) == 0 {
		return nil, errors.New("no supportedVersions in the answer")
	}
	return answer.SupportedVersions, nil
}

func describeExit(err error, stdout, stderr []byte) string {
	said := stderr
	if len(bytes.TrimSpace(said)) == 0 {
		said = stdout
		// The protocol's own form of an error: its first line alone would be a brace.
		var answer struct {
			Msg string `json:"msg"`
		}
		if json.Unmarshal(stdout, &answer) == nil && answer.Msg != "" {
			said = []byte(answer.Msg)
		}
	}
	if len(bytes.TrimSpace(said)) == 0 {
		return err.Error()
	}
	return fmt.Sprintf("%s: %s", err, quote(said))
}

// quote makes a foreign program's output fit to stand in one line of a report.
func quote(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	line = strings.TrimSpace(line)
	if len(line) > 160 {
		line = line[:160] + "…"
	}
	return fmt.Sprintf("%q", line)
}

// limitedBuffer keeps the first maxAnswer bytes and takes the rest without keeping it, so that the writer never blocks.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := maxAnswer - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
