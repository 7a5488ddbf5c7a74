package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
)

// restored runs and checks what holds of every report of restoring.
func restored(t testing.TB, o RestoreOptions) *Report {
	t.Helper()
	r := Restore(t.Context(), o)
	checkReport(t, r)
	checkTidy(t, o.BinDir)
	return r
}

// old makes something under a plugin's name with metadata of its own, and returns what it is.
func old(t testing.TB, path string, kind hostdir.Kind) string {
	t.Helper()
	put(t, path, kind)
	if kind == hostdir.File {
		must(t, os.Chmod(path, 0o4711))
		if os.Geteuid() == 0 {
			must(t, os.Chown(path, 12, 34))
			must(t, os.Chmod(path, 0o4711))
		}
		must(t, unix.Setxattr(path, "user.chandler", []byte("theirs"), 0))
	}
	at := unix.NsecToTimespec(1e18 + 123456789)
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
	return ident(t, path)
}

// wantGone holds that nothing is there.
func wantGone(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

// After staging and restoring the directory is what it was, whatever stood in it, with the ledger or without, whatever was
// staged in between.
func TestRestore(t *testing.T) {
	names := []string{"bridge", "link", "new", "taken"}
	versions := []*bundle.Bundle{packed(t, "v1", set("v1", names...)...), packed(t, "v2", set("v2", names...)...)}
	for _, layout := range []Layout{Separate, Linked} {
		for _, ledger := range []string{"whole", "lost", "damaged"} {
			t.Run(string(layout)+"/"+ledger, func(t *testing.T) {
				bin := t.TempDir()
				old(t, filepath.Join(bin, "bridge"), hostdir.File)
				old(t, filepath.Join(bin, "link"), hostdir.Symlink)
				old(t, filepath.Join(bin, "taken"), hostdir.Folder)
				same := unchanged(t, bin, false)
				for _, b := range []*bundle.Bundle{versions[0], versions[1], versions[0]} {
					stage(t, b, Options{BinDir: bin, Layout: layout})
				}
				at := filepath.Join(bin, storeName, ledgerName)
				switch ledger {
				case "lost":
					must(t, os.Remove(at))
				case "damaged":
					must(t, os.WriteFile(at, []byte("{"), 0o600))
				}
				staged := unchanged(t, bin, true)
				dry := restored(t, RestoreOptions{BinDir: bin, DryRun: true})
				staged()
				want(t, dry, "bridge:put back link:put back new:removed")
				r := restored(t, RestoreOptions{BinDir: bin})
				want(t, r, "bridge:put back link:put back new:removed")
				wantWarnings(t, r)
				if !r.Complete() || dry.Outcome != RestorePlanned || r.Outcome != Restored {
					t.Errorf("%s, %s: complete %t", dry.Outcome, r.Outcome, r.Complete())
				}
				same()
				again := restored(t, RestoreOptions{BinDir: bin})
				want(t, again, "")
				same()
				want(t, stage(t, versions[0], Options{BinDir: bin}), "bridge:replaced link:replaced new:new taken:failed")
			})
		}
	}
}

// One name comes back alone, and the others as if nothing had been.
func TestRestoreOnly(t *testing.T) {
	bin := t.TempDir()
	bridge := old(t, filepath.Join(bin, "bridge"), hostdir.File)
	files := set("v1", "bridge", "new", "ptp")
	stage(t, packed(t, "v1", files...), Options{BinDir: bin})
	want(t, restored(t, RestoreOptions{BinDir: bin, Only: []string{"bridge", "bridge", "new"}}), "bridge:put back new:removed")
	if now := ident(t, filepath.Join(bin, "bridge")); now != bridge {
		t.Errorf("bridge is %s\nwas %s", now, bridge)
	}
	wantGone(t, filepath.Join(bin, "new"))
	inPlace(t, bin, files[2])
	l := readLedger(t, bin)
	if len(l.Plugins) != 1 || l.Plugins["ptp"].SHA256 == "" {
		t.Errorf("the ledger has %v", l.Plugins)
	}
	same := unchanged(t, bin, true)
	r := Restore(t.Context(), RestoreOptions{BinDir: bin, Only: []string{"bridge", "ptp", "x"}})
	var unknown *UnknownNamesError
	if !errors.As(r.Err, &unknown) || strings.Join(unknown.Unknown, " ") != "bridge x" || strings.Join(unknown.Known, " ") != "ptp" {
		t.Errorf("%v", r.Err)
	}
	checkReport(t, r)
	same()
	want(t, restored(t, RestoreOptions{BinDir: bin}), "ptp:removed")
	if entries, err := os.ReadDir(bin); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if r := Restore(t.Context(), RestoreOptions{BinDir: bin, Only: []string{"ptp"}}); !strings.Contains(r.Text(), "no plugin ptp is staged or kept here, nor any other; nothing was restored") {
		t.Errorf("%s", r.Text())
	}
}

// What somebody else has put there, or written to our file, since it was staged is theirs: it stays, and so does what it would have
// got back.
func TestRestoreLeaves(t *testing.T) {
	for name, touch := range map[string]func(t *testing.T, path string){
		"replaced": func(t *testing.T, path string) {
			os.Remove(path)
			put(t, path, hostdir.File)
		},
		"written to": func(t *testing.T, path string) {
			must(t, os.Truncate(path, 10))
		},
		"link": func(t *testing.T, path string) {
			os.Remove(path)
			put(t, path, hostdir.Symlink)
		},
		"directory": func(t *testing.T, path string) {
			os.Remove(path)
			put(t, path, hostdir.Folder)
		},
		"fifo": func(t *testing.T, path string) {
			os.Remove(path)
			put(t, path, hostdir.Fifo)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			bridge := old(t, filepath.Join(bin, "bridge"), hostdir.File)
			stage(t, packed(t, "v1", set("v1", "bridge", "new")...), Options{BinDir: bin})
			touch(t, filepath.Join(bin, "bridge"))
			touch(t, filepath.Join(bin, "new"))
			theirs := []string{ident(t, filepath.Join(bin, "bridge")), ident(t, filepath.Join(bin, "new"))}
			r := restored(t, RestoreOptions{BinDir: bin})
			want(t, r, "bridge:left new:left")
			wantWarnings(t, r, "originals of bridge stay in .chandler/originals")
			if cause := result(t, r, "bridge").Cause; !strings.HasPrefix(cause, "is not what staging put there: ") {
				t.Errorf("cause %q", cause)
			}
			for i, n := range []string{"bridge", "new"} {
				if now := ident(t, filepath.Join(bin, n)); now != theirs[i] {
					t.Errorf("%s is %s\nwas %s", n, now, theirs[i])
				}
			}
			if kept := ident(t, newest(t, bin, "bridge")); kept != bridge {
				t.Errorf("kept is %s\nwas %s", kept, bridge)
			}
			want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:left")
			// Once it is given up, the original comes back.
			must(t, os.RemoveAll(filepath.Join(bin, "bridge")))
			want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back")
			if now := ident(t, filepath.Join(bin, "bridge")); now != bridge {
				t.Errorf("bridge is %s\nwas %s", now, bridge)
			}
			wantGone(t, filepath.Join(bin, storeName))
		})
	}
}

// A name that somebody has removed gets its original back; one that had none is gone, which is all that was to be done.
func TestRestoreAbsent(t *testing.T) {
	bin := t.TempDir()
	bridge := old(t, filepath.Join(bin, "bridge"), hostdir.File)
	stage(t, packed(t, "v1", set("v1", "bridge", "new")...), Options{BinDir: bin})
	must(t, os.Remove(filepath.Join(bin, "bridge")))
	must(t, os.Remove(filepath.Join(bin, "new")))
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:put back new:removed")
	if now := ident(t, filepath.Join(bin, "bridge")); now != bridge {
		t.Errorf("bridge is %s\nwas %s", now, bridge)
	}
	wantGone(t, filepath.Join(bin, storeName))
}

// Restoring that has been done is done: an older original does not come back when what was put back is removed.
func TestRestoreIsOver(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	b := packed(t, "v1", ref("bridge", "v1"))
	for i := range 2 {
		os.Remove(path)
		write(t, path, fmt.Sprint("theirs", i), 0o711)
		stage(t, b, Options{BinDir: bin})
	}
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back")
	must(t, os.Remove(path))
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:left")
	wantGone(t, path)
	if kept := originals(t, bin, "bridge"); len(kept) != 1 {
		t.Errorf("kept %q", kept)
	}
}

