//go:build faults

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

// meanwhile does something over and over until it is told to stop, and says then how often.
func meanwhile(do func()) (stop func() int) {
	var done atomic.Bool
	var wg sync.WaitGroup
	n := 0
	wg.Go(func() {
		for ; !done.Load(); n++ {
			do()
		}
	})
	return func() int { done.Store(true); wg.Wait(); return n }
}

// swap exchanges what two paths stand for, over and over, at a pace at which a run meets either and both.
func swap(t *testing.T, a, b string) (stop func() int) {
	return meanwhile(func() {
		if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil && err != unix.ENOENT {
			t.Errorf("exchange %s and %s: %v", a, b, err)
		}
		time.Sleep(500 * time.Microsecond)
	})
}

// rounds is how often something is tried that has to meet a moment.
func rounds() int {
	if ring.full {
		return 300
	}
	return 12
}

// precious is a directory that looks like something staging would work in, and may not be touched.
func precious(t *testing.T) string {
	dir := t.TempDir()
	for _, path := range []string{"tmp/run/file", "originals/static/1-file", "staged/static@absent", "static", "sbr", "passwd"} {
		rig.Write(t, filepath.Join(rig.Mkdir(t, filepath.Join(dir, filepath.Dir(path))), filepath.Base(path)), "gold", 0o644)
	}
	rig.Must(t, os.Chmod(dir, 0o700))
	return dir
}

// The bin dir's path leads now to one directory and now, by a link, to another, as fast as that can be done: each run works in
// the one that it has opened, whole, and says so if that is no longer the one that the path leads to.
func TestBinDirIsSwapped(t *testing.T) {
	top := t.TempDir()
	path, link := filepath.Join(top, "bin"), filepath.Join(top, "link")
	one, two := rig.Mkdir(t, path), rig.Mkdir(t, filepath.Join(top, "two"))
	rig.Must(t, os.Symlink(two, link))
	rig.Place(t, ring.fewOlder, one, fewNames...)
	rig.Place(t, ring.fewOlder, two, fewNames...)
	stop := swap(t, path, link)
	bundles := []string{ring.few, ring.fewOlder}
	said := 0
	for i := range rounds() {
		o := rig.Stage(t, bundles[i%2], path)
		switch {
		case o.Report.Outcome == "staged" && o.Code == 0 && len(o.Failed()) == 0:
		case o.Code == 1 && strings.Contains(o.Report.Message, "this directory was replaced on the host"):
			said++
		default:
			t.Fatalf("exit %d: %s", o.Code, o.Stderr)
		}
	}
	n := stop()
	if real, err := os.Readlink(path); err == nil && real == two {
		one = link
	}
	if said == 0 {
		t.Errorf("%d swaps, and no run met one: this shows nothing", n)
	}
	for _, dir := range []string{one, two} {
		rig.Whole(t, dir, false, ring.few, ring.fewOlder)
		rig.Clean(t, ring.few, dir)
	}
	if names, _ := os.ReadDir(top); len(names) != 3 {
		t.Errorf("beside the two: %v", names)
	}
}

// A directory of staging's own folder is swapped for a link to somewhere else, as fast as that can be done: nothing there is
// ever written, moved or removed.
func TestFolderIsSwapped(t *testing.T) {
	for _, at := range []string{".chandler", ".chandler/tmp", ".chandler/originals", ".chandler/originals/static", ".chandler/staged"} {
		t.Run(at, func(t *testing.T) {
			dir, victim := t.TempDir(), precious(t)
			before := rig.Tree(t, victim)
			rig.Place(t, ring.fewOlder, dir, "static")
			rig.Stage(t, ring.few, dir).Counts(t, 4, 1, 0, 0)
			link := filepath.Join(t.TempDir(), "link")
			rig.Must(t, os.Symlink(victim, link))
			stop := swap(t, filepath.Join(dir, at), link)
			bundles := []string{ring.fewOlder, ring.few}
			failed := 0
			for i := range rounds() {
				o := rig.Stage(t, bundles[i%2], dir)
				if o.Code != 0 {
					t.Fatalf("exit %d: %s", o.Code, o.Stderr)
				}
				failed += len(o.Failed())
				rig.Whole(t, dir, false, ring.few, ring.fewOlder)
			}
			n := stop()
			if failed == 0 {
				t.Errorf("%d swaps, and no run met one: this shows nothing", n)
			}
			rig.Unchanged(t, before, rig.Tree(t, victim))
		})
	}
}

