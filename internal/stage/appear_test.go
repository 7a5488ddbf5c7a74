package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chandler-cni/chandler/internal/hostdir"
)

// afterPlan does something once, when the plan has been made and nothing has been published.
func afterPlan(t *testing.T, do func()) {
	t.Helper()
	var once sync.Once
	swapVar(t, &syncFile, func(f *os.File) error {
		once.Do(do)
		return f.Sync()
	})
}

// What appears under a name between plan and publish decides, not what the plan saw there.
func TestAppearsBetweenPlanAndPublish(t *testing.T) {
	const removed hostdir.Kind = "removed"
	states := map[string]func(t *testing.T, bin, path string){
		"absent":    func(*testing.T, string, string) {},
		"different": func(t *testing.T, bin, path string) { write(t, path, "planned", 0o755) },
		"link":      func(t *testing.T, bin, path string) { must(t, os.Symlink("/planned", path)) },
		"ours": func(t *testing.T, bin, path string) {
			stage(t, packed(t, "v0", ref("bridge", "v0")), Options{BinDir: bin})
		},
	}
	bothWays(t, func(t *testing.T) {
		for state, prepare := range states {
			for _, kind := range []hostdir.Kind{hostdir.File, hostdir.Symlink, hostdir.Folder, hostdir.Fifo, hostdir.Socket, removed} {
				t.Run(state+"/"+string(kind), func(t *testing.T) {
					bin := t.TempDir()
					path := filepath.Join(bin, "bridge")
					prepare(t, bin, path)
					var was string
					afterPlan(t, func() {
						must(t, os.RemoveAll(path))
						if kind != removed {
							put(t, path, kind)
							was = ident(t, path)
						}
					})
					b := packed(t, "v1", set("v1", "bridge", "vlan")...)
					r := stage(t, b, Options{BinDir: bin})
					switch kind {
					case hostdir.File, hostdir.Symlink:
						want(t, r, "bridge:replaced vlan:new")
						inPlace(t, bin, set("v1", "bridge", "vlan")...)
						if got := ident(t, newest(t, bin, "bridge")); got != was {
							t.Errorf("kept %s, was %s", got, was)
						}
					case removed:
						want(t, r, "bridge:new vlan:new")
						inPlace(t, bin, set("v1", "bridge", "vlan")...)
						if kept := originals(t, bin, "bridge"); len(kept) > 0 {
							t.Errorf("kept %q where nothing was", kept)
						}
						if _, err := os.Lstat(filepath.Join(bin, storeName, stagedName, "bridge@absent")); err != nil {
							t.Error(err)
						}
					default:
						want(t, r, "bridge:failed vlan:new")
						if got := ident(t, path); got != was {
							t.Errorf("is %s, was %s", got, was)
						}
						if got := result(t, r, "bridge").Cause; got != "is a "+string(kind)+", left as it is" {
							t.Errorf("cause %q", got)
						}
						if kept := originals(t, bin, "bridge"); len(kept) > 0 {
							t.Errorf("kept %q of what is still there", kept)
						}
					}
				})
			}
		}
	})
}

// A name that is removed and put back at every attempt is left, in the end, to whoever does that.
func TestContended(t *testing.T) {
	for rounds, text := range map[int]string{1: "", attempts - 1: "", attempts: errContended.Error() + "; the old file was kept"} {
		bin := t.TempDir()
		path := filepath.Join(bin, "bridge")
		write(t, path, "theirs", 0o755)
		b := packed(t, "v1", ref("bridge", "v1"))
		was := ""
		t.Run(fmt.Sprint(rounds), func(t *testing.T) {
			realExchange, realPublish, n := exchange, publish, 0
			swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
				if n++; n <= rounds {
					must(t, os.Remove(path))
				}
				return realExchange(d, from, name, to)
			})
			swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
				if d.Path() == bin {
					write(t, path, fmt.Sprintf("theirs %d", n), 0o755)
					was = ident(t, path)
				}
				return realPublish(d, from, name, to)
			})
			r := stage(t, b, Options{BinDir: bin})
			if got := result(t, r, "bridge").Cause; got != text {
				t.Errorf("cause %q, want %q", got, text)
			}
		})
		if text != "" {
			if got := ident(t, path); got != was {
				t.Errorf("is %s, want theirs, %s", got, was)
			}
			want(t, stage(t, b, Options{BinDir: bin}), "bridge:replaced")
		}
		inPlace(t, bin, ref("bridge", "v1"))
		if got := ident(t, newest(t, bin, "bridge")); got != was {
			t.Errorf("kept %s, want the last of theirs, %s", got, was)
		}
	}
}

// A directory is taken by the exchange, and while it is put back somebody puts a third thing in the place of our file: both
// are theirs, and neither is lost, even where nothing is to be kept.
func TestThirdThingWhilePuttingBack(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	write(t, path, "planned", 0o755)
	var dir, third string
	afterPlan(t, func() {
		must(t, os.Remove(path))
		put(t, path, hostdir.Folder)
		dir = ident(t, path)
	})
	real, n := exchange, 0
	swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
		if n++; n == 2 {
			write(t, path+".new", "third", 0o755)
			third = ident(t, path+".new")
			must(t, os.Rename(path+".new", path))
		}
		return real(d, from, name, to)
	})
	r := stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin, NoKeep: true})
	want(t, r, "bridge:failed")
	if got := ident(t, path); got != dir {
		t.Errorf("is %s, want the directory %s", got, dir)
	}
	if got := ident(t, newest(t, bin, "bridge")); got != third {
		t.Errorf("kept %s, want the third %s", got, third)
	}
}