// What an interrupted run has left half done, a dry run and the list tell as what it is going to be.
func TestDryRunAfterAnInterruption(t *testing.T) {
	for _, state := range []string{"original on its way", "ours came out", "taken by staging", "not yet taken by staging"} {
		t.Run(state, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			bridge := old(t, path, hostdir.File)
			stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
			kept := newest(t, bin, "bridge")
			slot := filepath.Dir(kept)
			var st unix.Stat_t
			must(t, unix.Lstat(kept, &st))
			back := filepath.Join(slot, backName(st.Ino, original{file: filepath.Base(kept)}))
			swap := filepath.Join(slot, swapName(sum(ref("bridge", "v1").data), "RUN"))
			switch state {
			case "original on its way":
				must(t, os.Rename(kept, back))
			case "ours came out":
				must(t, unix.Renameat2(unix.AT_FDCWD, kept, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE))
				must(t, os.Rename(kept, back))
			case "taken by staging":
				must(t, os.Rename(kept, swap))
			case "not yet taken by staging":
				write(t, swap, string(ref("bridge", "v1").data), 0o755)
			}
			same := unchanged(t, bin, true)
			r := Restore(t.Context(), RestoreOptions{BinDir: bin, DryRun: true})
			checkReport(t, r)
			want(t, r, "bridge:put back")
			list, err := Originals(t.Context(), RestoreOptions{BinDir: bin})
			if err != nil || len(list) != map[bool]int{true: 0, false: 1}[state == "ours came out"] {
				t.Errorf("%v, %v", list, err)
			}
			same()
			r = restored(t, RestoreOptions{BinDir: bin})
			want(t, r, "bridge:put back")
			wantWarnings(t, r)
			wantGone(t, filepath.Join(bin, storeName))
			if now := ident(t, path); now != bridge {
				t.Errorf("bridge is %s\nwas %s", now, bridge)
			}
		})
	}
}

// What a removal was interrupted at is ours to end; what somebody else's it has in its hands goes back, or is kept.
func TestAways(t *testing.T) {
	for _, state := range []string{"ours", "theirs", "theirs, and another came"} {
		t.Run(state, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "new")
			stage(t, packed(t, "v1", set("v1", "bridge", "new")...), Options{BinDir: bin})
			away := filepath.Join(bin, storeName, stagedName, mark("new", absentMark))
			must(t, os.Rename(path, away))
			theirs := ""
			if state != "ours" {
				must(t, os.Remove(away))
				write(t, away, "theirs", 0o755)
				theirs = ident(t, away)
			}
			if state == "theirs, and another came" {
				write(t, path, "another's", 0o755)
			}
			r := restored(t, RestoreOptions{BinDir: bin})
			switch state {
			case "ours":
				want(t, r, "bridge:removed new:removed") // it is gone already
				wantGone(t, filepath.Join(bin, storeName))
			case "theirs":
				want(t, r, "bridge:removed new:left")
				if now := ident(t, path); now != theirs {
					t.Errorf("there is %s\nwant %s", now, theirs)
				}
			default:
				want(t, r, "bridge:removed new:left")
				if now := ident(t, newest(t, bin, "new")); now != theirs {
					t.Errorf("kept %s\nwant %s", now, theirs)
				}
			}
		})
	}
}

// A staging that goes on without the lock and publishes while restoring forgets has its file known for ours all the same.
func TestUnlockedStagingWhileRestoring(t *testing.T) {
	for _, when := range []string{"before the marks go", "after"} {
		t.Run(when, func(t *testing.T) {
			bin := t.TempDir()
			write(t, filepath.Join(bin, "bridge"), "theirs", 0o711)
			b := packed(t, "v1", ref("bridge", "v1"))
			stage(t, b, Options{BinDir: bin})
			real, calls := syncDir, 0
			t.Run("restore", func(t *testing.T) {
				swapVar(t, &syncDir, func(d *hostdir.Dir) error {
					// The bin dir's own sync comes before the marks go, that of the marks after.
					if calls++; (when == "after") == (filepath.Base(d.Path()) == stagedName) && calls > 0 {
						calls = -1000
						if r := Run(context.Background(), b, Options{BinDir: bin}); !r.Complete() {
							t.Errorf("%s", r.Text())
						}
					}
					return real(d)
				})
				Restore(t.Context(), RestoreOptions{BinDir: bin})
			})
			inPlace(t, bin, ref("bridge", "v1"))
			stage(t, packed(t, "v2", ref("bridge", "v2")), Options{BinDir: bin})
			for _, file := range originals(t, bin, "bridge") {
				if strings.HasSuffix(file, sum(ref("bridge", "v1").data)) {
					t.Errorf("our own file is among the originals: %s", file)
				}
			}
		})
	}
}

// What could not be read is kept like anything else, and does not pile up; it pushes out nothing that could be read.
func TestUnreadOriginals(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	b := packed(t, "v1", ref("bridge", "v1"))
	write(t, path, "theirs", 0o711)
	stage(t, b, Options{BinDir: bin})
	for i := range 6 {
		os.Remove(path)
		write(t, path, fmt.Sprint(i), 0)
		stage(t, b, Options{BinDir: bin})
	}
	kept := originals(t, bin, "bridge")
	if len(kept) != 1+keepOriginals || strings.HasSuffix(kept[0], unreadDigest) || !strings.HasPrefix(kept[1], "5-") {
		t.Errorf("kept %q", kept)
	}
}

// Any number of files that somebody has put among the originals is dealt with, some at a time; a number that has no next one is told of.
func TestManyOriginals(t *testing.T) {
	bin := t.TempDir()
	path, slot := filepath.Join(bin, "bridge"), filepath.Join(bin, storeName, originalsName, "bridge")
	must(t, os.MkdirAll(slot, 0o700))
	for i := range 500 {
		write(t, filepath.Join(slot, fmt.Sprintf("%d-%064x", i+1, i)), "x", 0o600)
	}
	b := packed(t, "v1", ref("bridge", "v1"))
	for range 500/pushOutAtMost + 1 {
		os.Remove(path)
		write(t, path, "theirs", 0o755)
		stage(t, b, Options{BinDir: bin})
	}
	if kept := originals(t, bin, "bridge"); len(kept) != keepOriginals {
		t.Errorf("%d are kept", len(kept))
	}
	write(t, filepath.Join(slot, fmt.Sprintf("%d-%064x", maxNumber, 1)), "x", 0o600)
	os.Remove(path)
	write(t, path, "the last", 0o755)
	last := ident(t, path)
	r := Run(t.Context(), b, Options{BinDir: bin})
	if len(r.Warnings) == 0 || !strings.Contains(r.Warnings[0], errNumbers.Error()) {
		t.Errorf("%q", r.Warnings)
	}
	swaps, err := filepath.Glob(filepath.Join(slot, swapPrefix+"*"))
	if err != nil || len(swaps) != 1 || ident(t, swaps[0]) != last {
		t.Errorf("%q, %v", swaps, err)
	}
}

// A directory among the originals is nobody's original, and in nobody's way.
func TestDirectoryAmongOriginals(t *testing.T) {
	bin := t.TempDir()
	bridge := old(t, filepath.Join(bin, "bridge"), hostdir.File)
	b := packed(t, "v1", set("v1", "bridge", "ptp")...)
	stage(t, b, Options{BinDir: bin})
	odd := filepath.Join(bin, storeName, originalsName, "bridge", fmt.Sprintf("2-%064x", 7))
	must(t, os.Mkdir(odd, 0o755))
	want(t, restored(t, RestoreOptions{BinDir: bin, Only: []string{"bridge"}}), "bridge:put back")
	if now := ident(t, filepath.Join(bin, "bridge")); now != bridge {
		t.Errorf("bridge is %s\nwas %s", now, bridge)
	}
	stage(t, b, Options{BinDir: bin})
	dropped, _, err := Purge(t.Context(), RestoreOptions{BinDir: bin})
	if err != nil || len(dropped) != 1 {
		t.Errorf("%v, %v", dropped, err)
	}
}

// A mark that lies about a file that could not be read makes it nobody's loss.
func TestMarkOfTheUnread(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	b := packed(t, "v1", set("v1", "bridge", "ptp")...)
	stage(t, b, Options{BinDir: bin})
	write(t, filepath.Join(bin, storeName, stagedName, mark("bridge", unreadDigest)), "", 0o600)
	os.Remove(path)
	write(t, path, "", 0o755)
	must(t, os.Truncate(path, 3<<30)) // more than any plugin has: it is not read
	stage(t, b, Options{BinDir: bin})
	if kept := originals(t, bin, "bridge"); len(kept) != 1 {
		t.Errorf("kept %q", kept)
	}
}

