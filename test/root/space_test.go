//go:build root

package root

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

// Guarantees 1, 3 and 5 on a full disk, which is sized so that it is full at each plugin in turn: what does not fit is named
// with its cause, keeps what was there, and does not keep the others from being staged; with room again, the next run heals.
func TestFullDisk(t *testing.T) {
	sizes := make(map[string]int64)
	var all int64
	for _, name := range rig.Reference {
		info, err := os.Stat(filepath.Join(ring.bundle, "bin", name))
		if err != nil {
			t.Fatal(err)
		}
		sizes[name] = info.Size()
		all += info.Size()
	}
	const page = 4096
	for _, update := range []bool{false, true} {
		name := "fresh"
		if update {
			name = "update"
		}
		t.Run(name, func(t *testing.T) {
			named := make(map[string]bool)
			var room int64
			for i, full := range rig.Reference {
				size := room + sizes[full]/2
				room += sizes[full]
				if update {
					size += all + 14*page
				}
				dir := filepath.Join(tmpfs(t, fmt.Sprintf("size=%d", size/page*page)), "bin")
				rig.Mkdir(t, dir)
				if update {
					rig.Place(t, ring.older, dir)
				}
				var args []string
				strict := i%2 == 1
				if strict {
					args = []string{"--strict"}
				}
				o := rig.Stage(t, ring.bundle, dir, args...)
				if (o.Code == 1) != strict || o.Code > 1 || o.Signal != 0 {
					t.Fatalf("full at %s: exit %d with strict %v", full, o.Code, strict)
				}
				o.Told(t)
				failed := o.Failed()
				if len(failed) == 0 || len(failed) > 14-i/2 {
					t.Fatalf("full at %s, the plugin %d of 14: %d failed\n%s", full, i+1, len(failed), o.Stderr)
				}
				for _, p := range rig.Reference {
					cause, bad := failed[p]
					switch {
					case !bad:
						rig.Holds(t, ring.bundle, dir, p)
					case !strings.Contains(cause, "no space left on device"):
						t.Fatalf("full at %s: %s failed for another reason: %s", full, p, cause)
					case update:
						rig.Holds(t, ring.older, dir, p)
						if !strings.HasSuffix(cause, "; the old file was kept") {
							t.Fatalf("%s: %s", p, cause)
						}
					case rig.Exists(filepath.Join(dir, p)):
						t.Fatalf("%s failed and is there", p)
					}
					named[p] = named[p] || bad
				}
				o.Says(t, "hint: staging needs room")
				rig.Clean(t, ring.bundle, dir)

				rig.Sh(t, "mount", "-o", fmt.Sprintf("remount,size=%d", 3*all), filepath.Dir(dir))
				o = rig.Stage(t, ring.bundle, dir)
				n := len(failed)
				if update {
					o.Counts(t, 0, n, 14-n, 0)
				} else {
					o.Counts(t, n, 0, 14-n, 0)
				}
				rig.Holds(t, ring.bundle, dir)
				rig.Clean(t, ring.bundle, dir)
				if update {
					for _, p := range rig.Reference {
						kept := rig.Originals(t, dir, p)
						if len(kept) != 1 {
							t.Fatalf("%s: kept %v", p, kept)
						}
						if same, err := rig.SameFiles(kept[0], filepath.Join(ring.older, "bin", p)); err != nil || !same {
							t.Fatalf("%s: what was kept is not what was there (%v)", p, err)
						}
					}
				}
			}
			if len(named) != 14 {
				t.Fatalf("only %d of 14 ever failed", len(named))
			}
		})
	}
}

// The same where directories and empty files need room too.
func TestFullDiskOfBlocks(t *testing.T) {
	for kind, bytes := range map[string]int64{"ext4": 128 << 20, "xfs": 320 << 20, "btrfs": 256 << 20} {
		t.Run(kind, func(t *testing.T) {
			at, _ := rig.Disk(t, kind, bytes)
			dir := rig.Mkdir(t, filepath.Join(at, "bin"))
			rig.Place(t, ring.fewOlder, dir)
			fill := filepath.Join(at, "fill")
			var size int64 // of one of the four
			for _, name := range fewNames {
				info, err := os.Stat(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				size = max(size, info.Size())
			}
			for _, room := range []int64{0, size / 3, size * 3 / 2, size * 5 / 2} {
				fillDisk(t, fill, room)
				o := rig.Stage(t, ring.few, dir)
				if o.Code != 0 || len(o.Failed()) == 0 {
					t.Fatalf("room of %d: exit %d, failed %v", room, o.Code, o.Failed())
				}
				o.Told(t)
				for name, cause := range o.Failed() {
					if !strings.Contains(cause, "no space left on device") {
						t.Fatalf("room of %d: %s: %s", room, name, cause)
					}
				}
				rig.Whole(t, dir, false, ring.few, ring.fewOlder)
				for _, name := range fewNames {
					if _, bad := o.Failed()[name]; !bad {
						rig.Holds(t, ring.few, dir, name)
					}
				}
				if err := os.Remove(fill); err != nil {
					t.Fatal(err)
				}
			}
			o := rig.Stage(t, ring.few, dir)
			if o.Code != 0 || len(o.Failed()) != 0 {
				t.Fatal(o.Stderr)
			}
			rig.Holds(t, ring.few, dir)
			rig.Clean(t, ring.few, dir)
		})
	}
}

// fillDisk writes to path until the disk is full and then gives so much room back.
func fillDisk(t testing.TB, path string, room int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// In large steps as long as they fit, and then in ever smaller ones.
	for step := int64(256 << 20); step >= 64<<10; {
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			t.Fatal(err)
		}
		if unix.Fallocate(int(f.Fd()), 0, end, step) != nil {
			step /= 2
		}
	}
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); err != nil {
			break
		}
	}
	f.Sync()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(max(0, size-room)); err != nil {
		t.Fatal(err)
	}
	f.Sync()
}

