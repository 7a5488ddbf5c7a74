package stage

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

// noExchange makes the file system one that knows no rename flags.
func noExchange(t *testing.T) {
	swapVar(t, &exchange, func(*hostdir.Dir, *hostdir.Dir, string, string) error { return errors.ErrUnsupported })
	swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
		if err := d.Link(from, name, to); err != nil {
			return err
		}
		return from.Remove(name)
	})
}

// bothWays runs a test on the file system as it is, and on one that knows no rename flags.
func bothWays(t *testing.T, test func(t *testing.T)) {
	t.Run("exchange", test)
	t.Run("fallback", func(t *testing.T) {
		noExchange(t)
		test(t)
	})
}

// At every instant a name is one whole executable, the old one or the new.
func TestGuarantee1(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		names := []string{"bridge", "portmap", "tuning"}
		bin := t.TempDir()
		versions := []*bundle.Bundle{packed(t, "v1", set("v1", names...)...), packed(t, "v2", set("v2", names...)...)}
		whole := make(map[string]bool)
		for _, b := range versions {
			for _, p := range b.Manifest.Plugins {
				whole[p.Name+p.SHA256] = true
			}
		}
		stage(t, versions[0], Options{BinDir: bin})

		var stop atomic.Bool
		var looks atomic.Int64
		var wg sync.WaitGroup
		for _, name := range names {
			wg.Go(func() {
				for !stop.Load() {
					f, err := os.Open(filepath.Join(bin, name))
					if err != nil {
						t.Error(err)
						return
					}
					info, statErr := f.Stat()
					h := sha256.New()
					_, err = io.Copy(h, f)
					f.Close()
					if digest := hex.EncodeToString(h.Sum(nil)); err != nil || statErr != nil ||
						!whole[name+digest] || info.Mode() != 0o755 {
						t.Errorf("%s: %s, %v, %v, digest %s", name, info.Mode(), err, statErr, digest)
						return
					}
					looks.Add(1)
				}
			})
		}
		for i := range 12 {
			stage(t, versions[(i+1)%2], Options{BinDir: bin, NoProbe: true, NoKeep: i%3 == 0})
		}
		stop.Store(true)
		wg.Wait()
		if looks.Load() < 100 {
			t.Errorf("looked only %d times", looks.Load())
		}
	})
}

// Nothing is published that was not checked: its bytes.
func TestGuarantee2Bytes(t *testing.T) {
	big := extra("portmap", append(plugintest.Script("exit 0"), strings.Repeat("#", 3*copySize)...))
	files := []file{ref("bridge", "v1"), big, ref("tuning", "v1")}
	damage := map[string]struct {
		do   func(t *testing.T, path string) // to the bundle's bin/portmap, once the bundle is open
		want error
		text string
	}{
		"other byte": {func(t *testing.T, path string) {
			data := slices.Clone(big.data)
			data[len(data)-1]++
			must(t, os.WriteFile(path, data, 0o755))
		}, bundle.ErrDigest, "bundle damaged: bin/portmap: digest mismatch; nothing was staged"},
		"short": {func(t *testing.T, path string) { must(t, os.Truncate(path, int64(len(big.data)-1))) },
			bundle.ErrSize, "bundle damaged: bin/portmap: size mismatch; nothing was staged"},
		"empty": {func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) }, bundle.ErrSize, ""},
		"extra byte": {func(t *testing.T, path string) { must(t, os.Truncate(path, int64(len(big.data)+1))) },
			bundle.ErrSize, ""},
		"gone": {func(t *testing.T, path string) { must(t, os.Remove(path)) }, os.ErrNotExist,
			"bundle unreadable: bin/portmap: stat: no such file or directory; nothing was staged"},
		"link": {func(t *testing.T, path string) {
			must(t, os.Rename(path, path+"2"))
			must(t, os.Symlink("portmap2", path))
		}, hostdir.ErrNotRegular, "bundle damaged: bin/portmap: open: not a regular file; nothing was staged"},
	}
	states := map[string]func(t *testing.T, bin string){
		"empty":   func(*testing.T, string) {},
		"foreign": func(t *testing.T, bin string) { put(t, filepath.Join(bin, "portmap"), hostdir.File) },
		"staged": func(t *testing.T, bin string) {
			stage(t, packed(t, "v0", set("v0", "bridge", "portmap", "tuning")...), Options{BinDir: bin})
		},
	}
	for name, d := range damage {
		for state, prepare := range states {
			t.Run(name+"/"+state, func(t *testing.T) {
				dir, bin := pack(t, "v1", files...), t.TempDir()
				b := openAt(t, dir)
				prepare(t, bin)
				same := unchanged(t, bin, false)
				d.do(t, filepath.Join(dir, "bin", "portmap"))
				r := stage(t, b, Options{BinDir: bin})
				var damaged *bundle.DamageError
				if r.Outcome != Refused || !errors.As(r.Err, &damaged) || !errors.Is(r.Err, d.want) {
					t.Errorf("%s: %v", r.Text(), r.Err)
				}
				if d.text != "" && r.Text() != d.text+"\n" {
					t.Errorf("said %q, want %q", r.Text(), d.text)
				}
				same()
			})
		}
	}
}