// The newest original comes back; older ones are somebody's too, and stay.
func TestRestoreNewest(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	b := packed(t, "v1", ref("bridge", "v1"))
	var last string
	for i := range 3 {
		os.Remove(path)
		write(t, path, fmt.Sprintf("theirs %d", i), 0o711)
		last = ident(t, path)
		stage(t, b, Options{BinDir: bin})
	}
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:put back")
	wantWarnings(t, r, "originals of bridge stay")
	if now := ident(t, path); now != last {
		t.Errorf("bridge is %s\nwas %s", now, last)
	}
	if kept := originals(t, bin, "bridge"); len(kept) != 2 || !strings.HasPrefix(kept[1], "2-") {
		t.Errorf("kept %q", kept)
	}
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:left")
}

// A writer that had the file open when it was replaced goes on writing to the original.
func TestRestoreChanged(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	write(t, path, "theirs", 0o755)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer f.Close()
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	_, err = f.WriteString(" and more")
	must(t, err)
	for _, dryRun := range []bool{true, true, false} {
		r := restored(t, RestoreOptions{BinDir: bin, DryRun: dryRun})
		want(t, r, "bridge:put back")
		wantWarnings(t, r, "bridge: what is put back was written to after it was replaced")
		if got := result(t, r, "bridge"); !got.Changed || got.SHA256 != sum([]byte("theirs and more")) {
			t.Errorf("%+v", got)
		}
		if dryRun { // the second finds nothing there
			os.Remove(path)
		}
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "theirs and more" {
		t.Errorf("%q, %v", data, err)
	}
}

// What was not kept cannot be put back: the staged file stays, and that is a failure.
func TestRestoreNotKept(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, b *bundle.Bundle, bin string){
		"no keep": func(t *testing.T, b *bundle.Bundle, bin string) {
			write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
			stage(t, b, Options{BinDir: bin, NoKeep: true})
		},
		"absent once, then no keep": func(t *testing.T, b *bundle.Bundle, bin string) {
			stage(t, b, Options{BinDir: bin})
			write(t, filepath.Join(bin, "bridge"), "theirs", 0o711)
			stage(t, b, Options{BinDir: bin, NoKeep: true})
		},
		"purged": func(t *testing.T, b *bundle.Bundle, bin string) {
			stage(t, b, Options{BinDir: bin})
			write(t, filepath.Join(bin, "bridge"), "theirs", 0o711)
			stage(t, b, Options{BinDir: bin})
			if dropped, warnings, err := Purge(t.Context(), RestoreOptions{BinDir: bin}); err != nil || len(dropped) != 1 || len(warnings) > 0 {
				t.Errorf("%v, %v, %v", dropped, warnings, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			b := packed(t, "v1", ref("bridge", "v1"), ref("ptp", "v1"))
			lose(t, b, bin)
			r := restored(t, RestoreOptions{BinDir: bin})
			want(t, r, "bridge:failed ptp:removed")
			if err := result(t, r, "bridge").Err; !errors.Is(err, ErrNotKept) || r.Complete() {
				t.Errorf("%v, complete %t", err, r.Complete())
			}
			inPlace(t, bin, ref("bridge", "v1"))
			want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:failed")
		})
	}
}

// Restoring may end at any instant, and is then run again: whatever stands under a name is whole, and in the end all is back.
func TestRestoreInterrupted(t *testing.T) { bothWays(t, restoreInterrupted) }

func restoreInterrupted(t *testing.T) {
	die := errors.New("killed")
	setUp := func(t *testing.T) (bin string, same func()) {
		bin = t.TempDir()
		old(t, filepath.Join(bin, "bridge"), hostdir.File)
		old(t, filepath.Join(bin, "link"), hostdir.Symlink)
		same = unchanged(t, bin, false)
		stage(t, packed(t, "v1", set("v1", "bridge", "link", "new")...), Options{BinDir: bin})
		return bin, same
	}
	for step := 1; ; step++ {
		bin, same := setUp(t)
		calls, done := 0, false
		t.Run(fmt.Sprintf("step %d", step), func(t *testing.T) {
			// As a kill does: from one call on nothing happens any more.
			count := func() { // panics once it is time
				if calls++; calls == step {
					panic(die)
				}
			}
			realPublish, realExchange, realReplace, realSync := publish, exchange, replace, syncDir
			swapVar(t, &replace, func(d, from *hostdir.Dir, name, to string) error {
				count()
				err := realReplace(d, from, name, to)
				count()
				return err
			})
			swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
				count()
				err := realPublish(d, from, name, to)
				count()
				return err
			})
			swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
				count()
				err := realExchange(d, from, name, to)
				count()
				return err
			})
			swapVar(t, &syncDir, func(d *hostdir.Dir) error {
				count()
				err := realSync(d)
				count()
				return err
			})
			defer func() {
				if p := recover(); p != nil && p != die {
					panic(p)
				}
			}()
			Restore(t.Context(), RestoreOptions{BinDir: bin})
			done = true
		})
		for _, name := range []string{"bridge", "link"} {
			if _, err := os.Lstat(filepath.Join(bin, name)); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
		}
		r := restored(t, RestoreOptions{BinDir: bin})
		if !r.Complete() || len(r.Warnings) > 0 || slices.ContainsFunc(r.Plugins, func(p Result) bool { return p.Action == Left }) {
			t.Errorf("step %d: %s", step, r.Text())
		}
		same()
		if done {
			if step < 15 {
				t.Errorf("only %d steps", step)
			}
			return
		}
	}
}

// killedWhile ends a restoring as a kill does, at the first sync of a directory of this name.
func killedWhile(t *testing.T, o RestoreOptions, syncing string) {
	t.Helper()
	t.Run("killed", func(t *testing.T) {
		real := syncDir
		swapVar(t, &syncDir, func(d *hostdir.Dir) error {
			if filepath.Base(d.Path()) == syncing {
				panic("killed")
			}
			return real(d)
		})
		dies(t, func() { Restore(context.Background(), o) })
	})
}

// A restoring of single names that was interrupted is run again as it was called, though some of them are done already; and a dry run
// says what that will say.
func TestRestoreOnlyAgain(t *testing.T) {
	for _, since := range []string{"nothing", "others"} {
		t.Run(since, func(t *testing.T) {
			bin := t.TempDir()
			old(t, filepath.Join(bin, "bridge"), hostdir.File)
			stage(t, packed(t, "v1", set("v1", "bridge", "new", "ptp")...), Options{BinDir: bin})
			o := RestoreOptions{BinDir: bin, Only: []string{"bridge", "new"}}
			killedWhile(t, o, stagedName)
			if since == "others" {
				old(t, filepath.Join(bin, ".other"), hostdir.File)
				must(t, os.Rename(filepath.Join(bin, ".other"), filepath.Join(bin, "bridge")))
			}
			o.DryRun = true
			plan := Restore(t.Context(), o)
			o.DryRun = false
			r := restored(t, o)
			if !r.Complete() || len(r.Plugins) != 2 {
				t.Errorf("%s", r.Text())
			}
			for i, p := range plan.Plugins {
				if p.Action != r.Plugins[i].Action || p.Cause != r.Plugins[i].Cause {
					t.Errorf("a dry run said %+v, and then %+v", p, r.Plugins[i])
				}
			}
			if left := list(t, bin); !slices.Equal(left, []string{storeName, "bridge", "ptp"}) {
				t.Errorf("there is %q", left)
			}
			want(t, restored(t, RestoreOptions{BinDir: bin}), "ptp:removed")
			wantGone(t, filepath.Join(bin, storeName))
		})
	}
}

// What told an interrupted restoring that something was put back says nothing any more when another thing stands there: a dry run
// names it no more than the next run does.
func TestRestoreSaysNothingOfWhatIsDone(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	old(t, path, hostdir.File)
	stage(t, packed(t, "v1", set("v1", "bridge", "new")...), Options{BinDir: bin})
	killedWhile(t, RestoreOptions{BinDir: bin}, stagedName)
	theirs := old(t, filepath.Join(bin, ".other"), hostdir.File)
	must(t, os.Rename(filepath.Join(bin, ".other"), path))
	want(t, Restore(t.Context(), RestoreOptions{BinDir: bin, DryRun: true}), "")
	want(t, restored(t, RestoreOptions{BinDir: bin}), "")
	wantGone(t, filepath.Join(bin, storeName))
	if now := ident(t, path); now != theirs {
		t.Errorf("bridge is %s\nwas %s", now, theirs)
	}
}

