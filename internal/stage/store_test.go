package stage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
)

// locked takes the lock of a directory, as another process would.
func locked(t *testing.T, path string) *hostdir.Dir {
	t.Helper()
	d, err := hostdir.Open(path)
	must(t, err)
	must(t, d.TryLock())
	t.Cleanup(func() { d.Close() })
	return d
}

// tmpDir makes the folder of a run that did not end.
func tmpDir(t *testing.T, bin, run string) string {
	t.Helper()
	path := filepath.Join(bin, storeName, tmpName, run)
	must(t, os.MkdirAll(path, 0o700))
	write(t, filepath.Join(path, "bridge"), "half", 0o600)
	return path
}

func TestLeftoversOfDeadRunsAreCleared(t *testing.T) {
	bin, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "file"), "x", 0o644)
	same := unchanged(t, outside, true)
	dead := tmpDir(t, bin, "DEAD")
	must(t, os.MkdirAll(filepath.Join(dead, "deep", "deeper"), 0o700))
	must(t, os.Symlink(outside, filepath.Join(dead, "deep", "link")))
	must(t, os.Symlink(outside, filepath.Join(bin, storeName, tmpName, "link")))
	put(t, filepath.Join(bin, storeName, tmpName, "fifo"), hostdir.Fifo)
	live := tmpDir(t, bin, "LIVE")
	held := locked(t, live)
	liveSame := unchanged(t, live, true)

	b := packed(t, "v1", ref("bridge", "v1"))
	r := Run(t.Context(), b, Options{BinDir: bin})
	checkReport(t, r)
	want(t, r, "bridge:new")
	wantWarnings(t, r)
	same()
	liveSame()
	entries, err := os.ReadDir(filepath.Join(bin, storeName, tmpName))
	if err != nil || len(entries) != 1 || entries[0].Name() != "LIVE" {
		t.Errorf("left: %v, %v", entries, err)
	}
	held.Close()
	stage(t, b, Options{BinDir: bin})
}

// A leftover that cannot be removed neither stops staging nor is published.
func TestLeftoverThatStays(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	bin := t.TempDir()
	dead := tmpDir(t, bin, "DEAD")
	must(t, os.Chmod(dead, 0))
	t.Cleanup(func() { os.Chmod(dead, 0o700) })
	also := tmpDir(t, bin, "ALSO")
	r := Run(t.Context(), packed(t, "v1", set("v1", "bridge", "vlan")...), Options{BinDir: bin})
	checkReport(t, r)
	want(t, r, "bridge:new vlan:new")
	wantWarnings(t, r, "leftovers of an earlier run stay: open .chandler/tmp/DEAD: permission denied")
	inPlace(t, bin, set("v1", "bridge", "vlan")...)
	if _, err := os.Lstat(also); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that stays kept another: %v", err)
	}
}

// A directory or a special file that a crash left in our hands goes back to its name, unless somebody else stands there.
func TestSwapsAreGivenBack(t *testing.T) {
	ours := ref("bridge", "v1")
	for _, kind := range []hostdir.Kind{hostdir.Folder, hostdir.Fifo} {
		for there, test := range map[string]struct {
			put  func(t *testing.T, path string)
			back bool
		}{
			"nothing": {func(t *testing.T, path string) { must(t, os.Remove(path)) }, true},
			"ours":    {func(t *testing.T, path string) {}, true},
			"theirs":  {func(t *testing.T, path string) { write(t, path, "theirs", 0o755) }, false},
		} {
			t.Run(string(kind)+", "+there, func(t *testing.T) {
				bin, b := t.TempDir(), packed(t, "v1", ours)
				stage(t, b, Options{BinDir: bin})
				path, slot := filepath.Join(bin, "bridge"), filepath.Join(bin, storeName, originalsName, "bridge")
				test.put(t, path)
				must(t, os.MkdirAll(slot, 0o700))
				swap := filepath.Join(slot, swapName(sum(ours.data), "DEAD"))
				put(t, swap, kind)
				was := ident(t, swap)
				r := Run(t.Context(), b, Options{BinDir: bin})
				at := path
				if !test.back {
					at = swap
					wantWarnings(t, r, "an interrupted run's original could not be filed: replaced by another program")
				}
				if got := ident(t, at); got != was {
					t.Errorf("%s is %s, was %s", at, got, was)
				}
			})
		}
	}
}

