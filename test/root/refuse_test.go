//go:build root

package root

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/test/rig"
)

// A mount that cannot be written to: each plugin is named, nothing is changed, the hint says what to look at.
func TestReadOnlyMount(t *testing.T) {
	host := t.TempDir()
	rig.Place(t, ring.fewOlder, host, "static", "tuning")
	before := rig.Tree(t, host)
	dir := bind(t, host, t.TempDir(), unix.MS_RDONLY)
	o := rig.Stage(t, ring.few, dir, "--shown-as", "/opt/cni/bin")
	o.Counts(t, 0, 0, 0, 4)
	for name, cause := range o.Failed() {
		if !strings.Contains(cause, "read-only file system") {
			t.Fatalf("%s: %s", name, cause)
		}
		if old := name == "static" || name == "tuning"; old != strings.HasSuffix(cause, "; the old file was kept") {
			t.Fatalf("%s: %s", name, cause)
		}
	}
	o.Says(t, "hint: /opt/cni/bin is read-only here; in a pod, the volume mount must not be readOnly")
	rig.Unchanged(t, before, rig.Tree(t, host))
	if o := rig.Stage(t, ring.few, dir, "--strict"); o.Code != 1 {
		t.Fatalf("--strict: exit %d", o.Code)
	}

	t.Run("with everything in place", func(t *testing.T) {
		host := t.TempDir()
		rig.Stage(t, ring.few, host).Counts(t, 4, 0, 0, 0)
		before := rig.Tree(t, host)
		rig.Stage(t, ring.few, bind(t, host, t.TempDir(), unix.MS_RDONLY)).Counts(t, 0, 0, 4, 0)
		rig.Unchanged(t, before, rig.Tree(t, host))
	})
}

