// Command demo shows chandler's main job on this machine, with the real programs and the real plugins: it stages a bundle,
// verifies it, attaches two throwaway network namespaces through the staged plugins, pings across, and takes them down.
// The network part runs in a private network and mount namespace of its own and needs root.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	chandler := flag.String("chandler", "out/chandler", "the program")
	bundle := flag.String("bundle", "out/bundle", "the bundle to stage")
	binDir := flag.String("bin-dir", "out/node/opt/cni/bin", "where to stage it")
	inside := flag.Bool("inside", false, "already in the private namespaces")
	flag.Parse()
	d := demo{chandler: abs(*chandler), bundle: abs(*bundle), binDir: abs(*binDir)}
	run := d.run
	if *inside {
		run = d.network
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func abs(path string) string {
	full, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	return full
}

type demo struct{ chandler, bundle, binDir string }

func (d demo) run() error {
	if err := os.RemoveAll(d.binDir); err != nil {
		return err
	}
	say("chandler, on this machine", "")
	if err := d.stage("stage", "--create"); err != nil {
		return err
	}
	if err := d.stage("once more"); err != nil {
		return err
	}
	if err := d.verify(); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		say("attach", "left out: network namespaces need root (sudo make run)")
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-inside", "-chandler", d.chandler, "-bundle", d.bundle, "-bin-dir", d.binDir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// All that is made inside ends with the process, however it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// report is the part of chandler's JSON that is shown.
type report struct {
	Version, Bundle, BinDir string
	Plugins                 []struct {
		Name, Action, Cause string
		OK                  bool
	}
}

func (d demo) stage(title string, args ...string) error {
	r, took, err := d.chandlerJSON(append([]string{"stage", "--strict", "--termination-log=", "--bundle", d.bundle, "--bin-dir", d.binDir}, args...)...)
	if err != nil {
		return err
	}
	count := make(map[string]int)
	var names []string
	for _, p := range r.Plugins {
		count[p.Action]++
		names = append(names, p.Name)
	}
	say(title, "%d new, %d replaced, %d unchanged, in %d ms", count["new"], count["replaced"], count["unchanged"], took.Milliseconds())
	if count["new"] > 0 {
		say("", "plugins %s from bundle %.19s… into %s:", r.Version, r.Bundle, d.binDir)
		half := (len(names) + 1) / 2
		say("", "%s", strings.Join(names[:half], " "))
		say("", "%s", strings.Join(names[half:], " "))
	}
	return nil
}

func (d demo) verify() error {
	r, took, err := d.chandlerJSON("verify", "--bundle", d.bundle, "--bin-dir", d.binDir)
	if err != nil {
		return err
	}
	ok := 0
	for _, p := range r.Plugins {
		if p.OK {
			ok++
		}
	}
	say("verify", "%d of %d have the bundle's bytes, mode and owner, and answer VERSION, in %d ms", ok, len(r.Plugins), took.Milliseconds())
	return nil
}

func (d demo) chandlerJSON(args ...string) (*report, time.Duration, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(d.chandler, append(args, "--output=json")...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		return nil, 0, fmt.Errorf("chandler %s: %w\n%s", args[0], err, &stderr)
	}
	r := new(report)
	if err := json.Unmarshal(stdout.Bytes(), r); err != nil {
		return nil, 0, fmt.Errorf("chandler %s: %w", args[0], err)
	}
	return r, took, nil
}

// network runs inside the private namespaces.
func (d demo) network() error {
	state, err := os.MkdirTemp("", "chandler-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	// A tmpfs of our own holds the namespaces' names, so that nothing of them is left on the machine.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("tmpfs", state, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"demo","type":"bridge","bridge":"chandler0",
"ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/24"}]],"dataDir":%q}}`, filepath.Join(state, "leases"))

	pods := []*pod{{name: "pod-a"}, {name: "pod-b"}}
	defer func() {
		for _, p := range pods {
			p.close()
		}
		syscall.Unmount(state, syscall.MNT_DETACH)
	}()
	for i, p := range pods {
		title := ""
		if i == 0 {
			title = "attach"
		}
		if err := p.open(filepath.Join(state, p.name)); err != nil {
			return err
		}
		address, err := d.attach(p, conf)
		if err != nil {
			return err
		}
		p.address = address
		say(title, "%s  net1 %s  by the staged bridge and host-local", p.name, address)
	}
	for i, p := range pods {
		title := ""
		if i == 0 {
			title = "ping"
		}
		to := pods[1-i]
		rtt, err := p.ping(to.address.Addr(), 3)
		if err != nil {
			return fmt.Errorf("ping from %s to %s: %w", p.name, to.name, err)
		}
		say(title, "%s to %s  3 of 3 answered, fastest %.3f ms", p.name, to.name, float64(rtt.Microseconds())/1000)
	}
	for _, p := range pods {
		if _, err := d.cni("DEL", p, conf); err != nil {
			return err
		}
	}
	leases, err := filepath.Glob(filepath.Join(state, "leases", "demo", "10.*"))
	if err != nil {
		return err
	}
	if len(leases) > 0 {
		return errors.New("addresses were not returned: " + strings.Join(leases, " "))
	}
	say("detach", "both taken down, every address returned")
	return nil
}

// say prints one line of the show. A line without a title belongs to the one above.
func say(title, format string, args ...any) {
	fmt.Println(strings.TrimRight(fmt.Sprintf("  %-10s "+format, append([]any{title}, args...)...), " "))
}
