//go:build root

package root

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
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
	mkdir(t, c.host)
	write(t, c.log, strings.Repeat("x", 8192), 0o666)
	in := func(path string) string { return filepath.Join(c.root, path) }
	for _, d := range []string{"dev", "proc", "host/opt/cni/bin"} {
		mkdir(t, in(d))
	}
	file := func(path string) string { write(t, in(path), "", 0o755); return in(path) }
	bind(t, ring.chandler, file("chandler"), unix.MS_RDONLY)
	switch {
	case lacks&emptyBundle != 0:
		mkdir(t, in("cni-plugins"))
	case lacks&lacksBundle == 0:
		bind(t, ring.few, mkdir(t, in("cni-plugins")), unix.MS_RDONLY)
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
		mounted(t, "proc", in("proc"), "proc", 0, "")
	}
	// As with readOnlyRootFilesystem: true.
	if err := unix.Mount("", c.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	return c
}

// run runs chandler in the container, in a mount namespace of its own, with the flags that the chart gives.
func (c container) run(t *testing.T, args ...string) outcome {
	t.Helper()
	p := call{program: "/chandler", chroot: c.root, noLog: true, args: append([]string{"--init", "--shown-as", "/opt/cni/bin"}, args...)}.command(t)
	p.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	p.cmd.Env = []string{"PATH=/bin"}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := p.wait()
	if o.log = read(t, c.log); strings.HasPrefix(o.log, "xxxx") {
		o.log = ""
	}
	if o.code != 0 || o.signal != 0 {
		t.Fatalf("with --init: exit %d, signal %v\n%s", o.code, o.signal, o.stderr)
	}
	return o
}

// With --init every outcome lets the pod go on and is told in the termination log.
func TestInitContainer(t *testing.T) {
	t.Run("as the chart makes it", func(t *testing.T) {
		c := newContainer(t, 0)
		o := c.run(t)
		o.counts(t, 4, 0, 0, 0)
		if !strings.Contains(o.log, ") into /opt/cni/bin: 4 new, 0 replaced, 0 unchanged\n") || strings.Count(o.log, "\n") != 1 {
			t.Fatalf("log %q", o.log)
		}
		holds(t, ring.few, c.host)
		clean(t, ring.few, c.host)
		c.run(t).counts(t, 0, 0, 4, 0)
	})
	for name, lacks := range map[string]int{"no proc": lacksProc, "no dev null": lacksNull, "neither": lacksProc | lacksNull} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, lacks)
			c.run(t).counts(t, 4, 0, 0, 0)
			holds(t, ring.few, c.host)
			clean(t, ring.few, c.host)
		})
	}
	t.Run("no termination log", func(t *testing.T) {
		c := newContainer(t, lacksLog)
		o := c.run(t)
		if o.stderr != "" || len(o.report.Plugins) != 4 || len(o.failed()) > 0 {
			t.Fatalf("stderr %q", o.stderr)
		}
		holds(t, ring.few, c.host)
		if exists(filepath.Join(c.root, "dev/termination-log")) {
			t.Fatal("it was made")
		}
	})
	t.Run("no volume", func(t *testing.T) {
		c := newContainer(t, lacksVolume)
		o := c.run(t)
		o.told(t)
		o.says(t, "bin dir /opt/cni/bin: is not a mount point: nothing staged there would reach the host; nothing was staged\n")
		o.says(t, "hint: mount the host's directory there")
		if names, _ := os.ReadDir(filepath.Join(c.root, "host/opt/cni/bin")); len(names) > 0 {
			t.Fatalf("staged into the container: %v", names)
		}
	})
	t.Run("a volume that is read-only", func(t *testing.T) {
		c := newContainer(t, readOnlyVolume)
		o := c.run(t)
		o.counts(t, 0, 0, 0, 4)
		o.says(t, "hint: /opt/cni/bin is read-only here; in a pod, the volume mount must not be readOnly\n")
	})
	t.Run("no bundle", func(t *testing.T) {
		c := newContainer(t, lacksBundle)
		o := c.run(t)
		if o.log != "no bundle at /cni-plugins; skipping staging\n" || o.stderr != o.log || o.report.Outcome != "skipped" {
			t.Fatalf("log %q, stderr %q", o.log, o.stderr)
		}
	})
	t.Run("an empty bundle", func(t *testing.T) {
		c := newContainer(t, emptyBundle)
		o := c.run(t)
		if o.log != "empty bundle at /cni-plugins; skipping staging\n" || o.stderr != o.log {
			t.Fatalf("log %q, stderr %q", o.log, o.stderr)
		}
	})
	t.Run("a flag of a newer chart", func(t *testing.T) {
		c := newContainer(t, 0)
		o := c.run(t, "--no-such-flag")
		if o.log == "" || o.log != o.stderr || !strings.Contains(o.log, "wrong usage: unknown flag: --no-such-flag") {
			t.Fatalf("log %q, stderr %q", o.log, o.stderr)
		}
		if names, _ := os.ReadDir(c.host); len(names) > 0 {
			t.Fatalf("there: %v", names)
		}
	})
	t.Run("a value that cannot be", func(t *testing.T) {
		c := newContainer(t, 0)
		o := c.run(t, "--lock-wait", "-1s")
		if o.log != o.stderr || !strings.Contains(o.log, "wrong usage: --lock-wait -1s") {
			t.Fatalf("log %q, stderr %q", o.log, o.stderr)
		}
	})
}