// What cannot be put back is not lost: it is said where it lies.
func TestCannotBePutBack(t *testing.T) {
	for _, kind := range []hostdir.Kind{hostdir.Folder, hostdir.Fifo} {
		t.Run(string(kind), func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			write(t, path, "planned", 0o755)
			var was string
			afterPlan(t, func() {
				must(t, os.Remove(path))
				put(t, path, kind)
				was = ident(t, path)
			})
			b := packed(t, "v1", ref("bridge", "v1"))
			t.Run("fault", func(t *testing.T) {
				real, n := exchange, 0
				swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
					if n++; n == 2 {
						return &fs.PathError{Op: "rename", Path: to, Err: syscall.EIO}
					}
					return real(d, from, name, to)
				})
				r := Run(t.Context(), b, Options{BinDir: bin})
				checkReport(t, r)
				want(t, r, "bridge:failed")
				lies := strings.TrimPrefix(result(t, r, "bridge").Cause, "rename: input/output error; what stood there lies in ")
				if got := ident(t, filepath.Join(bin, lies)); got != was {
					t.Errorf("%s is %s, was %s", lies, got, was)
				}
			})
			inPlace(t, bin, ref("bridge", "v1"))
			// The next run gives it back to its name, and leaves it there.
			want(t, stage(t, b, Options{BinDir: bin}), "bridge:failed")
			if got := ident(t, path); got != was {
				t.Errorf("%s stands there, was %s", got, was)
			}
		})
	}
}

// removeBusy removes a directory that somebody still writes to.
func removeBusy(t *testing.T, path string) {
	eventually(t, path+" is removed", func() bool { return os.RemoveAll(path) == nil })
}

// The bin dir is taken away or replaced while staging works in it.
func TestBinDirReplaced(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, bin string){
		"removed": func(t *testing.T, bin string) { removeBusy(t, bin) },
		"removed and made again": func(t *testing.T, bin string) {
			removeBusy(t, bin)
			must(t, os.Mkdir(bin, 0o755))
		},
		"renamed":                func(t *testing.T, bin string) { must(t, os.Rename(bin, bin+".old")) },
		"renamed and made again": func(t *testing.T, bin string) { must(t, os.Rename(bin, bin+".old")); must(t, os.Mkdir(bin, 0o755)) },
		"renamed, a file now":    func(t *testing.T, bin string) { must(t, os.Rename(bin, bin+".old")); put(t, bin, hostdir.File) },
	} {
		for _, equal := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bin := filepath.Join(t.TempDir(), "bin")
				must(t, os.Mkdir(bin, 0o755))
				b := packed(t, "v1", set("v1", "bridge", "vlan")...)
				if equal { // the replacement is found also where nothing was to be written
					stage(t, b, Options{BinDir: bin})
					real := syncDir
					var once sync.Once
					swapVar(t, &syncDir, func(d *hostdir.Dir) error {
						once.Do(func() { replace(t, bin) })
						return real(d)
					})
				} else {
					afterPlan(t, func() { replace(t, bin) })
				}
				r := Run(t.Context(), b, Options{BinDir: bin, ShownAs: "/opt/cni/bin"})
				checkReport(t, r)
				var binDir *BinDirError
				if !errors.As(r.Err, &binDir) || !errors.Is(r.Err, ErrReplaced) ||
					r.Text() != "bin dir /opt/cni/bin: this directory was replaced on the host; restart the pod; nothing was staged\n" {
					t.Errorf("%v: %s", r.Err, r.Text())
				}
				if entries, err := os.ReadDir(bin); err == nil && len(entries) > 0 {
					t.Errorf("the new directory was written to: %v", entries)
				}
			})
		}
	}
}

// Our file that stands where a directory could not be given back is known for ours, so that the next run can give it back.
func TestCannotBePutBackIsMarked(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	write(t, path, "theirs", 0o711)
	b := packed(t, "v1", ref("bridge", "v1"))
	t.Run("fault", func(t *testing.T) {
		real, calls := exchange, 0
		swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
			if calls++; calls > 1 {
				return &fs.PathError{Op: "rename", Path: to, Err: syscall.EIO}
			}
			must(t, os.Remove(path))
			put(t, path, hostdir.Folder)
			return real(d, from, name, to)
		})
		want(t, Run(t.Context(), b, Options{BinDir: bin}), "bridge:failed")
	})
	inPlace(t, bin, ref("bridge", "v1"))
	if _, err := os.Lstat(filepath.Join(bin, storeName, stagedName, mark("bridge", sum(ref("bridge", "v1").data)))); err != nil {
		t.Errorf("it is not known for ours: %v", err)
	}
	want(t, stage(t, b, Options{BinDir: bin}), "bridge:failed")
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		t.Errorf("%v, %v", info, err)
	}
}
