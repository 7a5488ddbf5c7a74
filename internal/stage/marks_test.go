package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
)

// takeBack updates and then restores a directory in which nothing stood before all names were staged, and holds that nothing is
// there again: no file of ours has passed for somebody's.
func takeBack(t *testing.T, bin string, newer *bundle.Bundle, policy Policy) {
	t.Helper()
	r := stage(t, newer, Options{BinDir: bin, Policy: policy})
	if n := r.Count(Replaced) + r.Count(Unchanged); n != len(r.Plugins) {
		t.Errorf("%s", r.Text())
	}
	for _, p := range r.Plugins {
		if kept := originals(t, bin, p.Name); len(kept) > 0 {
			t.Errorf("%s: our own was kept: %q", p.Name, kept)
		}
	}
	r = restored(t, RestoreOptions{BinDir: bin})
	if r.Count(Removed) != len(r.Plugins) {
		t.Errorf("%s", r.Text())
	}
	if left := list(t, bin); len(left) > 0 {
		t.Errorf("there is %q", left)
	}
}

// Stagings without the lock that put one name where nothing stood, one quicker than the other, both know that nothing did.
func TestUnlockedAtOnce(t *testing.T) {
	names := []string{"bridge", "portmap"}
	for _, quicker := range []string{"v1", "v2"} {
		for _, locked := range []string{"by another", "by the slower", "by the quicker"} {
			t.Run(quicker+", locked "+locked, func(t *testing.T) {
				bothWays(t, func(t *testing.T) {
					bin := t.TempDir()
					first, second := packed(t, "v1", set("v1", names...)...), packed(t, quicker, set(quicker, names...)...)
					holder, err := hostdir.Open(bin)
					must(t, err)
					if locked != "by the slower" {
						must(t, holder.TryLock())
					}
					t.Run("stage", func(t *testing.T) {
						real, once := publish, false
						swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
							if !once {
								once = true
								if locked == "by the quicker" {
									must(t, holder.Close())
								}
								want(t, Run(context.Background(), second, Options{BinDir: bin}), "bridge:new portmap:new")
							}
							return real(d, from, name, to)
						})
						r := Run(t.Context(), first, Options{BinDir: bin})
						want(t, r, "bridge:replaced portmap:replaced")
						if p := result(t, r, "bridge"); !p.Own {
							t.Errorf("%+v", p)
						}
					})
					if locked == "by another" {
						must(t, holder.Close())
					}
					takeBack(t, bin, packed(t, "v3", set("v3", names...)...), Replace)
				})
			})
		}
	}
}

// A staging without the lock that comes to nothing takes no mark away on which the one with the lock relies.
func TestUnlockedGivesUp(t *testing.T) {
	names := []string{"bridge", "portmap"}
	for _, policy := range []Policy{Replace, Missing} {
		t.Run(string(policy), func(t *testing.T) {
			bin := t.TempDir()
			b := packed(t, "v1", set("v1", names...)...)
			o := Options{BinDir: bin, Policy: policy}
			ctx, cancel := context.WithCancel(t.Context())
			marked, done := make(chan struct{}), make(chan struct{})
			var unlocked *Report
			t.Run("stage", func(t *testing.T) {
				realSync, realPublish := syncFile, publish
				var began, waited atomic.Bool
				// The one with the lock has written a file when the other begins; that has made its marks when the first goes on.
				swapVar(t, &syncFile, func(f *os.File) error {
					if began.CompareAndSwap(false, true) {
						go func() {
							unlocked = Run(ctx, b, o)
							close(done)
						}()
						<-marked
					}
					return realSync(f)
				})
				release := make(chan struct{})
				swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
					if waited.CompareAndSwap(false, true) {
						close(marked)
						<-release
					}
					return realPublish(d, from, name, to)
				})
				want(t, Run(t.Context(), b, o), "bridge:new portmap:new")
				if policy == Replace {
					cancel()
				}
				close(release)
				<-done
			})
			checkReport(t, unlocked)
			if n := unlocked.Count(New); n > 0 {
				t.Errorf("%s", unlocked.Text())
			}
			inPlace(t, bin, set("v1", names...)...)
			takeBack(t, bin, packed(t, "v2", set("v2", names...)...), policy)
		})
	}
}

