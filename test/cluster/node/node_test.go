package node_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

// asHolder makes the test binary hold a node, so that a test can kill it.
const asHolder = "HOLD"

func TestMain(m *testing.M) {
	node.Main()
	if dir := os.Getenv(asHolder); dir != "" {
		n, err := node.Start(context.Background(), node.Dir(dir), os.Stdout)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		<-n.Done()
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// folder is the one that the scenarios use too, so that nothing is built twice.
func folder(t *testing.T) node.Dir {
	t.Helper()
	if os.Getenv("CLUSTER") == "" {
		t.Fatal("CLUSTER is not set; `make cluster` sets it")
	}
	path, err := filepath.Abs(os.Getenv("CLUSTER"))
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Missing(); err != nil {
		t.Fatal(err)
	}
	if err := node.Build(t.Context(), node.Dir(path), "..", os.Stderr); err != nil {
		t.Fatal(err)
	}
	return node.Dir(path)
}

// TestNothingIsLeft kills the process that holds a node, at each step of its start and when it is Ready with a pod running,
// and looks at the machine as it looked before.
func TestNothingIsLeft(t *testing.T) {
	dir := folder(t)
	if err := node.Clear(dir); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{
		"", "cleared", "mounts", "kernel settings masked", "network", "cgroups", "etcd and containerd", "API server",
		"kubelet, scheduler, controllers", "node ready",
	} {
		name := step
		if step == "" {
			name = "at once"
		}
		t.Run(name, func(t *testing.T) {
			before := machine(t)
			holder := hold(t, dir, step)
			if step == "node ready" {
				runPod(t, dir)
			}
			family := descendants(holder.Process.Pid)
			spaces := namespaces(family)
			if step == "node ready" {
				// The kubelet sets these. They are looked at while it runs, too.
				differ(t, "kernel settings, while the node runs", before.settings, settings(t))
				if len(family) < 10 || len(spaces) < 8 {
					t.Errorf("the node has %d processes in %d namespaces; this test looks at the wrong ones", len(family), len(spaces))
				}
			}
			if err := holder.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = holder.Wait()

			deadline := time.Now().Add(10 * time.Second)
			for {
				left := append(alive(family, spaces), programs(dir)...)
				if len(left) == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("still there: %q", left)
				}
				time.Sleep(20 * time.Millisecond)
			}
			after := machine(t)
			differ(t, "mounts", before.mounts, after.mounts)
			differ(t, "interfaces", before.interfaces, after.interfaces)
			differ(t, "kernel settings", before.settings, after.settings)
		})
	}
	// What is left is the folder and the cgroups, and the next start, or this, clears them.
	if err := node.Clear(dir); err != nil {
		t.Error(err)
	}
	left, err := filepath.Glob("/sys/fs/cgroup/*/chandler-cluster")
	if err != nil || len(left) > 0 {
		t.Errorf("cgroups are left: %q %v", left, err)
	}
}

// TestEveryListenerIsOnLoopback looks at the sockets of a running node. A second one is refused meanwhile.
func TestEveryListenerIsOnLoopback(t *testing.T) {
	dir := folder(t)
	n, err := node.Start(t.Context(), dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Stop()
	if _, err := node.Start(t.Context(), dir, io.Discard); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("held by process %d", os.Getpid())) {
		t.Errorf("a second node: %v", err)
	}
	listeners := 0
	for _, table := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", n.PID, table))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			fields := strings.Fields(line)
			if len(fields) < 4 || fields[3] != "0A" {
				continue
			}
			listeners++
			if table == "tcp6" || !strings.HasSuffix(strings.Split(fields[1], ":")[0], "7F") {
				t.Errorf("a listener that is not on loopback: %s %s", table, fields[1])
			}
		}
	}
	if listeners < 6 {
		t.Errorf("%d listeners; this test looks at the wrong ones", listeners)
	}
}

// hold starts a holder and returns once it has said that the step is done.
func hold(t *testing.T, dir node.Dir, step string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asHolder+"="+string(dir))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if step == "" {
		return cmd
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == step {
			return cmd
		}
	}
	_ = cmd.Wait()
	t.Fatalf("the holder ended before %q", step)
	return nil
}