// Our own file that somebody has given another mode, and whose original is gone, stays known for ours.
func TestRestoreNotKeptAnotherMode(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	old(t, path, hostdir.File)
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	_, _, err := Purge(t.Context(), RestoreOptions{BinDir: bin})
	must(t, err)
	must(t, os.Chmod(path, 0o700))
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:left")
	r := stage(t, packed(t, "v2", ref("bridge", "v2")), Options{BinDir: bin})
	if p := result(t, r, "bridge"); !p.Own {
		t.Errorf("%+v", p)
	}
	if kept := originals(t, bin, "bridge"); len(kept) > 0 {
		t.Errorf("our own was kept: %q", kept)
	}
}

// A context that ends is an interruption too.
func TestRestoreCancelled(t *testing.T) {
	for n := range 40 {
		bin := t.TempDir()
		old(t, filepath.Join(bin, "bridge"), hostdir.File)
		same := unchanged(t, bin, false)
		stage(t, packed(t, "v1", set("v1", "bridge", "new")...), Options{BinDir: bin})
		r := Restore(newCountdown(t.Context(), n), RestoreOptions{BinDir: bin})
		checkReport(t, r)
		restored(t, RestoreOptions{BinDir: bin})
		same()
		if r.Complete() {
			if n < 3 {
				t.Errorf("complete after %d", n)
			}
			return
		}
	}
	t.Error("never complete")
}

// Each operation fails once: what could not be put back is named with its cause, ours stays, and the next run mends it.
func TestRestoreFaults(t *testing.T) {
	fault := func(op string) error { return &fs.PathError{Op: op, Path: "/x", Err: syscall.EIO} }
	failAt := func(n int, real func(d, from *hostdir.Dir, name, to string) error) func(d, from *hostdir.Dir, name, to string) error {
		return func(d, from *hostdir.Dir, name, to string) error {
			if n--; n == 0 {
				return fault("rename")
			}
			return real(d, from, name, to)
		}
	}
	for name, inject := range map[string]func(t *testing.T){
		"rename 1": func(t *testing.T) { swapVar(t, &publish, failAt(1, publish)) },
		"exchange": func(t *testing.T) { swapVar(t, &exchange, failAt(1, exchange)) },
		"replace":  func(t *testing.T) { swapVar(t, &replace, failAt(1, replace)) },
		"sync":     func(t *testing.T) { swapVar(t, &syncDir, func(*hostdir.Dir) error { return fault("sync") }) },
		"everything": func(t *testing.T) {
			swapVar(t, &publish, failAt(-1, func(_, _ *hostdir.Dir, _, _ string) error { return fault("rename") }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			old(t, filepath.Join(bin, "bridge"), hostdir.File)
			same := unchanged(t, bin, false)
			b := packed(t, "v1", set("v1", "bridge", "new")...)
			stage(t, b, Options{BinDir: bin})
			t.Run("fault", func(t *testing.T) {
				inject(t)
				r := Restore(t.Context(), RestoreOptions{BinDir: bin})
				checkReport(t, r)
				if r.Count(Failed) == 0 || r.Complete() || !strings.Contains(r.Text(), "input/output error") {
					t.Errorf("%s", r.Text())
				}
				for _, p := range r.Plugins {
					if p.Action == Failed && strings.Contains(p.Cause, "the staged file stays") {
						inPlace(t, bin, ref(p.Name, "v1"))
					}
				}
			})
			r := restored(t, RestoreOptions{BinDir: bin})
			if !r.Complete() {
				t.Errorf("%s", r.Text())
			}
			same()
		})
	}
}

// A name that changes hands while it is being restored is the other's.
func TestRestoreRaces(t *testing.T) {
	for _, name := range []string{"bridge", "new"} {
		for _, kind := range []hostdir.Kind{hostdir.File, hostdir.Symlink, hostdir.Folder} {
			for _, plain := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/plain=%t", name, kind, plain), func(t *testing.T) {
					bin := t.TempDir()
					path := filepath.Join(bin, name)
					bridge := old(t, filepath.Join(bin, "bridge"), hostdir.File)
					stage(t, packed(t, "v1", set("v1", "bridge", "new")...), Options{BinDir: bin})
					var theirs string
					comes := func() {
						if theirs == "" {
							os.Remove(path)
							put(t, path, kind)
							theirs = ident(t, path)
						}
					}
					realPublish, realExchange := publish, exchange
					swapVar(t, &exchange, func(d, from *hostdir.Dir, from1, to string) error {
						if to == name {
							comes()
						}
						if plain {
							return &fs.PathError{Op: "rename", Path: to, Err: errors.ErrUnsupported}
						}
						return realExchange(d, from, from1, to)
					})
					swapVar(t, &publish, func(d, from *hostdir.Dir, from1, to string) error {
						if from1 == name {
							comes()
						}
						return realPublish(d, from, from1, to)
					})
					realReplace := replace
					swapVar(t, &replace, func(d, from *hostdir.Dir, from1, to string) error {
						if from1 == name {
							comes()
						}
						return realReplace(d, from, from1, to)
					})
					r := restored(t, RestoreOptions{BinDir: bin})
					if got := result(t, r, name); got.Action != Left || !strings.Contains(got.Cause, "changed while this ran") {
						t.Errorf("%s %q", got.Action, got.Cause)
					}
					if now := ident(t, path); now != theirs {
						t.Errorf("there is %s\nwant %s", now, theirs)
					}
					if name == "bridge" {
						if kept := ident(t, newest(t, bin, name)); kept != bridge {
							t.Errorf("kept is %s\nwas %s", kept, bridge)
						}
					}
				})
			}
		}
	}
}

// What came has the size, the times and the inode of what was looked at: the bytes tell.
func TestRestoreRacesUnseen(t *testing.T) {
	for _, plain := range []bool{false, true} {
		bin := t.TempDir()
		path := filepath.Join(bin, "bridge")
		bridge := old(t, path, hostdir.File)
		stage(t, packed(t, "v1", set("v1", "bridge")...), Options{BinDir: bin})
		info, err := os.Stat(path)
		must(t, err)
		var theirs string
		t.Run(fmt.Sprintf("plain=%t", plain), func(t *testing.T) {
			real := exchange
			swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
				if theirs == "" {
					must(t, os.WriteFile(path, []byte(strings.Repeat("t", int(info.Size()))), 0))
					must(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
					theirs = ident(t, path)
				}
				if plain {
					return &fs.PathError{Op: "rename", Path: to, Err: errors.ErrUnsupported}
				}
				return real(d, from, name, to)
			})
			want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:left")
		})
		if now := ident(t, path); now != theirs {
			t.Errorf("there is %s\nwant %s", now, theirs)
		}
		if kept := ident(t, newest(t, bin, "bridge")); kept != bridge {
			t.Errorf("kept is %s\nwas %s", kept, bridge)
		}
	}
}

// Where the marks are lost, and what stands there has another mode by now, the ledger knows what must not pass unsaid.
func TestRestoreWithoutMarks(t *testing.T) {
	bin := t.TempDir()
	old(t, filepath.Join(bin, "bridge"), hostdir.File)
	stage(t, packed(t, "v1", set("v1", "bridge", "new", "ptp", "vlan")...), Options{BinDir: bin})
	must(t, os.RemoveAll(filepath.Join(bin, storeName, stagedName)))
	must(t, os.Remove(filepath.Join(bin, "vlan")))
	write(t, filepath.Join(bin, "ptp"), "somebody's", 0o755)
	must(t, os.Chmod(filepath.Join(bin, "bridge"), 0o700))
	must(t, os.Chmod(filepath.Join(bin, "new"), 0o700))
	same := unchanged(t, bin, false)
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:left new:left")
	for _, name := range []string{"bridge", "new"} {
		if cause := result(t, r, name).Cause; cause != "its mark in .chandler/staged is gone, and the ledger says that staging put it there" {
			t.Errorf("%s: %q", name, cause)
		}
	}
	same()
}