// A bundle that changes while it is read is as damaged as one that was wrong before.
func TestGuarantee2BundleChangesMeanwhile(t *testing.T) {
	big := extra("portmap", append(plugintest.Script("exit 0"), strings.Repeat("#", 3*copySize)...))
	for name, change := range map[string]func(f *os.File) error{
		"grows":   func(f *os.File) error { return f.Truncate(int64(len(big.data)) + 4*copySize) },
		"shrinks": func(f *os.File) error { return f.Truncate(copySize) },
		"changes": func(f *os.File) error { _, err := f.WriteAt([]byte("!"), int64(len(big.data)-1)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "portmap")
			write(t, path, string(big.data), 0o755)
			src, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			defer src.Close()
			p := bundle.Plugin{Name: "portmap", Size: int64(len(big.data)), SHA256: sum(big.data)}
			dst := &meddler{after: copySize, do: func() { must(t, change(src)) }}
			err = copyHashed(t.Context(), dst, src, p)
			var damage *sourceError
			if !errors.As(err, &damage) {
				t.Errorf("got %v, want the source's error", err)
			}
			if dst.n > p.Size {
				t.Errorf("wrote %d bytes of %d", dst.n, p.Size)
			}
		})
	}
}

// meddler does something once a number of bytes has been written.
type meddler struct {
	n, after int64
	do       func()
}

func (m *meddler) Write(p []byte) (int, error) {
	if m.n < m.after && m.n+int64(len(p)) >= m.after {
		m.do()
	}
	m.n += int64(len(p))
	return len(p), nil
}

// The file is replaced in the bundle between two plugins of a run: nothing is published, not even what was right.
func TestGuarantee2NothingBeforeAllIsChecked(t *testing.T) {
	dir, bin := pack(t, "v1", set("v1", "bridge", "portmap", "tuning", "vlan")...), t.TempDir()
	b := openAt(t, dir)
	put(t, filepath.Join(bin, "bridge"), hostdir.File)
	same := unchanged(t, bin, false)
	var once sync.Once
	swapVar(t, &syncFile, func(f *os.File) error {
		once.Do(func() { must(t, os.WriteFile(filepath.Join(dir, "bin", "vlan"), []byte("other"), 0o755)) })
		return f.Sync()
	})
	if r := stage(t, b, Options{BinDir: bin}); r.Outcome != Refused {
		t.Errorf("%s", r.Text())
	}
	same()
}

