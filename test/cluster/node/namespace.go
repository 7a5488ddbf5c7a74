// Package node runs one Kubernetes node with its control plane on this machine, in namespaces of its own. Nothing of it is
// seen from outside: mounts, interfaces and processes live in the namespaces, every listener is on their loopback, and the
// kernel settings that the kubelet writes are files of the node's.
//
// There are three processes. The holder, in the machine's namespaces, is the caller. Its child is process 1 of the node's
// namespaces, and does nothing but reap. Its child makes the node and keeps it (inside.go). The kernel ends all of them with
// process 1, and process 1 ends with the holder, so that ending the holder by any signal ends everything.
package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The words that a holder starts its own executable with; Main answers to them.
const (
	asInit = "__init"
	asNode = "__node"
)

// lifeline is the descriptor of process 1 that reads end of file when the holder is gone.
const lifeline = 3

// Main runs what Start starts the calling executable as, and does not return then. Every main function and TestMain of a
// program that uses Start calls it first.
func Main() {
	if len(os.Args) != 3 {
		return
	}
	dir := Dir(os.Args[2])
	switch os.Args[1] {
	case asInit:
		os.Exit(initMain(dir))
	case asNode:
		os.Exit(insideMain(dir))
	}
}

// Node is a running node. Its zero value is not one; Start and Attach make it.
type Node struct {
	Dir Dir
	// PID is the machine's number of process 1 of the node's namespaces.
	PID int
	API *API

	stop func() error
	done chan struct{}
}

// Start makes a node and returns once it is Ready. Each step that is done goes to progress as one line. The node ends with
// this process, when ctx is done, or by Stop. Only one runs at a time: a second is refused. What an earlier one left on disk
// and in cgroups is cleared first.
func Start(ctx context.Context, dir Dir, progress io.Writer) (*Node, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a node needs root")
	}
	lock, err := dir.lock()
	if err != nil {
		return nil, err
	}
	if err := clear(dir); err != nil {
		lock.Close()
		return nil, err
	}
	fmt.Fprintln(progress, "cleared")

	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	alive, hold, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	said, say, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(dir.log("node"))
	if err != nil {
		return nil, err
	}
	defer log.Close()

	cmd := exec.Command(self, asInit, string(dir))
	cmd.ExtraFiles = []*os.File{alive, say}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Setsid:     true,
		// The lifeline is what counts. This one is for a process 1 that is stopped or cannot run.
		Pdeathsig: unix.SIGKILL,
	}
	started := make(chan error)
	n := &Node{Dir: dir, done: make(chan struct{})}
	go func() {
		// The death signal is sent when the thread that started the child ends, so this one is kept for as long.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log; that it ended is what matters here
			_ = hold.Close()
			_ = lock.Close()
			close(n.done)
		}
		runtime.UnlockOSThread()
	}()
	err = <-started
	alive.Close()
	say.Close()
	if err != nil {
		hold.Close()
		lock.Close()
		return nil, fmt.Errorf("start process 1: %w", err)
	}
	n.PID = cmd.Process.Pid
	var once sync.Once
	n.stop = func() error {
		once.Do(func() { _ = cmd.Process.Kill() })
		select {
		case <-n.done:
			return nil
		case <-time.After(30 * time.Second):
			return fmt.Errorf("process %d does not end", n.PID)
		}
	}
	context.AfterFunc(ctx, func() { _ = n.stop() })

	ready := false
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if lines.Text() == saidReady {
			ready = true
			break
		}
		fmt.Fprintln(progress, lines.Text())
	}
	said.Close()
	if !ready {
		_ = n.stop()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("the node did not become Ready:\n%s", tail(dir.log("node"), 40))
	}
	if err := n.writeEntrances(); err != nil {
		_ = n.stop()
		return nil, err
	}
	if n.API, err = newAPI(dir, n.PID); err != nil {
		_ = n.stop()
		return nil, err
	}
	fmt.Fprintln(progress, saidReady)
	return n, nil
}

