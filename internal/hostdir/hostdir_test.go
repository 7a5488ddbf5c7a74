package hostdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// open opens a new directory on a real file system.
func openTemp(t *testing.T) (*Dir, string) {
	t.Helper()
	path := t.TempDir()
	return mustOpen(t, path), path
}

func mustOpen(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put makes something of the given kind, with a content that tells it from others.
func put(t *testing.T, path string, kind Kind, content string) {
	t.Helper()
	switch kind {
	case File:
		must(t, os.WriteFile(path, []byte(content), 0o644))
	case Folder:
		must(t, os.Mkdir(path, 0o755))
		must(t, os.WriteFile(filepath.Join(path, "inside"), []byte(content), 0o644))
	case Symlink:
		must(t, os.Symlink(content, path))
	case Fifo:
		must(t, unix.Mkfifo(path, 0o644))
	case Socket:
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		must(t, err)
		defer unix.Close(fd)
		must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	default:
		t.Fatalf("cannot make a %s", kind)
	}
}

var kinds = []Kind{File, Folder, Symlink, Fifo, Socket}

// look describes a whole tree: each name with its inode, mode and content.
func look(t *testing.T, path string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			content = string(data)
		case info.Mode()&fs.ModeSymlink != 0:
			content, _ = os.Readlink(p)
		}
		fmt.Fprintf(&b, "%s %d %s %q\n", p[len(path):], info.Sys().(*syscall.Stat_t).Ino, info.Mode(), content)
		return nil
	}))
	return b.String()
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

func umask(t *testing.T, mask int) {
	old := syscall.Umask(mask)
	t.Cleanup(func() { syscall.Umask(old) })
}

// within fails the test where do blocks.
func within(t *testing.T, limit time.Duration, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatal("blocked")
	}
}

func TestOpen(t *testing.T) {
	base := t.TempDir()
	must(t, os.Mkdir(filepath.Join(base, "dir"), 0o755))
	put(t, filepath.Join(base, "link"), Symlink, "dir")
	put(t, filepath.Join(base, "dangling"), Symlink, "nothing")
	put(t, filepath.Join(base, "file"), File, "x")
	put(t, filepath.Join(base, "fifo"), Fifo, "")
	for name, want := range map[string]error{
		"dir": nil, "link": nil,
		"absent": fs.ErrNotExist, "dangling": fs.ErrNotExist, "file": unix.ENOTDIR, "fifo": unix.ENOTDIR,
	} {
		within(t, 5*time.Second, func() {
			d, err := Open(filepath.Join(base, name))
			if !errors.Is(err, want) {
				t.Errorf("Open %s: %v, want %v", name, err, want)
			}
			if err == nil {
				d.Close()
			}
		})
	}
}

func TestOpenStaysTheSameDirectory(t *testing.T) {
	base := t.TempDir()
	path := filepath.Join(base, "bin")
	must(t, os.Mkdir(path, 0o755))
	d := mustOpen(t, path)
	must(t, os.Rename(path, filepath.Join(base, "moved")))
	must(t, os.Mkdir(path, 0o755))
	f, err := d.Create("here")
	must(t, err)
	f.Close()
	if _, err := os.Lstat(filepath.Join(base, "moved", "here")); err != nil {
		t.Error("the open directory was left for the one that took its path:", err)
	}
	if d.Path() != path {
		t.Errorf("Path is %s, want the one it was opened by", d.Path())
	}
}

func TestSubFollowsNoLink(t *testing.T) {
	d, path := openTemp(t)
	must(t, os.Mkdir(filepath.Join(path, "real"), 0o755))
	put(t, filepath.Join(path, "link"), Symlink, "real")
	sub, err := d.Sub("real")
	must(t, err)
	sub.Close()
	if sub, err := d.Sub("link"); err == nil {
		sub.Close()
		t.Error("Sub followed a link")
	}
}

func TestMakeWhateverTheUmask(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077, 0o177 &^ 0o100} {
		umask(t, mask)
		d, path := openTemp(t)
		for _, perm := range []fs.FileMode{0o700, 0o755, 0o777} {
			name := fmt.Sprintf("%o", perm)
			sub, err := d.Make(name, perm)
			must(t, err)
			sub.Close()
			info, err := os.Lstat(filepath.Join(path, name))
			must(t, err)
			if info.Mode().Perm() != perm {
				t.Errorf("umask %04o: Make(%04o) has mode %04o", mask, perm, info.Mode().Perm())
			}
		}
	}
}

