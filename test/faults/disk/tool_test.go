//go:build faults

package disk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var runs atomic.Int64

// call is one command line of chandler: of stage, or of restore where no bundle is named.
type call struct {
	bundle, dir string
	args        []string
	wrap        []string // the command that runs chandler: setpriv, prlimit
	attr        *syscall.SysProcAttr
	log         string // the termination log, or none
}

// outcome is what one run of chandler left for its user.
type outcome struct {
	code           int // -1 if a signal ended it
	signal         syscall.Signal
	stdout, stderr string
	report         report
}

type report struct {
	Outcome  string   `json:"outcome"`
	Message  string   `json:"message"`
	Plugins  []result `json:"plugins"`
	Warnings []string `json:"warnings"`
}

type result struct {
	Name, Action, Original, Cause string
}

// stage runs chandler stage once.
func stage(t testing.TB, bundle, dir string, args ...string) outcome {
	t.Helper()
	return call{bundle: bundle, dir: dir, args: args}.run(t)
}

func (c call) run(t testing.TB) outcome {
	t.Helper()
	return c.start(t).wait()
}

// process is a run of chandler under way.
type process struct {
	t              testing.TB
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

func (c call) start(t testing.TB) *process {
	t.Helper()
	runs.Add(1)
	argv := append(slices.Clone(c.wrap), ring.chandler)
	if c.bundle == "" {
		argv = append(argv, "restore")
	} else {
		argv = append(argv, "stage", "--bundle", c.bundle)
	}
	argv = append(argv, "--output", "json", "--bin-dir", c.dir, "--termination-log="+c.log)
	p := &process{t: t, cmd: exec.Command(argv[0], append(argv[1:], c.args...)...)}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = &p.stdout, &p.stderr, "/"
	p.cmd.SysProcAttr = c.attr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
	})
	return p
}

func (p *process) wait() outcome {
	p.t.Helper()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	o := outcome{code: p.cmd.ProcessState.ExitCode(), stdout: p.stdout.String(), stderr: p.stderr.String()}
	if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.signal = ws.Signal()
		return o
	}
	if o.stdout != "" {
		if err := json.Unmarshal([]byte(o.stdout), &o.report); err != nil {
			p.t.Fatalf("stdout is not one JSON document: %v\n%s\n%s", err, o.stdout, o.stderr)
		}
	}
	return o
}

// counts fails unless the run ended with the exit code 0 and exactly so many new, replaced, unchanged and failed plugins.
func (o outcome) counts(t testing.TB, fresh, replaced, unchanged, failed int) {
	t.Helper()
	got := make(map[string]int)
	for _, p := range o.report.Plugins {
		got[p.Action]++
	}
	if o.code != 0 || got["new"] != fresh || got["replaced"] != replaced || got["unchanged"] != unchanged || got["failed"] != failed {
		t.Fatalf("exit %d, signal %v, %v, want %d new, %d replaced, %d unchanged, %d failed\n%s",
			o.code, o.signal, got, fresh, replaced, unchanged, failed, o.stderr)
	}
}

// failed returns the cause of each plugin that failed.
func (o outcome) failed() map[string]string {
	causes := make(map[string]string)
	for _, p := range o.report.Plugins {
		if p.Action == "failed" {
			causes[p.Name] = p.Cause
		}
	}
	return causes
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func write(t testing.TB, path, text string, perm fs.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), perm), os.Chmod(path, perm))
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func mkdir(t testing.TB, path string) string {
	t.Helper()
	must(t, os.MkdirAll(path, 0o755))
	return path
}

// place copies plugins of a bundle into dir, as another installer would have.
func place(t testing.TB, bundle, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		write(t, filepath.Join(dir, name), read(t, filepath.Join(bundle, "bin", name)), 0o755)
	}
}

// wrongAs says how what stands under name in dir is not a whole executable of the bundle's; empty if it is.
func wrongAs(bundle, dir, name string) string {
	path := filepath.Join(dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return err.Error()
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; info.Mode() != 0o755 || uid != uint32(os.Geteuid()) {
		return fmt.Sprintf("%s: mode %v, owner %d", name, info.Mode(), uid)
	}
	want, err := os.ReadFile(filepath.Join(bundle, "bin", name))
	if err != nil {
		return err.Error()
	}
	got, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if !bytes.Equal(got, want) {
		return fmt.Sprintf("%s: %d bytes that are not those %d", name, len(got), len(want))
	}
	return ""
}

// holds fails unless dir has each of the names as a whole executable of the bundle's.
func holds(t testing.TB, bundle, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if w := wrongAs(bundle, dir, name); w != "" {
			t.Fatalf("not as the bundle's: %s", w)
		}
	}
}

var keptName = regexp.MustCompile(`^[1-9][0-9]*-([0-9a-f]{64}|unread)$`)

// litter lists what lies in dir that is neither one of the names nor what chandler means to leave in its folder.
func litter(t testing.TB, dir string, names ...string) (left []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		parts := strings.Split(rel, "/")
		switch {
		case rel == "." || slices.Contains(names, rel):
		case parts[0] != ".chandler":
			left = append(left, rel)
		case len(parts) == 1 || len(parts) == 2 && (parts[1] == "ledger.json" || d.IsDir()):
		case len(parts) == 3 && (parts[1] == "staged" || parts[1] == "originals" && d.IsDir()):
		case len(parts) == 4 && parts[1] == "originals" && keptName.MatchString(parts[3]):
		default:
			left = append(left, rel)
		}
		return nil
	}))
	return left
}

// identity is what makes a file the very same one.
type identity struct {
	kind, content, attr string
	ino                 uint64
	mode, uid           uint32
	mtime               int64
}

func identify(path string) (identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return identity{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	id := identity{ino: st.Ino, mode: st.Mode, uid: st.Uid, mtime: st.Mtim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data, err := os.ReadFile(path)
		if err != nil {
			return id, err
		}
		id.kind, id.content = "file", fmt.Sprint(len(data), crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
		value := make([]byte, 64)
		if n, err := unix.Getxattr(path, "user.ring", value); err == nil {
			id.attr = string(value[:n])
		}
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return id, err
		}
		id.kind, id.content = "link", target
	default:
		id.kind = "other"
	}
	return id, nil
}

func identified(t testing.TB, path string) identity {
	t.Helper()
	id, err := identify(path)
	must(t, err)
	return id
}

func glob(t testing.TB, parts ...string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(parts...))
	must(t, err)
	return paths
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in 20 s it did not come to this: %s", what)
		}
	}
}

func sh(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func unmount(t testing.TB, at string) {
	t.Helper()
	var err error
	for range 100 {
		if err = unix.Unmount(at, 0); err != unix.EBUSY {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("unmount %s: %v", at, err)
		unix.Unmount(at, unix.MNT_DETACH)
	}
}