// runPod runs one, so that there are containers, their mounts and their namespaces.
func runPod(t *testing.T, dir node.Dir) {
	t.Helper()
	kubectl := filepath.Join(dir.State(), "kubectl")
	for _, args := range [][]string{
		{"run", "pod", "--image=" + node.PauseImage, "--restart=Never"},
		{"wait", "--for=condition=Ready", "pod/pod", "--timeout=60s"},
	} {
		if out, err := exec.Command(kubectl, args...).CombinedOutput(); err != nil {
			t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
}

type snapshot struct{ mounts, interfaces, settings map[string]string }

func machine(t *testing.T) snapshot {
	t.Helper()
	s := snapshot{map[string]string{}, map[string]string{}, settings(t)}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		s.mounts[line] += "x"
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		s.interfaces[i.Name] = i.HardwareAddr.String()
	}
	return s
}

// settings are the kernel's, without those that count what the machine does.
func settings(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("/proc/sys", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // interfaces come and go
		}
		info, err := d.Info()
		if err != nil || info.Mode()&0o200 == 0 {
			return nil
		}
		if data, err := os.ReadFile(path); err == nil {
			all[strings.TrimPrefix(path, "/proc/sys/")] = strings.TrimSpace(string(data))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kernel/ns_last_pid", "kernel/random/uuid", "kernel/random/boot_id"} {
		delete(all, name)
	}
	if len(all) < 200 {
		t.Fatalf("%d kernel settings; this test looks at the wrong ones", len(all))
	}
	return all
}

func differ(t *testing.T, what string, before, after map[string]string) {
	t.Helper()
	if maps.Equal(before, after) {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if value, ok := before[key]; !ok || value != after[key] {
			t.Errorf("%s: %s was %q and is %q", what, strings.TrimSpace(key), value, after[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[key]; !ok {
			t.Errorf("%s: %s is gone", what, strings.TrimSpace(key))
		}
	}
}

// process is one, told from a later one of the same number by when it started.
type process struct {
	pid     int
	started string
}

// parents reads the process table.
func parents() map[process]int {
	all := map[process]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may hold anything.
		end := strings.LastIndexByte(string(data), ')')
		fields := strings.Fields(string(data[end+1:]))
		if fields[0] == "Z" {
			continue
		}
		var pid, parent int
		_, _ = fmt.Sscan(string(data), &pid)
		_, _ = fmt.Sscan(fields[1], &parent)
		all[process{pid, fields[19]}] = parent
	}
	return all
}

// descendants are a process's, and itself. Process 1 of the node's namespaces adopts every orphan, so none is missed.
func descendants(root int) []process {
	all := parents()
	family := map[int]bool{root: true}
	for grown := true; grown; {
		grown = false
		for p, parent := range all {
			if family[parent] && !family[p.pid] {
				family[p.pid], grown = true, true
			}
		}
	}
	var members []process
	for p := range all {
		if family[p.pid] {
			members = append(members, p)
		}
	}
	return members
}

// namespaces are those that processes have and this one has not.
func namespaces(of []process) map[string]bool {
	own := map[string]bool{}
	links, _ := filepath.Glob("/proc/self/ns/*")
	for _, l := range links {
		target, _ := os.Readlink(l)
		own[target] = true
	}
	all := map[string]bool{}
	for _, p := range of {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/ns/*", p.pid))
		for _, l := range links {
			if target, err := os.Readlink(l); err == nil && !own[target] {
				all[target] = true
			}
		}
	}
	return all
}

// alive are those of the processes that are, and every other process that is in one of the namespaces.
func alive(family []process, spaces map[string]bool) []string {
	var left []string
	now := parents()
	for _, p := range family {
		if _, ok := now[p]; ok {
			left = append(left, fmt.Sprintf("process %d", p.pid))
		}
	}
	for p := range now {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/ns/*", p.pid))
		for _, l := range links {
			if target, err := os.Readlink(l); err == nil && spaces[target] {
				left = append(left, fmt.Sprintf("process %d in %s", p.pid, target))
			}
		}
	}
	return left
}

// programs are processes of the node's, whoever their parents are.
func programs(dir node.Dir) []string {
	var left []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(data), "\x00")
		if strings.HasPrefix(args[0], dir.Bin()+"/") || len(args) > 2 && strings.HasPrefix(args[1], "__") && args[2] == string(dir) {
			left = append(left, strings.Join(args, " "))
		}
	}
	return left
}

// TestAnInterruptEndsIt is what a person does to a cluster in the foreground.
func TestAnInterruptEndsIt(t *testing.T) {
	dir := folder(t)
	holder := hold(t, dir, "API server")
	family := descendants(holder.Process.Pid)
	if err := holder.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := alive(family, nil)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %q", left)
		}
	}
}
