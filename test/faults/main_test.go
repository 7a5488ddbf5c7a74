//go:build faults

package faults

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	insideEnv = "CHANDLER_FAULTS"      // set in the process that runs the tests
	roleEnv   = "CHANDLER_FAULTS_ROLE" // set in the other processes of the tests
	seedEnv   = "FAULTS_SEED"          // what is drawn at random is drawn from it
	fullEnv   = "FAULTS_FULL"          // 1: nothing is drawn, everything is run
)

// ring is what all tests share.
var ring struct {
	dir      string // a tmpfs that only the ring sees
	chandler string
	seed     uint64
	full     bool

	names    []string // of the plugins in the following bundles
	bundle   string   // each a file of its own
	older    string   // the same with other bytes, which run all the same
	multi    string   // one file under all names
	reported []func() string
}

// TestMain is three programs: outside makes the namespaces, inside runs the tests in them, and a role is another process that a
// test needs.
func TestMain(m *testing.M) {
	if name := os.Getenv(roleEnv); name != "" {
		os.Exit(roles[name]())
	}
	if os.Getenv(insideEnv) == "" {
		os.Exit(outside())
	}
	os.Exit(inside(m))
}

// preflight says everything that keeps the ring from running.
func preflight() []string {
	var missing []string
	add := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	if os.Geteuid() != 0 {
		add("root: this process is uid %d", os.Geteuid())
	}
	for _, tool := range []string{"cp", "find", "git", "go", "install", "ln", "mkfs.ext4", "mount", "mv", "sh", "tar"} {
		if _, err := exec.LookPath(tool); err != nil {
			add("the tool %s", tool)
		}
	}
	for _, env := range []string{"CHANDLER", "BUNDLE", "OTHER_BUNDLE"} {
		if path := os.Getenv(env); !filepath.IsAbs(path) || !exists(path) {
			add("%s: %q is no absolute path of something that is there", env, path)
		}
	}
	if seed := os.Getenv(seedEnv); seed != "" {
		if _, err := strconv.ParseUint(seed, 10, 64); err != nil {
			add("%s: %v", seedEnv, err)
		}
	}
	return missing
}

// outside runs the same program again in namespaces of its own: what it mounts and starts ends with them.
func outside() int {
	if missing := preflight(); len(missing) > 0 {
		fmt.Fprintln(os.Stderr, "the ring of faults cannot run; it needs:\n  "+strings.Join(missing, "\n  "))
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
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
	if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() < 0 {
		fmt.Fprintln(os.Stderr, "the ring:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

func inside(m *testing.M) int {
	start := time.Now()
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "set up the ring of faults:", err)
		return 1
	}
	fmt.Printf("%s=%d\n", seedEnv, ring.seed)
	code := m.Run()
	for _, report := range ring.reported {
		if text := report(); text != "" {
			fmt.Println("faults ring:", text)
		}
	}
	fmt.Printf("faults ring: %d runs of chandler, %s on %d CPUs, seed %d, everything %v\n",
		runs.Load(), time.Since(start).Round(time.Second), runtime.NumCPU(), ring.seed, ring.full)
	return code
}

// setUp mounts a /proc of the ring's own processes and a tmpfs that everything is done in, and makes the bundles there.
func setUp() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	ring.dir = "/run"
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"tmpfs", ring.dir}} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	tmp := filepath.Join(ring.dir, "tmp")
	if err := errors.Join(os.Mkdir(tmp, 0o755), os.Setenv("TMPDIR", tmp)); err != nil {
		return err
	}
	ring.chandler = os.Getenv("CHANDLER")
	ring.full = os.Getenv(fullEnv) == "1"
	ring.seed = uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		ring.seed, _ = strconv.ParseUint(text, 10, 64) // looked at before
	}
	ring.names = []string{"static", "tuning"}
	ring.bundle, ring.older, ring.multi = filepath.Join(ring.dir, "bundle"), filepath.Join(ring.dir, "older"), filepath.Join(ring.dir, "multi")
	return errors.Join(
		derive(os.Getenv("OTHER_BUNDLE"), ring.bundle, "v1.9.1", ring.names, ""),
		derive(os.Getenv("OTHER_BUNDLE"), ring.older, "v1.8.0", ring.names, "an older build"),
		derive(os.Getenv("BUNDLE"), ring.multi, "v1.9.1", ring.names, ""),
	)
}

// drawn is the source of what is drawn by lot for one case, whichever others are run.
func drawn(name string) *rand.Rand {
	return rand.New(rand.NewPCG(ring.seed, uint64(crc32.ChecksumIEEE([]byte(name)))))
}