// Nothing is published that was not checked: its machine, and that it runs.
func TestGuarantee2Probe(t *testing.T) {
	other := "arm64"
	if nodeArch == other {
		other = "amd64"
	}
	foreign := plugintest.Answering(other, plugintest.Answer, 0, "")
	mute := plugintest.Answering(nodeArch, "", 0, "")
	angry := plugintest.Answering(nodeArch, "boom", 3, "")
	for name, test := range map[string]struct {
		file  file
		cause string // why it fails
		warn  string // or what is warned of
	}{
		"right":                    {ref("p", "v1"), "", ""},
		"mute":                     {file{"p", bundle.Main, mute}, "does not answer VERSION: stdout is not JSON", ""},
		"exits 3":                  {file{"p", bundle.Meta, angry}, "does not answer VERSION: exit status 3: \"boom\"", ""},
		"own, mute":                {extra("p", mute), "", "p: staged, but does not answer VERSION"},
		"own, exits 3":             {extra("p", angry), "", "p: staged, but does not answer VERSION: exit status 3"},
		"script":                   {extra("p", plugintest.Script("")), "", ""},
		"script exits 1":           {extra("p", plugintest.Script("echo no >&2; exit 1")), "", `p: staged, but does not answer VERSION: exit status 1: "no"`},
		"script of no interpreter": {extra("p", []byte("#!/no/such/interpreter\n")), "", "p: staged, but its interpreter is not here"},
		"script of the terminal":   {extra("p", []byte("#!/bin/sh\nprintf '\\033[31mred\\n\\a' >&2; exit 1\n")), "", `\x1b[31mred`},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			write(t, filepath.Join(bin, "p"), "old", 0o755)
			same := unchanged(t, filepath.Join(bin, "p"), true)
			b := packed(t, "v1", ref("bridge", "v1"), test.file)
			r := stage(t, b, Options{BinDir: bin})
			if test.cause == "" {
				want(t, r, "bridge:new p:replaced")
				inPlace(t, bin, test.file)
				if test.warn == "" {
					wantWarnings(t, r)
				} else {
					wantWarnings(t, r, test.warn)
				}
				return
			}
			want(t, r, "bridge:new p:failed")
			p := result(t, r, "p")
			var probe *ProbeError
			if !errors.As(p.Err, &probe) || !strings.HasPrefix(p.Cause, test.cause) || !strings.HasSuffix(p.Cause, "; the old file was kept") {
				t.Errorf("cause %q, want %q", p.Cause, test.cause)
			}
			same()
			if kept := originals(t, bin, "p"); len(kept) > 0 {
				t.Errorf("kept %q of what is still there", kept)
			}
			want(t, stage(t, b, Options{BinDir: bin, NoProbe: true}), "bridge:unchanged p:replaced")
			inPlace(t, bin, test.file)
		})
	}
	// What the bundle's writer would refuse, a manifest can still claim.
	for name, test := range map[string]struct {
		data  []byte
		cause string
	}{
		"other machine":  {foreign, fmt.Sprintf("built for %s, not for %s", other, nodeArch)},
		"no executable":  {[]byte("hello"), plugin.ErrNotExecutable.Error()},
		"torn":           {mute[:80], "not a usable ELF executable: truncated"},
		"no interpreter": {[]byte("#!/no/such/interpreter\n"), plugin.ErrNoInterpreter.Error()},
	} {
		t.Run("claimed/"+name, func(t *testing.T) {
			bin := t.TempDir()
			plain := plugintest.Script("# to be something else")
			dir := pack(t, "v1", ref("bridge", "v1"), extra("p", plain))
			must(t, os.WriteFile(filepath.Join(dir, "bin", "p"), test.data, 0o755))
			manifest, err := os.ReadFile(filepath.Join(dir, "bundle.json"))
			must(t, err)
			text := strings.NewReplacer(sum(plain), sum(test.data), fmt.Sprintf(`"size": %d,
      "kind": "script",
      "role": "extra"`, len(plain)), fmt.Sprintf(`"size": %d, "kind": "elf", "role": "main"`, len(test.data))).Replace(string(manifest))
			must(t, os.WriteFile(filepath.Join(dir, "bundle.json"), []byte(text), 0o644))
			r := stage(t, openAt(t, dir), Options{BinDir: bin})
			want(t, r, "bridge:new p:failed")
			if p := result(t, r, "p"); !strings.HasPrefix(p.Cause, test.cause) {
				t.Errorf("cause %q, want %q", p.Cause, test.cause)
			}
			if _, err := os.Lstat(filepath.Join(bin, "p")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("p was published: %v", err)
			}
		})
	}
}

