//go:build faults

package disk

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
		write(t, filepath.Join(mkdir(t, filepath.Join(dir, filepath.Dir(path))), filepath.Base(path)), "gold", 0o644)
	}
	must(t, os.Chmod(dir, 0o700))
	return dir
}

// tree is every name below a directory with what it stands for.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		found[path] = fmt.Sprint(st.Ino, st.Mode, st.Uid, st.Nlink, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
		return err
	}))
	return found
}

func untouched(t *testing.T, before, after map[string]string) {
	t.Helper()
	if !maps.Equal(before, after) {
		t.Fatalf("what is not staging's was changed:\n%v\nwas\n%v", after, before)
	}
}

// The bin dir's path leads now to one directory and now, by a link, to another, as fast as that can be done: each run works in
// the one that it has opened, whole, and says so if that is no longer the one that the path leads to.
func TestBinDirIsSwapped(t *testing.T) {
	top := t.TempDir()
	path, link := filepath.Join(top, "bin"), filepath.Join(top, "link")
	one, two := mkdir(t, path), mkdir(t, filepath.Join(top, "two"))
	must(t, os.Symlink(two, link))
	place(t, ring.fewOlder, one, fewNames...)
	place(t, ring.fewOlder, two, fewNames...)
	stop := swap(t, path, link)
	bundles := []string{ring.few, ring.fewOlder}
	said := 0
	for i := range rounds() {
		o := stage(t, bundles[i%2], path)
		switch {
		case o.report.Outcome == "staged" && o.code == 0 && len(o.failed()) == 0:
		case o.code == 1 && strings.Contains(o.report.Message, "this directory was replaced on the host"):
			said++
		default:
			t.Fatalf("exit %d: %s", o.code, o.stderr)
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
		for _, name := range fewNames {
			if wrongAs(ring.few, dir, name) != "" && wrongAs(ring.fewOlder, dir, name) != "" {
				t.Errorf("neither old nor new: %s, %s", wrongAs(ring.few, dir, name), wrongAs(ring.fewOlder, dir, name))
			}
		}
		if left := litter(t, dir, fewNames...); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
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
			before := tree(t, victim)
			place(t, ring.fewOlder, dir, "static")
			stage(t, ring.few, dir).counts(t, 4, 1, 0, 0)
			link := filepath.Join(t.TempDir(), "link")
			must(t, os.Symlink(victim, link))
			stop := swap(t, filepath.Join(dir, at), link)
			bundles := []string{ring.fewOlder, ring.few}
			failed := 0
			for i := range rounds() {
				o := stage(t, bundles[i%2], dir)
				if o.code != 0 {
					t.Fatalf("exit %d: %s", o.code, o.stderr)
				}
				failed += len(o.failed())
				for _, name := range fewNames {
					if wrongAs(ring.few, dir, name) != "" && wrongAs(ring.fewOlder, dir, name) != "" {
						t.Fatalf("neither old nor new: %s, %s", wrongAs(ring.few, dir, name), wrongAs(ring.fewOlder, dir, name))
					}
				}
			}
			n := stop()
			if failed == 0 {
				t.Errorf("%d swaps, and no run met one: this shows nothing", n)
			}
			untouched(t, before, tree(t, victim))
		})
	}
}