func TestMakeAndCreateTakeNothing(t *testing.T) {
	for _, kind := range kinds {
		d, path := openTemp(t)
		put(t, filepath.Join(path, "name"), kind, "theirs")
		before := look(t, path)
		if sub, err := d.Make("name", 0o755); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Make over a %s: %v, %v", kind, sub, err)
		}
		if f, err := d.Create("name"); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Create over a %s: %v, %v", kind, f, err)
		}
		if after := look(t, path); after != before {
			t.Errorf("%s changed:\n%s\nwas:\n%s", kind, after, before)
		}
	}
}

func TestCreateIsPrivate(t *testing.T) {
	umask(t, 0)
	d, path := openTemp(t)
	f, err := d.Create("new")
	must(t, err)
	defer f.Close()
	info, err := os.Lstat(filepath.Join(path, "new"))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %04o, want 0600", info.Mode().Perm())
	}
	if f.Name() != filepath.Join(path, "new") {
		t.Errorf("name %s", f.Name())
	}
}

func TestStat(t *testing.T) {
	d, path := openTemp(t)
	for _, kind := range kinds {
		name := string(kind)
		put(t, filepath.Join(path, name), kind, "content")
		e, err := d.Stat(name)
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(path, name), &st))
		want := Entry{Kind: kind, Perm: fs.FileMode(st.Mode & 0o7777), UID: st.Uid, GID: st.Gid, Size: st.Size,
			ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), Changed: time.Unix(st.Ctim.Sec, st.Ctim.Nsec), Dev: uint64(st.Dev), Ino: st.Ino, Nlink: uint64(st.Nlink)}
		if e != want {
			t.Errorf("%s: %+v, want %+v", kind, e, want)
		}
	}
	dev := mustOpen(t, "/dev")
	if e, err := dev.Stat("null"); err != nil || e.Kind != Device {
		t.Errorf("/dev/null: %+v, %v", e, err)
	}
	must(t, os.Chmod(filepath.Join(path, "file"), 0o711|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky))
	if e, err := d.Stat("file"); err != nil || e.Perm != 0o7711 {
		t.Errorf("mode %04o (%v), want 7711", e.Perm, err)
	}
	must(t, os.Link(filepath.Join(path, "file"), filepath.Join(path, "again")))
	a, _ := d.Stat("file")
	b, _ := d.Stat("again")
	c, _ := d.Stat("fifo")
	if !a.Same(b) || a.Same(c) || a.Nlink != 2 {
		t.Errorf("Same is wrong: %+v %+v %+v", a, b, c)
	}
}

func TestLinks(t *testing.T) {
	d, path := openTemp(t)
	put(t, filepath.Join(path, "file"), File, "x")
	put(t, filepath.Join(path, "good"), Symlink, "file")
	long := "/" + strings.Repeat("y", unix.PathMax-2)
	put(t, filepath.Join(path, "dangling"), Symlink, long)
	for name, want := range map[string]string{"good": "file", "dangling": long} {
		if got, err := d.Readlink(name); err != nil || got != want {
			t.Errorf("Readlink %s: %q, %v", name, got, err)
		}
	}
	if _, err := d.Readlink("file"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Readlink of a file: %v", err)
	}
	if !d.TargetVisible("good") || d.TargetVisible("dangling") || d.TargetVisible("absent") {
		t.Error("TargetVisible is wrong")
	}
}