// The bundle's path leads now to one bundle and now to another, or a plugin of it is now the file and now a link to something
// secret, as fast as that can be done: each run stages one bundle whole or says that it is damaged, and never the secret.
func TestBundleIsSwapped(t *testing.T) {
	t.Run("bundle", func(t *testing.T) {
		top, dir := t.TempDir(), t.TempDir()
		path, other := filepath.Join(top, "bundle"), filepath.Join(top, "other")
		rig.Sh(t, "cp", "-a", ring.few, path)
		rig.Must(t, os.Symlink(ring.fewOlder, other))
		stop := swap(t, path, other)
		defer stop()
		for range rounds() {
			o := rig.Stage(t, path, dir)
			if o.Code != 0 || o.Report.Outcome != "staged" || len(o.Failed()) > 0 {
				t.Fatalf("exit %d: %s", o.Code, o.Stderr)
			}
			whole := ring.few
			if rig.WrongAs(ring.few, dir, fewNames[0]) != "" {
				whole = ring.fewOlder
			}
			rig.Holds(t, whole, dir, fewNames...)
		}
	})
	for _, what := range []string{"link", "fifo"} {
		t.Run("plugin, "+what, func(t *testing.T) {
			top, dir := t.TempDir(), t.TempDir()
			path, other := filepath.Join(top, "bundle"), filepath.Join(top, "other")
			rig.Sh(t, "cp", "-a", ring.few, path)
			if what == "link" {
				secret := filepath.Join(top, "secret")
				rig.Write(t, secret, strings.Repeat("secret", 500_000)[:len(rig.Read(t, filepath.Join(ring.few, "bin/static")))], 0o755)
				rig.Must(t, os.Symlink(secret, other))
			} else {
				rig.Must(t, unix.Mkfifo(other, 0o755))
			}
			stop := swap(t, filepath.Join(path, "bin/static"), other)
			defer stop()
			staged, refused := 0, 0
			for range max(rounds(), 30) {
				rig.Must(t, os.RemoveAll(dir), os.Mkdir(dir, 0o755))
				o := rig.Stage(t, path, dir)
				switch {
				case o.Report.Outcome == "staged" && len(o.Failed()) == 0:
					staged++
					rig.Holds(t, ring.few, dir, fewNames...)
				case strings.Contains(o.Report.Message, "bin/static") && strings.Contains(o.Report.Message, "nothing was staged"):
					refused++
					if names, _ := os.ReadDir(dir); len(names) > 0 {
						t.Fatalf("refused, and there are %v", names)
					}
				default:
					t.Fatalf("exit %d: %s", o.Code, o.Stderr)
				}
			}
			t.Logf("%d staged, %d refused", staged, refused)
			if refused == 0 {
				t.Error("no run met the swap: this shows nothing")
			}
		})
	}
}

// A bundle that somebody writes to while it is read: no byte of that is published.
func TestBundleIsWrittenTo(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "bundle")
	rig.Sh(t, "cp", "-a", ring.few, path)
	f, err := os.OpenFile(filepath.Join(path, "bin/static"), os.O_RDWR, 0)
	rig.Must(t, err)
	defer f.Close()
	was := make([]byte, 1)
	_, err = f.ReadAt(was, 1_000_000)
	rig.Must(t, err)
	stop := meanwhile(func() {
		f.WriteAt([]byte{was[0] ^ 1}, 1_000_000)
		time.Sleep(2 * time.Millisecond)
		f.WriteAt(was, 1_000_000)
		time.Sleep(20 * time.Millisecond)
	})
	defer stop()
	outcomes := make(map[string]int)
	for range max(rounds(), 30) {
		rig.Must(t, os.RemoveAll(dir), os.Mkdir(dir, 0o755))
		o := rig.Stage(t, path, dir)
		outcomes[o.Report.Outcome]++
		for _, name := range fewNames {
			if rig.Exists(filepath.Join(dir, name)) {
				rig.Holds(t, ring.few, dir, name)
			}
		}
		if names, _ := os.ReadDir(dir); o.Report.Outcome != "staged" && len(names) > 0 {
			t.Fatalf("%s, and there are %v", o.Report.Message, names)
		}
	}
	t.Log(outcomes)
}