// The bundle's path leads now to one bundle and now to another, or a plugin of it is now the file and now a link to something
// secret, as fast as that can be done: each run stages one bundle whole or says that it is damaged, and never the secret.
func TestBundleIsSwapped(t *testing.T) {
	t.Run("bundle", func(t *testing.T) {
		top, dir := t.TempDir(), t.TempDir()
		path, other := filepath.Join(top, "bundle"), filepath.Join(top, "other")
		sh(t, "cp", "-a", ring.few, path)
		must(t, os.Symlink(ring.fewOlder, other))
		stop := swap(t, path, other)
		defer stop()
		for range rounds() {
			o := stage(t, path, dir)
			if o.code != 0 || o.report.Outcome != "staged" || len(o.failed()) > 0 {
				t.Fatalf("exit %d: %s", o.code, o.stderr)
			}
			whole := ring.few
			if wrongAs(ring.few, dir, fewNames[0]) != "" {
				whole = ring.fewOlder
			}
			holds(t, whole, dir, fewNames...)
		}
	})
	for _, what := range []string{"link", "fifo"} {
		t.Run("plugin, "+what, func(t *testing.T) {
			top, dir := t.TempDir(), t.TempDir()
			path, other := filepath.Join(top, "bundle"), filepath.Join(top, "other")
			sh(t, "cp", "-a", ring.few, path)
			if what == "link" {
				secret := filepath.Join(top, "secret")
				write(t, secret, strings.Repeat("secret", 500_000)[:len(read(t, filepath.Join(ring.few, "bin/static")))], 0o755)
				must(t, os.Symlink(secret, other))
			} else {
				must(t, unix.Mkfifo(other, 0o755))
			}
			stop := swap(t, filepath.Join(path, "bin/static"), other)
			defer stop()
			staged, refused := 0, 0
			for range max(rounds(), 30) {
				must(t, os.RemoveAll(dir), os.Mkdir(dir, 0o755))
				o := stage(t, path, dir)
				switch {
				case o.report.Outcome == "staged" && len(o.failed()) == 0:
					staged++
					holds(t, ring.few, dir, fewNames...)
				case strings.Contains(o.report.Message, "bin/static") && strings.Contains(o.report.Message, "nothing was staged"):
					refused++
					if names, _ := os.ReadDir(dir); len(names) > 0 {
						t.Fatalf("refused, and there are %v", names)
					}
				default:
					t.Fatalf("exit %d: %s", o.code, o.stderr)
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
	sh(t, "cp", "-a", ring.few, path)
	f, err := os.OpenFile(filepath.Join(path, "bin/static"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	was := make([]byte, 1)
	_, err = f.ReadAt(was, 1_000_000)
	must(t, err)
	stop := meanwhile(func() {
		f.WriteAt([]byte{was[0] ^ 1}, 1_000_000)
		time.Sleep(2 * time.Millisecond)
		f.WriteAt(was, 1_000_000)
		time.Sleep(20 * time.Millisecond)
	})
	defer stop()
	outcomes := make(map[string]int)
	for range max(rounds(), 30) {
		must(t, os.RemoveAll(dir), os.Mkdir(dir, 0o755))
		o := stage(t, path, dir)
		outcomes[o.report.Outcome]++
		for _, name := range fewNames {
			if exists(filepath.Join(dir, name)) {
				holds(t, ring.few, dir, name)
			}
		}
		if names, _ := os.ReadDir(dir); o.report.Outcome != "staged" && len(names) > 0 {
			t.Fatalf("%s, and there are %v", o.report.Message, names)
		}
	}
	t.Log(outcomes)
}

// Names that a terminal would obey, in the bin dir and in its folder, are left or cleared like others, and are never printed as
// they are.
func TestNamesWithControlCharacters(t *testing.T) {
	names := []string{"\x1b[2J\x1b]0;owned\a", "static\n", "static\nstaged 14 plugins", "-rf", "*", "\xff\xfe", " "}
	dir := t.TempDir()
	stage(t, ring.fewOlder, dir).counts(t, 5, 0, 0, 0)
	for _, below := range []string{"", ".chandler", ".chandler/tmp", ".chandler/staged", ".chandler/originals", ".chandler/originals/static"} {
		for _, name := range names {
			write(t, filepath.Join(mkdir(t, filepath.Join(dir, below)), name), "theirs", 0o755)
		}
	}
	mkdir(t, filepath.Join(dir, ".chandler/tmp/\x1b[31mdir\n/\x1b[32m"))
	must(t, os.Remove(filepath.Join(dir, "static")), os.Symlink("/\x1b[31mnowhere\nfailed to install: all", filepath.Join(dir, "static")))
	write(t, filepath.Join(dir, ".chandler/originals/static/swap-\x1b[33m\n-run"), "theirs", 0o755)
	before := tree(t, dir)
	log := filepath.Join(t.TempDir(), "log")
	write(t, log, "", 0o644)
	planned := sh(t, ring.chandler, "stage", "--bundle", ring.few, "--bin-dir", dir, "--dry-run")
	o := call{bundle: ring.few, dir: dir, log: log}.run(t)
	o.counts(t, 0, 5, 0, 0)
	for where, text := range map[string]string{"stdout": o.stdout, "stderr": o.stderr, "the termination log": read(t, log), "the plan": planned} {
		if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }); i >= 0 {
			t.Errorf("%s has a control character: %q", where, text)
		}
		if strings.Contains(text, "\nfailed to install: all") {
			t.Errorf("%s says what a link's target says: %q", where, text)
		}
	}
	after := tree(t, dir)
	for _, name := range names {
		for _, below := range []string{"", ".chandler", ".chandler/staged", ".chandler/originals", ".chandler/originals/static"} {
			if path := filepath.Join(dir, below, name); after[path] != before[path] {
				t.Errorf("%q was changed", path)
			}
		}
	}
	if left := glob(t, dir, ".chandler/tmp/*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Files far larger than any plugin, with nothing in them, are not read to the end: neither under a plugin's name nor in a bundle.
func TestHugeFiles(t *testing.T) {
	const huge = 100 << 30
	quick := func(t *testing.T, c call) outcome {
		t.Helper()
		start := time.Now()
		o, peak := measured(t, c)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
		if peak > 64<<20 {
			t.Errorf("it took %d MB", peak/1e6)
		}
		return o
	}
	sparse := func(t *testing.T, path string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
		must(t, err)
		defer f.Close()
		must(t, f.Truncate(huge), f.Chmod(0o755))
	}
	t.Run("bin dir", func(t *testing.T) {
		dir := t.TempDir()
		sparse(t, filepath.Join(dir, "static"))
		quick(t, call{bundle: ring.few, dir: dir}).counts(t, 4, 1, 0, 0)
		kept := glob(t, dir, ".chandler/originals/static/1-unread")
		if len(kept) != 1 {
			t.Fatalf("kept: %v", glob(t, dir, ".chandler/originals/static/*"))
		}
		if info, err := os.Stat(kept[0]); err != nil || info.Size() != huge {
			t.Errorf("%v, %v", info, err)
		}
	})
	t.Run("the ledger", func(t *testing.T) {
		dir := t.TempDir()
		stage(t, ring.fewOlder, dir).counts(t, 5, 0, 0, 0)
		sparse(t, filepath.Join(dir, ".chandler/ledger.json"))
		o := quick(t, call{bundle: ring.few, dir: dir})
		o.counts(t, 0, 5, 0, 0)
		if len(o.report.Warnings) != 1 || !strings.Contains(o.report.Warnings[0], "begun anew") {
			t.Errorf("%q", o.report.Warnings)
		}
	})
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"plugin": func(t *testing.T, dir string) { sparse(t, filepath.Join(dir, "bin/static")) },
		"plugin of that size": func(t *testing.T, dir string) {
			path := filepath.Join(dir, "bin/static")
			size := fmt.Sprint(len(read(t, path)))
			sparse(t, path)
			manifest := filepath.Join(dir, "bundle.json")
			write(t, manifest, strings.Replace(read(t, manifest), `"size": `+size, fmt.Sprintf(`"size": %d`, int64(huge)), 1), 0o644)
			if !strings.Contains(read(t, manifest), fmt.Sprint(int64(huge))) {
				t.Fatal("no such size in the manifest")
			}
		},
		"manifest": func(t *testing.T, dir string) { sparse(t, filepath.Join(dir, "bundle.json")) },
	} {
		t.Run("bundle, "+name, func(t *testing.T) {
			from, dir := filepath.Join(t.TempDir(), "bundle"), t.TempDir()
			sh(t, "cp", "-a", ring.few, from)
			spoil(t, from)
			refused(t, quick(t, call{bundle: from, dir: dir}), dir)
		})
	}
}

func refused(t *testing.T, o outcome, dir string) {
	t.Helper()
	if o.report.Outcome != "refused" || !strings.HasSuffix(o.stderr, "; nothing was staged\n") {
		t.Errorf("exit %d: %s", o.code, o.stderr)
	}
	if names, _ := os.ReadDir(dir); len(names) > 0 {
		t.Errorf("there are %v", names)
	}
}

// What would let a reader wait for ever, in the place of any part of a bundle, is refused at once.
func TestBundleOfFifos(t *testing.T) {
	for _, part := range []string{"bundle.json", "bin", "bin/static", "bin/more", "."} {
		t.Run(part, func(t *testing.T) {
			from, dir := filepath.Join(t.TempDir(), "bundle"), t.TempDir()
			sh(t, "cp", "-a", ring.few, from)
			must(t, os.RemoveAll(filepath.Join(from, part)), unix.Mkfifo(filepath.Join(from, part), 0o755))
			start := time.Now()
			refused(t, stage(t, from, dir), dir)
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
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
				place(t, ring.fewOlder, dir, "static", "sbr")
				path := filepath.Join(dir, at)
				if up := filepath.Dir(at); up != "." {
					mkdir(t, filepath.Join(dir, up))
				}
				why := "is not a directory"
				switch how {
				case "link":
					must(t, os.Symlink(victim, path))
				case "owner":
					must(t, os.Chown(mkdir(t, path), 997, 997))
					write(t, filepath.Join(path, "theirs"), "gold", 0o644)
					victim, why = path, "belongs to uid 997"
				case "file":
					write(t, path, "gold", 0o644)
					victim = path
				}
				before := tree(t, victim)
				o := stage(t, ring.few, dir)
				failed := o.failed()
				if o.code != 0 || len(failed) != len(concerned) {
					t.Fatalf("exit %d: %s", o.code, o.stderr)
				}
				for _, name := range concerned {
					if !strings.Contains(failed[name], why) {
						t.Errorf("%s: %q", name, failed[name])
					}
				}
				for _, name := range all {
					switch {
					case !slices.Contains(concerned, name):
						holds(t, ring.few, dir, name)
					case name == "static" || name == "sbr":
						holds(t, ring.fewOlder, dir, name)
					case exists(filepath.Join(dir, name)):
						t.Errorf("%s failed and is there", name)
					}
				}
				untouched(t, before, tree(t, victim))
			})
		}
	}
}