func TestOpenBelow(t *testing.T) {
	d, path := openTemp(t)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "out")
	put(t, outside, File, "out")
	put(t, filepath.Join(path, "file"), File, "x")
	must(os.Mkdir(filepath.Join(path, "sub"), 0o755))
	for name, target := range map[string]string{
		"link": "./file", "chain": "link", "sub/up": "../chain", "leaves": "../" + filepath.Base(path) + "/file", "absolute": filepath.Join(path, "file"),
		"outside": outside, "loop": "loop", "nothing": "not there", "dir": "sub", "to fifo": "fifo", "magic": "/proc/self/exe",
	} {
		must(os.Symlink(target, filepath.Join(path, name)))
	}
	must(unix.Mkfifo(filepath.Join(path, "fifo"), 0o644))
	for name, want := range map[string]error{
		"file": nil, "link": nil, "chain": nil, "sub/up": nil, "leaves": unix.EXDEV, "absolute": unix.EXDEV, "outside": unix.EXDEV, "magic": unix.EXDEV,
		"loop": unix.ELOOP, "nothing": fs.ErrNotExist, "dir": ErrNotRegular, "to fifo": ErrNotRegular, "../x": unix.EXDEV,
	} {
		within(t, 5*time.Second, func() {
			f, e, err := d.OpenBelow(name)
			if !errors.Is(err, want) || (err == nil) != (want == nil) || err == nil && (e.Kind != File || e.Size != 1) {
				t.Errorf("%s: %+v, %v, want %v", name, e, err, want)
			}
			if err == nil {
				f.Close()
			}
		})
	}
}

func TestOpenFileOpensOnlyFiles(t *testing.T) {
	d, path := openTemp(t)
	for _, kind := range kinds {
		name := string(kind)
		put(t, filepath.Join(path, name), kind, "file") // the link leads to a file
		within(t, 5*time.Second, func() {
			f, e, err := d.OpenFile(name)
			if kind == File {
				if err != nil {
					t.Errorf("file: %v", err)
					return
				}
				defer f.Close()
				if data, err := io.ReadAll(f); err != nil || string(data) != "file" || e.Size != 4 {
					t.Errorf("file: %q, %+v, %v", data, e, err)
				}
				return
			}
			if !errors.Is(err, ErrNotRegular) || e.Kind != kind {
				t.Errorf("%s: %+v, %v", kind, e, err)
			}
		})
	}
	if _, _, err := d.OpenFile("absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	dev := mustOpen(t, "/dev")
	if _, _, err := dev.OpenFile("null"); !errors.Is(err, ErrNotRegular) {
		t.Errorf("/dev/null: %v", err)
	}
}

// A name that changes its kind between the look and the opening is never followed, never blocks, and is never mistaken.
func TestOpenFileWhileTheNameChanges(t *testing.T) {
	for _, kind := range []Kind{Folder, Symlink, Fifo, Socket} {
		t.Run(string(kind), func(t *testing.T) {
			d, path := openTemp(t)
			put(t, filepath.Join(path, "secret"), File, "secret")
			put(t, filepath.Join(path, "name"), File, "right")
			put(t, filepath.Join(path, "other"), kind, "secret")
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						if err := d.Exchange(d, "name", "other"); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
			within(t, 20*time.Second, func() {
				for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
					f, _, err := d.OpenFile("name")
					if err != nil {
						if !errors.Is(err, ErrNotRegular) {
							t.Errorf("want ErrNotRegular, got %v", err)
							return
						}
						continue
					}
					data, err := io.ReadAll(f)
					f.Close()
					if err != nil || string(data) != "right" {
						t.Errorf("read %q, %v", data, err)
						return
					}
				}
			})
			close(stop)
			wg.Wait()
		})
	}
}

func TestNames(t *testing.T) {
	d, path := openTemp(t)
	want := []string{".hidden", "a", "b", "c"}
	for _, n := range []string{"c", "a", ".hidden", "b"} {
		put(t, filepath.Join(path, n), File, "")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if got, err := d.Names(); err != nil || !slices.Equal(got, want) {
					t.Errorf("%q, %v", got, err)
					return
				}
			}
		})
	}
	wg.Wait()
	sub := filepath.Join(path, "gone")
	must(t, os.Mkdir(sub, 0o755))
	gone := mustOpen(t, sub)
	must(t, os.Remove(sub))
	if names, err := gone.Names(); len(names) > 0 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a removed directory: %q, %v", names, err)
	}
}

// withRename runs test with what the file system says to rename's flags, and with the kernel's own answer.
func withRename(t *testing.T, test func(t *testing.T, flags bool)) {
	t.Run("flags", func(t *testing.T) { test(t, true) })
	for _, errno := range []unix.Errno{unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			old := renameat2
			t.Cleanup(func() { renameat2 = old })
			renameat2 = func(int, string, int, string, uint) error { return errno }
			test(t, false)
		})
	}
}

