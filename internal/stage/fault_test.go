package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

// failFor makes a call on the file of a plugin fail.
func failFor(t *testing.T, call *func(*os.File) error, name string, errno error) {
	real := *call
	op := "sync"
	if call == &closeFile {
		op = "close"
	}
	swapVar(t, call, func(f *os.File) error {
		err := real(f)
		if filepath.Base(f.Name()) == name {
			return &fs.PathError{Op: op, Path: f.Name(), Err: errno}
		}
		return err
	})
}

const victim = "portmap"

// faults are what can go wrong on the bin dir's side with one plugin. The cause is what the report says of it.
var faults = map[string]struct {
	inject func(t *testing.T)
	cause  string // of the victim, less what became of the old file
}{
	"write": {func(t *testing.T) {
		swapVar(t, &writeBytes, func(f *os.File, p []byte) (int, error) {
			if filepath.Base(f.Name()) != victim {
				return f.Write(p)
			}
			n, err := f.Write(p[:len(p)/2]) // as far as the disk goes
			if err == nil {
				err = &fs.PathError{Op: "write", Path: f.Name(), Err: syscall.EFBIG}
			}
			return n, err
		})
	}, "write: file too large"},
	"chmod": {func(t *testing.T) {
		swapVar(t, &chmodFile, func(f *os.File, perm os.FileMode) error {
			if filepath.Base(f.Name()) == victim {
				return &fs.PathError{Op: "chmod", Path: f.Name(), Err: syscall.EPERM}
			}
			return f.Chmod(perm)
		})
	}, "chmod: operation not permitted"},
	"sync":  {func(t *testing.T) { failFor(t, &syncFile, victim, syscall.EIO) }, "sync: input/output error"},
	"close": {func(t *testing.T) { failFor(t, &closeFile, victim, syscall.EDQUOT) }, "close: disk quota exceeded"},
	"rename": {func(t *testing.T) {
		fail := func(real func(d, from *hostdir.Dir, name, to string) error) func(d, from *hostdir.Dir, name, to string) error {
			return func(d, from *hostdir.Dir, name, to string) error {
				if to == victim {
					return &fs.PathError{Op: "rename", Path: to, Err: syscall.EIO}
				}
				return real(d, from, name, to)
			}
		}
		swapVar(t, &publish, fail(publish))
		swapVar(t, &exchange, fail(exchange))
	}, "rename: input/output error"},
}

// A fault with one plugin leaves its old file, is named with its cause, stops no other, and is healed by the next run.
func TestFaults(t *testing.T) {
	big := extra(victim, append(plugintest.Script(""), strings.Repeat("\n", 100<<10)...))
	files := []file{ref("bridge", "v1"), big, ref("tuning", "v1")}
	for name, fault := range faults {
		for _, state := range []string{"absent", "foreign", "link", "ours"} {
			t.Run(name+"/"+state, func(t *testing.T) {
				bin := t.TempDir()
				path := filepath.Join(bin, victim)
				kept, suffix := 0, "; the old file was kept"
				switch state {
				case "absent":
					suffix = ""
				case "foreign":
					write(t, path, "theirs", 0o711)
					kept = 1
				case "link":
					must(t, os.Symlink("/nowhere", path))
					kept, suffix = 1, "; the old link was kept"
				case "ours":
					stage(t, packed(t, "v0", ref(victim, "v0")), Options{BinDir: bin})
				}
				was := ""
				if state != "absent" {
					was = ident(t, path)
				}
				b := packed(t, "v1", files...)
				t.Run("fault", func(t *testing.T) {
					fault.inject(t)
					r := stage(t, b, Options{BinDir: bin})
					want(t, r, "bridge:new portmap:failed tuning:new")
					if got := result(t, r, victim).Cause; got != fault.cause+suffix {
						t.Errorf("cause %q, want %q", got, fault.cause+suffix)
					}
					wantWarnings(t, r)
				})
				if was == "" {
					if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("there is something now: %v", err)
					}
				} else if got := ident(t, path); got != was {
					t.Errorf("is %s, was %s", got, was)
				}
				inPlace(t, bin, files[0], files[2])
				marks, err := filepath.Glob(filepath.Join(bin, storeName, stagedName, victim+"@"+sum(big.data)))
				if err != nil || len(marks) > 0 {
					t.Errorf("marked as published: %q, %v", marks, err)
				}

				r := stage(t, b, Options{BinDir: bin})
				if r.Count(Failed) > 0 || r.Count(Unchanged) != 2 {
					t.Error(r.Text())
				}
				inPlace(t, bin, files...)
				if got := originals(t, bin, victim); len(got) != kept {
					t.Errorf("kept %q, want %d", got, kept)
				}
				if kept > 0 && ident(t, newest(t, bin, victim)) != was {
					t.Error("another file than the old one was kept")
				}
			})
		}
	}
}

