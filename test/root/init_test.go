//go:build root

package root

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

// container is the root file system of an init container as the chart makes it, with what the kubelet mounts into it.
type container struct {
	root string
	host string // the node's directory
	log  string // the file behind /dev/termination-log
}

// Parts that a container may lack.
const (
	lacksProc = 1 << iota
	lacksNull
	lacksLog
	lacksVolume // the bin dir is the image's own directory
	lacksBundle
	emptyBundle
	readOnlyVolume
)

func newContainer(t *testing.T, lacks int) container {
	t.Helper()
	c := container{root: tmpfs(t, "size=16m"), host: filepath.Join(t.TempDir(), "opt/cni/bin"), log: filepath.Join(t.TempDir(), "log")}
	rig.Mkdir(t, c.host)
	rig.Write(t, c.log, strings.Repeat("x", 8192), 0o666)
	in := func(path string) string { return filepath.Join(c.root, path) }
	for _, d := range []string{"dev", "proc", "host/opt/cni/bin"} {
		rig.Mkdir(t, in(d))
	}
	file := func(path string) string { rig.Write(t, in(path), "", 0o755); return in(path) }
	bind(t, rig.Chandler, file("chandler"), unix.MS_RDONLY)
	switch {
	case lacks&emptyBundle != 0:
		rig.Mkdir(t, in("cni-plugins"))
	case lacks&lacksBundle == 0:
		bind(t, ring.few, rig.Mkdir(t, in("cni-plugins")), unix.MS_RDONLY)
	}
	if lacks&lacksVolume == 0 {
		var flags uintptr
		if lacks&readOnlyVolume != 0 {
			flags = unix.MS_RDONLY
		}
		bind(t, c.host, in("host/opt/cni/bin"), flags)
	}
	if lacks&lacksLog == 0 {
		bind(t, c.log, file("dev/termination-log"), 0)
	}
	if lacks&lacksNull == 0 {
		if err := unix.Mknod(in("dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
			t.Fatal(err)
		}
	}
	if lacks&lacksProc == 0 {
		rig.Mounted(t, "proc", in("proc"), "proc", 0, "")
	}
	// As with readOnlyRootFilesystem: true.
	if err := unix.Mount("", c.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	return c
}

// run runs chandler in the container, in a mount namespace of its own, with the flags that the chart gives.
func (c container) run(t *testing.T, args ...string) rig.Outcome {
	t.Helper()
	p := rig.Call{Program: "/chandler", Chroot: c.root, NoLog: true, Args: append([]string{"--init", "--shown-as", "/opt/cni/bin"}, args...)}.Command(t)
	p.Cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	p.Cmd.Env = []string{"PATH=/bin"}
	if err := p.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := p.Wait()
	if o.Log = rig.Read(t, c.log); strings.HasPrefix(o.Log, "xxxx") {
		o.Log = ""
	}
	if o.Code != 0 || o.Signal != 0 {
		t.Fatalf("with --init: exit %d, signal %v\n%s", o.Code, o.Signal, o.Stderr)
	}
	return o
}

// With --init every outcome lets the pod go on and is told in the termination log.
func TestInitContainer(t *testing.T) {
	t.Run("as the chart makes it", func(t *testing.T) {
		c := newContainer(t, 0)
		o := c.run(t)
		o.Counts(t, 4, 0, 0, 0)
		if !strings.Contains(o.Log, ") into /opt/cni/bin: 4 new, 0 replaced, 0 unchanged\n") || strings.Count(o.Log, "\n") != 1 {
			t.Fatalf("log %q", o.Log)
		}
		rig.Holds(t, ring.few, c.host)
		rig.Clean(t, ring.few, c.host)
		c.run(t).Counts(t, 0, 0, 4, 0)
	})
	for name, lacks := range map[string]int{"no proc": lacksProc, "no dev null": lacksNull, "neither": lacksProc | lacksNull} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, lacks)
			c.run(t).Counts(t, 4, 0, 0, 0)
			rig.Holds(t, ring.few, c.host)
			rig.Clean(t, ring.few, c.host)
		})
	}
	t.Run("no termination log", func(t *testing.T) {
		c := newContainer(t, lacksLog)
		o := c.run(t)
		if o.Stderr != "" || len(o.Report.Plugins) != 4 || len(o.Failed()) > 0 {
			t.Fatalf("stderr %q", o.Stderr)
		}
		rig.Holds(t, ring.few, c.host)
		if rig.Exists(filepath.Join(c.root, "dev/termination-log")) {
			t.Fatal("it was made")
		}
	})
	t.Run("no volume", func(t *testing.T) {
		c := newContainer(t, lacksVolume)
		o := c.run(t)
		o.Told(t)
		o.Says(t, "bin dir /opt/cni/bin: is not a mount point: nothing staged there would reach the host; nothing was staged\n")
		o.Says(t, "hint: mount the host's directory there")
		if names, _ := os.ReadDir(filepath.Join(c.root, "host/opt/cni/bin")); len(names) > 0 {
			t.Fatalf("staged into the container: %v", names)
		}
	})
	t.Run("a volume that is read-only", func(t *testing.T) {
		c := newContainer(t, readOnlyVolume)
		o := c.run(t)
		o.Counts(t, 0, 0, 0, 4)
		o.Says(t, "hint: /opt/cni/bin is read-only here; in a pod, the volume mount must not be readOnly\n")
	})
	t.Run("no bundle", func(t *testing.T) {
		c := newContainer(t, lacksBundle)
		o := c.run(t)
		if o.Log != "no bundle at /cni-plugins; skipping staging\n" || o.Stderr != o.Log || o.Report.Outcome != "skipped" {
			t.Fatalf("log %q, stderr %q", o.Log, o.Stderr)
		}
	})
	t.Run("an empty bundle", func(t *testing.T) {
		c := newContainer(t, emptyBundle)
		o := c.run(t)
		if o.Log != "empty bundle at /cni-plugins; skipping staging\n" || o.Stderr != o.Log {
			t.Fatalf("log %q, stderr %q", o.Log, o.Stderr)
		}
	})
	t.Run("a flag of a newer chart", func(t *testing.T) {
		c := newContainer(t, 0)
		o := c.run(t, "--no-such-flag")
		if o.Log == "" || o.Log != o.Stderr || !strings.Contains(o.Log, "wrong usage: unknown flag: --no-such-flag") {
			t.Fatalf("log %q, stderr %q", o.Log, o.Stderr)
		}
		if names, _ := os.ReadDir(c.host); len(names) > 0 {
			t.Fatalf("there: %v", names)
		}
	})
	t.Run("a value that cannot be", func(t *testing.T) {
		c := newContainer(t, 0)
		o := c.run(t, "--lock-wait", "-1s")
		if o.Log != o.Stderr || !strings.Contains(o.Log, "wrong usage: --lock-wait -1s") {
			t.Fatalf("log %q, stderr %q", o.Log, o.Stderr)
		}
	})
}