func TestPublish(t *testing.T) {
	withRename(t, func(t *testing.T, flags bool) {
		from, fromPath := openTemp(t)
		d, _ := openTemp(t)
		put(t, filepath.Join(fromPath, "tmp"), File, "new")
		want, err := from.Stat("tmp")
		must(t, err)
		must(t, d.Publish(from, "tmp", "name"))
		got, err := d.Stat("name")
		must(t, err)
		if !got.Same(want) || got.Nlink != 1 {
			t.Errorf("published %+v, want the inode of %+v under one name", got, want)
		}
		if names, _ := from.Names(); len(names) > 0 {
			t.Errorf("%q is left", names)
		}
		if err := d.Publish(from, "tmp", "other"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Publish of nothing: %v", err)
		}
	})
}

func TestPublishTakesNothing(t *testing.T) {
	withRename(t, func(t *testing.T, flags bool) {
		for _, kind := range kinds {
			from, fromPath := openTemp(t)
			d, path := openTemp(t)
			put(t, filepath.Join(fromPath, "tmp"), File, "new")
			put(t, filepath.Join(path, "name"), kind, "theirs")
			before := look(t, fromPath) + look(t, path)
			if err := d.Publish(from, "tmp", "name"); !errors.Is(err, fs.ErrExist) {
				t.Errorf("Publish over a %s: %v", kind, err)
			}
			if after := look(t, fromPath) + look(t, path); after != before {
				t.Errorf("%s:\n%s\nwas:\n%s", kind, after, before)
			}
		}
	})
}

func TestExchange(t *testing.T) {
	for _, kind := range kinds {
		from, fromPath := openTemp(t)
		d, path := openTemp(t)
		put(t, filepath.Join(fromPath, "ours"), File, "ours")
		put(t, filepath.Join(path, "theirs"), kind, "theirs")
		ours, err := from.Stat("ours")
		must(t, err)
		theirs, err := d.Stat("theirs")
		must(t, err)
		must(t, d.Exchange(from, "ours", "theirs"))
		got, err := d.Stat("theirs")
		must(t, err)
		back, err := from.Stat("ours")
		must(t, err)
		if !got.Same(ours) || !back.Same(theirs) || back.Kind != kind {
			t.Errorf("%s: %+v and %+v, want %+v and %+v", kind, got, back, ours, theirs)
		}
	}
	from, fromPath := openTemp(t)
	d, _ := openTemp(t)
	put(t, filepath.Join(fromPath, "ours"), File, "ours")
	before := look(t, fromPath)
	if err := d.Exchange(from, "ours", "absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with nothing: %v", err)
	}
	if after := look(t, fromPath); after != before {
		t.Errorf("changed to %s", after)
	}
}

func TestExchangeUnsupported(t *testing.T) {
	withRename(t, func(t *testing.T, flags bool) {
		d, path := openTemp(t)
		put(t, filepath.Join(path, "a"), File, "a")
		put(t, filepath.Join(path, "b"), File, "b")
		before := look(t, path)
		err := d.Exchange(d, "a", "b")
		if flags != (err == nil) || !flags && !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
		if after := look(t, path); !flags && after != before {
			t.Errorf("changed to %s", after)
		}
	})
}

// Any other errno is the caller's to see: the fallback is only for file systems without the flags.
func TestRenameErrorsAreKept(t *testing.T) {
	old := renameat2
	t.Cleanup(func() { renameat2 = old })
	renameat2 = func(int, string, int, string, uint) error { return unix.EIO }
	d, path := openTemp(t)
	put(t, filepath.Join(path, "a"), File, "a")
	before := look(t, path)
	if err := d.Publish(d, "a", "b"); !errors.Is(err, unix.EIO) {
		t.Errorf("Publish: %v", err)
	}
	if err := d.Exchange(d, "a", "b"); !errors.Is(err, unix.EIO) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Exchange: %v", err)
	}
	if after := look(t, path); after != before {
		t.Errorf("changed to %s", after)
	}
}