// The copy of a file that was checked already can fail as well as the first of its digest can.
func TestFaultOfOneOfADigest(t *testing.T) {
	same := plugintest.Script("")
	for _, victim := range []string{"a", "b", "c"} {
		t.Run(victim, func(t *testing.T) {
			bin := t.TempDir()
			b := packed(t, "v1", extra("a", same), extra("b", same), extra("c", same))
			t.Run("fault", func(t *testing.T) {
				failFor(t, &syncFile, victim, syscall.EIO)
				r := stage(t, b, Options{BinDir: bin})
				if r.Count(New) != 2 || result(t, r, victim).Cause != "sync: input/output error" {
					t.Error(r.Text())
				}
			})
			if r := stage(t, b, Options{BinDir: bin}); r.Count(New) != 1 || r.Count(Unchanged) != 2 {
				t.Error(r.Text())
			}
			inPlace(t, bin, extra("a", same), extra("b", same), extra("c", same))
		})
	}
}

// What stands in the way of the folder, or of a directory in it, is named; the bin dir stays as it was.
func TestFaultsOfTheFolder(t *testing.T) {
	for name, test := range map[string]struct {
		inject func(t *testing.T, store string)
		cause  string
	}{
		"file": {func(t *testing.T, store string) { put(t, store, hostdir.File) }, ".chandler is not a directory"},
		"fifo": {func(t *testing.T, store string) { put(t, store, hostdir.Fifo) }, ".chandler is not a directory"},
		"link": {func(t *testing.T, store string) { must(t, os.Symlink(t.TempDir(), store)) }, ".chandler is not a directory"},
		"tmp": {func(t *testing.T, store string) {
			must(t, os.Mkdir(store, 0o700))
			put(t, filepath.Join(store, tmpName), hostdir.File)
		}, ".chandler/tmp is not a directory"},
		"staged": {func(t *testing.T, store string) {
			must(t, os.Mkdir(store, 0o700))
			must(t, os.Symlink(t.TempDir(), filepath.Join(store, stagedName)))
		}, ".chandler/staged is not a directory"},
		"sync of the marks": {func(t *testing.T, store string) {
			swapVar(t, &syncDir, func(d *hostdir.Dir) error {
				if filepath.Base(d.Path()) == stagedName {
					return &fs.PathError{Op: "sync", Path: d.Path(), Err: syscall.EIO}
				}
				return d.Sync()
			})
		}, "sync: input/output error"},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			write(t, filepath.Join(bin, "bridge"), "old", 0o755)
			b := packed(t, "v1", set("v1", "bridge", "tuning")...)
			t.Run("fault", func(t *testing.T) {
				store := filepath.Join(bin, storeName)
				test.inject(t, store)
				same := unchanged(t, bin, false)
				dry := stageDry(t, b, bin)
				if name != "tmp" && name != "sync of the marks" { // what only writing finds out
					want(t, dry, "bridge:failed tuning:failed")
				}
				r := Run(t.Context(), b, Options{BinDir: bin})
				checkReport(t, r)
				want(t, r, "bridge:failed tuning:failed")
				for name, cause := range map[string]string{"bridge": test.cause + "; the old file was kept", "tuning": test.cause} {
					if got := result(t, r, name).Cause; got != cause {
						t.Errorf("%s: cause %q, want %q", name, got, cause)
					}
				}
				if name == "sync of the marks" {
					return // the folder is there now, and empty but for its directories
				}
				same()
			})
			must(t, os.RemoveAll(filepath.Join(bin, storeName)))
			want(t, stage(t, b, Options{BinDir: bin}), "bridge:replaced tuning:new")
		})
	}
}

// stageDry plans, and holds that nothing changes by it.
func stageDry(t *testing.T, b *bundle.Bundle, bin string) *Report {
	t.Helper()
	same := unchanged(t, bin, true)
	r := Run(t.Context(), b, Options{BinDir: bin, DryRun: true})
	same()
	checkReport(t, r)
	return r
}