// What cannot have come into a mark's place by staging or restoring stays there.
func TestDirectoryForAMark(t *testing.T) {
	bin := t.TempDir()
	b := packed(t, "v1", set("v1", "bridge")...)
	stage(t, b, Options{BinDir: bin})
	for _, name := range []string{"bridge", "new"} {
		at := filepath.Join(bin, storeName, stagedName, mark(name, absentMark))
		os.Remove(at)
		must(t, os.Mkdir(at, 0o755))
	}
	same := unchanged(t, bin, false)
	want(t, stage(t, b, Options{BinDir: bin}), "bridge:unchanged")
	same()
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:failed new:failed")
	if cause := result(t, r, "bridge").Cause; cause != ".chandler/staged/bridge@absent: is a directory" {
		t.Errorf("%q", cause)
	}
	same()
}

// File systems that cannot exchange: the same, in more steps.
func TestRestoreWithoutExchange(t *testing.T) {
	swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
		return &fs.PathError{Op: "rename", Path: to, Err: errors.ErrUnsupported}
	})
	bin := t.TempDir()
	old(t, filepath.Join(bin, "bridge"), hostdir.File)
	old(t, filepath.Join(bin, "link"), hostdir.Symlink)
	same := unchanged(t, bin, false)
	stage(t, packed(t, "v1", set("v1", "bridge", "link", "new")...), Options{BinDir: bin})
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back link:put back new:removed")
	same()
}

// Restoring waits for a staging and, where that takes too long, does nothing.
func TestRestoreWaits(t *testing.T) {
	bin := t.TempDir()
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	dir, err := hostdir.Open(bin)
	must(t, err)
	must(t, dir.TryLock())
	same := unchanged(t, bin, true)
	for _, run := range []func() error{
		func() error { return Restore(t.Context(), RestoreOptions{BinDir: bin}).Err },
		func() error {
			_, _, err := Purge(t.Context(), RestoreOptions{BinDir: bin})
			return err
		},
	} {
		var binDir *BinDirError
		if err := run(); !errors.Is(err, ErrBusy) || !errors.As(err, &binDir) {
			t.Errorf("%v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := Restore(ctx, RestoreOptions{BinDir: bin, LockWait: time.Hour}); r.LastLine() != "interrupted; nothing was restored" {
		t.Errorf("%s", r.Text())
	}
	same()
	time.AfterFunc(100*time.Millisecond, func() { dir.Close() })
	want(t, restored(t, RestoreOptions{BinDir: bin, LockWait: time.Minute}), "bridge:removed")
}

// A ledger that a later chandler wrote is left, and said so.
func TestRestoreNewerLedger(t *testing.T) {
	bin := t.TempDir()
	stage(t, packed(t, "v1", set("v1", "bridge", "new")...), Options{BinDir: bin})
	at := filepath.Join(bin, storeName, ledgerName)
	must(t, os.WriteFile(at, []byte(`{"formatVersion": 99, "more": true}`), 0o600))
	for _, only := range [][]string{{"new"}, nil} {
		r := restored(t, RestoreOptions{BinDir: bin, Only: only})
		wantWarnings(t, r, "the ledger is left as it is")
		if r.Count(Removed) != 1 {
			t.Errorf("%s", r.Text())
		}
	}
	if data, err := os.ReadFile(at); err != nil || !json.Valid(data) || !strings.Contains(string(data), "99") {
		t.Errorf("%s, %v", data, err)
	}
}

// What others have put into the folder stays there.
func TestRestoreForeignInTheFolder(t *testing.T) {
	bin := t.TempDir()
	stage(t, packed(t, "v1", set("v1", "bridge")...), Options{BinDir: bin})
	must(t, os.MkdirAll(filepath.Join(bin, storeName, originalsName, "bridge"), 0o700))
	theirs := filepath.Join(bin, storeName, originalsName, "bridge", "notes")
	write(t, theirs, "mine", 0o600)
	must(t, os.Symlink("/etc", filepath.Join(bin, storeName, originalsName, "elsewhere")))
	r := restored(t, RestoreOptions{BinDir: bin, Only: []string{"bridge"}})
	want(t, r, "bridge:removed")
	r = restored(t, RestoreOptions{BinDir: bin})
	var taken *TakenError
	if got := result(t, r, "elsewhere"); got.Action != Failed || !errors.As(got.Err, &taken) {
		t.Errorf("%+v", got)
	}
	must(t, os.Remove(filepath.Join(bin, storeName, originalsName, "elsewhere")))
	r = restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "")
	wantWarnings(t, r, "what chandler did not put there stays: .chandler/originals/bridge/notes")
	if data, err := os.ReadFile(theirs); err != nil || string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
	// Of many a few are named, and the others counted.
	for i, more := range []string{"and 1 more", "and 2 more", "and 3 more"} {
		if i == 0 {
			for _, name := range []string{"a", "b"} {
				write(t, filepath.Join(bin, storeName, name), "mine", 0o600)
			}
		}
		write(t, filepath.Join(filepath.Dir(theirs), fmt.Sprint("notes", i)), "mine", 0o600)
		r = restored(t, RestoreOptions{BinDir: bin})
		wantWarnings(t, r, "what chandler did not put there stays: .chandler/a, .chandler/b, .chandler/originals/bridge/notes "+more)
	}
}

func TestOriginals(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	b := packed(t, "v1.9.1", built("bridge", "v1.9.1"), built("ptp", "v1.9.1"), built("vlan", "v1.9.1"))
	write(t, path, string(builtAs("bridge", "v1.6.2", "")), 0o755)
	must(t, os.Chtimes(path, time.Time{}, time.Now().Add(-24*time.Hour)))
	must(t, os.Symlink("cni", filepath.Join(bin, "vlan")))
	start := time.Now().Add(-2 * time.Second)
	stage(t, b, Options{BinDir: bin})
	os.Remove(path)
	write(t, path, "theirs", 0o755)
	stage(t, b, Options{BinDir: bin})
	same := unchanged(t, bin, true)
	list, err := Originals(t.Context(), RestoreOptions{BinDir: bin})
	must(t, err)
	same()
	if len(list) != 3 {
		t.Fatalf("%+v", list)
	}
	for i, wanted := range []Original{
		{Name: "bridge", Number: 1, Kind: hostdir.File, Size: int64(len(builtAs("bridge", "v1.6.2", ""))), SHA256: sum(builtAs("bridge", "v1.6.2", "")), Build: "v1.6.2 (go1.23)"},
		{Name: "bridge", Number: 2, Kind: hostdir.File, Size: 6, SHA256: sum([]byte("theirs"))},
		{Name: "vlan", Number: 1, Kind: hostdir.Symlink, Target: "cni", Size: 3, SHA256: sum([]byte("cni"))},
	} {
		got := list[i]
		if got.Kept.Before(start) || got.Kept.After(time.Now()) {
			t.Errorf("%s kept since %s", got.Name, got.Kept)
		}
		if _, err := os.Lstat(filepath.Join(bin, got.Path)); err != nil {
			t.Error(err)
		}
		got.Kept, got.Path = time.Time{}, ""
		if got != wanted {
			t.Errorf("%+v\nwant %+v", got, wanted)
		}
	}
	if list, err := Originals(t.Context(), RestoreOptions{BinDir: bin, Only: []string{"vlan"}}); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	var unknown *UnknownNamesError
	if _, err := Originals(t.Context(), RestoreOptions{BinDir: bin, Only: []string{"x"}}); !errors.As(err, &unknown) {
		t.Errorf("%v", err)
	}
	dropped, warnings, err := Purge(t.Context(), RestoreOptions{BinDir: bin, Only: []string{"bridge"}})
	if err != nil || len(dropped) != 2 || len(warnings) > 0 {
		t.Errorf("%v, %v, %v", dropped, warnings, err)
	}
	wantGone(t, filepath.Join(bin, storeName, originalsName, "bridge"))
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:failed ptp:removed vlan:put back")
	if list, err := Originals(t.Context(), RestoreOptions{BinDir: t.TempDir()}); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// That the directory cannot be synced is told also where every name is left: the folder stays for it.
func TestRestoreTellsOfTheSync(t *testing.T) {
	for _, there := range []string{"theirs", "an empty folder"} {
		t.Run(there, func(t *testing.T) {
			bin := t.TempDir()
			if there == "theirs" {
				stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
				write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
			} else {
				must(t, os.Mkdir(filepath.Join(bin, storeName), 0o700))
			}
			t.Run("fault", func(t *testing.T) {
				swapVar(t, &syncDir, func(d *hostdir.Dir) error { return &fs.PathError{Op: "sync", Path: d.Path(), Err: syscall.EIO} })
				r := restored(t, RestoreOptions{BinDir: bin})
				wantWarnings(t, r, ".chandler stays: sync: input/output error")
				if r.Count(Failed) > 0 {
					t.Errorf("%s", r.Text())
				}
			})
			wantWarnings(t, restored(t, RestoreOptions{BinDir: bin}))
			wantGone(t, filepath.Join(bin, storeName))
		})
	}
}

// What stays of the folder is told once, with its name and why.
func TestRestoreTellsOfWhatStays(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	for what, wanted := range map[string]string{
		"a leftover": "leftovers of an earlier run stay: open .chandler/tmp/DEAD: permission denied",
		"a live run": ".chandler/tmp stays: remove: directory not empty",
		"the folder": ".chandler stays: remove: permission denied",
	} {
		t.Run(what, func(t *testing.T) {
			bin := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(bin, storeName, tmpName), 0o700))
			switch what {
			case "a leftover":
				dead := tmpDir(t, bin, "DEAD")
				must(t, os.Chmod(dead, 0))
				t.Cleanup(func() { os.Chmod(dead, 0o700) })
			case "a live run":
				tmpDir(t, bin, "LIVE")
				live := mustOpen(t, filepath.Join(bin, storeName, tmpName, "LIVE"))
				must(t, live.TryLock())
			case "the folder":
				must(t, os.Chmod(bin, 0o500))
				t.Cleanup(func() { os.Chmod(bin, 0o700) })
			}
			wantWarnings(t, Restore(t.Context(), RestoreOptions{BinDir: bin}), wanted)
		})
	}
}