func TestLink(t *testing.T) {
	d, path := openTemp(t)
	put(t, filepath.Join(path, "target"), File, "x")
	put(t, filepath.Join(path, "symlink"), Symlink, "target")
	for _, name := range []string{"target", "symlink"} {
		must(t, d.Link(d, name, name+"2"))
		a, err := d.Stat(name)
		must(t, err)
		b, err := d.Stat(name + "2")
		must(t, err)
		if !a.Same(b) || a.Kind != b.Kind {
			t.Errorf("Link of %s: %+v and %+v", name, a, b)
		}
	}
	for _, kind := range kinds {
		name := "over-" + string(kind)
		put(t, filepath.Join(path, name), kind, "theirs")
		before := look(t, path)
		if err := d.Link(d, "target", name); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Link over a %s: %v", kind, err)
		}
		if after := look(t, path); after != before {
			t.Errorf("changed to %s", after)
		}
	}
}

func TestReplace(t *testing.T) {
	for _, kind := range kinds {
		d, path := openTemp(t)
		put(t, filepath.Join(path, "target"), File, "target")
		put(t, filepath.Join(path, "new"), File, "new")
		put(t, filepath.Join(path, "name"), kind, "target")
		before := look(t, path)
		want, err := d.Stat("new")
		must(t, err)
		err = d.Replace(d, "new", "name")
		if kind == Folder {
			if !errors.Is(err, unix.EISDIR) || look(t, path) != before {
				t.Errorf("over a directory: %v\n%s", err, look(t, path))
			}
			continue
		}
		must(t, err)
		if got, err := d.Stat("name"); err != nil || !got.Same(want) {
			t.Errorf("over a %s: %+v, %v", kind, got, err)
		}
		if data, _ := os.ReadFile(filepath.Join(path, "target")); string(data) != "target" {
			t.Errorf("over a %s: the target holds %q", kind, data)
		}
	}
}

