//go:build root

package root

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
)

const (
	insideEnv = "CHANDLER_RING" // the ring's name, set in the process that runs the tests
	roleEnv   = "CHANDLER_RING_ROLE"
)

// reference is the set that the ring wants of its bundle.
var reference = []string{"bandwidth", "bridge", "firewall", "host-device", "host-local", "ipvlan", "macvlan", "portmap", "ptp",
	"sbr", "static", "tuning", "vlan", "vrf"}

// ring is what all tests share.
var ring struct {
	id       string
	dir      string // a tmpfs that only the ring sees
	chandler string
	given    string // the fourteen, as BUNDLE has them
	other    string // the same, built in the other form
	bundle   string // the fourteen, each a file of its own
	shared   string // the fourteen names of one file
	older    string // the fourteen with other bytes, which run all the same
	few      string // four of the fourteen
	fewOlder string
}

var fewNames = []string{"host-local", "sbr", "static", "tuning"}

// TestMain is three programs: outside makes the namespaces and looks for what was left behind; inside runs the tests in
// them; a role is another process that a test needs.
func TestMain(m *testing.M) {
	if name := os.Getenv(roleEnv); name != "" {
		os.Exit(roles[name]())
	}
	if ring.id = os.Getenv(insideEnv); ring.id == "" {
		os.Exit(outside())
	}
	os.Exit(inside(m))
}

// tools are the commands that the tests run, each with the Debian package that has it.
var tools = map[string]string{
	"busybox": "busybox", "chattr": "e2fsprogs", "go": "", "ip": "iproute2", "iptables": "iptables", "mkfs.btrfs": "btrfs-progs",
	"mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs", "mount": "mount", "nsenter": "util-linux", "prlimit": "util-linux",
	"setpriv": "util-linux", "strace": "strace", "tc": "iproute2", "umount": "mount", "unshare": "util-linux",
}

// preflight says everything that keeps the ring from running.
func preflight() []string {
	var missing []string
	add := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	if os.Geteuid() != 0 {
		add("root: this process is uid %d", os.Geteuid())
	}
	listed, err := os.ReadFile("../packages.txt")
	if err != nil {
		add("the list of packages: %v", err)
	}
	for tool, pkg := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			add("the tool %s (Debian package %s)", tool, pkg)
		}
		if pkg != "" && !slices.ContainsFunc(strings.Split(string(listed), "\n"), func(l string) bool {
			return strings.Fields(l + " #")[0] == pkg
		}) {
			add("the package %s in test/packages.txt, for %s", pkg, tool)
		}
	}
	chandler := os.Getenv("CHANDLER")
	if !filepath.IsAbs(chandler) {
		add("CHANDLER: %q is not the absolute path of the program", chandler)
	} else if f, err := elf.Open(chandler); err != nil {
		add("CHANDLER: %v", err)
	} else if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		add("CHANDLER: %s is not static; build it with CGO_ENABLED=0", chandler)
	}
	var versions []string
	forms := make(map[bool]bool) // which answers there are to whether one file has all names
	for _, name := range []string{"BUNDLE", "OTHER_BUNDLE"} {
		dir := os.Getenv(name)
		if !filepath.IsAbs(dir) {
			add("%s: %q is not the absolute path of a bundle", name, dir)
		} else if b, err := bundle.Open(dir); err != nil {
			add("%s: %s: %v", name, dir, err)
		} else if names := pluginNames(b); !slices.Equal(names, reference) {
			add("%s: %s holds %v and not the reference set", name, dir, names)
		} else {
			versions = append(versions, b.Manifest.Version)
			forms[shared(b)] = true
			b.Close()
		}
	}
	if len(versions) == 2 && (len(forms) != 2 || versions[0] != versions[1]) {
		add("OTHER_BUNDLE: the plugins of BUNDLE in the other form, separate or multi-call")
	}
	filesystems, _ := os.ReadFile("/proc/filesystems")
	for _, want := range []string{"btrfs", "ext4", "overlay", "tmpfs", "xfs"} {
		if !slices.Contains(strings.Fields(string(filesystems)), want) {
			add("the file system %s in this kernel", want)
		}
	}
	slices.Sort(missing)
	return missing
}

func pluginNames(b *bundle.Bundle) []string {
	var names []string
	for _, p := range b.Manifest.Plugins {
		names = append(names, p.Name)
	}
	return names
}

// shared is whether one file has all names of a bundle.
func shared(b *bundle.Bundle) bool {
	return b.Manifest.Plugins[0].SHA256 == b.Manifest.Plugins[1].SHA256
}

