//go:build root

package root

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
)

var runs, kills atomic.Int64

// call is one command line of chandler, by default stage.
type call struct {
	verb        string
	bundle, dir string
	args        []string
	wrap        []string // the command that runs chandler: setpriv, prlimit, strace
	program     string   // chandler's path where it is another, as in a chroot
	chroot      string
	noLog       bool // the caller names the termination log, or none
}

// outcome is what one run of chandler left for its user.
type outcome struct {
	code           int // -1 if a signal ended it
	signal         syscall.Signal
	stdout, stderr string
	log            string // the termination message
	report         report
	written        int64 // bytes that it caused to be written, by the kernel's count
}

// report is the JSON result on stdout, read as a user's program would.
type report struct {
	Outcome  string   `json:"outcome"`
	Message  string   `json:"message"`
	Version  string   `json:"version"`
	Bundle   string   `json:"bundle"`
	BinDir   string   `json:"binDir"`
	Plugins  []result `json:"plugins"`
	Warnings []string `json:"warnings"`
	Hints    []string `json:"hints"`
}

type result struct {
	Name   string `json:"name"`
	Found  struct{ State, Detail, Target string }
	Action string `json:"action"`

	Original string `json:"original"`
	Cause    string `json:"cause"`
}

// stage runs chandler stage once.
func stage(t testing.TB, bundle, dir string, args ...string) outcome {
	t.Helper()
	return call{bundle: bundle, dir: dir, args: args}.run(t)
}

// restore runs chandler restore once.
func restore(t testing.TB, dir string, args ...string) outcome {
	t.Helper()
	return call{verb: "restore", dir: dir, args: args}.run(t)
}

// back fails unless the run restored exactly so many plugins, and said so in the termination log.
func (o outcome) back(t testing.TB, putBack, removed, left int) {
	t.Helper()
	last := fmt.Sprintf(": %d put back, %d removed, %d left", putBack, removed, left)
	if o.code != 0 || len(o.failed()) > 0 || !strings.HasSuffix(o.lastLine(), last) {
		t.Fatalf("exit %d, the log ends with %q, want %q\n%s", o.code, o.lastLine(), last, o.stderr)
	}
	o.told(t)
}

func (c call) command(t testing.TB) *process {
	t.Helper()
	runs.Add(1)
	p := &process{t: t}
	program := c.program
	if program == "" {
		program = ring.chandler
	}
	argv := append(slices.Clone(c.wrap), program, cmp.Or(c.verb, "stage"), "--output", "json")
	if c.bundle != "" {
		argv = append(argv, "--bundle", c.bundle)
	}
	if c.dir != "" {
		argv = append(argv, "--bin-dir", c.dir)
	}
	if !c.noLog {
		p.log = filepath.Join(t.TempDir(), "termination-log")
		// Longer than any message, so that what is not cut off shows.
		write(t, p.log, strings.Repeat("x", 8192), 0o644)
		argv = append(argv, "--termination-log", p.log)
	}
	p.cmd = exec.Command(argv[0], append(argv[1:], c.args...)...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.Dir = "/"
	// A group of its own, so that what is under strace ends with strace.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.chroot, Setpgid: true}
	return p
}

// process is a run of chandler under way.
type process struct {
	t              testing.TB
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	log            string
}

func (c call) start(t testing.TB) *process {
	t.Helper()
	p := c.command(t)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
			p.cmd.Wait()
		}
	})
	return p
}

func (p *process) kill() outcome {
	p.t.Helper()
	p.cmd.Process.Kill()
	o := p.wait()
	if o.signal == syscall.SIGKILL {
		kills.Add(1)
	}
	return o
}

func (p *process) wait() outcome {
	p.t.Helper()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	o := outcome{code: p.cmd.ProcessState.ExitCode(), stdout: p.stdout.String(), stderr: p.stderr.String(),
		written: p.cmd.ProcessState.SysUsage().(*syscall.Rusage).Oublock * 512}
	if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.signal = ws.Signal()
		return o
	}
	if p.log != "" {
		o.log = read(p.t, p.log)
		// Otherwise nothing was reported, as for wrong usage.
		if strings.HasPrefix(o.log, "xxxx") {
			o.log = ""
		}
	}
	if o.stdout != "" {
		dec := json.NewDecoder(strings.NewReader(o.stdout))
		if err := dec.Decode(&o.report); err != nil {
			p.t.Fatalf("stdout is not one JSON document: %v\n%s\n%s", err, o.stdout, o.stderr)
		}
	}
	return o
}

func (c call) run(t testing.TB) outcome {
	t.Helper()
	return c.start(t).wait()
}

