//go:build faults

package faults

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/faults/tracer"
	"github.com/chandler-cni/chandler/test/rig"
)

// Mistakes that were found in other installers. Each is shown first in a small model of the installer, under a fault that
// brings it to light, so that the fault is known to do that; and then chandler is put under the same fault.
func TestMistakesOfOthers(t *testing.T) {
	name := ring.names[0]
	source := filepath.Join(ring.bundle, "bin", name)
	whole, err := look(source)
	if err != nil {
		t.Fatal(err)
	}
	// shows fails the test if the model does not make its mistake.
	shows := func(t *testing.T, ok bool, format string, args ...any) {
		t.Helper()
		if !ok {
			t.Fatalf("the model does not make the mistake, so the test proves nothing: "+format, args...)
		}
	}
	torn := func(path string) bool {
		it, err := look(path)
		return err == nil && it.kind == "file" && (it.size != whole.size || it.sum != whole.sum)
	}

	// fullDisk holds that chandler says of a plugin that does not fit that it failed, and for want of room, and leaves nothing of it.
	fullDisk := func(t *testing.T, d *desk) {
		t.Helper()
		o := stageOn(t, d, "--strict")
		for _, p := range o.report.Plugins {
			it, err := look(filepath.Join(d.dir, p.Name))
			want, wantErr := staged(ring.bundle, p.Name)
			if p.Action == "failed" {
				want = absent
			}
			if err := errors.Join(err, wantErr); err != nil || it != want || p.Action == "failed" && !strings.Contains(p.Cause, "no space left on device") {
				t.Errorf("%s is said to be %s (%s) and is %s (%v)", p.Name, p.Action, p.Cause, it, err)
			}
		}
		if o.code != 1 || !strings.Contains(o.log, "failed to install: ") {
			t.Errorf("%s", o)
		}
	}

	t.Run("a second copy whose first error is shadowed", func(t *testing.T) {
		d := smallDesk(t, whole.size/2)
		install := func(from, to string) error {
			in, err := os.Open(from)
			if err != nil {
				return err
			}
			defer in.Close()
			out, err := os.OpenFile(to+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
			if err != nil {
				return err
			}
			defer out.Close()
			if _, err := io.Copy(out, in); err == nil { // an err of its own: that of the copy ends here
				out.Sync()
			}
			if err != nil {
				return err
			}
			return os.Rename(to+".tmp", to)
		}
		err := install(source, filepath.Join(d.dir, name))
		shows(t, err == nil && torn(filepath.Join(d.dir, name)), "it returns %v", err)
		if err := os.Remove(filepath.Join(d.dir, name)); err != nil {
			t.Fatal(err)
		}
		fullDisk(t, d)
	})

	t.Run("a copy tool run through find, whose error is lost", func(t *testing.T) {
		d := smallDesk(t, whole.size/2)
		out, err := exec.Command("find", filepath.Dir(source), "-type", "f", "-exec", "cp", "{}", d.dir, ";").CombinedOutput()
		shows(t, err == nil && torn(filepath.Join(d.dir, name)), "it ends with %v: %s", err, out)
		for _, n := range ring.names {
			os.Remove(filepath.Join(d.dir, n))
		}
		fullDisk(t, d)
	})

	// watched runs a staging over another's file, and looks at the names at each of its calls.
	watched := func(t *testing.T, wrong func(path string) string) {
		t.Helper()
		d := newTestDesk(t, ring.chandler)
		if err := place(d, ring.older); err != nil {
			t.Fatal(err)
		}
		looked, said := 0, ""
		o, err := d.run(func(*tracer.Call) (tracer.Action, unix.Errno) {
			looked++
			for _, n := range ring.names {
				if w := wrong(filepath.Join(d.dir, n)); w != "" && said == "" {
					said = n + ": " + w
				}
			}
			return tracer.Go, 0
		}, stageArgs(ring.bundle)(d)...)
		if err != nil || o.code != 0 || looked < 100 {
			t.Fatalf("looked %d times: %s (%v)", looked, o, err)
		}
		if said != "" {
			t.Error(said)
		}
	}

	t.Run("chmod after the rename", func(t *testing.T) {
		notExecutable := func(path string) string {
			if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
				return fmt.Sprintf("cannot be executed (%v)", err)
			}
			return ""
		}
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(source)
		seen := ""
		for _, step := range []func() error{
			func() error { return os.WriteFile(path+".tmp", data, 0o644) },
			func() error { return os.Rename(path+".tmp", path) },
			func() error { return os.Chmod(path, 0o755) },
		} {
			if err = errors.Join(err, step()); rig.Exists(path) && seen == "" {
				seen = notExecutable(path)
			}
		}
		shows(t, err == nil && seen != "", "%v", err)
		watched(t, notExecutable)
	})

	t.Run("the old file renamed away before the new one is written", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		err := os.WriteFile(path, []byte("old"), 0o755)
		err = errors.Join(err, os.Rename(path, path+".old"))
		gone := !rig.Exists(path)
		data, readErr := os.ReadFile(source)
		err = errors.Join(err, readErr, os.WriteFile(path, data, 0o755))
		shows(t, err == nil && gone, "%v", err)
		watched(t, func(path string) string {
			if !rig.Exists(path) {
				return "is gone"
			}
			return ""
		})
	})

	t.Run("a fixed temporary name shared by two installers", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), name)
		open := func() *os.File {
			f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		data, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		one := open()
		one.Write(data)
		one.Close()
		verified := !torn(path + ".tmp")
		two := open() // the other begins, before the first renames what it has verified
		two.Write(data[:1000])
		err = os.Rename(path+".tmp", path)
		shows(t, err == nil && verified && torn(path), "%v", err)
		two.Close()

		// Two stagings make no file under one name.
		made := make(map[string]int)
		for range 2 {
			d := newTestDesk(t, ring.chandler)
			o, err := d.run(func(*tracer.Call) (tracer.Action, unix.Errno) { return tracer.Watch, 0 }, stageArgs(ring.bundle)(d)...)
			if err != nil || o.code != 0 {
				t.Fatalf("%s (%v)", o, err)
			}
			for _, c := range o.calls {
				rel, below := strings.CutPrefix(c.Path, d.dir+"/")
				if below && c.Name == "openat" && c.Args[2]&unix.O_CREAT != 0 && !strings.HasPrefix(rel, ".chandler/staged/") {
					if c.Args[2]&unix.O_EXCL == 0 {
						t.Errorf("%s takes a file that is there", c)
					}
					made[rel]++
				}
			}
		}
		for rel, n := range made {
			if n > 1 {
				t.Errorf("both have made %s", rel)
			}
		}
		if len(made) < 2*len(ring.names) {
			t.Fatalf("the trace is not whole: %v", made)
		}
	})

	t.Run("the file synced, the directory not", func(t *testing.T) {
		durable := func(calls []tracer.Call, dir string) bool {
			synced := false
			for _, c := range calls {
				switch {
				case strings.HasPrefix(c.Name, "rename") && filepath.Dir(c.To) == dir:
					synced = false
				case c.Name == "fsync" && c.Path == dir:
					synced = true
				}
			}
			return synced
		}
		model := newTestDesk(t, "/bin/sh")
		everything := func(*tracer.Call) (tracer.Action, unix.Errno) { return tracer.Watch, 0 }
		o, err := model.run(everything, "-c", fmt.Sprintf("PATH=%s; cp %s %s/tmp && sync %s/tmp && mv %s/tmp %s/%s",
			os.Getenv("PATH"), source, model.dir, model.dir, model.dir, model.dir, name))
		shows(t, err == nil && o.code == 0 && !torn(filepath.Join(model.dir, name)) && !durable(o.calls, model.dir), "%s (%v)", o, err)
		for _, set := range []func(d *desk) error{nothing, func(d *desk) error { return place(d, ring.older) }} {
			d := newTestDesk(t, ring.chandler)
			if err := set(d); err != nil {
				t.Fatal(err)
			}
			if o, err = d.run(everything, stageArgs(ring.bundle)(d)...); err != nil || o.code != 0 || !durable(o.calls, d.dir) {
				t.Errorf("%v", err)
			}
		}
	})

	t.Run("the umask or the directory decides the mode", func(t *testing.T) {
		d := newTestDesk(t, ring.chandler)
		path := filepath.Join(d.dir, name)
		if err := os.Chmod(d.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		err := exec.Command("sh", "-c", fmt.Sprintf("umask 077; cp %s %s", source, path)).Run()
		byMask, maskErr := look(path)
		dir, dirErr := os.Stat(d.dir)
		if err := errors.Join(err, maskErr, dirErr, os.Chmod(path, dir.Mode())); err != nil {
			t.Fatal(err)
		}
		byDir, err := look(path)
		shows(t, err == nil && byMask.mode == 0o700 && byDir.mode == 0o700, "%s, %s (%v)", byMask, byDir, err)
		for _, mask := range []string{"000", "077", "777"} {
			sh := desk{"/bin/sh", d.dir, d.stdout, d.stderr, d.log}
			o, err := sh.run(nil, "-c", "umask "+mask+`; exec "$0" "$@"`, d.chandler, "stage", "--bundle", ring.bundle, "--bin-dir", d.dir,
				"--output", "json", "--termination-log", d.log)
			if err != nil || o.code != 0 || o.report.Outcome != "staged" {
				t.Fatalf("%s (%v)", o, err)
			}
			for _, n := range ring.names {
				if it, err := look(filepath.Join(d.dir, n)); err != nil || it.mode != 0o755 {
					t.Errorf("umask %s: %s is %s (%v)", mask, n, it, err)
				}
				os.Remove(filepath.Join(d.dir, n))
			}
		}
		if info, err := os.Stat(d.dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the directory's own mode is now %v (%v)", info.Mode(), err)
		}
	})

	t.Run("cp through a link into a program of many names", func(t *testing.T) {
		d := newTestDesk(t, ring.chandler)
		multi := filepath.Join(t.TempDir(), "multi")
		set := func() {
			t.Helper()
			err := os.WriteFile(multi, []byte(somebodys), 0o755)
			for _, n := range ring.names {
				os.Remove(filepath.Join(d.dir, n))
				err = errors.Join(err, os.Symlink(multi, filepath.Join(d.dir, n)))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		set()
		err := exec.Command("cp", "-f", source, filepath.Join(d.dir, name)).Run()
		others, readErr := os.ReadFile(filepath.Join(d.dir, ring.names[1]))
		shows(t, err == nil && readErr == nil && string(others) != somebodys, "%v, %v", err, readErr)
		set()
		o := stageOn(t, d)
		if slices.ContainsFunc(o.report.Plugins, func(p rig.Result) bool { return p.Action != "replaced" }) {
			t.Errorf("%s", o)
		}
		if data, err := os.ReadFile(multi); err != nil || string(data) != somebodys {
			t.Errorf("what the links lead to was written to (%v)", err)
		}
	})
}

func stageOn(t *testing.T, d *desk, more ...string) outcome {
	t.Helper()
	o, err := d.run(nil, append(stageArgs(ring.bundle)(d), more...)...)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// smallDesk is a desk whose directory is on a disk of its own, of so many bytes.
func smallDesk(t *testing.T, size int64) *desk {
	t.Helper()
	d := newTestDesk(t, ring.chandler)
	rig.Mounted(t, "tmpfs", d.dir, "tmpfs", 0, fmt.Sprintf("mode=755,size=%d", size))
	return d
}