// Names that a terminal would obey, in the bin dir and in its folder, are left or cleared like others, and are never printed as
// they are.
func TestNamesWithControlCharacters(t *testing.T) {
	names := []string{"\x1b[2J\x1b]0;owned\a", "static\n", "static\nstaged 14 plugins", "-rf", "*", "\xff\xfe", " "}
	dir := t.TempDir()
	rig.Stage(t, ring.fewOlder, dir).Counts(t, 5, 0, 0, 0)
	for _, below := range []string{"", ".chandler", ".chandler/tmp", ".chandler/staged", ".chandler/originals", ".chandler/originals/static"} {
		for _, name := range names {
			rig.Write(t, filepath.Join(rig.Mkdir(t, filepath.Join(dir, below)), name), "theirs", 0o755)
		}
	}
	rig.Mkdir(t, filepath.Join(dir, ".chandler/tmp/\x1b[31mdir\n/\x1b[32m"))
	rig.Must(t, os.Remove(filepath.Join(dir, "static")), os.Symlink("/\x1b[31mnowhere\nfailed to install: all", filepath.Join(dir, "static")))
	rig.Write(t, filepath.Join(dir, ".chandler/originals/static/swap-\x1b[33m\n-run"), "theirs", 0o755)
	before := rig.Tree(t, dir)
	planned := rig.Sh(t, rig.Chandler, "stage", "--bundle", ring.few, "--bin-dir", dir, "--dry-run")
	o := rig.Stage(t, ring.few, dir)
	o.Counts(t, 0, 5, 0, 0)
	for where, text := range map[string]string{"stdout": o.Stdout, "stderr": o.Stderr, "the termination log": o.Log, "the plan": planned} {
		if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }); i >= 0 {
			t.Errorf("%s has a control character: %q", where, text)
		}
		if strings.Contains(text, "\nfailed to install: all") {
			t.Errorf("%s says what a link's target says: %q", where, text)
		}
	}
	after := rig.Tree(t, dir)
	for _, name := range names {
		for _, below := range []string{"", ".chandler", ".chandler/staged", ".chandler/originals", ".chandler/originals/static"} {
			if path := filepath.Join(below, name); after[path] != before[path] {
				t.Errorf("%q was changed", path)
			}
		}
	}
	if left := rig.Glob(t, dir, ".chandler/tmp/*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Files far larger than any plugin, with nothing in them, are not read to the end: neither under a plugin's name nor in a bundle.
func TestHugeFiles(t *testing.T) {
	const huge = 8 << 40 // more than can be read while a run is waited for
	small := func(t *testing.T, c rig.Call) rig.Outcome {
		t.Helper()
		o, peak := measured(t, c)
		if peak > 64<<20 {
			t.Errorf("it took %d MB", peak/1e6)
		}
		return o
	}
	sparse := func(t *testing.T, path string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
		rig.Must(t, err)
		defer f.Close()
		rig.Must(t, f.Truncate(huge), f.Chmod(0o755))
	}
	t.Run("bin dir", func(t *testing.T) {
		dir := t.TempDir()
		sparse(t, filepath.Join(dir, "static"))
		small(t, rig.Call{Bundle: ring.few, Dir: dir}).Counts(t, 4, 1, 0, 0)
		kept := rig.Glob(t, dir, ".chandler/originals/static/1-unread")
		if len(kept) != 1 {
			t.Fatalf("kept: %v", rig.Glob(t, dir, ".chandler/originals/static/*"))
		}
		if info, err := os.Stat(kept[0]); err != nil || info.Size() != huge {
			t.Errorf("%v, %v", info, err)
		}
	})
	t.Run("the ledger", func(t *testing.T) {
		dir := t.TempDir()
		rig.Stage(t, ring.fewOlder, dir).Counts(t, 5, 0, 0, 0)
		sparse(t, filepath.Join(dir, ".chandler/ledger.json"))
		o := small(t, rig.Call{Bundle: ring.few, Dir: dir})
		o.Counts(t, 0, 5, 0, 0)
		if len(o.Report.Warnings) != 1 || !strings.Contains(o.Report.Warnings[0], "begun anew") {
			t.Errorf("%q", o.Report.Warnings)
		}
	})
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"plugin": func(t *testing.T, dir string) { sparse(t, filepath.Join(dir, "bin/static")) },
		"plugin of that size": func(t *testing.T, dir string) {
			path := filepath.Join(dir, "bin/static")
			size := fmt.Sprint(len(rig.Read(t, path)))
			sparse(t, path)
			manifest := filepath.Join(dir, "bundle.json")
			rig.Write(t, manifest, strings.Replace(rig.Read(t, manifest), `"size": `+size, fmt.Sprintf(`"size": %d`, int64(huge)), 1), 0o644)
			if !strings.Contains(rig.Read(t, manifest), fmt.Sprint(int64(huge))) {
				t.Fatal("no such size in the manifest")
			}
		},
		"manifest": func(t *testing.T, dir string) { sparse(t, filepath.Join(dir, "bundle.json")) },
	} {
		t.Run("bundle, "+name, func(t *testing.T) {
			from, dir := filepath.Join(t.TempDir(), "bundle"), t.TempDir()
			rig.Sh(t, "cp", "-a", ring.few, from)
			spoil(t, from)
			refused(t, small(t, rig.Call{Bundle: from, Dir: dir}), dir)
		})
	}
}