// Guarantee 2: on a file system that executes nothing, nothing is published.
func TestNoExecMount(t *testing.T) {
	host := t.TempDir()
	rig.Place(t, ring.fewOlder, host, "static")
	dir := bind(t, host, t.TempDir(), unix.MS_NOEXEC)
	o := rig.Stage(t, ring.few, dir)
	o.Counts(t, 0, 0, 0, 4)
	for name, cause := range o.Failed() {
		if !strings.HasPrefix(cause, "cannot be executed: permission denied") {
			t.Fatalf("%s: %s", name, cause)
		}
	}
	o.Says(t, "hint: the file system of "+dir+" is mounted noexec")
	rig.Holds(t, ring.fewOlder, host, "static")
	rig.Clean(t, ring.few, host)
	if names, _ := os.ReadDir(host); len(names) != 1 {
		t.Fatalf("left there: %v", names)
	}
	if code, out := verify(t, ring.few, dir); code != 1 {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
}

// What staging knows is lost, and cannot be made again where nothing can be written: it says so, and goes on with what the ledger has.
func TestMarksCannotBeMadeAgain(t *testing.T) {
	host := t.TempDir()
	rig.Stage(t, ring.few, host).Counts(t, 4, 0, 0, 0)
	rig.Must(t, os.RemoveAll(filepath.Join(host, ".chandler/staged")))
	t.Run("", func(t *testing.T) {
		dir := bind(t, host, t.TempDir(), unix.MS_RDONLY)
		const told = "and could not be made again: .chandler: mkdir: read-only file system"
		o := rig.Stage(t, ring.few, dir)
		o.Counts(t, 0, 0, 4, 0)
		o.Says(t, told)
		o = rig.Restore(t, dir)
		o.Says(t, told)
		if n := len(o.Failed()); n != 4 {
			t.Fatalf("%d failed: %s", n, o.Stderr)
		}
	})
	rig.Holds(t, ring.few, host)
	rig.Restore(t, host).Back(t, 0, 4, 0)
	if names, err := os.ReadDir(host); err != nil || len(names) > 0 {
		t.Fatalf("left there: %v, %v", names, err)
	}
}

// Guarantee 5: a file that nobody may change stays, and the others are staged.
func TestImmutableFile(t *testing.T) {
	dir := t.TempDir()
	rig.Place(t, ring.fewOlder, dir)
	before := rig.Identify(t, filepath.Join(dir, "static"))
	t.Run("", func(t *testing.T) {
		immutable(t, filepath.Join(dir, "static"))
		o := rig.Stage(t, ring.few, dir)
		o.Counts(t, 0, 3, 0, 1)
		if cause := o.Failed()["static"]; cause != "rename: operation not permitted; the old file was kept" {
			t.Fatal(cause)
		}
		o.Says(t, "hint: static is immutable; chattr -i lets it be replaced")
		if rig.Identify(t, filepath.Join(dir, "static")) != before {
			t.Fatal("it was changed")
		}
		rig.Clean(t, ring.few, dir)
	})
	rig.Stage(t, ring.few, dir).Counts(t, 0, 1, 3, 0)
	rig.Holds(t, ring.few, dir)
}

func TestImmutableDirectory(t *testing.T) {
	dir := t.TempDir()
	rig.Place(t, ring.fewOlder, dir, "static")
	t.Run("", func(t *testing.T) {
		immutable(t, dir)
		before := rig.Tree(t, dir)
		o := rig.Stage(t, ring.few, dir)
		o.Counts(t, 0, 0, 0, 4)
		for name, cause := range o.Failed() {
			if !strings.Contains(cause, "operation not permitted") {
				t.Fatalf("%s: %s", name, cause)
			}
		}
		o.Says(t, "is immutable; chattr -i")
		rig.Unchanged(t, before, rig.Tree(t, dir))
	})
	rig.Stage(t, ring.few, dir).Counts(t, 3, 1, 0, 0)
}

// Guarantee 4: what is no file and no link is left, whatever it holds, and never opened.
func TestTakenNames(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	rig.Write(t, filepath.Join(rig.Mkdir(t, at("bridge")), "inside"), "theirs", 0o640)
	rig.Mkdir(t, at("vrf"))
	if err := syscall.Mkfifo(at("ptp"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(at("sbr"), unix.S_IFCHR|0o755, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(at("vlan"), unix.S_IFBLK|0o755, int(unix.Mkdev(7, 250))); err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: at("portmap"), Net: "unix"})
	if err != nil {
		// The path is too long for a socket's address: by way of a shorter one.
		t.Chdir(dir)
		if socket, err = net.ListenUnix("unix", &net.UnixAddr{Name: "portmap", Net: "unix"}); err != nil {
			t.Fatal(err)
		}
	}
	defer socket.Close()
	taken := map[string]string{"bridge": "directory", "vrf": "directory", "ptp": "fifo", "sbr": "device", "vlan": "device", "portmap": "socket"}
	before := make(map[string]rig.Identity)
	for name := range taken {
		before[name] = rig.Identify(t, at(name))
	}
	o := rig.Stage(t, ring.bundle, dir)
	o.Counts(t, 8, 0, 0, 6)
	for name, kind := range taken {
		if cause := o.Failed()[name]; cause != fmt.Sprintf("is a %s, left as it is", kind) {
			t.Fatalf("%s: %s", name, cause)
		}
		if rig.Identify(t, at(name)) != before[name] {
			t.Fatalf("%s was changed", name)
		}
	}
	o.Says(t, "failed to install: bridge portmap ptp sbr vlan vrf\nbridge: is a directory, left as it is\n")
	rig.Clean(t, ring.bundle, dir)
	if o := rig.Stage(t, ring.bundle, dir, "--strict"); o.Code != 1 || len(o.Failed()) != 6 {
		t.Fatalf("--strict: exit %d", o.Code)
	}
	code, out := verify(t, ring.bundle, dir)
	if code != 1 || !strings.Contains(out, "8 ok, 6 wrong") {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
}

// Guarantee 4: a link is replaced itself. Where one multi-call binary serves all names, as on k3s, it stays what it was.
func TestLinksIntoASharedBinary(t *testing.T) {
	host := t.TempDir()
	shared := filepath.Join(rig.Mkdir(t, filepath.Join(host, "data/current/bin")), "cni")
	rig.Write(t, shared, "#!/bin/sh\necho shared\n", 0o755)
	if err := unix.Setxattr(shared, "user.ring", []byte("theirs"), 0); err != nil {
		t.Fatal(err)
	}
	dir := rig.Mkdir(t, filepath.Join(host, "bin"))
	targets := map[string]string{"host-local": "../data/current/bin/cni", "sbr": shared, "static": "../data/gone", "tuning": "tuning"}
	for name, target := range targets {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	links := make(map[string]rig.Identity)
	for name := range targets {
		links[name] = rig.Identify(t, filepath.Join(dir, name))
	}
	before := rig.Tree(t, filepath.Join(host, "data"))
	w := rig.StartWatchers(t, 1, ring.few)
	w.Over(dir, false)
	o := rig.Stage(t, ring.few, dir)
	w.Over("", false)
	o.Counts(t, 0, 4, 0, 0)
	rig.Holds(t, ring.few, dir)
	rig.Unchanged(t, before, rig.Tree(t, filepath.Join(host, "data")))
	for name, target := range targets {
		found := o.Result(t, name).Found
		if found.State != "symlink" || found.Target != target {
			t.Fatalf("%s: found %+v", name, found)
		}
		rig.Kept(t, dir, name, links[name])
		kept := rig.Originals(t, dir, name)[0]
		if want := filepath.Join(dir, o.Result(t, name).Original); kept != want {
			t.Fatalf("%s: kept as %s, reported as %s", name, kept, want)
		}
	}
	rig.Stage(t, ring.few, dir).Counts(t, 0, 0, 4, 0)

	t.Run("the bin dir itself", func(t *testing.T) {
		real := t.TempDir()
		link := filepath.Join(t.TempDir(), "bin")
		if err := os.Symlink(real, link); err != nil {
			t.Fatal(err)
		}
		rig.Stage(t, ring.few, link).Counts(t, 4, 0, 0, 0)
		rig.Holds(t, ring.few, real)
	})
}

// Guarantee 2: an executable of another machine is found before it is published, and does not stop the others.
func TestForeignMachine(t *testing.T) {
	source := t.TempDir()
	rig.Write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() { println(\"{}\") }\n", 0o644)
	foreign := filepath.Join(source, "foreign")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", foreign, "main.go")
	build.Dir = source
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS=", "GO111MODULE=off", "GOTOOLCHAIN=local")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	// No tool of ours makes such a bundle: it is put together from two.
	dir := filepath.Join(t.TempDir(), "mixed")
	rig.Sh(t, "cp", "-r", ring.few, dir)
	other := filepath.Join(t.TempDir(), "other")
	w, err := bundle.Create(other, "v1.9.1", "arm64", bundle.Source{Kind: "dir"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	f, err := os.Open(foreign)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	added, err := w.Add("static", bundle.Extra, f)
	if err != nil {
		t.Fatal(err)
	}
	var manifest bundle.Manifest
	if err := json.Unmarshal([]byte(rig.Read(t, filepath.Join(dir, "bundle.json"))), &manifest); err != nil {
		t.Fatal(err)
	}
	i := slices.Index(fewNames, "static")
	rig.Write(t, filepath.Join(dir, "bin/static"), rig.Read(t, foreign), 0o755)
	manifest.Plugins[i].SHA256, manifest.Plugins[i].Size = added.SHA256, added.Size
	for _, role := range []bundle.Role{manifest.Plugins[i].Role, bundle.Extra} {
		t.Run(string(role), func(t *testing.T) {
			manifest.Plugins[i].Role = role
			data, err := json.Marshal(manifest)
			if err != nil {
				t.Fatal(err)
			}
			rig.Write(t, filepath.Join(dir, "bundle.json"), string(data), 0o644)
			bin := t.TempDir()
			rig.Place(t, ring.fewOlder, bin, "static")
			o := rig.Stage(t, dir, bin)
			o.Counts(t, 3, 0, 0, 1)
			if cause := o.Failed()["static"]; cause != "built for arm64, not for "+runtime.GOARCH+"; the old file was kept" {
				t.Fatal(cause)
			}
			rig.Holds(t, ring.few, bin, "host-local", "sbr", "tuning")
			rig.Holds(t, ring.fewOlder, bin, "static")
			rig.Clean(t, ring.few, bin)
		})
	}
	t.Run("a whole bundle", func(t *testing.T) {
		if _, err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		bin := t.TempDir()
		o := rig.Stage(t, other, bin, "--strict")
		if o.Code != 1 || o.Failed()["static"] != "built for arm64, not for "+runtime.GOARCH {
			t.Fatalf("exit %d: %v", o.Code, o.Failed())
		}
		if names, _ := os.ReadDir(bin); len(names) != 0 {
			t.Fatalf("left there: %v", names)
		}
	})
}

// An earlier directory that is still open in the container's mount is not what the host uses.
func TestDirectoryReplacedOnTheHost(t *testing.T) {
	const message = "this directory was replaced on the host; restart the pod"
	setup := func(t *testing.T) (host, mount string) {
		host = rig.Mkdir(t, filepath.Join(t.TempDir(), "opt/cni/bin"))
		rig.Place(t, ring.fewOlder, host)
		return host, bind(t, host, t.TempDir(), 0)
	}
	replace := func(t *testing.T, host string) {
		if err := os.RemoveAll(host); err != nil {
			t.Fatal(err)
		}
		rig.Mkdir(t, host)
	}
	want := func(t *testing.T, o rig.Outcome, code int) {
		t.Helper()
		if o.Code != code {
			t.Errorf("exit %d, want %d", o.Code, code)
		}
		if !strings.Contains(o.Log, message) || o.Log != o.Stderr || strings.Contains(o.Log, "failed to install") {
			t.Errorf("log %q, stderr %q", o.Log, o.Stderr)
		}
	}
	t.Run("before the run", func(t *testing.T) {
		host, mount := setup(t)
		replace(t, host)
		want(t, rig.Stage(t, ring.few, mount, "--shown-as", "/opt/cni/bin"), 1)
		o := rig.Stage(t, ring.few, mount, "--init", "--shown-as", "/opt/cni/bin")
		want(t, o, 0)
		o.Says(t, "bin dir /opt/cni/bin: "+message)
	})
	t.Run("during the run", func(t *testing.T) {
		host, mount := setup(t)
		g := newGate(t, ring.few)
		p := rig.Call{Bundle: g.bundle, Dir: mount, Args: []string{"--init"}}.Start(t)
		g.reached(t)
		replace(t, host)
		g.open()
		want(t, p.Wait(), 0)
	})
	t.Run("by a path", func(t *testing.T) {
		host, _ := setup(t)
		g := newGate(t, ring.few)
		p := rig.Call{Bundle: g.bundle, Dir: host}.Start(t)
		g.reached(t)
		if err := os.Rename(host, host+".old"); err != nil {
			t.Fatal(err)
		}
		rig.Mkdir(t, host)
		g.open()
		want(t, p.Wait(), 1)
	})
}

// A disk that fails to sync is not trusted: no plugin whose file it did not confirm is published.
func TestDiskThatDoesNotSync(t *testing.T) {
	dir := t.TempDir()
	rig.Place(t, ring.fewOlder, dir, "static")
	strace := func(inject string) []string {
		return []string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,renameat2", "-e", "inject=" + inject}
	}
	start := time.Now()
	o := rig.Call{Bundle: ring.few, Dir: dir, Wrap: strace("fsync:error=EIO")}.Run(t)
	if o.Code != 0 || len(o.Failed()) != 4 {
		t.Fatalf("exit %d after %s: %v", o.Code, time.Since(start), o.Failed())
	}
	o.Told(t)
	for name, cause := range o.Failed() {
		if !strings.Contains(cause, "input/output error") {
			t.Fatalf("%s: %s", name, cause)
		}
	}
	rig.Holds(t, ring.fewOlder, dir, "static")
	rig.Clean(t, ring.few, dir)

	// A file system that knows no exchange: in two steps, with the old file kept all the same.
	before := rig.Identify(t, filepath.Join(dir, "static"))
	w := rig.StartWatchers(t, 2, ring.few, ring.fewOlder)
	w.Over(dir, false)
	o = rig.Call{Bundle: ring.few, Dir: dir, Wrap: strace("renameat2:error=EINVAL")}.Run(t)
	o.Counts(t, 3, 1, 0, 0)
	w.End()
	rig.Holds(t, ring.few, dir)
	rig.Clean(t, ring.few, dir)
	rig.Kept(t, dir, "static", before)
}

// Something else may be mounted in the folder, of the same file system too: nothing of it is cleared away.
func TestMountsInTheFolderAreLeft(t *testing.T) {
	for _, at := range []string{".chandler/tmp/left", ".chandler/tmp", ".chandler"} {
		t.Run(at, func(t *testing.T) {
			precious, dir := t.TempDir(), t.TempDir()
			rig.Write(t, filepath.Join(precious, "file"), "gold", 0o644)
			rig.Write(t, filepath.Join(rig.Mkdir(t, filepath.Join(precious, "sub")), "file"), "gold", 0o644)
			path := rig.Mkdir(t, filepath.Join(dir, at))
			if err := os.Chmod(filepath.Join(dir, ".chandler"), 0o700); err != nil {
				t.Fatal(err)
			}
			bind(t, precious, path, 0)
			before := rig.Tree(t, precious)
			o := rig.Stage(t, ring.few, dir)
			rig.Unchanged(t, before, rig.Tree(t, precious))
			if at == ".chandler/tmp/left" {
				o.Counts(t, 4, 0, 0, 0)
				o.Says(t, "leftovers of an earlier run stay")
				return
			}
			o.Counts(t, 0, 0, 0, 4)
			for name, cause := range o.Failed() {
				if cause != at+" is a mount point" {
					t.Errorf("%s: %s", name, cause)
				}
			}
		})
	}
}