// What cannot be looked into is not for that what somebody else put there.
func TestStrange(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	bin := t.TempDir()
	slots := filepath.Join(bin, storeName, originalsName)
	for _, name := range []string{"bridge", "not a name", "ptp"} {
		must(t, os.MkdirAll(filepath.Join(slots, name), 0o700))
	}
	write(t, filepath.Join(slots, "file"), "", 0o600)
	must(t, os.Symlink("bridge", filepath.Join(slots, "link")))
	write(t, filepath.Join(slots, "ptp", "1-"+sum(nil)), "", 0o600)
	store, err := openStore(t.Context(), mustOpen(t, bin), true)
	must(t, err)
	defer store.close()
	if _, err := store.names(); err != nil {
		t.Fatal(err)
	}
	must(t, os.Chmod(filepath.Join(slots, "bridge"), 0))
	put(t, filepath.Join(slots, "ptp", "2-"+sum(nil)), hostdir.Fifo) // under such a name, and no file
	var want []string
	for _, name := range []string{"file", "link", "not a name", "ptp/2-" + sum(nil)} {
		want = append(want, filepath.Join(storeName, originalsName, name))
	}
	if got := store.strange(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A folder in which nothing is left, since a run was interrupted when it took it away, is taken away by the next.
func TestRestoreEmptyFolder(t *testing.T) {
	bin := t.TempDir()
	store := filepath.Join(bin, storeName)
	for _, dir := range []string{stagedName, tmpName, originalsName} {
		must(t, os.MkdirAll(filepath.Join(store, dir), 0o700))
	}
	write(t, filepath.Join(store, ledgerName), `{"formatVersion": 1, "plugins": {}}`, 0o600)
	wantWarnings(t, restored(t, RestoreOptions{BinDir: bin}))
	wantGone(t, store)
}

// An original that has its own name again, which a run did without flags of rename and was interrupted, is kept no longer.
func TestRestoreOriginalInPlace(t *testing.T) {
	bin := t.TempDir()
	path, slot := filepath.Join(bin, "bridge"), filepath.Join(bin, storeName, originalsName, "bridge")
	must(t, os.MkdirAll(slot, 0o700))
	write(t, path, "theirs", 0o755)
	must(t, os.Link(path, filepath.Join(slot, "1-"+sum([]byte("theirs")))))
	must(t, os.Link(path, filepath.Join(slot, backName(7, original{file: "1-" + sum([]byte("theirs"))}))))
	restored(t, RestoreOptions{BinDir: bin})
	wantGone(t, filepath.Join(bin, storeName))
	if data, err := os.ReadFile(path); err != nil || string(data) != "theirs" {
		t.Errorf("%q, %v", data, err)
	}
}

// A name of which something is still on its way is not restored to anything else, and not forgotten.
func TestRestoreWaitsForWhatIsUnsettled(t *testing.T) {
	fault := func(to string) error { return &fs.PathError{Op: "rename", Path: to, Err: syscall.EIO} }
	for _, state := range []string{"taken by staging", "on its way back", "away", "away, purge"} {
		t.Run(state, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			if state == "taken by staging" || state == "on its way back" {
				write(t, path, "older", 0o711)
			}
			stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
			left := filepath.Join(bin, storeName, stagedName, mark("bridge", absentMark))
			if state == "taken by staging" {
				left = filepath.Join(bin, storeName, originalsName, "bridge", swapName(sum(ref("bridge", "v1").data), "RUN"))
			}
			write(t, left, "theirs", 0o711)
			if state == "on its way back" { // as the newest of two
				var st unix.Stat_t
				must(t, unix.Lstat(left, &st))
				back := filepath.Join(bin, storeName, originalsName, "bridge", backName(st.Ino, original{file: "2-" + sum([]byte("theirs"))}))
				must(t, os.Rename(left, back))
				left = back
			}
			theirs := ident(t, left)
			t.Run("fault", func(t *testing.T) {
				real := publish
				swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
					if name == filepath.Base(left) {
						return fault(to)
					}
					return real(d, from, name, to)
				})
				if state == "away, purge" {
					if _, warnings, err := Purge(t.Context(), RestoreOptions{BinDir: bin}); err != nil || len(warnings) == 0 {
						t.Errorf("%q, %v", warnings, err)
					}
					store, err := openStore(t.Context(), mustOpen(t, bin), true)
					must(t, err)
					defer store.close()
					if err := store.unmarkAbsent("bridge"); !errors.Is(err, errUnsettled) {
						t.Errorf("the mark went: %v", err)
					}
					return
				}
				r := Restore(t.Context(), RestoreOptions{BinDir: bin})
				checkReport(t, r)
				want(t, r, "bridge:failed")
				inPlace(t, bin, ref("bridge", "v1"))
			})
			if now := ident(t, left); now != theirs {
				t.Fatalf("left is %s\nwas %s", now, theirs)
			}
			want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back")
			if now := ident(t, path); now != theirs {
				t.Errorf("there is %s\nwant %s", now, theirs)
			}
		})
	}
}

// What a run that lives has in its hands is its own to settle, and in nobody's way.
func TestRestoreBesideALiveRun(t *testing.T) {
	bin := t.TempDir()
	bridge := old(t, filepath.Join(bin, "bridge"), hostdir.File)
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	tmpDir(t, bin, "LIVE")
	must(t, mustOpen(t, filepath.Join(bin, storeName, tmpName, "LIVE")).TryLock())
	swap := filepath.Join(bin, storeName, originalsName, "bridge", swapName(sum(nil), "LIVE"))
	write(t, swap, "in its hands", 0o711)
	held := ident(t, swap)
	want(t, Restore(t.Context(), RestoreOptions{BinDir: bin}), "bridge:put back")
	if now := ident(t, filepath.Join(bin, "bridge")); now != bridge {
		t.Errorf("bridge is %s\nwas %s", now, bridge)
	}
	if now := ident(t, swap); now != held {
		t.Errorf("there is %s\nwas %s", now, held)
	}
}

// A staging without the lock whose marks a restoring takes away between its mark and its publishing makes sure of them.
func TestMarksOfAnUnlockedStaging(t *testing.T) {
	for _, before := range []string{"nothing", "theirs"} {
		t.Run(before, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			if before == "theirs" {
				write(t, path, "theirs", 0o711)
			}
			b := packed(t, "v1", ref("bridge", "v1"), ref("ptp", "v1"))
			stage(t, b, Options{BinDir: bin})
			holder, err := hostdir.Open(bin)
			must(t, err)
			must(t, holder.TryLock())
			must(t, os.Remove(path)) // so that the staging has something to do
			t.Run("staging", func(t *testing.T) {
				real := publish
				swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
					if to == "bridge" && holder != nil {
						holder.Close()
						holder = nil
						Restore(context.Background(), RestoreOptions{BinDir: bin})
					}
					return real(d, from, name, to)
				})
				checkReport(t, Run(t.Context(), b, Options{BinDir: bin}))
			})
			r := restored(t, RestoreOptions{BinDir: bin, Only: []string{"bridge"}})
			if got := result(t, r, "bridge"); got.Action != PutBack && got.Action != Removed {
				t.Errorf("%s %s", got.Action, got.Cause)
			}
			if before == "nothing" {
				wantGone(t, path)
			} else if data, err := os.ReadFile(path); err != nil || string(data) != "theirs" {
				t.Errorf("%q, %v", data, err)
			}
		})
	}
}