// What stands in the way of one name's originals fails that name alone.
func TestFaultsOfTheOriginals(t *testing.T) {
	for _, where := range []string{"originals", "originals/portmap"} {
		t.Run(where, func(t *testing.T) {
			bin := t.TempDir()
			write(t, filepath.Join(bin, "portmap"), "theirs", 0o755)
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(bin, storeName, where)), 0o700))
			put(t, filepath.Join(bin, storeName, where), hostdir.File)
			b := packed(t, "v1", set("v1", "bridge", "portmap")...)
			r := stage(t, b, Options{BinDir: bin})
			want(t, r, "bridge:new portmap:failed")
			if got := result(t, r, "portmap").Cause; got != ".chandler/"+where+" is not a directory; the old file was kept" {
				t.Errorf("cause %q", got)
			}
			must(t, os.Remove(filepath.Join(bin, storeName, where)))
			want(t, stage(t, b, Options{BinDir: bin}), "bridge:unchanged portmap:replaced")
		})
	}
}

// The original lies in our hands and cannot be filed: it stays where it is, it is said, and the next run files it.
func TestFaultOfFiling(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
	was := ident(t, filepath.Join(bin, "bridge"))
	b := packed(t, "v1", ref("bridge", "v1"))
	t.Run("fault", func(t *testing.T) {
		real := publish
		swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
			if strings.HasPrefix(to, "1-") {
				return &fs.PathError{Op: "rename", Path: to, Err: syscall.ENOSPC}
			}
			return real(d, from, name, to)
		})
		r := Run(t.Context(), b, Options{BinDir: bin})
		checkReport(t, r)
		want(t, r, "bridge:replaced")
		wantWarnings(t, r, "bridge: what was replaced is kept as .chandler/originals/bridge/swap-")
		if at := result(t, r, "bridge").Original; at == "" || ident(t, filepath.Join(bin, at)) != was {
			t.Errorf("the report has it as %q", at)
		}
	})
	inPlace(t, bin, ref("bridge", "v1"))
	r := stage(t, b, Options{BinDir: bin})
	want(t, r, "bridge:unchanged")
	wantWarnings(t, r)
	if got := ident(t, newest(t, bin, "bridge")); got != was {
		t.Errorf("kept %s, was %s", got, was)
	}
}

// The disk does not confirm what is in place: it is said of each plugin, and the next run finds them right.
func TestFaultOfTheDirectorySync(t *testing.T) {
	for _, where := range []string{"", originalsName, storeName, "bridge"} {
		t.Run(where, func(t *testing.T) {
			bin := t.TempDir()
			write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
			b := packed(t, "v1", set("v1", "bridge", "vlan")...)
			t.Run("fault", func(t *testing.T) {
				swapVar(t, &syncDir, func(d *hostdir.Dir) error {
					if d.Path() == bin && where == "" || filepath.Base(d.Path()) == where {
						return &fs.PathError{Op: "sync", Path: d.Path(), Err: syscall.EIO}
					}
					return d.Sync()
				})
				r := stage(t, b, Options{BinDir: bin})
				want(t, r, "bridge:failed vlan:failed")
				for _, p := range r.Plugins {
					if p.Cause != "sync: input/output error; the file is in place and may not outlast a power cut" {
						t.Errorf("cause %q", p.Cause)
					}
				}
			})
			inPlace(t, bin, set("v1", "bridge", "vlan")...)
			want(t, stage(t, b, Options{BinDir: bin}), "bridge:unchanged vlan:unchanged")
			if kept := originals(t, bin, "bridge"); len(kept) != 1 {
				t.Errorf("kept %q", kept)
			}
		})
	}
}

// The mark that nothing stood there cannot be made when a name vanishes: the name is not published, so that what is in place
// is always marked.
func TestFaultOfTheLateMark(t *testing.T) {
	bin := t.TempDir()
	path, staged := filepath.Join(bin, "bridge"), filepath.Join(bin, storeName, stagedName)
	write(t, path, "theirs", 0o755)
	b := packed(t, "v1", ref("bridge", "v1"))
	t.Run("fault", func(t *testing.T) {
		real := exchange
		swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
			must(t, os.Remove(path))
			must(t, os.RemoveAll(staged))
			return real(d, from, name, to)
		})
		r := stage(t, b, Options{BinDir: bin})
		want(t, r, "bridge:failed")
	})
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("published without its mark: %v", err)
	}
	want(t, stage(t, b, Options{BinDir: bin}), "bridge:new")
	want(t, stage(t, packed(t, "v2", ref("bridge", "v2")), Options{BinDir: bin}), "bridge:replaced")
	if kept := originals(t, bin, "bridge"); len(kept) > 0 {
		t.Errorf("kept our own %q", kept)
	}
}

