package scenario

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// foreignOwner is the user that kubespray gives the directory to.
const foreignOwner = 997

func TestScenario04(t *testing.T) {
	scenario(t, 4, "staging runs without rights, and says what it lacks where the directory is another user's", func(t *testing.T) {
		ring.staging(t, true)
		dir := ring.Dir.Host(binDir)

		t.Run("no rights", func(t *testing.T) {
			// A staging run waits for whoever holds the directory, which is long enough to look at it.
			held, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer held.Close()
			if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			old := ring.endMultus(t)
			process := ring.process(t, "chandler")
			status := fields(t, process+"/status")
			for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
				if status[set] != "0000000000000000" {
					t.Errorf("%s is %s", set, status[set])
				}
			}
			if status["NoNewPrivs"] != "1" {
				t.Errorf("NoNewPrivs is %s", status["NoNewPrivs"])
			}
			mounts, err := os.ReadFile(process + "/mountinfo")
			if err != nil {
				t.Fatal(err)
			}
			writable := []string{}
			for line := range strings.Lines(string(mounts)) {
				f := strings.Fields(line)
				if point := f[4]; strings.Contains(point, "serviceaccount") || strings.HasPrefix(point, "/var/run/secrets") || strings.HasPrefix(point, "/run/secrets") {
					t.Errorf("a token is mounted: %s", line)
				} else if !strings.HasPrefix(f[5], "ro") && !within(point, "/proc", "/dev", "/sys") {
					writable = append(writable, point)
				}
			}
			// The directory, and the files that the kubelet and the runtime put into every container.
			if got := strings.Join(writable, " "); got != "/host/opt/cni/bin" && got != "/etc/hosts /host/opt/cni/bin" {
				t.Errorf("writable mounts: %s", got)
			}
			if err := unix.Flock(int(held.Fd()), unix.LOCK_UN); err != nil {
				t.Fatal(err)
			}
			ring.succeeded(t, old)
		})

		t.Run("another user's directory", func(t *testing.T) {
			if err := os.Remove(filepath.Join(dir, "bridge")); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(dir, foreignOwner, foreignOwner); err != nil {
				t.Fatal(err)
			}
			defer os.Chown(dir, 0, 0)
			message := terminationMessage(ring.restart(t))
			if !strings.HasPrefix(message, "failed to install: bridge\n") || !strings.Contains(message, "bridge: ") || !strings.Contains(message, "permission denied") {
				t.Errorf("the termination message is %q", message)
			}
			ring.staging(t, true, "--set", "stageCapabilities={DAC_OVERRIDE}")
			message = terminationMessage(ring.multusPod(t))
			if !strings.HasSuffix(message, ": 1 new, 0 replaced, 13 unchanged") {
				t.Errorf("with the capability the termination message is %q", message)
			}
		})
	})
}

func within(path string, dirs ...string) bool {
	for _, d := range dirs {
		if path == d || strings.HasPrefix(path, d+"/") {
			return true
		}
	}
	return false
}

// process waits for a process of the node's by its name and returns its folder in the machine's /proc.
func (c *cluster) process(t *testing.T, name string) string {
	t.Helper()
	var found string
	eventually(t, 30*time.Second, func() error {
		comms, err := filepath.Glob("/proc/[0-9]*/comm")
		if err != nil {
			return err
		}
		for _, file := range comms {
			data, err := os.ReadFile(file)
			if err != nil || strings.TrimSpace(string(data)) != name {
				continue
			}
			dir := filepath.Dir(file)
			if cgroup, err := os.ReadFile(dir + "/cgroup"); err == nil && strings.Contains(string(cgroup), "kubepods") {
				found = dir
				return nil
			}
		}
		return errors.New("no container runs " + name)
	})
	return found
}

// fields reads a file of lines "name: value".
func fields(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		all[name] = strings.TrimSpace(value)
	}
	if len(all) == 0 {
		t.Fatal(fmt.Errorf("%s is empty", file))
	}
	return all
}