// counts fails unless the run ended with the exit code 0 and exactly so many new, replaced, unchanged and failed plugins,
// and said so in the termination log.
func (o outcome) counts(t testing.TB, fresh, replaced, unchanged, failed int) {
	t.Helper()
	want := map[string]int{"new": fresh, "replaced": replaced, "unchanged": unchanged, "failed": failed}
	got := map[string]int{"new": 0, "replaced": 0, "unchanged": 0, "failed": 0}
	for _, p := range o.report.Plugins {
		got[p.Action]++
	}
	if o.code != 0 || !maps.Equal(got, want) {
		t.Fatalf("exit %d, %v, want %v\n%s", o.code, got, want, o.stderr)
	}
	o.told(t)
	last := fmt.Sprintf("%d new, %d replaced, %d unchanged", fresh, replaced, unchanged)
	if !strings.HasSuffix(o.lastLine(), last) {
		t.Fatalf("the log ends with %q, want %q", o.lastLine(), last)
	}
}

// told fails unless stderr and the termination log say what the report says, in the same words.
func (o outcome) told(t testing.TB) {
	t.Helper()
	if o.log == "" || !strings.HasSuffix(o.log, "\n") {
		t.Fatalf("the termination log is not whole: %q", o.log)
	}
	quiet := (o.report.Outcome == "staged" || o.report.Outcome == "restored") && len(o.failed()) == 0 && len(o.report.Warnings) == 0
	if quiet {
		if o.stderr != "" || strings.Count(o.log, "\n") != 1 {
			t.Fatalf("a run with nothing to tell said %q on stderr and %q in the log", o.stderr, o.log)
		}
		return
	}
	if o.stderr != o.log && len(o.stderr) <= 4096 {
		t.Fatalf("stderr and the termination log differ:\n%s\n--\n%s", o.stderr, o.log)
	}
	if len(o.log) > 4096 {
		t.Fatalf("a termination log of %d bytes", len(o.log))
	}
	if names := slices.Sorted(maps.Keys(o.failed())); len(names) > 0 {
		failed := "failed to install: "
		if o.report.Outcome == "restored" {
			failed = "failed to restore: "
		}
		if want := failed + strings.Join(names, " ") + "\n"; !strings.HasPrefix(o.log, want) {
			t.Fatalf("the log begins\n%s\nwant\n%s", o.log, want)
		}
		for name, cause := range o.failed() {
			if cause == "" || len(o.stderr) <= 4096 && !strings.Contains(o.log, "\n"+name+": "+cause+"\n") {
				t.Fatalf("the cause of %s, %q, is not in the log:\n%s", name, cause, o.log)
			}
		}
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

func (o outcome) result(t testing.TB, name string) result {
	t.Helper()
	for _, p := range o.report.Plugins {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no %s in the report:\n%s", name, o.stdout)
	return result{}
}

func (o outcome) lastLine() string {
	lines := strings.Split(strings.TrimSuffix(o.log, "\n"), "\n")
	return lines[len(lines)-1]
}

// says fails unless the termination log has the text.
func (o outcome) says(t testing.TB, text string) {
	t.Helper()
	if !strings.Contains(o.log, text) {
		t.Fatalf("the termination log does not say %q:\n%s", text, o.log)
	}
}

// verify runs chandler verify and returns its exit code and what it printed.
func verify(t testing.TB, bundle, dir string) (int, string) {
	t.Helper()
	runs.Add(1)
	cmd := exec.Command(ring.chandler, "verify", "--bundle", bundle, "--bin-dir", dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// Bundles

// deriveBundle makes a bundle of plugins of the ring's with tail behind the bytes of each, which the kernel does not look at.
// Each is a file of its own, also where in the given bundle one file has all names.
func deriveBundle(out, version string, names []string, tail string) error {
	from, err := bundle.Open(os.Getenv("BUNDLE"))
	if err != nil {
		return err
	}
	defer from.Close()
	w, err := bundle.Create(out, version, runtime.GOARCH, bundle.Source{Kind: "dir"})
	if err != nil {
		return err
	}
	defer w.Close()
	for _, name := range names {
		p, ok := from.Plugin(name)
		if !ok {
			return fmt.Errorf("no %s in the bundle", name)
		}
		f, err := from.OpenPlugin(p)
		if err != nil {
			return err
		}
		own := tail
		if ring.given != ring.bundle {
			own += " of " + name
		}
		_, err = w.Add(name, p.Role, io.MultiReader(f, strings.NewReader(own)))
		f.Close()
		if err != nil {
			return err
		}
	}
	_, err = w.Commit()
	return err
}

// shareBundle makes a bundle in which one file has all fourteen names. It attaches nothing, but it answers.
func shareBundle(out string, from *bundle.Bundle) error {
	w, err := bundle.Create(out, from.Manifest.Version, runtime.GOARCH, bundle.Source{Kind: "dir"})
	if err != nil {
		return err
	}
	defer w.Close()
	first := from.Manifest.Plugins[0]
	f, err := from.OpenPlugin(first)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := w.Add(first.Name, first.Role, f); err != nil {
		return err
	}
	for _, p := range from.Manifest.Plugins[1:] {
		if _, err := w.Link(p.Name, p.Role, first.Name); err != nil {
			return err
		}
	}
	_, err = w.Commit()
	return err
}

// gate is a bundle that holds staging between checking and publishing: one of its plugins is a script that, when it is
// probed, says that it was reached and waits to be let through.
type gate struct {
	bundle, dir string
}

const gateName = "zz-gate"

func newGate(t testing.TB, base string) gate {
	t.Helper()
	g := gate{filepath.Join(t.TempDir(), "bundle"), t.TempDir()}
	from, err := bundle.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	w, err := bundle.Create(g.bundle, from.Manifest.Version, runtime.GOARCH, bundle.Source{Kind: "dir"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, p := range from.Manifest.Plugins {
		f, err := from.OpenPlugin(p)
		if err == nil {
			_, err = w.Add(p.Name, p.Role, f)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf("#!/bin/sh\n: >%[1]s/reached\nwhile [ ! -e %[1]s/open ]; do sleep 0.01; done\n"+
		`echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'`+"\n", g.dir)
	if _, err = w.Add(gateName, bundle.Extra, strings.NewReader(script)); err == nil {
		_, err = w.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.open)
	return g
}

func (g gate) reached(t testing.TB) {
	t.Helper()
	eventually(t, "staging comes to the gate", func() bool { return exists(filepath.Join(g.dir, "reached")) })
}

func (g gate) open() { os.WriteFile(filepath.Join(g.dir, "open"), nil, 0o644) }

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in 20 s it did not come to this: %s", what)
		}
	}
}

// Files

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func write(t testing.TB, path, text string, perm fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), perm); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, perm); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func mkdir(t testing.TB, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// place copies the plugins of a bundle into dir, as another installer would have.
func place(t testing.TB, bundle, dir string, names ...string) {
	t.Helper()
	if len(names) == 0 {
		names = namesOf(t, bundle)
	}
	for _, name := range names {
		write(t, filepath.Join(dir, name), read(t, filepath.Join(bundle, "bin", name)), 0o755)
	}
}

func namesOf(t testing.TB, dir string) []string {
	t.Helper()
	b, err := bundle.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	return pluginNames(b)
}

// sameFiles says whether two files hold the same bytes.
func sameFiles(a, b string) (bool, error) {
	ia, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	ib, err := os.Stat(b)
	if err != nil || ia.Size() != ib.Size() {
		return false, err
	}
	da, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	db, err := os.ReadFile(b)
	return bytes.Equal(da, db), err
}

// wrongAs says how what stands under name in dir is not a whole executable of the bundle's; empty if it is.
func wrongAs(bundle, dir, name string) string {
	path := filepath.Join(dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return err.Error()
	}
	if info.Mode() != 0o755 {
		return fmt.Sprintf("%s: mode %v, not 0755", name, info.Mode())
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 {
		return fmt.Sprintf("%s: owner %d", name, uid)
	}
	same, err := sameFiles(path, filepath.Join(bundle, "bin", name))
	if err != nil {
		return err.Error()
	}
	if !same {
		return name + ": other bytes"
	}
	return ""
}

// holds fails unless dir has each of the names, or all of the bundle's, as whole executables of the bundle's.
func holds(t testing.TB, bundle, dir string, names ...string) {
	t.Helper()
	if len(names) == 0 {
		names = namesOf(t, bundle)
	}
	for _, name := range names {
		if w := wrongAs(bundle, dir, name); w != "" {
			t.Fatalf("not as the bundle's: %s", w)
		}
	}
}

// whole fails unless each name of the bundles in dir is a whole executable of one of them. With mayMiss it may also be absent.
func whole(t testing.TB, dir string, mayMiss bool, bundles ...string) {
	t.Helper()
	for _, name := range namesOf(t, bundles[0]) {
		if mayMiss && !exists(filepath.Join(dir, name)) {
			continue
		}
		var wrong []string
		for _, b := range bundles {
			if w := wrongAs(b, dir, name); w != "" {
				wrong = append(wrong, w)
			}
		}
		if len(wrong) == len(bundles) {
			t.Fatalf("neither old nor new: %v", wrong)
		}
	}
}

var originalName = regexp.MustCompile(`^[1-9][0-9]*-([0-9a-f]{64}|unread)$`)

// clean fails if anything lies in dir but the bundle's plugins and chandler's folder with what it keeps, or the names in also.
func clean(t testing.TB, bundle, dir string, also ...string) {
	t.Helper()
	if left := litter(t, bundle, dir, also...); len(left) > 0 {
		t.Fatalf("left in the directory: %v", left)
	}
}

func litter(t testing.TB, bundle, dir string, also ...string) []string {
	t.Helper()
	allowed := append(namesOf(t, bundle), also...)
	var left []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		parts := strings.Split(rel, "/")
		switch {
		case rel == "." || rel == ".chandler" && d.IsDir():
		case parts[0] != ".chandler":
			if !slices.Contains(allowed, parts[0]) {
				left = append(left, rel)
			}
			if d.IsDir() {
				return fs.SkipDir
			}
		case len(parts) == 2 && (parts[1] == "ledger.json" || d.IsDir() && slices.Contains([]string{"tmp", "originals", "staged"}, parts[1])):
		case parts[1] == "staged" && len(parts) == 3 && d.Type().IsRegular():
		case parts[1] == "originals" && len(parts) == 3 && d.IsDir():
		case parts[1] == "originals" && len(parts) == 4 && originalName.MatchString(parts[3]):
		default:
			left = append(left, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// originals returns the paths of a name's originals, oldest first.
func originals(t testing.TB, dir, name string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, ".chandler/originals", name, "*"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths) // at most nine of them in these tests
	return paths
}

// identity is what makes a file the very same one: its inode, its times, its mode, its owner, its bytes or its target.
type identity struct {
	kind, content string
	ino           uint64
	mode, uid     uint32
	mtime         int64
}

func identify(t testing.TB, path string) identity {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	id := identity{ino: st.Ino, mode: st.Mode, uid: st.Uid, mtime: st.Mtim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		id.kind, id.content = "file", fmt.Sprint(st.Size, crc32.Checksum([]byte(read(t, path)), castagnoli))
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			t.Fatal(err)
		}
		id.kind, id.content = "symlink", target
	case unix.S_IFDIR:
		entries, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			id.content += e.Name() + "\n"
		}
		id.kind = "directory"
	default:
		id.kind, id.content = "special", fmt.Sprint(st.Rdev)
	}
	return id
}

// tree is every name below a directory with what it stands for, times of change included, so that nothing can be done
// below it without a trace.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		found[rel] = fmt.Sprint(st.Ino, st.Mode, st.Uid, st.Nlink, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func unchanged(t testing.TB, before, after map[string]string) {
	t.Helper()
	for name, was := range before {
		if after[name] != was {
			t.Errorf("%s changed: %s, was %s", name, after[name], was)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("%s is new", name)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// Commands and mounts

func sh(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// mounted mounts something for as long as the test lasts.
func mounted(t testing.TB, source, at, kind string, flags uintptr, data string) string {
	t.Helper()
	if err := unix.Mount(source, at, kind, flags, data); err != nil {
		t.Fatalf("mount %s at %s: %v", kind, at, err)
	}
	t.Cleanup(func() { unmount(t, at) })
	return at
}

func unmount(t testing.TB, at string) {
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

// bind makes dir appear at another path as well, as a container's volume does, with the given flags (MS_RDONLY, MS_NOEXEC).
func bind(t testing.TB, dir, at string, flags uintptr) string {
	t.Helper()
	mounted(t, dir, at, "", unix.MS_BIND, "")
	if flags != 0 {
		if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

func tmpfs(t testing.TB, data string) string {
	t.Helper()
	return mounted(t, "tmpfs", t.TempDir(), "tmpfs", 0, data)
}

// makeDisk makes a file system of the given kind in a sparse file and mounts it.
func makeDisk(kind, image string, size int64, at string) error {
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	f.Close()
	if err != nil {
		return err
	}
	args := map[string][]string{"ext4": {"-q", "-F"}, "xfs": {"-q", "-f"}, "btrfs": {"-q", "-f"}}[kind]
	if out, err := exec.Command("mkfs."+kind, append(args, image)...).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.%s: %w: %s", kind, err, out)
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if out, err := exec.Command("mount", "-o", "loop", "-t", kind, image, at).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", kind, err, out)
	}
	return nil
}

// disk is makeDisk for as long as the test lasts. It returns the mount point and the file that is the disk.
func disk(t testing.TB, kind string, size int64) (at, image string) {
	t.Helper()
	dir, err := os.MkdirTemp(ring.dir, ring.id+"-"+kind+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at, image = filepath.Join(dir, "at"), filepath.Join(dir, ring.id+".img")
	if err := makeDisk(kind, image, size, at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, at) })
	return at, image
}

// originalsName says whether a name is one that an original has once everything is settled.
func originalsName(name string) bool {
	n, digest, ok := strings.Cut(name, "-")
	_, err := strconv.Atoi(n)
	return ok && err == nil && len(digest) == 64
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