// The marks go when what was put back is durable: after the bin dir and the folder of the originals were synced.
func TestRestoreSyncsBeforeItForgets(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "bridge"), "theirs", 0o711)
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	marks := filepath.Join(bin, storeName, stagedName, "bridge@*")
	synced := make(map[string]bool)
	real := syncDir
	swapVar(t, &syncDir, func(d *hostdir.Dir) error {
		left, err := filepath.Glob(marks)
		must(t, err)
		if len(left) > 0 {
			synced[filepath.Base(d.Path())] = true
		}
		return real(d)
	})
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back")
	if !synced[filepath.Base(bin)] || !synced["bridge"] {
		t.Errorf("synced before the marks went: %v", synced)
	}
}

// One of our own files that could not be read when it was replaced is known for ours once it can be.
func TestUnreadOriginalOfOurs(t *testing.T) {
	for _, before := range []string{"nothing", "theirs"} {
		t.Run(before, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			theirs := ""
			if before == "theirs" {
				write(t, path, "theirs", 0o711)
				theirs = ident(t, path)
			}
			stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
			slot := filepath.Join(bin, storeName, originalsName, "bridge")
			must(t, os.MkdirAll(slot, 0o700))
			stage(t, packed(t, "v2", ref("bridge", "v2")), Options{BinDir: bin})
			write(t, filepath.Join(slot, "7-"+unreadDigest), string(ref("bridge", "v1").data), 0o755)
			list, err := Originals(t.Context(), RestoreOptions{BinDir: bin})
			if n := map[string]int{"nothing": 0, "theirs": 1}[before]; err != nil || len(list) != n {
				t.Errorf("%v, %v", list, err)
			}
			restored(t, RestoreOptions{BinDir: bin})
			if before == "nothing" {
				wantGone(t, path)
			} else if now := ident(t, path); now != theirs {
				t.Errorf("there is %s\nwant %s", now, theirs)
			}
			wantGone(t, filepath.Join(bin, storeName))
		})
	}
}

func mustOpen(t testing.TB, path string) *hostdir.Dir {
	t.Helper()
	d, err := hostdir.Open(path)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

// unread makes the reading of some files in the bin dir and its folder fail.
func unread(t *testing.T, which func(d *hostdir.Dir, name string) bool) {
	real := openFile
	swapVar(t, &openFile, func(d *hostdir.Dir, name string) (*os.File, hostdir.Entry, error) {
		if which(d, name) {
			return nil, hostdir.Entry{}, &fs.PathError{Op: "open", Path: name, Err: syscall.EIO}
		}
		return real(d, name)
	})
}

// What came out from under a name, is ours and cannot be read stays where it lies, and is known for ours: the next run takes it
// away. It is nobody's original.
func TestRestoreCannotReadWhatCameOut(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%t", plain), func(t *testing.T) {
			if plain {
				swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
					return &fs.PathError{Op: "rename", Path: to, Err: errors.ErrUnsupported}
				})
			}
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			bridge := old(t, path, hostdir.File)
			stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
			slot := filepath.Join(bin, storeName, originalsName, "bridge")
			t.Run("fault", func(t *testing.T) {
				unread(t, func(d *hostdir.Dir, name string) bool {
					return d.Path() == slot && (strings.HasPrefix(name, backPrefix) || strings.HasPrefix(name, donePrefix))
				})
				r := Restore(t.Context(), RestoreOptions{BinDir: bin})
				checkReport(t, r)
				if plain { // it has not come out yet
					want(t, r, "bridge:failed")
					wantWarnings(t, r)
					inPlace(t, bin, ref("bridge", "v1"))
					return
				}
				want(t, r, "bridge:put back")
				wantWarnings(t, r, "stays: open: input/output error")
				if now := ident(t, path); now != bridge {
					t.Errorf("bridge is %s\nwas %s", now, bridge)
				}
			})
			if files := list(t, slot); len(files) != 1 || originalName.MatchString(files[0]) != plain {
				t.Errorf("among the originals: %q", files)
			}
			if _, err := os.Lstat(filepath.Join(bin, storeName, stagedName, mark("bridge", sum(ref("bridge", "v1").data)))); err != nil {
				t.Errorf("it is no longer known for ours: %v", err)
			}
			wantWarnings(t, restored(t, RestoreOptions{BinDir: bin}))
			wantGone(t, filepath.Join(bin, storeName))
			if now := ident(t, path); now != bridge {
				t.Errorf("bridge is %s\nwas %s", now, bridge)
			}
		})
	}
}

// What an interrupted run had in its hands and cannot be read is kept like anything else that was replaced.
func TestUnreadLeftoversAreKept(t *testing.T) {
	for _, state := range []string{"taken by staging", "away, and another came"} {
		t.Run(state, func(t *testing.T) {
			bin := t.TempDir()
			b := packed(t, "v1", ref("bridge", "v1"))
			stage(t, b, Options{BinDir: bin})
			slot := filepath.Join(bin, storeName, originalsName, "bridge")
			left := filepath.Join(slot, swapName(sum(ref("bridge", "v1").data), "RUN"))
			if state != "taken by staging" {
				left = filepath.Join(bin, storeName, stagedName, mark("bridge", absentMark))
			}
			must(t, os.MkdirAll(slot, 0o700))
			must(t, os.RemoveAll(left))
			write(t, left, "theirs", 0o711)
			theirs := ident(t, left)
			unread(t, func(_ *hostdir.Dir, name string) bool { return strings.HasPrefix(name, swapPrefix) })
			wantWarnings(t, stage(t, b, Options{BinDir: bin}))
			if kept := originals(t, bin, "bridge"); len(kept) != 1 || kept[0] != "1-"+unreadDigest {
				t.Errorf("kept %q", kept)
			}
			if now := ident(t, newest(t, bin, "bridge")); now != theirs {
				t.Errorf("kept is %s\nwant %s", now, theirs)
			}
		})
	}
}

// marksSync makes the sync of the marks fail in the state that is asked for.
func marksSync(t *testing.T, when func() bool) {
	real := syncDir
	swapVar(t, &syncDir, func(d *hostdir.Dir) error {
		if filepath.Base(d.Path()) == stagedName && when() {
			return &fs.PathError{Op: "sync", Path: d.Path(), Err: syscall.EIO}
		}
		return real(d)
	})
}

// That a mark has gone is durable before anything follows from it; that it may not be is told.
func TestMarksGoForGood(t *testing.T) {
	at := func(bin, name, what string) string {
		return filepath.Join(bin, storeName, stagedName, mark(name, what))
	}
	gone := func(path string) func() bool {
		return func() bool {
			_, err := os.Lstat(path)
			return errors.Is(err, fs.ErrNotExist)
		}
	}
	digest := sum(ref("bridge", "v1").data)
	t.Run("that nothing stood there", func(t *testing.T) {
		bin, b := t.TempDir(), packed(t, "v1", ref("bridge", "v1"))
		stage(t, b, Options{BinDir: bin})
		must(t, os.Remove(filepath.Join(bin, "bridge")))
		write(t, filepath.Join(bin, "bridge"), "theirs", 0o711)
		marksSync(t, gone(at(bin, "bridge", absentMark)))
		r := Run(t.Context(), b, Options{BinDir: bin})
		want(t, r, "bridge:replaced")
		wantWarnings(t, r, "bridge: what was replaced is kept as .chandler/originals/bridge/swap-")
	})
	t.Run("restored", func(t *testing.T) {
		bin := t.TempDir()
		stage(t, packed(t, "v1", set("v1", "bridge", "ptp")...), Options{BinDir: bin})
		marksSync(t, gone(at(bin, "bridge", digest)))
		r := restored(t, RestoreOptions{BinDir: bin, Only: []string{"bridge"}})
		want(t, r, "bridge:removed")
		wantWarnings(t, r, "sync .chandler/staged: input/output error")
	})
	t.Run("taken away by another run", func(t *testing.T) {
		bin := t.TempDir()
		marksSync(t, func() bool { return !gone(filepath.Join(bin, "bridge"))() })
		real := publish
		swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
			if to == "bridge" {
				must(t, os.Remove(at(bin, "bridge", digest)))
			}
			return real(d, from, name, to)
		})
		r := stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
		want(t, r, "bridge:new")
		wantWarnings(t, r, "what was published may pass for somebody else's: sync: input/output error")
	})
}