// Swap files are settled, whatever the crash left: our new file, our last one, or somebody's.
func TestSwapsAreSettled(t *testing.T) {
	ours, last := ref("bridge", "v1"), ref("bridge", "v0")
	for name, test := range map[string]struct {
		put  func(t *testing.T, path string)
		kept bool
	}{
		"before the exchange":               {func(t *testing.T, path string) { write(t, path, string(ours.data), 0o755) }, false},
		"after, our last":                   {func(t *testing.T, path string) { write(t, path, string(last.data), 0o755) }, false},
		"after, our last with another mode": {func(t *testing.T, path string) { write(t, path, string(last.data), 0o700) }, false},
		"after, theirs":                     {func(t *testing.T, path string) { write(t, path, "theirs", 0o755) }, true},
		"after, a link":                     {func(t *testing.T, path string) { must(t, os.Symlink("/nowhere", path)) }, true},
		"after, an empty":                   {func(t *testing.T, path string) { write(t, path, "", 0o755) }, true},
		"ours, other bytes":                 {func(t *testing.T, path string) { write(t, path, string(ref("bridge", "v2").data), 0o755) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			stage(t, packed(t, "v0", last), Options{BinDir: bin})
			slot := filepath.Join(bin, storeName, originalsName, "bridge")
			must(t, os.MkdirAll(slot, 0o700))
			swap := filepath.Join(slot, swapName(sum(ours.data), "DEAD"))
			test.put(t, swap)
			was := ident(t, swap)

			// A live run settles its own.
			live := tmpDir(t, bin, "DEAD")
			held := locked(t, live)
			r := Run(t.Context(), packed(t, "v0", last), Options{BinDir: bin})
			want(t, r, "bridge:unchanged")
			if got := ident(t, swap); got != was {
				t.Errorf("a live run's swap is %s, was %s", got, was)
			}
			held.Close()

			r = stage(t, packed(t, "v0", last), Options{BinDir: bin})
			want(t, r, "bridge:unchanged")
			wantWarnings(t, r)
			kept := originals(t, bin, "bridge")
			if test.kept && (len(kept) != 1 || ident(t, newest(t, bin, "bridge")) != was) || !test.kept && len(kept) > 0 {
				t.Errorf("kept %q", kept)
			}
		})
	}
}

// Where renames know no flags, a crash may leave a file under its swap name and in its place. It is not filed a second time.
func TestSwapThatHasItsPlace(t *testing.T) {
	ours := ref("bridge", "v1")
	for name, place := range map[string]string{
		"its name":      "bridge",
		"the originals": filepath.Join(storeName, originalsName, "bridge", "1-"+sum([]byte("theirs"))),
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, place)
			must(t, os.MkdirAll(filepath.Join(bin, storeName, originalsName, "bridge"), 0o700))
			write(t, path, "theirs", 0o755)
			must(t, os.Link(path, filepath.Join(bin, storeName, originalsName, "bridge", swapName(unreadDigest, "DEAD"))))
			r := stage(t, packed(t, "v1", ours), Options{BinDir: bin})
			wantWarnings(t, r)
			inPlace(t, bin, ours)
			if kept := originals(t, bin, "bridge"); len(kept) != 1 {
				t.Errorf("kept %q", kept)
			}
		})
	}
}