func refused(t *testing.T, o rig.Outcome, dir string) {
	t.Helper()
	if o.Report.Outcome != "refused" || !strings.HasSuffix(o.Stderr, "; nothing was staged\n") {
		t.Errorf("exit %d: %s", o.Code, o.Stderr)
	}
	if names, _ := os.ReadDir(dir); len(names) > 0 {
		t.Errorf("there are %v", names)
	}
}

// What would let a reader wait for ever, in the place of any part of a bundle, is refused.
func TestBundleOfFifos(t *testing.T) {
	for _, part := range []string{"bundle.json", "bin", "bin/static", "bin/more", "."} {
		t.Run(part, func(t *testing.T) {
			from, dir := filepath.Join(t.TempDir(), "bundle"), t.TempDir()
			rig.Sh(t, "cp", "-a", ring.few, from)
			rig.Must(t, os.RemoveAll(filepath.Join(from, part)), unix.Mkfifo(filepath.Join(from, part), 0o755))
			refused(t, rig.Stage(t, from, dir), dir)
		})
	}
}

// A folder, or a part of it, that somebody else made or that leads elsewhere is not used: what it concerns fails and says why,
// the old files stay, and nothing behind it is touched.
func TestFolderOfSomebodyElse(t *testing.T) {
	all := fewNames
	for at, concerned := range map[string][]string{
		".chandler": all, ".chandler/tmp": all, ".chandler/staged": all,
		// Where nothing is replaced, nothing is to be kept.
		".chandler/originals": {"static", "sbr"}, ".chandler/originals/static": {"static"},
	} {
		for _, how := range []string{"link", "owner", "file"} {
			t.Run(how+" "+at, func(t *testing.T) {
				dir, victim := t.TempDir(), precious(t)
				rig.Place(t, ring.fewOlder, dir, "static", "sbr")
				path := filepath.Join(dir, at)
				if up := filepath.Dir(at); up != "." {
					rig.Mkdir(t, filepath.Join(dir, up))
				}
				why := "is not a directory"
				switch how {
				case "link":
					rig.Must(t, os.Symlink(victim, path))
				case "owner":
					rig.Must(t, os.Chown(rig.Mkdir(t, path), 997, 997))
					rig.Write(t, filepath.Join(path, "theirs"), "gold", 0o644)
					victim, why = path, "belongs to uid 997"
				case "file":
					rig.Write(t, path, "gold", 0o644)
					victim = path
				}
				before := rig.Tree(t, victim)
				o := rig.Stage(t, ring.few, dir)
				failed := o.Failed()
				if o.Code != 0 || len(failed) != len(concerned) {
					t.Fatalf("exit %d: %s", o.Code, o.Stderr)
				}
				for _, name := range concerned {
					if !strings.Contains(failed[name], why) {
						t.Errorf("%s: %q", name, failed[name])
					}
				}
				for _, name := range all {
					switch {
					case !slices.Contains(concerned, name):
						rig.Holds(t, ring.few, dir, name)
					case name == "static" || name == "sbr":
						rig.Holds(t, ring.fewOlder, dir, name)
					case rig.Exists(filepath.Join(dir, name)):
						t.Errorf("%s failed and is there", name)
					}
				}
				rig.Unchanged(t, before, rig.Tree(t, victim))
			})
		}
	}
}
