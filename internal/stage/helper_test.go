package stage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// file is one plugin to be packed.
type file struct {
	name string
	role bundle.Role
	data []byte
}

// ref is a plugin of the reference set that answers on this machine. Each name and version has bytes of its own.
func ref(name, version string) file {
	return file{name, bundle.Main, plugintest.Answering(nodeArch, plugintest.Answer, 0, name+" "+version)}
}

// extra is one of the user's own.
func extra(name string, data []byte) file { return file{name, bundle.Extra, data} }

// set is a bundle of reference plugins of one version.
func set(version string, names ...string) []file {
	var files []file
	for _, n := range names {
		files = append(files, ref(n, version))
	}
	return files
}

// pack writes a bundle and returns its directory.
func pack(t testing.TB, version string, files ...file) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "bundle")
	w, err := bundle.Create(out, version, nodeArch, bundle.Source{Kind: "dir"})
	must(t, err)
	defer w.Close()
	for _, f := range files {
		if _, err := w.Add(f.name, f.role, bytes.NewReader(f.data)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = w.Commit()
	must(t, err)
	return out
}

func openAt(t testing.TB, path string) *bundle.Bundle {
	t.Helper()
	b, err := bundle.Open(path)
	must(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

// packed is an open bundle of files.
func packed(t testing.TB, version string, files ...file) *bundle.Bundle {
	t.Helper()
	return openAt(t, pack(t, version, files...))
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// stage runs and checks what holds of every report: that it can be read back, and that nothing is left.
func stage(t testing.TB, b *bundle.Bundle, o Options) *Report {
	t.Helper()
	r := Run(t.Context(), b, o)
	checkReport(t, r)
	checkTidy(t, o.BinDir)
	return r
}

func checkReport(t testing.TB, r *Report) {
	t.Helper()
	if r.Outcome == Refused {
		if r.Err == nil || len(r.Plugins) > 0 && !errors.Is(r.Err, ErrReplaced) {
			t.Errorf("refused with %v and %d plugins", r.Err, len(r.Plugins))
		}
	}
	for _, p := range r.Plugins {
		told := p.Action == Failed || p.Action == Kept || p.Action == Left
		if (p.Action == Failed) != (p.Err != nil) || told != (p.Cause != "") || (p.Action == Kept) != (p.Reason != "") {
			t.Errorf("%s: %s with cause %q and %v", p.Name, p.Action, p.Cause, p.Err)
		}
	}
	if _, err := ParseText(r.Text()); err != nil {
		t.Errorf("the report cannot be read back: %v\n%s", err, r.Text())
	}
}

// checkTidy holds that nothing is left of a run but what is meant to stay.
func checkTidy(t testing.TB, bin string) {
	t.Helper()
	for _, pattern := range []string{"tmp/*", "originals/*/" + swapPrefix + "*"} {
		left, err := filepath.Glob(filepath.Join(bin, storeName, pattern))
		must(t, err)
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}

// want holds each plugin of the report to an action, in the order of their names.
func want(t testing.TB, r *Report, want string) {
	t.Helper()
	var got []string
	for _, p := range r.Plugins {
		got = append(got, p.Name+":"+string(p.Action))
	}
	if strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s\n%s", strings.Join(got, " "), want, r.Text())
	}
}

// result returns the report's entry for name.
func result(t testing.TB, r *Report, name string) Result {
	t.Helper()
	for _, p := range r.Plugins {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no %s in the report: %s", name, r.Text())
	return Result{}
}

// wantWarning holds that one of the report's warnings contains each of the texts, or with none that there is no warning.
func wantWarnings(t testing.TB, r *Report, texts ...string) {
	t.Helper()
	if len(r.Warnings) != len(texts) {
		t.Errorf("%d warnings, want %d: %q", len(r.Warnings), len(texts), r.Warnings)
		return
	}
	for i, text := range texts {
		if !strings.Contains(r.Warnings[i], text) {
			t.Errorf("warning %q, want %q in it", r.Warnings[i], text)
		}
	}
}

// inPlace holds that each file stands in the bin dir as staging leaves it.
func inPlace(t testing.TB, bin string, files ...file) {
	t.Helper()
	for _, f := range files {
		path := filepath.Join(bin, f.name)
		info, err := os.Lstat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		st := info.Sys().(*syscall.Stat_t)
		data, err := os.ReadFile(path)
		if err != nil || info.Mode() != 0o755 || st.Uid != uint32(os.Geteuid()) || !bytes.Equal(data, f.data) {
			t.Errorf("%s: %v, mode %s, uid %d, %d bytes", f.name, err, info.Mode(), st.Uid, len(data))
		}
	}
}

// write makes a file with exactly that mode.
func write(t testing.TB, path, content string, perm fs.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
	must(t, os.Chmod(path, perm))
}

// put makes something of the given kind.
func put(t testing.TB, path string, kind hostdir.Kind) {
	t.Helper()
	switch kind {
	case hostdir.File:
		write(t, path, "theirs", 0o711)
	case hostdir.Folder:
		must(t, os.Mkdir(path, 0o755))
		write(t, filepath.Join(path, "inside"), "theirs", 0o644)
	case hostdir.Symlink:
		must(t, os.Symlink("/nowhere/busybox", path))
	case hostdir.Fifo:
		must(t, unix.Mkfifo(path, 0o644))
	case hostdir.Socket:
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		must(t, err)
		defer unix.Close(fd)
		must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	default:
		t.Fatalf("cannot make a %s", kind)
	}
}

// ident is what makes a file that very file.
func ident(t testing.TB, path string) string {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	attrs := make([]byte, 1024)
	n, err := unix.Llistxattr(path, attrs)
	if err != nil {
		n = 0
	}
	content := ""
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data, err := os.ReadFile(path)
		must(t, err)
		content = sum(data)
	case unix.S_IFLNK:
		content, err = os.Readlink(path)
		must(t, err)
	}
	return fmt.Sprintf("ino %d mode %o owner %d:%d size %d mtime %d.%09d attrs %q content %s",
		st.Ino, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Sec, st.Mtim.Nsec, attrs[:n], content)
}

// tree describes everything under a directory. With times it says also when names and metadata last changed, and then two
// that are equal mean that nothing was written in between.
func tree(t testing.TB, dir string, times bool) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		if d.IsDir() && !times {
			fmt.Fprintf(&b, "%s/ ino %d mode %o\n", path[len(dir):], st.Ino, st.Mode)
			return nil
		}
		fmt.Fprintf(&b, "%s %s", path[len(dir):], ident(t, path))
		if times {
			fmt.Fprintf(&b, " ctime %d.%09d", st.Ctim.Sec, st.Ctim.Nsec)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

// unchanged returns a check that a directory is as it was when unchanged was called.
func unchanged(t testing.TB, dir string, times bool) func() {
	t.Helper()
	before := tree(t, dir, times)
	return func() {
		t.Helper()
		if after := tree(t, dir, times); after != before {
			t.Errorf("changed:\n%s\nwas:\n%s", after, before)
		}
	}
}

// originals returns the names of a plugin's kept files, oldest first.
func originals(t testing.TB, bin, name string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(bin, storeName, originalsName, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	var sorted []string
	for _, o := range parseOriginals(names) {
		sorted = append(sorted, o.file)
	}
	if len(sorted) != len(names) {
		t.Errorf("%s: something else among the originals: %q", name, names)
	}
	return sorted
}

// list returns what is in a directory.
func list(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// dies runs what is to be killed: something that it calls panics with that word.
func dies(t testing.TB, run func()) {
	t.Helper()
	defer func() {
		if p := recover(); p != "killed" {
			t.Errorf("it was not killed: %v", p)
		}
	}()
	run()
}

// original is the path of a plugin's newest kept file.
func newest(t testing.TB, bin, name string) string {
	t.Helper()
	kept := originals(t, bin, name)
	if len(kept) == 0 {
		t.Fatalf("no original of %s was kept", name)
	}
	return filepath.Join(bin, storeName, originalsName, name, kept[len(kept)-1])
}

// swapVar sets a variable for the time of a test.
func swapVar[T any](t testing.TB, at *T, value T) {
	old := *at
	*at = value
	t.Cleanup(func() { *at = old })
}

// unprivileged runs the test again without privileges where it is run with them. The test goes on only if it says true.
func unprivileged(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
	return false
}

// countdown is a context that ends when it has been asked a number of times whether it has ended.
type countdown struct {
	context.Context
	cancel context.CancelFunc
	left   chan struct{}
}

func newCountdown(parent context.Context, n int) *countdown {
	ctx, cancel := context.WithCancel(parent)
	c := &countdown{ctx, cancel, make(chan struct{}, n)}
	for range n {
		c.left <- struct{}{}
	}
	return c
}

func (c *countdown) Err() error {
	select {
	case <-c.left:
	default:
		c.cancel()
	}
	return c.Context.Err()
}

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}