// One probe serves every name of a digest; what is in place already is not probed again.
func TestGuarantee2OneProbeADigest(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	counting := plugintest.Script("echo $# $CNI_COMMAND $(env | grep -vc -e ^PWD -e ^_ -e ^SHLVL -e ^OLDPWD) >>" + log + "; cat")
	b := packed(t, "v1", extra("a", counting), extra("b", counting), extra("c", counting), ref("d", "v1"))
	bin := t.TempDir()
	runs := func() string {
		data, err := os.ReadFile(log)
		if errors.Is(err, os.ErrNotExist) {
			return ""
		}
		must(t, err)
		must(t, os.Remove(log))
		return string(data)
	}
	stage(t, b, Options{BinDir: bin, NoProbe: true})
	if got := runs(); got != "" {
		t.Errorf("without probes there was %q", got)
	}
	bin = t.TempDir()
	want(t, stage(t, b, Options{BinDir: bin}), "a:new b:new c:new d:new")
	// No argument, CNI_COMMAND alone in the environment, standard input at its end.
	if got := runs(); got != "0 VERSION 1\n" {
		t.Errorf("three names of one digest gave %q", got)
	}
	want(t, stage(t, b, Options{BinDir: bin}), "a:unchanged b:unchanged c:unchanged d:unchanged")
	if got := runs(); got != "" {
		t.Errorf("in place already, and probed: %q", got)
	}
	must(t, os.Remove(filepath.Join(bin, "b")))
	want(t, stage(t, b, Options{BinDir: bin}), "a:unchanged b:new c:unchanged d:unchanged")
	if got := runs(); got != "0 VERSION 1\n" {
		t.Errorf("one of three to be written gave %q", got)
	}
	var inodes []uint64
	for _, n := range []string{"a", "b", "c"} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(bin, n), &st))
		if st.Nlink != 1 || slices.Contains(inodes, st.Ino) {
			t.Errorf("%s shares its inode: a foreign cp -f on one name would change the others", n)
		}
		inodes = append(inodes, st.Ino)
	}
}

// After a crash at any point the names are whole, and the next run clears up.
func TestGuarantee3(t *testing.T) { testCrash(t) }

// Directories and special files are left; a link is replaced itself.
func TestGuarantee4(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		bin, outside := t.TempDir(), t.TempDir()
		target := filepath.Join(outside, "busybox")
		write(t, target, "busybox", 0o755)
		targetSame := unchanged(t, outside, true)
		put(t, filepath.Join(bin, "directory"), hostdir.Folder)
		put(t, filepath.Join(bin, "fifo"), hostdir.Fifo)
		put(t, filepath.Join(bin, "socket"), hostdir.Socket)
		must(t, os.Symlink(target, filepath.Join(bin, "linked")))
		must(t, os.Symlink("/nowhere", filepath.Join(bin, "dangling")))
		must(t, os.Symlink("directory", filepath.Join(bin, "to-directory")))
		must(t, os.Symlink("loop", filepath.Join(bin, "loop")))
		names := []string{"bridge", "dangling", "directory", "fifo", "linked", "loop", "socket", "to-directory"}
		var device string
		if unix.Mknod(filepath.Join(bin, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7))) == nil { // needs a right
			names, device = slices.Insert(names, 2, "device"), " device:failed"
		}
		var left []func()
		for _, n := range []string{"directory", "fifo", "socket"} {
			left = append(left, unchanged(t, filepath.Join(bin, n), false))
		}
		links := map[string]string{}
		for _, n := range []string{"linked", "dangling", "loop", "to-directory"} {
			links[n] = ident(t, filepath.Join(bin, n))
		}
		r := stage(t, packed(t, "v1", set("v1", names...)...), Options{BinDir: bin})
		want(t, r, "bridge:new dangling:replaced"+device+" directory:failed fifo:failed linked:replaced loop:replaced socket:failed to-directory:replaced")
		for _, same := range left {
			same()
		}
		targetSame()
		for n, was := range links {
			inPlace(t, bin, ref(n, "v1"))
			if got := ident(t, newest(t, bin, n)); got != was {
				t.Errorf("%s: kept %s, was %s", n, got, was)
			}
		}
		for n, text := range map[string]string{
			"directory": "is a directory, left as it is", "fifo": "is a fifo, left as it is", "socket": "is a socket, left as it is",
		} {
			if got := result(t, r, n).Cause; got != text {
				t.Errorf("%s: cause %q, want %q", n, got, text)
			}
		}
		if f := result(t, r, "linked").Found; f.State != Symlink || f.Target != target || !f.Visible {
			t.Errorf("linked was found as %+v", f)
		}
		if f := result(t, r, "dangling").Found; f.State != Symlink || f.Target != "/nowhere" || f.Visible {
			t.Errorf("dangling was found as %+v", f)
		}
	})
}

