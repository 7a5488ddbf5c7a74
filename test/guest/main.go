// Command guest attaches networks through staged plugins and prints what came of it, a line of JSON each. As the first process
// of a virtual machine it attaches all of them and turns the machine off; as `guest BIN-DIR`, in namespaces of its own, those
// that any kernel can do.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Where things are in the machine's memory.
const (
	modulesFolder = "/modules"
	moduleOrder   = "/modules/order"
	bundleFolder  = "/bundle"
	chandler      = "/chandler"
	binDir        = "/opt/cni/bin"
	// mark precedes each line that is meant for the test.
	mark = "GUEST "
)

func main() {
	if os.Getpid() == 1 && len(os.Args) == 1 {
		if err := machine(); err != nil {
			fmt.Println(mark + "failed: " + err.Error())
		}
		unix.Sync()
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
		select {}
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "guest: wrong usage")
		os.Exit(2)
	}
	if err := run(os.Args[1], func(a attachment) bool { return a.anywhere }); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

// machine makes of a bare kernel what the plugins need, stages them, and attaches every network.
func machine() error {
	for _, m := range []struct{ kind, dir string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"}} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	// The kernel would start a program that is not there for each module it thinks of.
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte("\n"), 0); err != nil {
		return err
	}
	order, err := os.ReadFile(moduleOrder)
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(order)) {
		f, err := os.Open(modulesFolder + "/" + name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	out, err := exec.Command(chandler, "stage", "--strict", "--create", "--bundle="+bundleFolder, "--bin-dir="+binDir, "--termination-log=").CombinedOutput()
	if err != nil {
		return fmt.Errorf("stage: %w: %s", err, out)
	}
	fmt.Printf("%sstaged: %s\n", mark, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; "))
	return run(binDir, func(attachment) bool { return true })
}

// run attaches the networks that are wanted.
func run(binDir string, wanted func(attachment) bool) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: master}, PeerName: "up1"}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("make %s: %w", master, err)
	}
	for _, name := range []string{"lo", master, "up1"} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
	}
	for _, a := range attachments {
		if !wanted(a) {
			continue
		}
		o := outcome{Name: a.name}
		var err error
		if o.Result, err = attach(context.Background(), binDir, a); err != nil {
			o.Error = err.Error()
		}
		line, err := json.Marshal(o)
		if err != nil {
			return err
		}
		fmt.Printf("%s%s\n", mark, line)
	}
	return nil
}
