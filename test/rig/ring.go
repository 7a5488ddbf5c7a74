package rig

import (
	"bufio"
	"debug/elf"
	"fmt"
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
	insideEnv = "CHANDLER_RING" // the ring's name on this machine, set in the process that runs the tests
	roleEnv   = "CHANDLER_RING_ROLE"
)

// Reference is the set of plugins in the bundles that a ring is given.
var Reference = []string{"bandwidth", "bridge", "firewall", "host-device", "host-local", "ipvlan", "macvlan", "portmap", "ptp",
	"sbr", "static", "tuning", "vlan", "vrf"}

// What the tests run in and with. It is set before SetUp is called.
var (
	ID        string // the ring's name on this machine: all that it makes there has it in its path
	Dir       string // in a tmpfs that only the ring sees
	Chandler  string // the program
	Bundle    string // the fourteen, as BUNDLE has them
	Multicall string // the fourteen names of one file
	Separate  string // the fourteen, each a file of its own
	Version   string // of both
)

// Ring is a test program that needs root.
type Ring struct {
	Name        string                // as test/rings knows it
	Tools       []string              // the commands that its tests run
	FileSystems []string              // that the kernel has to know
	Network     bool                  // it has a network of its own
	Roles       map[string]func() int // its tests' other processes
	SetUp       func() error          // makes what its tests share
	LastWords   func(took time.Duration)
}

// Main is three programs: outside makes the namespaces and looks for what was left behind; inside runs the tests in them; a role
// is another process that a test needs.
func (r Ring) Main(m *testing.M) int {
	switch role := os.Getenv(roleEnv); role {
	case "":
	case watchRole:
		return watch()
	default:
		return r.Roles[role]()
	}
	if ID = os.Getenv(insideEnv); ID == "" {
		return r.outside()
	}
	return r.inside(m)
}

// packages are the Debian packages of the tools that a ring may name; empty for what is on every system that builds this.
var packages = map[string]string{
	"busybox": "busybox", "chattr": "e2fsprogs", "cp": "", "find": "", "git": "", "go": "", "install": "", "ip": "iproute2",
	"iptables": "iptables", "ln": "", "mkfs.btrfs": "btrfs-progs", "mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs", "mount": "mount",
	"mv": "", "nsenter": "util-linux", "prlimit": "util-linux", "setpriv": "util-linux", "sh": "", "strace": "strace", "tar": "",
	"tc": "iproute2", "umount": "mount", "unshare": "util-linux",
}

// preflight says everything that keeps the ring from running.
func (r Ring) preflight() []string {
	var missing []string
	add := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	if os.Geteuid() != 0 {
		add("root: this process is uid %d", os.Geteuid())
	}
	for _, tool := range r.Tools {
		pkg, known := packages[tool]
		if !known {
			add("the package of the tool %s in the table of test/rig", tool)
		}
		if _, err := exec.LookPath(tool); err != nil && pkg != "" {
			add("the tool %s (Debian package %s)", tool, pkg)
		} else if err != nil {
			add("the tool %s", tool)
		}
	}
	chandler := os.Getenv("CHANDLER")
	if !filepath.IsAbs(chandler) {
		add("CHANDLER: %q is not the absolute path of the program", chandler)
	} else if f, err := elf.Open(chandler); err != nil {
		add("CHANDLER: %v", err)
	} else {
		if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
			add("CHANDLER: %s is not static; build it with CGO_ENABLED=0", chandler)
		}
		f.Close()
	}
	missing = append(missing, findBundles()...)
	filesystems, _ := os.ReadFile("/proc/filesystems")
	for _, want := range r.FileSystems {
		if !slices.Contains(strings.Fields(string(filesystems)), want) {
			add("the file system %s in this kernel", want)
		}
	}
	slices.Sort(missing)
	return missing
}

// findBundles finds out which of the two given bundles is in which form, and says what is wrong with them.
func findBundles() []string {
	var wrong []string
	versions := make(map[string]bool)
	for _, env := range []string{"BUNDLE", "OTHER_BUNDLE"} {
		dir := os.Getenv(env)
		if !filepath.IsAbs(dir) {
			wrong = append(wrong, fmt.Sprintf("%s: %q is not the absolute path of a bundle", env, dir))
			continue
		}
		b, err := bundle.Open(dir)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %s: %v", env, dir, err))
			continue
		}
		defer b.Close()
		if names := pluginNames(b); !slices.Equal(names, Reference) {
			wrong = append(wrong, fmt.Sprintf("%s: %s holds %v and not the reference set", env, dir, names))
			continue
		}
		Version = b.Manifest.Version
		versions[Version] = true
		if b.Manifest.Plugins[0].SHA256 == b.Manifest.Plugins[1].SHA256 {
			Multicall = dir
		} else {
			Separate = dir
		}
	}
	if len(wrong) == 0 && (len(versions) != 1 || Multicall == "" || Separate == "") {
		wrong = append(wrong, "OTHER_BUNDLE: the plugins of BUNDLE in the other form, separate or multi-call")
	}
	return wrong
}