// One plugin's failure on the bin dir's side never stops another's.
func TestGuarantee5(t *testing.T) {
	bin := t.TempDir()
	put(t, filepath.Join(bin, "b"), hostdir.Folder)
	write(t, filepath.Join(bin, "c"), "old", 0o755)
	old := ident(t, filepath.Join(bin, "c"))
	failFor(t, &syncFile, "c", syscall.EIO)
	files := set("v1", "a", "b", "c", "d")
	r := stage(t, packed(t, "v1", files...), Options{BinDir: bin})
	want(t, r, "a:new b:failed c:failed d:new")
	inPlace(t, bin, files[0], files[3])
	if got := ident(t, filepath.Join(bin, "c")); got != old {
		t.Errorf("c is %s, was %s", got, old)
	}
	if text := r.Text(); !strings.HasPrefix(text, "failed to install: b c\nb: is a directory, left as it is\n"+
		"c: sync: input/output error; the old file was kept\nstaged 2 plugins v1 (bundle sha256:") {
		t.Errorf("said:\n%s", text)
	}
}

// Stagings at once do not disturb each other.
func TestGuarantee6(t *testing.T) {
	names := []string{"bridge", "portmap", "tuning", "vlan"}
	for _, n := range []int{2, 10} {
		for _, wait := range []time.Duration{0, time.Minute} {
			for _, versions := range []int{1, 2} {
				t.Run(fmt.Sprintf("%d runs, %d bundles, wait %s", n, versions, wait), func(t *testing.T) {
					bin := t.TempDir()
					write(t, filepath.Join(bin, "portmap"), "theirs", 0o755)
					theirs := ident(t, filepath.Join(bin, "portmap"))
					var wg sync.WaitGroup
					for i := range n {
						version := fmt.Sprintf("v%d", i%versions)
						b := packed(t, version, set(version, names...)...)
						wg.Go(func() {
							// In one process, a probe's child could hold another run's file open for writing while that one is
							// probed: only the runs that wait for each other are probed.
							r := Run(t.Context(), b, Options{BinDir: bin, LockWait: wait, NoProbe: wait == 0})
							if r.Count(Failed) > 0 || r.Outcome != Staged {
								t.Errorf("run %d: %s", i, r.Text())
							}
							checkReport(t, r)
							if wait > 0 {
								wantWarnings(t, r)
							}
						})
					}
					wg.Wait()
					checkTidy(t, bin)
					v, err := Verify(t.Context(), packed(t, "v0", set("v0", names...)...), Options{BinDir: bin})
					must(t, err)
					if versions == 1 && !v.OK() {
						t.Errorf("%+v", v)
					}
					for _, name := range names {
						whole := false
						data, err := os.ReadFile(filepath.Join(bin, name))
						must(t, err)
						for i := range versions {
							whole = whole || string(data) == string(ref(name, fmt.Sprintf("v%d", i)).data)
						}
						if !whole {
							t.Errorf("%s is neither", name)
						}
						kept := originals(t, bin, name)
						if name != "portmap" && len(kept) > 0 {
							t.Errorf("%s: our own files were kept: %q", name, kept)
						}
						if name == "portmap" && (len(kept) != 1 || ident(t, newest(t, bin, name)) != theirs) {
							t.Errorf("portmap: kept %q, want the foreign one alone", kept)
						}
					}
					// And all of it can be taken back.
					wantWarnings(t, restored(t, RestoreOptions{BinDir: bin}))
					if left := list(t, bin); !slices.Equal(left, []string{"portmap"}) || ident(t, filepath.Join(bin, "portmap")) != theirs {
						t.Errorf("there is %q", left)
					}
				})
			}
		}
	}
}

