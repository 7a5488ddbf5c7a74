//go:build faults

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

// What the ring root has of scarcity, and is not here again: full disks, few open files, small files, no capabilities.

// insideMounts makes a command that runs chandler in a mount namespace of its own, after a shell has done something there.
func insideMounts(script string) []string {
	return []string{"unshare", "--mount", "sh", "-c", "set -e; " + script + `; exec "$@"`, "sh"}
}

// A container is given 16 MiB of memory, the plugins that are run to see whether they can included.
func TestLittleMemory(t *testing.T) {
	const limit = 16 << 20
	for _, bundle := range []string{rig.Multicall, rig.Separate} {
		for _, update := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, update %v", filepath.Base(bundle), update), func(t *testing.T) {
				d := newDisk(t, 640<<20) // what is written to a tmpfs would be memory too
				d.format("ext4")
				dir := rig.Mkdir(t, filepath.Join(d.at, "bin"))
				if update {
					rig.Place(t, ring.fewOlder, dir, fewNames...)
				}
				group := memoryGroup(t, limit)
				o := rig.Call{Bundle: bundle, Dir: dir, Wrap: []string{"sh", "-c", `echo $$ >"$0/cgroup.procs"; exec "$@"`, group}}.Run(t)
				if update {
					o.Counts(t, 9, 5, 0, 0)
				} else {
					o.Counts(t, 14, 0, 0, 0)
				}
				rig.Holds(t, bundle, dir, rig.Reference...)
				for _, file := range []string{"memory.max_usage_in_bytes", "memory.peak"} {
					if peak, err := os.ReadFile(filepath.Join(group, file)); err == nil {
						n, _ := strconv.ParseInt(strings.TrimSpace(string(peak)), 10, 64)
						// Some allocations may not fail, and the kernel charges them past the limit: a few pages.
						if n < 4<<20 || n > limit+1<<20 {
							t.Errorf("%s: %d bytes: the limit was on something else", file, n)
						}
					}
				}
			})
		}
	}
}

// memoryGroup makes a cgroup of either version with a limit.
func memoryGroup(t *testing.T, limit int64) string {
	t.Helper()
	group, file := "/sys/fs/cgroup/memory/"+rig.ID, "memory.limit_in_bytes"
	if !rig.Exists("/sys/fs/cgroup/memory") {
		group, file = "/sys/fs/cgroup/"+rig.ID, "memory.max"
	}
	rig.Must(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() {
		rig.Eventually(t, "the cgroup is removed", func() bool { return os.Remove(group) == nil })
	})
	rig.Must(t, os.WriteFile(filepath.Join(group, file), []byte(fmt.Sprint(limit)), 0o644))
	return group
}

// A node's or a container's world may lack what most have.
func TestBareContainer(t *testing.T) {
	for name, script := range map[string]string{
		"no /proc":            "mount -t tmpfs none /proc; test ! -e /proc/self",
		"no /dev":             "mount -t tmpfs none /dev; test ! -e /dev/null",
		"no /sys":             "mount -t tmpfs none /sys",
		"a read-only root":    "mount -o remount,bind,ro /; ! touch /here 2>/dev/null",
		"no /tmp":             "mount -t tmpfs none /tmp; mount -o remount,ro /tmp; unset TMPDIR HOME PATH",
		"nothing of all that": "mount -t tmpfs none /proc; mount -t tmpfs none /dev; mount -t tmpfs none /sys; mount -o remount,bind,ro /",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			rig.Place(t, ring.fewOlder, dir, "static", "sbr")
			c := rig.Call{Bundle: ring.few, Dir: dir, Wrap: insideMounts(script)}
			c.Run(t).Counts(t, 3, 2, 0, 0)
			rig.Holds(t, ring.few, dir, fewNames...)
			rig.Clean(t, ring.few, dir)
			c.Run(t).Counts(t, 0, 0, 5, 0)
		})
	}
}

// Outside a pod there is no termination log: none is made, and nothing is said of it.
func TestNoTerminationLog(t *testing.T) {
	const log = "/dev/termination-log"
	if rig.Exists(log) {
		t.Fatalf("%s is there: this shows nothing", log)
	}
	dir := t.TempDir()
	o := rig.Call{Bundle: ring.few, Dir: dir, NoLog: true, Args: []string{"--termination-log", log}}.Run(t)
	if o.Code != 0 || o.Stderr != "" || rig.Exists(log) {
		t.Errorf("exit %d, stderr %q, the log is there: %v", o.Code, o.Stderr, rig.Exists(log))
	}
	rig.Holds(t, ring.few, dir)
}

// The disk has no inode left for the k-th thing that staging makes, for each k: the files, the marks, the folders of originals,
// the ledger. What is reported as staged is, what was there is there or kept, and with room again the next run puts all right.
func TestDiskIsFullAtEachInode(t *testing.T) {
	for _, update := range []bool{false, true} {
		t.Run(fmt.Sprintf("update %v", update), func(t *testing.T) {
			failures, kept := 0, 0
			for k := 0; ; k++ {
				at := t.TempDir()
				rig.Must(t, unix.Mount("tmpfs", at, "tmpfs", 0, "size=200m,nr_inodes=200"))
				t.Run(fmt.Sprint(k), func(t *testing.T) {
					t.Cleanup(func() { rig.Unmount(t, at) })
					dir := rig.Mkdir(t, filepath.Join(at, "bin"))
					before := make(map[string]rig.Identity)
					if update {
						rig.Place(t, ring.fewOlder, dir, "static", "sbr", "vrf")
						for _, name := range []string{"static", "sbr", "vrf"} {
							before[name] = rig.Identify(t, filepath.Join(dir, name))
						}
					}
					var st unix.Statfs_t
					rig.Must(t, unix.Statfs(at, &st))
					rig.Must(t, unix.Mount("tmpfs", at, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("nr_inodes=%d", int(st.Files-st.Ffree)+k)))
					o := rig.Stage(t, ring.few, dir)
					failed := o.Failed()
					if o.Code != 0 || o.Report.Outcome != "staged" {
						t.Fatalf("exit %d: %s", o.Code, o.Stderr)
					}
					failures = len(failed) + len(o.Report.Warnings)
					for _, name := range fewNames {
						path := filepath.Join(dir, name)
						cause, bad := failed[name]
						switch was, had := before[name]; {
						case !bad:
							rig.Holds(t, ring.few, dir, name)
							if had {
								kept++
								rig.Kept(t, dir, name, was)
							}
						case !strings.Contains(cause, "no space left on device"):
							t.Errorf("%s: %s", name, cause)
						case had && rig.Identify(t, path) != was:
							t.Errorf("%s failed and is another file", name)
						case !had && rig.Exists(path):
							t.Errorf("%s failed and is there", name)
						}
					}
					rig.Clean(t, ring.few, dir)
					rig.Must(t, unix.Mount("tmpfs", at, "tmpfs", unix.MS_REMOUNT, "nr_inodes=200"))
					if o := rig.Stage(t, ring.few, dir); o.Code != 0 || len(o.Failed())+len(o.Report.Warnings) > 0 {
						t.Fatalf("exit %d: %s", o.Code, o.Stderr)
					}
					rig.Holds(t, ring.few, dir, fewNames...)
					for name, was := range before {
						rig.Kept(t, dir, name, was)
					}
				})
				if t.Failed() || failures == 0 {
					t.Logf("full at each of %d", k)
					if k < 10 {
						t.Error("too few: this shows nothing")
					}
					break
				}
			}
		})
	}
}