// writeEntrances writes what a person uses the node with: kubectl, helm and a shell, in its namespaces.
func (n *Node) writeEntrances() error {
	enter := fmt.Sprintf("#!/bin/sh\nexec nsenter -t %d -m -n -p -u -i -- env %s sh -c 'cd \"$0\"; exec \"$@\"' \"$PWD\" ",
		n.PID, strings.Join(n.Dir.environment(), " "))
	for name, command := range map[string]string{
		"kubectl": n.Dir.Tool("kubectl"), "helm": n.Dir.Tool("helm"), "enter": `"${@:-sh}"`,
	} {
		if name != "enter" {
			command += ` "$@"`
		}
		if err := os.WriteFile(n.Dir.join("state", name), []byte(enter+command+"\n"), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the node and returns once nothing of it is left but its folder.
func (n *Node) Stop() error { return n.stop() }

// Done is closed when the node has ended.
func (n *Node) Done() <-chan struct{} { return n.done }

// Command is a command that runs in the node's namespaces, as a person would run it on the node.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"-t", fmt.Sprint(n.PID), "-m", "-n", "-p", "-u", "-i", "--", name}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = append(os.Environ(), n.Dir.environment()...)
	return cmd
}

// Import gives an image, an archive as `ctr images import` reads it, to the container runtime.
func (n *Node) Import(ctx context.Context, archive string) error {
	if out, err := n.Command(ctx, "ctr", "-n", "k8s.io", "images", "import", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("import %s: %w: %s", archive, err, out)
	}
	return nil
}

// initMain is process 1. It never ends before its child, and the kernel ends everything else with it.
func initMain(dir Dir) int {
	go func() {
		_, _ = os.NewFile(lifeline, "lifeline").Read(make([]byte, 1))
		os.Exit(1)
	}()
	// From here on no mount reaches the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, "make mounts private:", err)
		return 1
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		fmt.Fprintln(os.Stderr, "mount /proc:", err)
		return 1
	}
	// Not os/exec, whose Wait would race with the loop below for the child's status.
	child, err := os.StartProcess("/proc/self/exe", []string{os.Args[0], asNode, string(dir)}, &os.ProcAttr{
		Env: os.Environ(),
		// The child says what it has done through the same descriptor 4, and must not hold the lifeline.
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, nil, os.NewFile(lifeline+1, "progress")},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the node's process:", err)
		return 1
	}
	_ = unix.Close(lifeline + 1)
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == child.Pid {
			return 1
		}
	}
}

// tail is the last lines of a file, for a message.
func tail(file string, lines int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Dir is the folder of a node: everything that is built for it and everything it writes.
type Dir string

func (d Dir) join(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// Bin is the folder of the programs that Build makes.
func (d Dir) Bin() string { return d.join("bin") }

// Tool is one of those programs.
func (d Dir) Tool(name string) string { return d.join("bin", name) }

// State is the folder that a start clears.
func (d Dir) State() string { return d.join("state") }

// Host is where a path of the node that outlives a container lies on the machine: below /opt/cni, /etc/cni, /var/lib/cni
// and /var/lib/kubelet.
func (d Dir) Host(path string) string { return d.join("state", "root", path) }

// Kubeconfig is an administrator's, for use inside the node's namespaces.
func (d Dir) Kubeconfig() string { return d.join("state", "admin.kubeconfig") }

func (d Dir) log(name string) string { return d.join("state", "log", name+".log") }

func (d Dir) environment() []string {
	return []string{
		"KUBECONFIG=" + d.Kubeconfig(),
		"PATH=" + d.Bin() + ":" + systemPath,
		"HOME=" + d.join("state", "home"),
		"TMPDIR=" + d.join("state", "home"),
	}
}

// systemPath is where Debian keeps containerd, runc and iptables.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lock takes the folder for one holder. The kernel gives it back when the holder ends, however it ends.
func (d Dir) lock() (*os.File, error) {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(d.join("lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(f.Name())
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("a node runs already in %s, held by process %s", d, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Holder is the process that holds the node of the folder, or 0 if none runs.
func (d Dir) Holder() (int, error) {
	f, err := os.Open(d.join("lock"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0, nil
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		return 0, err
	}
	var pid int
	if _, err := fmt.Fscan(f, &pid); err != nil {
		return 0, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return pid, nil
}