// The one with the lock, if it comes to nothing, takes no mark away of what one without has published meanwhile.
func TestLockedGivesUp(t *testing.T) {
	for _, other := range []string{"has ended", "works on"} {
		t.Run("the other "+other, func(t *testing.T) {
			bin := t.TempDir()
			b := packed(t, "v1", ref("bridge", "v1"), ref("portmap", "v1"))
			o := Options{BinDir: bin, Policy: Missing}
			held, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			t.Run("stage", func(t *testing.T) {
				real := publish
				var calls atomic.Int32
				swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
					switch n := calls.Add(1); {
					case n == 1:
						go func() {
							Run(context.Background(), b, o)
							close(done)
						}()
						if other == "has ended" {
							<-done
						} else {
							<-held
						}
					case n == 3 && other == "works on": // with its first file in place
						close(held)
						<-release
					}
					return real(d, from, name, to)
				})
				r := Run(t.Context(), b, o)
				if p := result(t, r, "bridge"); p.Reason != Raced {
					t.Errorf("%+v", p)
				}
				// Also if the other is killed now.
				if marks := list(t, filepath.Join(bin, storeName, stagedName)); len(marks) != 4 {
					t.Errorf("marks are %q", marks)
				}
				close(release)
				<-done
			})
			inPlace(t, bin, ref("bridge", "v1"), ref("portmap", "v1"))
			takeBack(t, bin, packed(t, "v2", ref("bridge", "v2"), ref("portmap", "v2")), Missing)
		})
	}
}

// beside has another run work in the folder, until what it returns is called.
func beside(t *testing.T, bin string) (end func()) {
	t.Helper()
	s, err := openStore(t.Context(), mustOpen(t, bin), true)
	must(t, err)
	_, err = s.runDir()
	must(t, err)
	return func() {
		must(t, s.tidy())
		s.close()
	}
}

// A run that comes to nothing takes its marks back, but not from under another: that may have found them there, and be about to publish.
func TestMarksStayForAnother(t *testing.T) {
	for _, accompanied := range []bool{false, true} {
		bin := t.TempDir()
		if accompanied {
			defer beside(t, bin)()
		}
		t.Run(fmt.Sprintf("accompanied=%t", accompanied), func(t *testing.T) {
			swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
				return &fs.PathError{Op: "rename", Path: to, Err: syscall.EIO}
			})
			want(t, Run(t.Context(), packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin}), "bridge:failed")
		})
		if marks, err := filepath.Glob(filepath.Join(bin, storeName, stagedName, "bridge@*")); err != nil || (len(marks) == 2) != accompanied {
			t.Errorf("accompanied %t: %q, %v", accompanied, marks, err)
		}
	}
}

// Marks that are gone are made again, as the ledger has it: nothing of ours passes for somebody's, and all of it can be taken back.
func TestLostMarks(t *testing.T) {
	names := []string{"bridge", "new"}
	b, newer := packed(t, "v1", set("v1", names...)...), packed(t, "v2", set("v2", names...)...)
	marks := func(bin string) string { return filepath.Join(bin, storeName, stagedName) }
	losses := map[string]func(t *testing.T, bin string){
		"all of them": func(t *testing.T, bin string) { must(t, os.RemoveAll(marks(bin))) },
		"one of each": func(t *testing.T, bin string) {
			for _, name := range names {
				must(t, os.Remove(filepath.Join(marks(bin), mark(name, sum(ref(name, "v1").data)))))
			}
		},
	}
	const told = "marks of bridge, new were gone from .chandler/staged, and were made again as the ledger has it"
	for loss, lose := range losses {
		for name, test := range map[string]func(t *testing.T, bin string){
			"restored": func(t *testing.T, bin string) {
				plan := Restore(t.Context(), RestoreOptions{BinDir: bin, DryRun: true})
				want(t, plan, "bridge:put back new:removed")
				wantWarnings(t, plan)
				r := restored(t, RestoreOptions{BinDir: bin})
				want(t, r, "bridge:put back new:removed")
				wantWarnings(t, r, told)
			},
			"made again by a staging": func(t *testing.T, bin string) {
				r := stage(t, b, Options{BinDir: bin})
				want(t, r, "bridge:unchanged new:unchanged")
				wantWarnings(t, r, told)
				must(t, os.Remove(filepath.Join(bin, storeName, ledgerName)))
				r = stage(t, newer, Options{BinDir: bin})
				want(t, r, "bridge:replaced new:replaced")
				wantWarnings(t, r)
				want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back new:removed")
			},
			"updated": func(t *testing.T, bin string) {
				wantWarnings(t, stage(t, newer, Options{BinDir: bin, Policy: Missing}), told) // what is ours follows the bundle
				inPlace(t, bin, set("v2", names...)...)
				want(t, restored(t, RestoreOptions{BinDir: bin}), "bridge:put back new:removed")
			},
			"updated without the lock": func(t *testing.T, bin string) {
				holder := mustOpen(t, bin)
				must(t, holder.TryLock())
				r := stage(t, newer, Options{BinDir: bin})
				want(t, r, "bridge:replaced new:replaced")
				wantWarnings(t, r, "went on without it", told)
				must(t, holder.Close())
				r = restored(t, RestoreOptions{BinDir: bin})
				want(t, r, "bridge:put back new:removed")
				wantWarnings(t, r)
			},
			"that cannot be made again": func(t *testing.T, bin string) {
				t.Run("fault", func(t *testing.T) {
					real, calls := syncDir, 0
					swapVar(t, &syncDir, func(d *hostdir.Dir) error {
						if calls++; calls == 1 {
							return &fs.PathError{Op: "sync", Path: d.Path(), Err: syscall.EIO}
						}
						return real(d)
					})
					r := restored(t, RestoreOptions{BinDir: bin})
					want(t, r, "bridge:put back new:removed")
					wantWarnings(t, r, "marks of bridge, new are gone, and could not be made again: sync .chandler/staged: input/output error")
				})
			},
		} {
			t.Run(loss+", "+name, func(t *testing.T) {
				bin := t.TempDir()
				theirs := old(t, filepath.Join(bin, "bridge"), hostdir.File)
				stage(t, b, Options{BinDir: bin})
				lose(t, bin)
				test(t, bin)
				if now := ident(t, filepath.Join(bin, "bridge")); now != theirs {
					t.Errorf("there is %s\nwant %s", now, theirs)
				}
				if left := list(t, bin); len(left) != 1 {
					t.Errorf("there is %q", left)
				}
			})
		}
	}
}

