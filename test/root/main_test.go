//go:build root

package root

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/test/rig"
)

// ring is what all tests share.
var ring struct {
	bundle   string // the fourteen, each a file of its own
	shared   string // the fourteen names of one file
	older    string // the fourteen with other bytes, which run all the same
	few      string // four of the fourteen
	fewOlder string
}

var fewNames = []string{"host-local", "sbr", "static", "tuning"}

func TestMain(m *testing.M) {
	os.Exit(rig.Ring{
		Name: "root",
		Tools: []string{"busybox", "chattr", "go", "ip", "iptables", "mkfs.btrfs", "mkfs.ext4", "mkfs.xfs", "mount", "nsenter", "prlimit",
			"setpriv", "strace", "tc", "umount", "unshare"},
		FileSystems: []string{"btrfs", "ext4", "overlay", "tmpfs", "xfs"},
		Network:     true,
		Roles:       map[string]func() int{"cowrite": cowrite},
		SetUp:       setUp,
		LastWords:   lastWords,
	}.Main(m))
}

// setUp makes a loopback, an ext4 file system for the tests' temporary files, and the bundles.
func setUp() error {
	for _, args := range []string{"link set lo up", "netns add first", "netns del first"} { // the first makes a mount for all
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	work := filepath.Join(rig.Dir, "work")
	if err := rig.MakeDisk("ext4", filepath.Join(rig.Dir, "work.img"), 3<<30, work); err != nil {
		return err
	}
	if err := os.Setenv("TMPDIR", work); err != nil {
		return err
	}
	for name, at := range map[string]*string{"older": &ring.older, "few": &ring.few, "few-older": &ring.fewOlder} {
		*at = filepath.Join(rig.Dir, name)
	}
	ring.bundle, ring.shared = rig.Bundle, rig.Multicall
	var err error
	if rig.Bundle == rig.Multicall {
		ring.bundle = filepath.Join(rig.Dir, "separate")
		err = separate(ring.bundle, rig.Bundle)
	}
	return errors.Join(err,
		rig.Derive(ring.older, ring.bundle, "v1.8.0", rig.Reference, "an older build"),
		rig.Derive(ring.few, ring.bundle, rig.Version, fewNames, ""),
		rig.Derive(ring.fewOlder, ring.bundle, "v1.8.0", fewNames, "an older build"),
	)
}

// separate makes files of their own of the fourteen names of one file.
func separate(out, from string) error {
	return rig.Compose(out, rig.Version, func(w *bundle.Writer) error {
		for _, name := range rig.Reference {
			if err := rig.AddFrom(w, from, []string{name}, " of "+name); err != nil {
				return err
			}
		}
		return nil
	})
}

func lastWords(took time.Duration) {
	fmt.Printf("root ring: %d chandler runs, of which %d were killed; %s on Linux %s, %d CPUs, as uid %d, on ext4, xfs, btrfs, tmpfs, overlayfs\n",
		rig.Runs.Load(), rig.Kills.Load(), took, release(), runtime.NumCPU(), os.Geteuid())
	if attached := attachedPlugins(); len(attached) > 0 {
		fmt.Printf("root ring: staged plugins that attached a network: %s\n", strings.Join(attached, " "))
	}
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(u.Release[:])
}
