package stage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chandler-cni/chandler/internal/hostdir"
)

// A bin dir that cannot be used is named, and nothing is made.
func TestBinDirErrors(t *testing.T) {
	for name, test := range map[string]struct {
		put    func(t *testing.T, bin string)
		option func(o *Options)
		text   string
		err    error
	}{
		"missing":  {text: "open: no such file or directory", err: fs.ErrNotExist},
		"file":     {put: func(t *testing.T, bin string) { put(t, bin, hostdir.File) }, text: "open: not a directory", err: syscall.ENOTDIR},
		"fifo":     {put: func(t *testing.T, bin string) { put(t, bin, hostdir.Fifo) }, text: "open: not a directory", err: syscall.ENOTDIR},
		"dangling": {put: func(t *testing.T, bin string) { put(t, bin, hostdir.Symlink) }, text: "is a link to nothing"},
		"dangling, to be made": {put: func(t *testing.T, bin string) { must(t, os.Symlink("target", bin)) },
			option: func(o *Options) { o.Create = true }, text: "is a link to nothing"},
		"file, to be made": {put: func(t *testing.T, bin string) { put(t, bin, hostdir.File) },
			option: func(o *Options) { o.Create = true }, text: "open: not a directory", err: syscall.ENOTDIR},
		"missing, a dry run": {option: func(o *Options) { o.Create, o.DryRun = true, true },
			text: "open: no such file or directory", err: fs.ErrNotExist},
		"no mount point": {put: func(t *testing.T, bin string) { must(t, os.Mkdir(bin, 0o755)) },
			option: func(o *Options) { o.RequireMount = true }, text: "is not a mount point: nothing staged there would reach the host", err: ErrNotMounted},
		"made, and no mount point": {option: func(o *Options) { o.Create, o.RequireMount, o.DryRun = true, true, true },
			text: "open: no such file or directory", err: fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			bin := filepath.Join(above, "bin")
			if test.put != nil {
				test.put(t, bin)
			}
			o := Options{BinDir: bin, ShownAs: "/opt/cni/bin"}
			if test.option != nil {
				test.option(&o)
			}
			same := unchanged(t, above, true)
			r := Run(t.Context(), packed(t, "v1", ref("bridge", "v1")), o)
			checkReport(t, r)
			same()
			var binDir *BinDirError
			if r.Outcome != Refused || !errors.As(r.Err, &binDir) || test.err != nil && !errors.Is(r.Err, test.err) {
				t.Errorf("%s: %v", r.Outcome, r.Err)
			}
			if text := "bin dir /opt/cni/bin: " + test.text + "; nothing was staged\n"; r.Text() != text {
				t.Errorf("said %q, want %q", r.Text(), text)
			}
		})
	}
}

func TestCreate(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077} {
		for _, path := range []string{"bin", "opt/cni/bin", "opt/cni/bin/", "./opt//cni/bin"} {
			above := t.TempDir()
			b := packed(t, "v1", ref("bridge", "v1"))
			old := syscall.Umask(mask)
			r := Run(t.Context(), b, Options{BinDir: above + "/" + path, Create: true})
			syscall.Umask(old)
			want(t, r, "bridge:new")
			inPlace(t, filepath.Join(above, path), ref("bridge", "v1"))
			for dir := filepath.Join(above, path); dir != above; dir = filepath.Dir(dir) {
				if info, err := os.Lstat(dir); err != nil || info.Mode().Perm() != 0o755 {
					t.Errorf("umask %04o: %s: %v, %v", mask, dir, info.Mode(), err)
				}
			}
		}
	}
	// What is there keeps its mode.
	above := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(above, "opt", "bin"), 0o755))
	must(t, os.Chmod(filepath.Join(above, "opt"), 0o711))
	want(t, stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: filepath.Join(above, "opt", "bin"), Create: true}), "bridge:new")
	if info, err := os.Lstat(filepath.Join(above, "opt")); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// What cannot be made says why.
	write(t, filepath.Join(above, "file"), "x", 0o644)
	r := Run(t.Context(), packed(t, "v1", ref("bridge", "v1")), Options{BinDir: filepath.Join(above, "file", "bin"), Create: true})
	if !strings.HasSuffix(r.Text(), "/file/bin: open: not a directory; nothing was staged\n") {
		t.Errorf("said %q", r.Text())
	}
}

// A link to a directory is followed, once.
func TestBinDirIsALink(t *testing.T) {
	above := t.TempDir()
	must(t, os.Mkdir(filepath.Join(above, "real"), 0o755))
	must(t, os.Symlink("real", filepath.Join(above, "link")))
	must(t, os.Symlink("link", filepath.Join(above, "link2")))
	want(t, stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: filepath.Join(above, "link2")}), "bridge:new")
	inPlace(t, filepath.Join(above, "real"), ref("bridge", "v1"))
	if target, err := os.Readlink(filepath.Join(above, "link2")); err != nil || target != "link" {
		t.Errorf("%q, %v", target, err)
	}
	// A link that leads elsewhere by the end is a bin dir that was replaced.
	afterPlan(t, func() {
		must(t, os.Mkdir(filepath.Join(above, "other"), 0o755))
		must(t, os.Remove(filepath.Join(above, "link")))
		must(t, os.Symlink("other", filepath.Join(above, "link")))
	})
	if r := Run(t.Context(), packed(t, "v2", ref("bridge", "v2")), Options{BinDir: filepath.Join(above, "link2")}); !errors.Is(r.Err, ErrReplaced) {
		t.Errorf("%v", r.Err)
	}
}

func TestRequireMount(t *testing.T) {
	r := Run(t.Context(), packed(t, "v1", ref("bridge", "v1")), Options{BinDir: "/proc", RequireMount: true, DryRun: true})
	want(t, r, "bridge:new")
}

// Other files of the bin dir are none of staging's business.
func TestOtherFilesAreLeft(t *testing.T) {
	bin := t.TempDir()
	for _, kind := range []hostdir.Kind{hostdir.File, hostdir.Folder, hostdir.Symlink, hostdir.Fifo, hostdir.Socket} {
		put(t, filepath.Join(bin, "other-"+string(kind)), kind)
	}
	put(t, filepath.Join(bin, ".bridge.tmp"), hostdir.File)
	before := tree(t, bin, false)
	stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	must(t, os.Remove(filepath.Join(bin, "bridge")))
	must(t, os.RemoveAll(filepath.Join(bin, storeName)))
	if after := tree(t, bin, false); after != before {
		t.Errorf("changed:\n%s\nwas:\n%s", after, before)
	}
}