// outside runs the same program again in namespaces of its own, and looks afterwards for what was left behind.
func (r Ring) outside() int {
	if missing := r.preflight(); len(missing) > 0 {
		fmt.Fprintf(os.Stderr, "the %s ring cannot run; it needs:\n  %s\n", r.Name, strings.Join(missing, "\n  "))
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	id := fmt.Sprintf("chandler-%d-%s", os.Getpid(), r.Name)
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"="+id)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if r.Network {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
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
	// The mounts have to outlast a process that serves a disk below one of them: if it were the last one to have them, it would
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
	if left := stays(func() []string { return leftBehind(id) }); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: the ring left behind on this machine: %s\n", strings.Join(left, ", "))
		return 1
	}
	return code
}

// leftBehind lists what carries the ring's name on the machine.
func leftBehind(id string) []string {
	var left []string
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range append(loops, "/proc/self/mountinfo") {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), id) {
			left = append(left, file)
		}
	}
	for _, dir := range []string{"/run", os.TempDir(), "/sys/fs/cgroup", "/sys/fs/cgroup/memory"} {
		paths, _ := filepath.Glob(filepath.Join(dir, "*"+id+"*"))
		left = append(left, paths...)
	}
	return left
}

// stays returns what left lists once it has had a moment to go: the kernel takes one to let go of a mount namespace or of what was
// killed.
func stays(left func() []string) []string {
	found := left()
	for i := 0; i < 50 && len(found) > 0; i++ {
		time.Sleep(100 * time.Millisecond)
		found = left()
	}
	return found
}

func (r Ring) inside(m *testing.M) int {
	start := time.Now()
	err := r.makeWorld()
	if err == nil {
		err = r.SetUp()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "set up the %s ring: %v\n", r.Name, err)
		return 1
	}
	before := r.belongings()
	code := m.Run()
	if left := stays(func() []string { return Without(r.belongings(), before) }); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: tests left behind: %s\n", strings.Join(left, "; "))
		code = 1
	}
	r.LastWords(time.Since(start).Round(time.Second))
	return code
}

// makeWorld makes the ring's own world in its namespaces: /proc of its processes, /sys of its network, and an empty /run, where all
// is that it makes. Nothing of it is on the machine's disks.
func (r Ring) makeWorld() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	mounts := map[string]string{"/proc": "proc", "/run": "tmpfs"}
	if r.Network {
		mounts["/sys"] = "sysfs"
	}
	for at, kind := range mounts {
		if err := unix.Mount(kind, at, kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	Dir = "/run/" + ID
	tmp := filepath.Join(Dir, "tmp")
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	// The go command keeps its cache where it was.
	if err := os.Setenv("TMPDIR", tmp); err != nil {
		return err
	}
	Chandler, Bundle = os.Getenv("CHANDLER"), os.Getenv("BUNDLE")
	if wrong := findBundles(); len(wrong) > 0 {
		return fmt.Errorf("%v", wrong)
	}
	return nil
}

// belongings lists what tests make and have to take away again: mounts, links, network namespaces, processes.
func (r Ring) belongings() []string {
	var has []string
	if f, err := os.Open("/proc/self/mountinfo"); err == nil {
		for s := bufio.NewScanner(f); s.Scan(); {
			has = append(has, "mount "+strings.Fields(s.Text())[4])
		}
		f.Close()
	}
	if r.Network { // otherwise they are the machine's
		links, _ := os.ReadDir("/sys/class/net")
		for _, l := range links {
			has = append(has, "link "+l.Name())
		}
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

// Without is what there is of have beside what there was.
func Without(have, had []string) []string {
	for _, h := range had {
		if i := slices.Index(have, h); i >= 0 {
			have = slices.Delete(have, i, i+1)
		}
	}
	return have
}

// Seed is what is drawn by lot in this run: that of an earlier one if the variable says so. It is printed, to be repeated.
func Seed(env string) (uint64, error) {
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv(env); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			return 0, fmt.Errorf("%s: %w", env, err)
		}
	}
	fmt.Printf("%s=%d\n", env, seed)
	return seed, nil
}