// outside runs the same program again in namespaces of its own, and looks afterwards for what was left behind.
func outside() int {
	if missing := preflight(); len(missing) > 0 {
		fmt.Fprintln(os.Stderr, "the root ring cannot run; it needs:")
		for _, m := range missing {
			fmt.Fprintln(os.Stderr, "  "+m)
		}
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	id := fmt.Sprintf("chandler-ring-%d", os.Getpid())
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"="+id)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	runtime.LockOSThread() // the death signal is bound to it
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "make namespaces:", err)
		return 1
	}
	go func() {
		for s := range signals {
			cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	code := cmd.ProcessState.ExitCode()
	if code < 0 {
		fmt.Fprintln(os.Stderr, "the ring:", err)
		code = 1
	}
	if left := leftBehind(id); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: the ring left behind on this machine: %s\n", strings.Join(left, ", "))
		return 1
	}
	return code
}

// leftBehind lists what carries the ring's name on the machine. The kernel takes a moment to let go of a mount namespace.
func leftBehind(id string) []string {
	var left []string
	for range 50 {
		left = nil
		loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, file := range append(loops, "/proc/self/mountinfo") {
			if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), id) {
				left = append(left, file)
			}
		}
		for _, pattern := range []string{"/run/*", filepath.Join(os.TempDir(), "*")} {
			paths, _ := filepath.Glob(pattern)
			for _, p := range paths {
				if strings.Contains(p, id) {
					left = append(left, p)
				}
			}
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return left
}

func inside(m *testing.M) int {
	start := time.Now()
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "set up the root ring:", err)
		return 1
	}
	before := belongings()
	code := m.Run()
	if left := without(belongings(), before); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: tests left behind: %s\n", strings.Join(left, "; "))
		code = 1
	}
	fmt.Printf("root ring: %d chandler runs, of which %d were killed; %s on Linux %s, %d CPUs, as uid %d, on ext4, xfs, btrfs, tmpfs, overlayfs\n",
		runs.Load(), kills.Load(), time.Since(start).Round(time.Second), release(), runtime.NumCPU(), os.Geteuid())
	if attached := attachedPlugins(); len(attached) > 0 {
		fmt.Printf("root ring: staged plugins that attached a network: %s\n", strings.Join(attached, " "))
	}
	return code
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(u.Release[:])
}

// setUp makes the ring's own world in its namespaces: /proc of its processes, /sys of its network, an empty /run, a
// loopback, and an ext4 file system for the tests' temporary files. Nothing of it is on the machine's disks.
func setUp() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/run"}} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	ring.dir = "/run/" + ring.id
	if err := os.Mkdir(ring.dir, 0o755); err != nil {
		return err
	}
	for _, args := range []string{"link set lo up", "netns add first", "netns del first"} { // the first makes a mount for all
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	work := filepath.Join(ring.dir, "work")
	if err := makeDisk("ext4", filepath.Join(ring.dir, ring.id+"-work.img"), 3<<30, work); err != nil {
		return err
	}
	// The go command keeps its cache where it was.
	if err := os.Setenv("TMPDIR", work); err != nil {
		return err
	}
	ring.chandler, ring.given, ring.other = os.Getenv("CHANDLER"), os.Getenv("BUNDLE"), os.Getenv("OTHER_BUNDLE")
	ring.bundle, ring.shared = ring.given, ring.given
	for name, at := range map[string]*string{"older": &ring.older, "few": &ring.few, "few-older": &ring.fewOlder} {
		*at = filepath.Join(ring.dir, name)
	}
	b, err := bundle.Open(ring.given)
	if err != nil {
		return err
	}
	defer b.Close()
	// Of the two forms of a bundle, the one that was not given is made from it.
	if shared(b) {
		ring.bundle = filepath.Join(ring.dir, "separate")
		err = deriveBundle(ring.bundle, b.Manifest.Version, reference, "")
	} else {
		ring.shared = filepath.Join(ring.dir, "shared")
		err = shareBundle(ring.shared, b)
	}
	return errors.Join(err,
		deriveBundle(ring.older, "v1.8.0", reference, "an older build"),
		deriveBundle(ring.few, b.Manifest.Version, fewNames, ""),
		deriveBundle(ring.fewOlder, "v1.8.0", fewNames, "an older build"),
	)
}

// belongings lists what tests make and have to take away again: mounts, links, network namespaces, processes.
func belongings() []string {
	var has []string
	if f, err := os.Open("/proc/self/mountinfo"); err == nil {
		for s := bufio.NewScanner(f); s.Scan(); {
			has = append(has, "mount "+strings.Fields(s.Text())[4])
		}
		f.Close()
	}
	links, _ := os.ReadDir("/sys/class/net")
	for _, l := range links {
		has = append(has, "link "+l.Name())
	}
	spaces, _ := os.ReadDir("/run/netns")
	for _, n := range spaces {
		has = append(has, "network namespace "+n.Name())
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		// What was killed and lost its parent waits for the first process, which is this one, to end.
		stat, err := os.ReadFile(p + "/stat")
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			has = append(has, "process "+string(stat[:strings.IndexByte(string(stat), ')')+1]))
		}
	}
	return has
}

func without(have, had []string) []string {
	for _, h := range had {
		if i := slices.Index(have, h); i >= 0 {
			have = slices.Delete(have, i, i+1)
		}
	}
	return have
}