// What is not in the form of the folder is not touched.
func TestStrangersInTheFolderAreLeft(t *testing.T) {
	bin := t.TempDir()
	b := packed(t, "v1", ref("bridge", "v1"))
	stage(t, b, Options{BinDir: bin})
	store := filepath.Join(bin, storeName)
	must(t, os.MkdirAll(filepath.Join(store, originalsName, ".hidden"), 0o700))
	write(t, filepath.Join(store, originalsName, ".hidden", "swap-x-DEAD"), "x", 0o600)
	must(t, os.MkdirAll(filepath.Join(store, originalsName, "bridge"), 0o700))
	for _, n := range []string{"0-" + strings.Repeat("a", 64), "1-short", "x", "01-" + strings.Repeat("a", 64)} {
		write(t, filepath.Join(store, originalsName, "bridge", n), "x", 0o600)
	}
	write(t, filepath.Join(store, "note"), "x", 0o600)
	same := unchanged(t, bin, true)
	want(t, Run(t.Context(), b, Options{BinDir: bin}), "bridge:unchanged")
	same()
}

func TestLockIsWaitedFor(t *testing.T) {
	bin := t.TempDir()
	other := locked(t, bin)
	dead := tmpDir(t, bin, "DEAD")
	var released atomic.Bool
	time.AfterFunc(150*time.Millisecond, func() {
		released.Store(true)
		other.Close()
	})
	r := stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin, LockWait: time.Minute})
	want(t, r, "bridge:new")
	wantWarnings(t, r)
	if !released.Load() {
		t.Error("went on before the lock was free")
	}
	if _, err := os.Lstat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the leftover stays: %v", err)
	}
}

// Past the wait, staging goes on without the lock, clears nothing, and says so.
func TestLockIsNotWaitedForForever(t *testing.T) {
	for wait, text := range map[time.Duration]string{
		0:                      "another staging held the lock for 0s; went on without it and cleared no leftovers",
		120 * time.Millisecond: "another staging held the lock for 120ms; went on without it and cleared no leftovers",
	} {
		bin := t.TempDir()
		locked(t, bin)
		dead := tmpDir(t, bin, "DEAD")
		same := unchanged(t, dead, true)
		write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
		b := packed(t, "v1", ref("bridge", "v1"))
		r := Run(t.Context(), b, Options{BinDir: bin, LockWait: wait})
		checkReport(t, r)
		want(t, r, "bridge:replaced")
		wantWarnings(t, r, text)
		inPlace(t, bin, ref("bridge", "v1"))
		same()
	}
}

func TestLockWaitIsInterrupted(t *testing.T) {
	bin := t.TempDir()
	locked(t, bin)
	same := unchanged(t, bin, true)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	r := Run(ctx, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin, LockWait: time.Hour})
	if r.Outcome != Refused || r.Text() != "interrupted; nothing was staged\n" || !errors.Is(r.Err, context.Canceled) {
		t.Errorf("%v: %s", r.Err, r.Text())
	}
	same()
}

// What another run did while this one waited for its lock is known: its file is one of ours.
func TestWhatWasStagedDuringTheWait(t *testing.T) {
	bin := t.TempDir()
	other := locked(t, bin)
	second := packed(t, "v2", ref("bridge", "v2"))
	done := make(chan *Report)
	go func() { done <- Run(t.Context(), second, Options{BinDir: bin, LockWait: time.Minute}) }()
	time.Sleep(3 * lockPoll) // it waits by now
	want(t, Run(t.Context(), packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin}), "bridge:new")
	other.Close()
	r := <-done
	want(t, r, "bridge:replaced")
	wantWarnings(t, r)
	if kept := originals(t, bin, "bridge"); len(kept) > 0 {
		t.Errorf("kept our own %q", kept)
	}
}

// The folder that another run made, and took away again since it came to nothing, is not missed.
func TestFolderThatGoesDuringTheWait(t *testing.T) {
	bin := t.TempDir()
	other := locked(t, bin)
	must(t, os.MkdirAll(filepath.Join(bin, storeName, stagedName), 0o700))
	done := make(chan *Report)
	b := packed(t, "v1", ref("bridge", "v1"))
	go func() { done <- Run(t.Context(), b, Options{BinDir: bin, LockWait: time.Minute}) }()
	time.Sleep(3 * lockPoll)
	must(t, os.RemoveAll(filepath.Join(bin, storeName)))
	other.Close()
	want(t, <-done, "bridge:new")
	inPlace(t, bin, ref("bridge", "v1"))
}

