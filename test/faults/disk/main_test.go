//go:build faults

package disk

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
)

const (
	insideEnv = "CHANDLER_FAULTS" // the ring's name, set in the process that runs the tests
	roleEnv   = "CHANDLER_FAULTS_ROLE"
)

// ring is what all tests share.
var ring struct {
	id        string
	dir       string // a tmpfs that only the ring sees
	chandler  string
	multicall string // the fourteen names of one file
	separate  string // the fourteen, each a file of its own
	few       string // five of the fourteen, each a file of its own
	fewOlder  string // the same with other bytes, which run all the same
	linked    string // three names of one file
	full      bool
	seed      uint64
}

var (
	fewNames    = []string{"host-local", "sbr", "static", "tuning", "vrf"}
	linkedNames = []string{"bridge", "static", "vlan"}
)

// roles are the other processes of the tests.
var roles = map[string]func() int{"disk": serveDisk}

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

// preflight says everything that keeps the ring from running.
func preflight() (missing []string) {
	if os.Geteuid() != 0 {
		missing = append(missing, fmt.Sprintf("root: this process is uid %d", os.Geteuid()))
	}
	for _, tool := range []string{"busybox", "mkfs.btrfs", "mkfs.ext4", "mkfs.xfs", "mount", "strace", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, "the tool "+tool)
		}
	}
	for _, name := range []string{"CHANDLER", "BUNDLE", "OTHER_BUNDLE"} {
		if path := os.Getenv(name); !filepath.IsAbs(path) || !exists(path) {
			missing = append(missing, fmt.Sprintf("%s: %q is no absolute path of what is there", name, path))
		}
	}
	filesystems, _ := os.ReadFile("/proc/filesystems")
	for _, want := range []string{"btrfs", "ext4", "fuse", "tmpfs", "xfs"} {
		if !slices.Contains(strings.Fields(string(filesystems)), want) {
			missing = append(missing, fmt.Sprintf("the file system %s in this kernel", want))
		}
	}
	return missing
}

// outside runs the same program again in namespaces of its own, and looks afterwards for what was left behind.
func outside() int {
	if missing := preflight(); len(missing) > 0 {
		fmt.Fprintf(os.Stderr, "the faults ring cannot run; it needs:\n  %s\n", strings.Join(missing, "\n  "))
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	id := fmt.Sprintf("chandler-faults-%d", os.Getpid())
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"="+id)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
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
	// The mounts have to outlast the process that serves the disk below them: if it were the last one to have them, it would
	// unmount the file system as it ends, and wait for itself.
	mounts, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", cmd.Process.Pid))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		cmd.Process.Kill()
	}
	err = cmd.Wait()
	mounts.Close()
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
func leftBehind(id string) (left []string) {
	for range 50 {
		left = nil
		for _, pattern := range []string{"/sys/block/loop*/loop/backing_file", "/proc/self/mountinfo"} {
			files, _ := filepath.Glob(pattern)
			for _, f := range files {
				if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), id) {
					left = append(left, f)
				}
			}
		}
		for _, pattern := range []string{"/run/", os.TempDir() + "/", "/sys/fs/cgroup/", "/sys/fs/cgroup/memory/"} {
			paths, _ := filepath.Glob(pattern + "*" + id + "*")
			left = append(left, paths...)
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
		fmt.Fprintln(os.Stderr, "set up the faults ring:", err)
		return 1
	}
	before := mounts()
	code := m.Run()
	for _, at := range mounts() {
		if !slices.Contains(before, at) {
			fmt.Fprintf(os.Stderr, "FAIL: a test left %s mounted\n", at)
			code = 1
		}
	}
	if runs.Load() > 0 {
		fmt.Printf("faults ring: disk: %d chandler runs in %s, %s; FAULTS_SEED=%d\n", runs.Load(),
			time.Since(start).Round(time.Second), cmp.Or(examined.String(), "no power cut"), ring.seed)
	}
	return code
}

func mounts() (at []string) {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(data)) {
		at = append(at, strings.Fields(line)[4])
	}
	return at
}

// setUp makes the ring's own world in its namespaces: /proc of its processes, an empty /run for all that it makes.
func setUp() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"tmpfs", "/run"}} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	ring.dir = "/run/" + ring.id
	if err := os.MkdirAll(filepath.Join(ring.dir, "tmp"), 0o755); err != nil {
		return err
	}
	if err := os.Setenv("TMPDIR", filepath.Join(ring.dir, "tmp")); err != nil {
		return err
	}
	ring.full = os.Getenv("FAULTS_FULL") == "1"
	ring.seed = rand.Uint64()
	if given := os.Getenv("FAULTS_SEED"); given != "" {
		var err error
		if ring.seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			return fmt.Errorf("FAULTS_SEED: %w", err)
		}
	}
	fmt.Printf("FAULTS_SEED=%d\n", ring.seed)
	ring.chandler, ring.multicall, ring.separate = os.Getenv("CHANDLER"), os.Getenv("BUNDLE"), os.Getenv("OTHER_BUNDLE")
	for name, at := range map[string]*string{"few": &ring.few, "few-older": &ring.fewOlder, "linked": &ring.linked} {
		*at = filepath.Join(ring.dir, name)
	}
	m, err := bundle.Open(ring.multicall)
	if err != nil {
		return err
	}
	defer m.Close()
	if m.Manifest.Plugins[0].SHA256 != m.Manifest.Plugins[1].SHA256 {
		return errors.New("BUNDLE: not one file under all names")
	}
	return errors.Join(
		derive(ring.few, ring.separate, "v1.9.1", fewNames, ""),
		derive(ring.fewOlder, ring.separate, "v1.8.0", fewNames, "an older build"),
		derive(ring.linked, ring.multicall, "v1.9.1", linkedNames, ""),
	)
}

// derive makes a bundle of some plugins of another, with tail behind the bytes of each, which the kernel does not look at.
// What is one file there is one here.
func derive(out, from, version string, names []string, tail string) error {
	base, err := bundle.Open(from)
	if err != nil {
		return err
	}
	defer base.Close()
	w, err := bundle.Create(out, version, runtime.GOARCH, bundle.Source{Kind: "dir"})
	if err != nil {
		return err
	}
	defer w.Close()
	first := make(map[string]string) // by digest
	for _, name := range names {
		p, ok := base.Plugin(name)
		if !ok {
			return fmt.Errorf("no %s in %s", name, from)
		}
		if other, ok := first[p.SHA256]; ok {
			if _, err := w.Link(name, p.Role, other); err != nil {
				return err
			}
			continue
		}
		first[p.SHA256] = name
		data, err := os.ReadFile(filepath.Join(from, "bin", name))
		if err != nil {
			return err
		}
		if _, err := w.Add(name, p.Role, strings.NewReader(string(data)+tail)); err != nil {
			return err
		}
	}
	_, err = w.Commit()
	return err
}