// The ledger speaks for the very file that was put there: the same bytes, mode and owner can be an original's, or somebody's who came later.
func TestLostMarksOfTheVeryFile(t *testing.T) {
	bridge, ptp := set("v2", "bridge", "ptp"), []string{"bridge", "ptp"}
	// fault lets the ledger's writing fail, so that it goes on naming what was restored.
	fault := func(t *testing.T, o RestoreOptions) {
		t.Run("fault", func(t *testing.T) {
			swapVar(t, &syncFile, func(f *os.File) error { return &fs.PathError{Op: "sync", Path: f.Name(), Err: syscall.ENOSPC} })
			wantWarnings(t, Restore(t.Context(), o), "the ledger still names what was restored")
		})
	}
	for name, restore := range map[string]func(t *testing.T, o RestoreOptions){
		"the ledger could not be written": fault,
		"killed":                          func(t *testing.T, o RestoreOptions) { killedWhile(t, o, stagedName) },
	} {
		t.Run("an original, "+name, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			write(t, path, string(bridge[0].data), 0o755)
			theirs := ident(t, path)
			for _, version := range []string{"v1", "v2"} {
				stage(t, packed(t, version, set(version, ptp...)...), Options{BinDir: bin})
			}
			restore(t, RestoreOptions{BinDir: bin, Only: []string{"bridge"}})
			if now := ident(t, path); now != theirs {
				t.Fatalf("bridge is %s\nwas %s", now, theirs)
			}
			r := stage(t, packed(t, "v3", set("v3", ptp...)...), Options{BinDir: bin})
			if p := result(t, r, "bridge"); p.Own || ident(t, newest(t, bin, "bridge")) != theirs {
				t.Errorf("%+v", p)
			}
			restored(t, RestoreOptions{BinDir: bin})
			if now := ident(t, path); now != theirs {
				t.Errorf("bridge is %s\nwas %s", now, theirs)
			}
		})
	}
	t.Run("one who came later", func(t *testing.T) {
		bin := t.TempDir()
		path := filepath.Join(bin, "bridge")
		stage(t, packed(t, "v2", bridge...), Options{BinDir: bin})
		fault(t, RestoreOptions{BinDir: bin, Only: []string{"bridge"}})
		write(t, path, string(bridge[0].data), 0o755)
		theirs := ident(t, path)
		restored(t, RestoreOptions{BinDir: bin})
		if now := ident(t, path); now != theirs {
			t.Errorf("bridge is %s\nwas %s", now, theirs)
		}
	})
}

// What comes while a staging is under way whose lost marks could not be made again is not taken for nothing.
func TestLostMarksAndAnother(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	must(t, os.RemoveAll(filepath.Join(bin, storeName, stagedName)))
	var theirs string
	t.Run("staging", func(t *testing.T) {
		sync, failed := syncDir, false
		swapVar(t, &syncDir, func(d *hostdir.Dir) error {
			if !failed {
				failed = true
				return &fs.PathError{Op: "sync", Path: d.Path(), Err: syscall.EIO}
			}
			return sync(d)
		})
		real := exchange
		swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
			if theirs == "" {
				must(t, os.Remove(path))
				theirs = old(t, path, hostdir.File)
			}
			return real(d, from, name, to)
		})
		want(t, stage(t, packed(t, "v2", ref("bridge", "v2")), Options{BinDir: bin}), "bridge:replaced")
	})
	dir := mustOpen(t, bin)
	s, err := openStore(t.Context(), dir, false)
	must(t, err)
	defer s.close()
	if absent, err := s.markedAbsent("bridge"); absent || err != nil || s.entry("bridge").Before != Different {
		t.Errorf("absent %t, %v, %+v", absent, err, s.entry("bridge"))
	}
}