// What comes into the place of a mark while restoring is under way is not overwritten by what restoring takes away.
func TestMarkIsTakenMeanwhile(t *testing.T) {
	bin := t.TempDir()
	stage(t, packed(t, "v1", set("v1", "bridge", "new")...), Options{BinDir: bin})
	away := filepath.Join(bin, storeName, stagedName, mark("new", absentMark))
	var theirs string
	real := replace
	swapVar(t, &replace, func(d, from *hostdir.Dir, name, to string) error {
		if name == "bridge" {
			write(t, away, "theirs", 0o711)
			theirs = ident(t, away)
		}
		return real(d, from, name, to)
	})
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:removed new:failed")
	if err := result(t, r, "new").Err; !errors.Is(err, errUnsettled) {
		t.Errorf("%v", err)
	}
	if now := ident(t, away); now != theirs {
		t.Errorf("there is %s\nwant %s", now, theirs)
	}
	inPlace(t, bin, ref("new", "v1"))
}

// What was taken from under a name and could not be given back lies where the report says, until the next run.
func TestRestoreCannotGiveBack(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	bridge := old(t, path, hostdir.File)
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	var theirs string
	t.Run("fault", func(t *testing.T) {
		real, calls := exchange, 0
		swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
			if calls++; calls > 1 {
				return &fs.PathError{Op: "rename", Path: to, Err: syscall.EIO}
			}
			must(t, os.Remove(path))
			write(t, path, "came meanwhile", 0o711)
			theirs = ident(t, path)
			return real(d, from, name, to)
		})
		r := restored(t, RestoreOptions{BinDir: bin})
		want(t, r, "bridge:failed")
		_, at, said := strings.Cut(result(t, r, "bridge").Cause, "; what stood there lies in ")
		if !said {
			t.Fatalf("%s", r.Text())
		}
		if now := ident(t, filepath.Join(bin, at)); now != theirs {
			t.Errorf("there is %s\nwant %s", now, theirs)
		}
	})
	restored(t, RestoreOptions{BinDir: bin})
	if now := ident(t, path); now != bridge {
		t.Errorf("bridge is %s\nwas %s", now, bridge)
	}
	if now := ident(t, newest(t, bin, "bridge")); now != theirs {
		t.Errorf("kept is %s\nwant %s", now, theirs)
	}
}

// What is dropped may have been what stood there: then nobody may say that nothing did.
func TestPurgeOfTheUnread(t *testing.T) {
	bin := t.TempDir()
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	t.Run("fault", func(t *testing.T) {
		unread(t, func(_ *hostdir.Dir, name string) bool {
			return strings.HasPrefix(name, swapPrefix) || strings.HasSuffix(name, unreadDigest)
		})
		stage(t, packed(t, "v2", ref("bridge", "v2")), Options{BinDir: bin})
		if dropped, _, err := Purge(t.Context(), RestoreOptions{BinDir: bin}); err != nil || len(dropped) != 1 || dropped[0].SHA256 != unreadDigest {
			t.Errorf("%v, %v", dropped, err)
		}
	})
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:failed")
	if err := result(t, r, "bridge").Err; !errors.Is(err, ErrNotKept) {
		t.Errorf("%v", err)
	}
	inPlace(t, bin, ref("bridge", "v2"))
}

// That what was dropped may come back with a power cut is told.
func TestPurgeIsSynced(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "bridge"), "theirs", 0o711)
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	slot := filepath.Join(bin, storeName, originalsName, "bridge")
	real := syncDir
	swapVar(t, &syncDir, func(d *hostdir.Dir) error {
		if files, err := os.ReadDir(slot); err == nil && len(files) == 0 && d.Path() == slot {
			return &fs.PathError{Op: "sync", Path: slot, Err: syscall.EIO}
		}
		return real(d)
	})
	if dropped, _, err := Purge(t.Context(), RestoreOptions{BinDir: bin}); !errors.Is(err, syscall.EIO) || len(dropped) != 1 {
		t.Errorf("%v, %v", dropped, err)
	}
}

// An original that is no file by the time of its turn is not put back.
func TestRestoreOriginalChangesMeanwhile(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"bridge", "ptp"} {
		write(t, filepath.Join(bin, name), "theirs", 0o711)
	}
	files := set("v1", "bridge", "ptp")
	stage(t, packed(t, "v1", files...), Options{BinDir: bin})
	kept := newest(t, bin, "ptp")
	real := exchange
	swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
		if to == "bridge" {
			must(t, os.Remove(kept))
			must(t, os.Mkdir(kept, 0o755))
		}
		return real(d, from, name, to)
	})
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:put back ptp:failed")
	var left *LeftError
	if err := result(t, r, "ptp").Err; !errors.As(err, &left) {
		t.Errorf("%v", err)
	}
	inPlace(t, bin, files[1])
}

// An original that has two names, since a run without flags of rename was killed between the giving of the one and the taking of the
// other, is put back.
func TestRestoreOriginalOfTwoNames(t *testing.T) {
	bin := t.TempDir()
	bridge := old(t, filepath.Join(bin, "bridge"), hostdir.File)
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	kept := newest(t, bin, "bridge")
	var st unix.Stat_t
	must(t, unix.Lstat(kept, &st))
	must(t, os.Link(kept, filepath.Join(filepath.Dir(kept), backName(st.Ino, original{file: filepath.Base(kept)}))))
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:put back")
	wantWarnings(t, r)
	if now := ident(t, filepath.Join(bin, "bridge")); now != bridge {
		t.Errorf("bridge is %s\nwas %s", now, bridge)
	}
	wantGone(t, filepath.Join(bin, storeName))
}

// What somebody writes into our file, just as it is taken back, is theirs, and stays.
func TestRestoreWrittenToMeanwhile(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	old(t, path, hostdir.File)
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	var theirs string
	real := exchange
	swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
		if theirs == "" {
			write(t, path, "theirs", 0o755) // in place
			theirs = ident(t, path)
		}
		return real(d, from, name, to)
	})
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:left")
	if now := ident(t, path); now != theirs {
		t.Errorf("there is %s\nwant %s", now, theirs)
	}
	if kept := originals(t, bin, "bridge"); len(kept) != 1 {
		t.Errorf("kept %q", kept)
	}
}

// What lies in a mark's place when the marks go is no mark, and stays.
func TestMarksPlaceIsTakenMeanwhile(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "bridge"), "older", 0o711)
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	away := filepath.Join(bin, storeName, stagedName, mark("bridge", absentMark))
	var theirs string
	real := exchange
	swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
		write(t, away, "theirs", 0o711)
		theirs = ident(t, away)
		return real(d, from, name, to)
	})
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:put back")
	wantWarnings(t, r, errUnsettled.Error())
	if now := ident(t, away); now != theirs {
		t.Errorf("there is %s\nwant %s", now, theirs)
	}
}

// What an interrupted restoring has in its hands, and cannot be ours, gets its name back whether it can be read or not.
func TestUnreadAwayGoesBack(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	away := filepath.Join(bin, storeName, stagedName, mark("bridge", absentMark))
	must(t, os.Remove(path))
	write(t, away, "theirs", 0o711)
	theirs := ident(t, away)
	unread(t, func(_ *hostdir.Dir, name string) bool { return name == filepath.Base(away) })
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:left")
	if now := ident(t, path); now != theirs {
		t.Errorf("there is %s\nwant %s", now, theirs)
	}
}

// What may be ours, and cannot be read, stays where an interrupted restoring has put it: under its name again, there would be no mark
// that nothing stood there.
func TestUnreadAwayStays(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	away := filepath.Join(bin, storeName, stagedName, mark("bridge", absentMark))
	must(t, os.Rename(path, away))
	ours := ident(t, away)
	t.Run("fault", func(t *testing.T) {
		unread(t, func(_ *hostdir.Dir, name string) bool { return name == filepath.Base(away) })
		r := restored(t, RestoreOptions{BinDir: bin})
		want(t, r, "bridge:failed")
		wantWarnings(t, r, "could not be filed: open bridge@absent: input/output error")
	})
	wantGone(t, path)
	if now := ident(t, away); now != ours {
		t.Errorf("there is %s\nwas %s", now, ours)
	}
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:removed")
	wantGone(t, filepath.Join(bin, storeName))
}
