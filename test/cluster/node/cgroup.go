package node

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupParent is the one cgroup, in every hierarchy, below which all of a node's are. A cgroup outlives its processes, so
// it is the one thing that a killed node leaves; the next start clears it.
const cgroupParent = "chandler-cluster"

// hierarchies are the mount points of the machine's cgroup file systems.
func hierarchies() ([]string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 2 && (fields[2] == "cgroup" || fields[2] == "cgroup2") {
			all = append(all, fields[1])
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	return all, nil
}

func makeCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range all {
		dir := filepath.Join(root, cgroupParent)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		// On version 1 a new cpuset has no processors, and nothing can run in it.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(root, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, name), value, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// clearCgroups removes what an earlier node left. A process that was just killed may be in one for a moment longer. While
// another node runs, out of another folder, nothing is removed.
func clearCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range all {
		if err := waitEmpty(filepath.Join(root, cgroupParent)); err != nil {
			return err
		}
	}
	for _, root := range all {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(root, cgroupParent), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil {
			return err
		}
		slices.Reverse(dirs)
		for _, dir := range dirs {
			// The kernel may hold a cgroup for a moment after its last process is gone.
			err := unix.Rmdir(dir)
			for tries := 0; errors.Is(err, unix.EBUSY) && tries < 100; tries++ {
				time.Sleep(20 * time.Millisecond)
				err = unix.Rmdir(dir)
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
		}
	}
	return nil
}

// waitEmpty waits until there is no process in or below a cgroup.
func waitEmpty(root string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		var in string
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() || d.Name() != "cgroup.procs" {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
				return err
			}
			if len(data) > 0 {
				in = fmt.Sprintf("%s: %s", path, strings.Join(strings.Fields(string(data)), " "))
			}
			return nil
		})
		if err != nil || in == "" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("another node runs on this machine: %s", in)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// clear brings the machine to where a first start finds it.
func clear(dir Dir) error {
	if err := clearCgroups(); err != nil {
		return err
	}
	if err := os.RemoveAll(dir.State()); err != nil {
		return fmt.Errorf("clear the last node's folder: %w", err)
	}
	return os.MkdirAll(dir.join("state", "log"), 0o755)
}

// Clear removes what an ended node left: its folder and its cgroups. It is refused while one runs.
func Clear(dir Dir) error {
	lock, err := dir.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := clearCgroups(); err != nil {
		return err
	}
	return os.RemoveAll(dir.State())
}