// The bundle's own bytes, with a mode of somebody's own, stay theirs, also where a staging without the lock fails at first, or for good.
func TestSameBytesWithoutTheLock(t *testing.T) {
	for _, fails := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} { // of the one is tried again
		t.Run(fails.Error(), func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			b := packed(t, "v1", ref("bridge", "v1"), ref("portmap", "v1"))
			write(t, path, string(ref("bridge", "v1").data), 0o700)
			theirs := ident(t, path)
			holder := mustOpen(t, bin)
			must(t, holder.TryLock())
			t.Run("staging", func(t *testing.T) {
				if fails == syscall.ENOSPC { // its own marks stay between the two, for the other's sake
					defer beside(t, bin)()
				}
				real, once := exchange, true
				swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
					if once {
						once = false
						return &fs.PathError{Op: "rename", Path: to, Err: fails}
					}
					return real(d, from, name, to)
				})
				Run(t.Context(), b, Options{BinDir: bin})
			})
			must(t, holder.Close())
			stage(t, b, Options{BinDir: bin})
			if kept := ident(t, newest(t, bin, "bridge")); kept != theirs {
				t.Errorf("kept %s\nwas %s", kept, theirs)
			}
			restored(t, RestoreOptions{BinDir: bin})
			if now := ident(t, path); now != theirs {
				t.Errorf("bridge is %s\nwas %s", now, theirs)
			}
		})
	}
}

// What a staging has published that does not wait, and is killed then, stays known for ours when the other comes to nothing: also on a file
// system without locks.
func TestKilledBesideAnother(t *testing.T) {
	for _, locks := range []bool{true, false} {
		t.Run(fmt.Sprintf("locks=%t", locks), func(t *testing.T) {
			var told []string
			if !locks {
				told = []string{"went on without the lock: lock: no locks available"}
				swapVar(t, &tryLock, func(d *hostdir.Dir) error { return &fs.PathError{Op: "lock", Path: d.Path(), Err: syscall.ENOLCK} })
			}
			bin := t.TempDir()
			b := packed(t, "v1", ref("bridge", "v1"), ref("portmap", "v1"))
			o := Options{BinDir: bin, Policy: Missing}
			t.Run("stage", func(t *testing.T) {
				real, nested := publish, false
				swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
					switch {
					case !nested && to == "bridge":
						nested = true
						dies(t, func() { Run(context.Background(), b, o) })
					case nested && to == "portmap": // with its first file in place
						nested = false
						panic("killed")
					}
					return real(d, from, name, to)
				})
				r := Run(t.Context(), b, o)
				want(t, r, "bridge:kept portmap:new")
				wantWarnings(t, r, told...)
			})
			r := stage(t, packed(t, "v2", set("v2", "bridge", "portmap")...), Options{BinDir: bin})
			want(t, r, "bridge:replaced portmap:replaced")
			wantWarnings(t, r, told...)
			if kept := originals(t, bin, "bridge"); len(kept) > 0 {
				t.Errorf("our own was kept: %q", kept)
			}
			r = restored(t, RestoreOptions{BinDir: bin})
			want(t, r, "bridge:removed portmap:removed")
			wantWarnings(t, r, told...)
			if left := list(t, bin); len(left) > 0 {
				t.Errorf("there is %q", left)
			}
		})
	}
}

// The ledger says what stood there before staging came, or last, if others have put something there since: what was purged is not nothing.
func TestLostMarkOfNothing(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	b := packed(t, "v1", ref("bridge", "v1"))
	stage(t, b, Options{BinDir: bin})
	must(t, os.Remove(path))
	old(t, path, hostdir.File)
	stage(t, b, Options{BinDir: bin})
	_, _, err := Purge(t.Context(), RestoreOptions{BinDir: bin})
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(bin, storeName, stagedName)))
	r := restored(t, RestoreOptions{BinDir: bin})
	want(t, r, "bridge:failed")
	if p := result(t, r, "bridge"); !errors.Is(p.Err, ErrNotKept) {
		t.Errorf("%+v", p)
	}
}