// By default the bin dir is brought to the bundle on every run, and what is right is not written again.
func TestGuarantee7(t *testing.T) {
	files := set("v1", "bridge", "portmap", "tuning", "vlan")
	b, bin := packed(t, "v1", files...), t.TempDir()
	want(t, stage(t, b, Options{BinDir: bin}), "bridge:new portmap:new tuning:new vlan:new")
	same := unchanged(t, bin, true)
	r := stage(t, b, Options{BinDir: bin})
	want(t, r, "bridge:unchanged portmap:unchanged tuning:unchanged vlan:unchanged")
	same()
	if text := r.Text(); !strings.HasSuffix(text, ": 0 new, 0 replaced, 4 unchanged\n") || strings.Count(text, "\n") != 1 {
		t.Errorf("said %q", text)
	}

	path := func(name string) string { return filepath.Join(bin, name) }
	must(t, os.Remove(path("bridge")))
	must(t, os.Chmod(path("portmap"), 0o644))
	write(t, path("tuning"), "torn", 0o755)
	vlan := ident(t, path("vlan"))
	r = stage(t, b, Options{BinDir: bin})
	want(t, r, "bridge:new portmap:replaced tuning:replaced vlan:unchanged")
	inPlace(t, bin, files...)
	if ident(t, path("vlan")) != vlan {
		t.Error("vlan was right and was written again")
	}
	for name, detail := range map[string]string{"portmap": "mode 0644, not 0755", "tuning": fmt.Sprintf("4 bytes, not %d", len(files[2].data))} {
		if f := result(t, r, name).Found; f.State != Different || f.Detail != detail {
			t.Errorf("%s was found as %+v", name, f)
		}
	}
	for _, perm := range []os.FileMode{0o754, 0o777, 0o500, 0o755 | os.ModeSetuid} {
		must(t, os.Chmod(path("vlan"), perm))
		want(t, stage(t, b, Options{BinDir: bin}), "bridge:unchanged portmap:unchanged tuning:unchanged vlan:replaced")
		inPlace(t, bin, files...)
	}
	// An owner needs a right to be given away.
	if os.Chown(path("vlan"), 997, 997) == nil {
		r := stage(t, b, Options{BinDir: bin})
		want(t, r, "bridge:unchanged portmap:unchanged tuning:unchanged vlan:replaced")
		if f := result(t, r, "vlan").Found; f.Detail != fmt.Sprintf("owner 997, not %d", os.Geteuid()) {
			t.Errorf("found %+v", f)
		}
		inPlace(t, bin, files...)
	}
}