// A run that went on without the lock makes its folder while another clears leftovers, and takes away what it made itself.
func TestRunDirWhileOthersClear(t *testing.T) {
	bin := t.TempDir()
	dir, err := hostdir.Open(bin)
	must(t, err)
	defer dir.Close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond): // a run does this once, and not for ever
			}
			s, err := openStore(t.Context(), dir, true)
			if err == nil {
				err = s.clearLeftovers()
			}
			if err != nil {
				t.Error(err)
			}
			if s.dir != nil { // as if it had made it
				s.created = true
				s.tidy()
			}
			s.close()
		}
	})
	for range 300 {
		s, err := openStore(t.Context(), dir, true)
		must(t, err)
		run, err := s.runDir()
		if err != nil {
			t.Error(err)
		} else if f, err := run.Create("file"); err != nil {
			t.Error(err)
		} else {
			f.Close()
		}
		if err := s.tidy(); err != nil {
			t.Error(err)
		}
		s.close()
	}
	close(stop)
	wg.Wait()
}

// A run that came to nothing takes away the folder that it made, but not from under one that has published.
func TestTidy(t *testing.T) {
	bin := t.TempDir()
	dir, err := hostdir.Open(bin)
	must(t, err)
	defer dir.Close()
	first, err := openStore(t.Context(), dir, true)
	must(t, err)
	defer first.close()
	_, err = first.runDir()
	must(t, err)
	second, err := openStore(t.Context(), dir, true)
	must(t, err)
	defer second.close()
	_, err = second.mark("bridge@x")
	must(t, err)
	_, err = second.slot("bridge")
	must(t, err)
	_, err = first.slot("bridge")
	must(t, err)
	must(t, first.tidy())
	for _, sub := range []string{"staged/bridge@x", "originals/bridge", "tmp"} {
		if _, err := os.Lstat(filepath.Join(bin, storeName, sub)); err != nil {
			t.Errorf("taken from under the other: %v", err)
		}
	}
	must(t, second.removeMark("bridge@x"))
	must(t, first.tidy())
	if left := list(t, bin); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// The bin dir is removed just when the folder has been made in it.
func TestTidyWithoutTheBinDir(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "bin")
	must(t, os.Mkdir(bin, 0o755))
	dir, err := hostdir.Open(bin)
	must(t, err)
	defer dir.Close()
	s, err := openStore(t.Context(), dir, true)
	must(t, err)
	defer s.close()
	_, err = s.open(&s.tmp, tmpName)
	must(t, err)
	must(t, os.RemoveAll(bin))
	if _, err := s.runDir(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("made a folder in a directory that is gone: %v", err)
	}
	must(t, s.tidy())
}