// Without the right to write there, each plugin says so and all is as before.
func TestFaultOfPermission(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	files := set("v1", "bridge", "vlan")
	for _, staged := range []bool{false, true} {
		bin := t.TempDir()
		t.Cleanup(func() { os.Chmod(bin, 0o755) })
		write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
		text := ".chandler: mkdir: permission denied"
		if staged {
			stage(t, packed(t, "v0", ref("bridge", "v0")), Options{BinDir: bin})
			text = "rename: permission denied"
		}
		must(t, os.Chmod(bin, 0o555))
		same := unchanged(t, filepath.Join(bin, "bridge"), false)
		r := stage(t, packed(t, "v1", files...), Options{BinDir: bin})
		want(t, r, "bridge:failed vlan:failed")
		if got := result(t, r, "bridge").Cause; got != text+"; the old file was kept" {
			t.Errorf("cause %q", got)
		}
		same()
		must(t, os.Chmod(bin, 0o755))
		want(t, stage(t, packed(t, "v1", files...), Options{BinDir: bin}), "bridge:replaced vlan:new")
		if kept := originals(t, bin, "bridge"); len(kept) != 1 {
			t.Errorf("kept %q, want the foreign one", kept)
		}
	}
}

// Whenever a signal comes, each plugin is old or new as the report says, nothing is left, and the next run finishes.
func TestInterrupted(t *testing.T) {
	same := plugintest.Script("# twice")
	files := []file{ref("bridge", "v1"), extra("d1", same), extra("d2", same), ref("equal", "v0"), ref("portmap", "v1")}
	ended := false
	for n := 0; !ended; n++ {
		if n > 500 {
			t.Fatal("never came to an end")
		}
		bin := t.TempDir()
		write(t, filepath.Join(bin, "portmap"), "theirs", 0o755)
		write(t, filepath.Join(bin, "equal"), string(ref("equal", "v0").data), 0o755)
		was := ident(t, filepath.Join(bin, "portmap"))
		b := packed(t, "v1", files...)
		r := Run(newCountdown(t.Context(), n), b, Options{BinDir: bin})
		checkReport(t, r)
		checkTidy(t, bin)
		ended = r.Complete()
		if r.Outcome == Refused {
			if r.Text() != "interrupted; nothing was staged\n" {
				t.Errorf("%d: said %q", n, r.Text())
			}
			if entries, err := os.ReadDir(bin); err != nil || len(entries) != 2 {
				t.Errorf("%d: %v, %v", n, entries, err)
			}
		}
		for _, p := range r.Plugins {
			path := filepath.Join(bin, p.Name)
			switch {
			case p.Action == New, p.Action == Replaced, p.Action == Unchanged:
				for _, f := range files {
					if f.name == p.Name {
						inPlace(t, bin, f)
					}
				}
			case !strings.HasPrefix(p.Cause, "interrupted"):
				t.Errorf("%d: %s: cause %q", n, p.Name, p.Cause)
			case p.Name == "portmap":
				if got := ident(t, path); got != was {
					t.Errorf("%d: portmap is %s, was %s", n, got, was)
				}
			default:
				if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%d: %s failed and is there", n, p.Name)
				}
			}
		}
		if r := stage(t, b, Options{BinDir: bin}); !r.Complete() {
			t.Errorf("%d: %s", n, r.Text())
		}
		inPlace(t, bin, files...)
		if kept := originals(t, bin, "portmap"); len(kept) != 1 || ident(t, newest(t, bin, "portmap")) != was {
			t.Errorf("%d: kept %q", n, kept)
		}
	}
}

// A probe that does not end is ended with the run.
func TestInterruptedProbe(t *testing.T) {
	bin := t.TempDir()
	started := filepath.Join(t.TempDir(), "started")
	b := packed(t, "v1", ref("bridge", "v1"), extra("slow", plugintest.Script("echo $$ >"+started+"; sleep 60 & wait")))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if data, err := os.ReadFile(started); err == nil && len(data) > 0 {
				return
			}
		}
	}()
	begin := time.Now()
	r := Run(ctx, b, Options{BinDir: bin})
	if took := time.Since(begin); took > 45*time.Second {
		t.Errorf("took %s", took)
	}
	checkReport(t, r)
	checkTidy(t, bin)
	want(t, r, "bridge:failed slow:failed")
	if got := result(t, r, "slow").Cause; got != "interrupted" {
		t.Errorf("cause %q", got)
	}
	data, err := os.ReadFile(started)
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	must(t, err)
	eventually(t, "the plugin's group ends", func() bool { return !alive(pid) })
}