// A process that may write only small files, or open only few, reports truly: what it says is staged is, whole, and the rest
// is as it was.
func TestResourceLimits(t *testing.T) {
	var sizes []int64
	for _, name := range fewNames {
		info, err := os.Stat(filepath.Join(ring.few, "bin", name))
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, info.Size())
	}
	slices.Sort(sizes)
	if sizes[1] == sizes[3] {
		t.Fatal("all of one size")
	}
	cases := []struct {
		name          string
		limits        string
		bundle, older string
	}{
		{"file size", fmt.Sprintf("--fsize=%d", sizes[1]), ring.few, ring.fewOlder}, // some are larger
		{"no file at all", "--fsize=0", ring.few, ring.fewOlder},
		{"10 open files", "--nofile=10", ring.few, ring.fewOlder},
		{"20 open files", "--nofile=20", ring.few, ring.fewOlder},
		{"24 open files", "--nofile=24", ring.few, ring.fewOlder},
		{"32 open files for fourteen", "--nofile=32", ring.bundle, ring.older},
	}
	for _, c := range cases {
		for _, update := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, update %v", c.name, update), func(t *testing.T) {
				dir := t.TempDir()
				names := rig.Names(t, c.bundle)
				if update {
					rig.Place(t, c.older, dir)
				}
				// With a limit of nothing at all, the log cannot be written either: stderr has it.
				o := rig.Call{Bundle: c.bundle, Dir: dir, Wrap: []string{"prlimit", c.limits}}.Run(t)
				if o.Signal != 0 || o.Code != 0 {
					t.Fatalf("exit %d, signal %v: %s", o.Code, o.Signal, o.Stderr)
				}
				failed := o.Failed()
				if o.Report.Outcome == "refused" {
					if !strings.HasSuffix(o.Stderr, "; nothing was staged\n") {
						t.Fatal(o.Stderr)
					}
					for _, name := range names {
						failed[name] = o.Report.Message
					}
				}
				for _, name := range names {
					cause, bad := failed[name]
					switch {
					case !bad:
						rig.Holds(t, c.bundle, dir, name)
					case !containsAny(cause, "file too large", "too many open files", "bad file descriptor"): // what a child says of the second
						t.Fatalf("%s: %s", name, cause)
					case update:
						rig.Holds(t, c.older, dir, name)
					case rig.Exists(filepath.Join(dir, name)):
						t.Fatalf("%s failed and is there", name)
					}
				}
				if strings.HasPrefix(c.name, "file size") && (len(failed) == 0 || len(failed) == len(names)) {
					t.Fatalf("%d failed", len(failed))
				}
				if strings.Contains(o.Stderr, "would not have worked on this node") {
					t.Fatalf("the plugin is blamed for this process's limit:\n%s", o.Stderr)
				}
				if o = rig.Stage(t, c.bundle, dir); o.Code != 0 || len(o.Failed()) > 0 {
					t.Fatal(o.Stderr)
				}
				rig.Holds(t, c.bundle, dir)
				rig.Clean(t, c.bundle, dir)
			})
		}
	}
}

func containsAny(text string, of ...string) bool {
	return slices.ContainsFunc(of, func(s string) bool { return strings.Contains(text, s) })
}

// A result that cannot be written does not make the report untrue: what was done is told on stderr and in the termination log.
func TestStdoutThatCannotBeWritten(t *testing.T) {
	gone := func(t *testing.T) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		return w
	}
	full := func(t *testing.T) *os.File {
		f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, c := range []struct {
		name string
		out  func(*testing.T) *os.File
		args []string
		code int
		says string
	}{
		{"full disk", full, nil, 1, "no space left on device"},
		{"full disk, text", full, []string{"--output", "text"}, 1, "no space left on device"},
		{"full disk, init", full, []string{"--init"}, 0, "no space left on device"},
		{"no reader", gone, nil, 1, "broken pipe"},
		{"no reader, init", gone, []string{"--init"}, 0, "broken pipe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := bind(t, t.TempDir(), t.TempDir(), 0)
			p := rig.Call{Bundle: ring.few, Dir: dir, Args: c.args}.Command(t)
			out := c.out(t)
			defer out.Close()
			p.Cmd.Stdout = out
			if err := p.Cmd.Start(); err != nil {
				t.Fatal(err)
			}
			o := p.Wait()
			if o.Code != c.code || !strings.Contains(o.Stderr, c.says) {
				t.Errorf("exit %d, want %d; stderr %q", o.Code, c.code, o.Stderr)
			}
			rig.Holds(t, ring.few, dir)
			if !strings.HasSuffix(o.Log, "4 new, 0 replaced, 0 unchanged\n") {
				t.Errorf("four were staged, and the termination log says %q", o.Log)
			}
		})
	}
}