// The umask has no say.
func TestGuarantee7Umask(t *testing.T) {
	for _, mask := range []int{0, 0o077, 0o277} {
		t.Run(fmt.Sprintf("%04o", mask), func(t *testing.T) {
			bin := t.TempDir()
			b := packed(t, "v1", ref("bridge", "v1"))
			defer syscall.Umask(syscall.Umask(mask))
			want(t, stage(t, b, Options{BinDir: bin}), "bridge:new")
			inPlace(t, bin, ref("bridge", "v1"))
			if info, err := os.Lstat(filepath.Join(bin, storeName)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

// What was replaced is kept, and is exactly what was there.
func TestGuarantee8(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		bin := t.TempDir()
		path := filepath.Join(bin, "portmap")
		write(t, path, "theirs", 0o4711)
		must(t, os.Chmod(path, 0o711|os.ModeSetuid))
		unix.Setxattr(path, "user.chandler", []byte("x"), 0) // where the file system has them
		must(t, os.Chtimes(path, time.Unix(1e9, 5), time.Unix(1e9, 7)))
		was := ident(t, path)
		r := stage(t, packed(t, "v1", set("v1", "bridge", "portmap")...), Options{BinDir: bin})
		want(t, r, "bridge:new portmap:replaced")
		if got := ident(t, newest(t, bin, "portmap")); got != was {
			t.Errorf("kept %s, was %s", got, was)
		}
		p := result(t, r, "portmap")
		if p.Original != ".chandler/originals/portmap/1-"+sum([]byte("theirs")) {
			t.Errorf("reported as %q", p.Original)
		}
		if got := ident(t, filepath.Join(bin, p.Original)); got != was {
			t.Error("the report leads to another file")
		}
		if kept := originals(t, bin, "bridge"); len(kept) > 0 {
			t.Errorf("kept %q where nothing was", kept)
		}
		if _, err := os.Lstat(filepath.Join(bin, storeName, stagedName, "bridge@absent")); err != nil {
			t.Errorf("that there was no bridge before is not kept: %v", err)
		}
	})
}

// The newest foreign one is what a restore would put back, and three a name are kept.
func TestGuarantee8NewestThree(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		bin := t.TempDir()
		path := filepath.Join(bin, "portmap")
		var was []string
		for i := range 5 {
			write(t, path+".new", fmt.Sprintf("foreign %d", i), 0o755)
			was = append(was, ident(t, path+".new"))
			must(t, os.Rename(path+".new", path))
			version := fmt.Sprintf("v%d", i)
			want(t, stage(t, packed(t, version, ref("portmap", version)), Options{BinDir: bin}), "portmap:replaced")
			// One of ours in between is no original.
			want(t, stage(t, packed(t, "v", ref("portmap", "v")), Options{BinDir: bin}), "portmap:replaced")
		}
		var got []string
		for i, file := range originals(t, bin, "portmap") {
			if !strings.HasPrefix(file, fmt.Sprintf("%d-", i+3)) {
				t.Errorf("number %d is %s", i+3, file)
			}
			got = append(got, ident(t, filepath.Join(bin, storeName, originalsName, "portmap", file)))
		}
		if !slices.Equal(got, was[2:]) {
			t.Errorf("kept:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(was[2:], "\n"))
		}
	})
}

// Our own earlier file is never somebody's original, whatever becomes of the ledger.
func TestGuarantee8OwnFilesAreNoOriginals(t *testing.T) {
	for name, ledger := range map[string]func(t *testing.T, path string){
		"kept":    func(*testing.T, string) {},
		"deleted": func(t *testing.T, path string) { must(t, os.Remove(path)) },
		"damaged": func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("{"), 0o600)) },
		"newer":   func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte(`{"formatVersion":9}`), 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T) {
				bin := t.TempDir()
				for i := range 4 {
					version := fmt.Sprintf("v%d", i)
					r := stage(t, packed(t, version, set(version, "bridge", "portmap")...), Options{BinDir: bin})
					if r.Count(Failed) > 0 || i > 0 && r.Count(Replaced) != 2 {
						t.Error(r.Text())
					}
					ledger(t, filepath.Join(bin, storeName, ledgerName))
				}
				for _, n := range []string{"bridge", "portmap"} {
					if kept := originals(t, bin, n); len(kept) > 0 {
						t.Errorf("%s: kept our own %q", n, kept)
					}
				}
			})
		})
	}
}