func TestRemove(t *testing.T) {
	for _, kind := range kinds {
		d, path := openTemp(t)
		put(t, filepath.Join(path, "target"), File, "target")
		put(t, filepath.Join(path, "name"), kind, "target")
		err := d.Remove("name")
		if kind == Folder {
			if !errors.Is(err, unix.EISDIR) {
				t.Errorf("Remove of a directory: %v", err)
			}
			if err := d.RemoveDir("name"); !errors.Is(err, unix.ENOTEMPTY) {
				t.Errorf("RemoveDir of a full directory: %v", err)
			}
			must(t, os.Remove(filepath.Join(path, "name", "inside")))
			must(t, d.RemoveDir("name"))
		} else {
			must(t, err)
		}
		if names, err := d.Names(); err != nil || !slices.Equal(names, []string{"target"}) {
			t.Errorf("%s: %q, %v", kind, names, err)
		}
	}
	d, _ := openTemp(t)
	if err := d.Remove("absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestRemoveAllFollowsNoLink(t *testing.T) {
	outside := t.TempDir()
	put(t, filepath.Join(outside, "kept"), File, "kept")
	before := look(t, outside)
	d, path := openTemp(t)
	must(t, os.MkdirAll(filepath.Join(path, "tree", "deep", "deeper"), 0o755))
	for _, kind := range kinds {
		put(t, filepath.Join(path, "tree", "deep", string(kind)), kind, outside)
	}
	put(t, filepath.Join(path, "tree", "link"), Symlink, outside)
	put(t, filepath.Join(path, "link"), Symlink, outside)
	must(t, os.Link(filepath.Join(outside, "kept"), filepath.Join(path, "tree", "hard")))
	must(t, d.RemoveAll("tree"))
	must(t, d.RemoveAll("link"))
	must(t, d.RemoveAll("absent"))
	if names, err := d.Names(); err != nil || len(names) > 0 {
		t.Errorf("%q is left, %v", names, err)
	}
	if after := look(t, outside); after != before {
		t.Errorf("outside changed:\n%s\nwas:\n%s", after, before)
	}
}

func TestRemoveAllWithOthers(t *testing.T) {
	d, path := openTemp(t)
	for round := range 20 {
		for i := range 10 {
			must(t, os.MkdirAll(filepath.Join(path, "tree", fmt.Sprint(i), "in"), 0o755))
			put(t, filepath.Join(path, "tree", fmt.Sprint(i), "file"), File, "x")
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := d.RemoveAll("tree"); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
	}
}

func TestRemoveAllGoesOnAsFarAsItCan(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	d, path := openTemp(t)
	for _, sub := range []string{"a", "locked", "z"} {
		must(t, os.MkdirAll(filepath.Join(path, "tree", sub, "in"), 0o755))
	}
	locked := filepath.Join(path, "tree", "locked")
	must(t, os.Chmod(locked, 0))
	t.Cleanup(func() { os.Chmod(locked, 0o755) })
	if err := d.RemoveAll("tree"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want the first error", err)
	}
	entries, err := os.ReadDir(filepath.Join(path, "tree"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "locked" {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestLock(t *testing.T) {
	first, path := openTemp(t)
	second := mustOpen(t, path)
	must(t, first.TryLock())
	must(t, first.TryLock()) // one's own is no obstacle
	if err := second.TryLock(); !errors.Is(err, ErrLocked) {
		t.Errorf("a held lock: %v", err)
	}
	must(t, first.Close())
	must(t, second.TryLock())
}

func TestSelf(t *testing.T) {
	_, path := openTemp(t)
	sub := filepath.Join(path, "bin")
	must(t, os.Mkdir(sub, 0o755))
	d := mustOpen(t, sub)
	if e, err := d.Self(); err != nil || e.Kind != Folder || e.Perm != 0o755 || e.Nlink == 0 {
		t.Errorf("%+v, %v", e, err)
	}
	must(t, d.Chmod(0o711))
	if e, _ := d.Self(); e.Perm != 0o711 {
		t.Errorf("mode %04o", e.Perm)
	}
	must(t, os.Remove(sub))
	if e, err := d.Self(); err != nil || e.Nlink != 0 {
		t.Errorf("removed: %+v, %v", e, err)
	}
}

func TestMountPoint(t *testing.T) {
	d, _ := openTemp(t)
	if mounted, err := d.MountPoint(); err != nil || mounted {
		t.Errorf("a plain directory: %t, %v", mounted, err)
	}
	if mounted, err := mustOpen(t, "/proc").MountPoint(); err != nil || !mounted {
		t.Errorf("/proc: %t, %v", mounted, err)
	}
}

func TestNoExec(t *testing.T) {
	for _, path := range []string{t.TempDir(), "/proc", "/sys"} {
		var st unix.Statfs_t
		must(t, unix.Statfs(path, &st))
		want := st.Flags&unix.ST_NOEXEC != 0
		if got, err := mustOpen(t, path).NoExec(); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", path, got, err, want)
		}
	}
}

func TestImmutable(t *testing.T) {
	d, path := openTemp(t)
	put(t, filepath.Join(path, "file"), File, "x")
	if d.Immutable("file") || d.Immutable("absent") {
		t.Error("an ordinary file and an absent one are not immutable")
	}
}

func TestReadFile(t *testing.T) {
	d, path := openTemp(t)
	put(t, filepath.Join(path, "five"), File, "12345")
	for limit, want := range map[int64]error{0: unix.EFBIG, 4: unix.EFBIG, 5: nil, 6: nil, 1 << 20: nil} {
		data, err := d.ReadFile("five", limit)
		if !errors.Is(err, want) || err == nil && string(data) != "12345" {
			t.Errorf("limit %d: %q, %v", limit, data, err)
		}
	}
	for _, kind := range []Kind{Folder, Symlink, Fifo, Socket} {
		put(t, filepath.Join(path, string(kind)), kind, "five")
		within(t, 5*time.Second, func() {
			if data, err := d.ReadFile(string(kind), 100); !errors.Is(err, ErrNotRegular) {
				t.Errorf("%s: %q, %v", kind, data, err)
			}
		})
	}
}

func TestSync(t *testing.T) {
	d, _ := openTemp(t)
	must(t, d.Sync())
	must(t, mustOpen(t, "/proc").Sync()) // has nothing to sync and says EINVAL
	must(t, d.Close())
	if err := d.Sync(); !errors.Is(err, unix.EBADF) {
		t.Errorf("on a closed directory: %v", err)
	}
}

func TestInterruptedCallsAreRetried(t *testing.T) {
	left := 3
	err := retry(func() error {
		if left--; left >= 0 {
			return unix.EINTR
		}
		return unix.EIO
	})
	if err != unix.EIO || left != -1 {
		t.Errorf("%v after %d more", err, left)
	}

	old := renameat2
	t.Cleanup(func() { renameat2 = old })
	interrupts := 2
	renameat2 = func(olddir int, oldpath string, newdir int, newpath string, flags uint) error {
		if interrupts--; interrupts >= 0 {
			return unix.EINTR
		}
		return old(olddir, oldpath, newdir, newpath, flags)
	}
	d, path := openTemp(t)
	put(t, filepath.Join(path, "a"), File, "a")
	must(t, d.Publish(d, "a", "b"))
	if interrupts != -1 {
		t.Errorf("%d interrupts left", interrupts)
	}
}

// Every failure says operation, path and errno, so that a report can be made of it.
func TestErrorsSayWhat(t *testing.T) {
	d, path := openTemp(t)
	put(t, filepath.Join(path, "file"), File, "x")
	ignore := func(_ any, err error) error { return err }
	for op, test := range map[string]struct {
		err  error
		path string
		want error
	}{
		"open":     {ignore(d.Sub("absent")), "/absent", unix.ENOENT},
		"mkdir":    {ignore(d.Make("file", 0o755)), "/file", unix.EEXIST},
		"stat":     {ignore(d.Stat("absent")), "/absent", unix.ENOENT},
		"readlink": {ignore(d.Readlink("file")), "/file", unix.EINVAL},
		"create":   {ignore(d.Create("file")), "/file", unix.EEXIST},
		"rename":   {d.Replace(d, "absent", "to"), "/to", unix.ENOENT},
		"link":     {d.Link(d, "absent", "to"), "/to", unix.ENOENT},
		"remove":   {d.RemoveDir("file"), "/file", unix.ENOTDIR},
		"read":     {ignore(d.ReadFile("file", 0)), "/file", unix.EFBIG},
	} {
		var p *fs.PathError
		if !errors.As(test.err, &p) || p.Op != op || p.Path != path+test.path || !errors.Is(test.err, test.want) {
			t.Errorf("%s: %#v", op, test.err)
		}
	}
	must(t, d.Close())
	var p *fs.PathError
	if err := d.Close(); !errors.As(err, &p) || p.Op != "close" || p.Path != path {
		t.Errorf("close: %v", err)
	}
}

// Where the file system knows no flags of rename, a file whose old name cannot be taken away is published all the same.
func TestPublishWhereTheOldNameStays(t *testing.T) {
	real := renameat2
	renameat2 = func(int, string, int, string, uint) error { return unix.EINVAL }
	defer func() { renameat2 = real }()
	const nobody = 65534
	src, from := openTemp(t)
	dst, to := openTemp(t)
	file := filepath.Join(from, "file")
	must(t, os.WriteFile(file, []byte("x"), 0o644))
	if os.Geteuid() == 0 {
		for _, path := range []string{from, to, file} {
			must(t, os.Chown(path, nobody, nobody))
		}
	}
	must(t, os.Chmod(from, 0o500))
	defer os.Chmod(from, 0o700)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never given up: it ends with the goroutine
		if os.Geteuid() == 0 {
			unix.Setfsuid(nobody)
		}
		done <- dst.Publish(src, "file", "published")
	}()
	err := <-done
	var stays *StaysError
	if !errors.As(err, &stays) || !errors.Is(err, unix.EACCES) {
		t.Errorf("%v", err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "published")); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
}

// A file was touched if anything of it is another than it was.
func TestUntouched(t *testing.T) {
	e := Entry{Kind: File, Size: 7, ModTime: time.Unix(1, 2), Dev: 3, Ino: 4}
	if !e.Untouched(e) {
		t.Error("it is not what it is")
	}
	for what, change := range map[string]func(e *Entry){
		"kind": func(e *Entry) { e.Kind = Symlink }, "size": func(e *Entry) { e.Size++ }, "time": func(e *Entry) { e.ModTime = time.Unix(1, 3) },
		"device": func(e *Entry) { e.Dev++ }, "inode": func(e *Entry) { e.Ino++ },
	} {
		o := e
		if change(&o); e.Untouched(o) || o.Untouched(e) {
			t.Errorf("another %s is not told", what)
		}
	}
}

// A call that a signal interrupted is made again; any other error is the caller's.
func TestInterruptedCalls(t *testing.T) {
	for _, last := range []error{nil, unix.EIO} {
		n := 0
		err := retry(func() error {
			if n++; n < 4 {
				return unix.EINTR
			}
			return last
		})
		if err != last || n != 4 {
			t.Errorf("%v after %d calls, want %v", err, n, last)
		}
	}
}