// alive says whether a process group has a member that has not ended. One that nobody has waited for yet has.
func alive(group int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// After the name in parentheses: state, parent, group.
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		if fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

// crashEnv tells a test process at which call to end, without a word, and in which directories.
const crashEnv = "CHANDLER_TEST_CRASH"

// testCrash kills a run before each call that changes what lies on the disk. Whatever the point, the names are
// whole, and the next run clears up, keeps the foreign file and none of ours.
func testCrash(t *testing.T) {
	if arg := os.Getenv(crashEnv); arg != "" {
		crash(t, arg)
		return
	}
	for _, fallback := range []bool{false, true} {
		ended := false
		for n := 1; !ended; n++ {
			if n > 300 {
				t.Fatal("never came to an end")
			}
			bin := t.TempDir()
			write(t, filepath.Join(bin, "portmap"), "theirs", 0o711)
			was := ident(t, filepath.Join(bin, "portmap"))
			stage(t, packed(t, "v0", ref("ours", "v0")), Options{BinDir: bin})
			must(t, os.Symlink("/nowhere", filepath.Join(bin, "link")))
			dir := pack(t, "v1", set("v1", "bridge", "link", "ours", "portmap")...)

			cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %t %s %s", crashEnv, n, fallback, dir, bin))
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			switch {
			case err == nil:
				ended = true
			case !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL:
				t.Fatalf("%d: %v\n%s", n, err, out)
			}

			whole := map[string][]string{ // of each name, all that may be there
				"bridge": {"", string(ref("bridge", "v1").data)}, "link": {"-> /nowhere", string(ref("link", "v1").data)},
				"ours": {string(ref("ours", "v0").data), string(ref("ours", "v1").data)}, "portmap": {"theirs", string(ref("portmap", "v1").data)},
			}
			for name, may := range whole {
				path := filepath.Join(bin, name)
				got := ""
				if target, err := os.Readlink(path); err == nil {
					got = "-> " + target
				} else if data, err := os.ReadFile(path); err == nil {
					got = string(data)
				}
				info, err := os.Stat(path)
				if got != may[0] && got != may[1] || err == nil && info.Mode()&0o111 == 0 {
					t.Errorf("%d: %s is torn: %d bytes, %v", n, name, len(got), info)
				}
			}
			r := stage(t, openAt(t, dir), Options{BinDir: bin})
			if !r.Complete() {
				t.Errorf("%d: %s", n, r.Text())
			}
			wantWarnings(t, r)
			inPlace(t, bin, set("v1", "bridge", "link", "ours", "portmap")...)
			if got := ident(t, newest(t, bin, "portmap")); got != was {
				t.Errorf("%d: kept %s, was %s", n, got, was)
			}
			for name, count := range map[string]int{"bridge": 0, "ours": 0, "link": 1} {
				kept := originals(t, bin, name)
				// Without the exchange, a crash between its two steps may file one inode twice.
				if len(kept) != count && !(fallback && count > 0 && len(kept) == 2) {
					t.Errorf("%d: of %s, kept %q", n, name, kept)
				}
			}
			if t.Failed() {
				t.Fatalf("at call %d, fallback %t: %s", n, fallback, out)
			}
		}
	}
}

// crash stages and ends this process at the call that arg says.
func crash(t *testing.T, arg string) {
	var n int64
	var fallback bool
	var dir, bin string
	if _, err := fmt.Sscan(arg, &n, &fallback, &dir, &bin); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	point := func() {
		if calls.Add(1) == n {
			syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if fallback {
		// The two steps of each, with a point between them.
		exchange = func(*hostdir.Dir, *hostdir.Dir, string, string) error { return errors.ErrUnsupported }
		publish = func(d, from *hostdir.Dir, name, to string) error {
			if err := d.Link(from, name, to); err != nil {
				return err
			}
			point()
			return from.Remove(name)
		}
	}
	realPublish, realExchange := publish, exchange
	publish = func(d, from *hostdir.Dir, name, to string) error {
		point()
		return realPublish(d, from, name, to)
	}
	exchange = func(d, from *hostdir.Dir, name, to string) error {
		point()
		return realExchange(d, from, name, to)
	}
	chmodFile = func(f *os.File, perm os.FileMode) error { point(); return f.Chmod(perm) }
	syncFile = func(f *os.File) error { point(); return f.Sync() }
	closeFile = func(f *os.File) error { point(); return f.Close() }
	syncDir = func(d *hostdir.Dir) error { point(); return d.Sync() }
	if r := Run(t.Context(), openAt(t, dir), Options{BinDir: bin}); !r.Complete() {
		t.Error(r.Text())
	}
}