// One of ours that somebody has changed since, even in its mode alone, is theirs.
func TestGuarantee8TouchedFilesAreOurs(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		bin := t.TempDir()
		path := filepath.Join(bin, "bridge")
		theirs := old(t, path, hostdir.File)
		stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
		for _, v := range []string{"v1", "v2", "v2"} {
			must(t, os.Chmod(path, 0o700))
			want(t, stage(t, packed(t, v, ref("bridge", v)), Options{BinDir: bin}), "bridge:replaced")
			inPlace(t, bin, ref("bridge", v))
			if kept := originals(t, bin, "bridge"); len(kept) != 1 {
				t.Fatalf("%s: kept %q", v, kept)
			}
		}
		must(t, os.Chmod(path, 0o555))
		want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back")
		if now := ident(t, path); now != theirs {
			t.Errorf("bridge is %s\nwas %s", now, theirs)
		}
	})
}

// The bundle's own bytes, which somebody had put there with a mode of their own before staging came, are theirs: also if the run is
// killed before it has filed them.
func TestGuarantee8SameBytesBefore(t *testing.T) {
	for _, killed := range []bool{false, true} {
		bothWays(t, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			write(t, path, string(ref("bridge", "v1").data), 0o700)
			theirs := ident(t, path)
			b := packed(t, "v1", ref("bridge", "v1"))
			if killed {
				t.Run("killed", func(t *testing.T) {
					real := publish
					swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
						if strings.HasPrefix(to, "1-") {
							panic("killed")
						}
						return real(d, from, name, to)
					})
					dies(t, func() { Run(t.Context(), b, Options{BinDir: bin}) })
				})
			}
			stage(t, b, Options{BinDir: bin})
			inPlace(t, bin, ref("bridge", "v1"))
			if got := ident(t, newest(t, bin, "bridge")); got != theirs {
				t.Errorf("kept %s, was %s", got, theirs)
			}
			if killed {
				killedWhile(t, RestoreOptions{BinDir: bin}, filepath.Base(bin))
			}
			r := restored(t, RestoreOptions{BinDir: bin})
			if !r.Complete() || r.Count(PutBack) != 1 {
				t.Errorf("%s", r.Text())
			}
			if now := ident(t, path); now != theirs {
				t.Errorf("bridge is %s\nwas %s", now, theirs)
			}
			wantGone(t, filepath.Join(bin, storeName))
		})
	}
}

// What cannot be read, or is larger than any plugin, is kept all the same.
func TestGuarantee8UnreadOriginals(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		bin := t.TempDir()
		path := filepath.Join(bin, "bridge")
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
		must(t, err)
		must(t, f.Truncate(plugin.MaxSize+1)) // a hole
		must(t, f.Chmod(0o755))
		must(t, f.Close())
		before, err := os.Stat(path)
		must(t, err)
		want(t, stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin}), "bridge:replaced")
		after, err := os.Stat(filepath.Join(bin, storeName, originalsName, "bridge", "1-"+unreadDigest))
		if err != nil || !os.SameFile(before, after) {
			t.Errorf("the original is lost: %v", err)
		}
	})
}

func TestGuarantee8UnreadableOriginals(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	write(t, path, strings.Repeat("x", len(ref("bridge", "v1").data)), 0)
	before, err := os.Lstat(path)
	must(t, err)
	r := stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	want(t, r, "bridge:replaced")
	if f := result(t, r, "bridge").Found; f.State != Unreadable || f.Detail != "open: permission denied" {
		t.Errorf("found %+v", f)
	}
	after, err := os.Lstat(newest(t, bin, "bridge"))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the original is lost: %v", err)
	}
}

func TestGuarantee8NoKeep(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		bin := t.TempDir()
		write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
		must(t, os.Symlink("/nowhere", filepath.Join(bin, "vlan")))
		r := stage(t, packed(t, "v1", set("v1", "bridge", "tuning", "vlan")...), Options{BinDir: bin, NoKeep: true})
		want(t, r, "bridge:replaced tuning:new vlan:replaced")
		inPlace(t, bin, set("v1", "bridge", "tuning", "vlan")...)
		for _, n := range []string{"bridge", "tuning", "vlan"} {
			if kept := originals(t, bin, n); len(kept) > 0 || result(t, r, n).Original != "" {
				t.Errorf("%s: kept %q, reported %q", n, kept, result(t, r, n).Original)
			}
		}
	})
}