func TestFolderIsMadePrivate(t *testing.T) {
	bin := t.TempDir()
	store := filepath.Join(bin, storeName)
	must(t, os.Mkdir(store, 0o755))
	must(t, os.Chmod(store, 0o777))
	b := packed(t, "v1", ref("bridge", "v1"))
	stageDry(t, b, bin)
	want(t, stage(t, b, Options{BinDir: bin}), "bridge:new")
	if info, err := os.Lstat(store); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestFolderOfSomebodyElse(t *testing.T) {
	bin := t.TempDir()
	store := filepath.Join(bin, storeName)
	must(t, os.Mkdir(store, 0o777))
	if err := os.Chown(store, 997, 997); err != nil {
		t.Skip("only with the right to give a folder away: the root ring holds it too")
	}
	same := unchanged(t, bin, true)
	b := packed(t, "v1", ref("bridge", "v1"))
	for _, dry := range []bool{true, false} {
		r := Run(t.Context(), b, Options{BinDir: bin, DryRun: dry})
		want(t, r, "bridge:failed")
		var owner *OwnerError
		if p := result(t, r, "bridge"); !errors.As(p.Err, &owner) || p.Cause != ".chandler belongs to uid 997, not to this process (uid 0)" {
			t.Errorf("%v: %s", p.Err, p.Cause)
		}
	}
	same()
}

// A dry run says what would be done and changes nothing, in every state of the bin dir.
func TestDryRun(t *testing.T) {
	bin := t.TempDir()
	b := packed(t, "v1", set("v1", "bridge", "directory", "link", "portmap", "vlan")...)
	r := stageDry(t, b, bin)
	want(t, r, "bridge:new directory:new link:new portmap:new vlan:new")
	if r.Outcome != Planned || !strings.HasPrefix(r.Text(), "would stage 5 plugins v1 (bundle "+b.Digest+") into "+bin+": 5 new") {
		t.Errorf("%s: %s", r.Outcome, r.Text())
	}
	write(t, filepath.Join(bin, "bridge"), string(ref("bridge", "v1").data), 0o755)
	write(t, filepath.Join(bin, "portmap"), "theirs", 0o755)
	put(t, filepath.Join(bin, "directory"), hostdir.Folder)
	put(t, filepath.Join(bin, "link"), hostdir.Symlink)
	tmpDir(t, bin, "DEAD")
	locked(t, bin) // nothing to wait for
	r = stageDry(t, b, bin)
	want(t, r, "bridge:unchanged directory:failed link:replaced portmap:replaced vlan:new")
	for name, found := range map[string]string{
		"bridge": "equal", "directory": "directory", "link": "symlink to /nowhere/busybox (not visible from here)", "vlan": "absent",
	} {
		if got := result(t, r, name).Found.String(); got != found {
			t.Errorf("%s: found %q, want %q", name, got, found)
		}
	}
}

// A dry run of a damaged bundle is as far as a plan can see.
func TestDryRunOfADamagedBundle(t *testing.T) {
	dir, bin := pack(t, "v1", set("v1", "bridge", "vlan")...), t.TempDir()
	b := openAt(t, dir)
	write(t, filepath.Join(bin, "bridge"), string(ref("bridge", "v0").data), 0o755)
	must(t, os.Truncate(filepath.Join(dir, "bin", "bridge"), 5))
	r := stageDry(t, b, bin)
	var damage *bundle.DamageError
	if r.Outcome != Refused || !errors.As(r.Err, &damage) {
		t.Errorf("%s", r.Text())
	}
}

// An original that has another name somewhere else, as a file of many names has, is kept as long as any.
func TestLinkedOriginalsStay(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	write(t, path, "theirs", 0o711)
	must(t, os.Link(path, filepath.Join(bin, "busybox")))
	bridge := ident(t, path)
	b := packed(t, "v1", ref("bridge", "v1"))
	stage(t, b, Options{BinDir: bin})
	stage(t, b, Options{BinDir: bin})
	if now := ident(t, newest(t, bin, "bridge")); now != bridge {
		t.Errorf("kept is %s\nwas %s", now, bridge)
	}
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back")
	if now := ident(t, path); now != bridge {
		t.Errorf("bridge is %s\nwas %s", now, bridge)
	}
}

// One of ours that could not be read when it was replaced does not make staging forget that nothing stood there.
func TestUnreadIsNotWhatStoodThere(t *testing.T) {
	bin := t.TempDir()
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	t.Run("fault", func(t *testing.T) {
		unread(t, func(_ *hostdir.Dir, name string) bool { return strings.HasPrefix(name, swapPrefix) })
		r := stage(t, packed(t, "v2", ref("bridge", "v2")), Options{BinDir: bin})
		want(t, r, "bridge:replaced")
		wantWarnings(t, r, "whose it was that was replaced could not be found out")
	})
	want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:removed")
	wantGone(t, filepath.Join(bin, storeName))
}
