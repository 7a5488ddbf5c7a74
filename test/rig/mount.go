package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Mounted mounts something for as long as the test lasts, and returns where.
func Mounted(t testing.TB, source, at, kind string, flags uintptr, data string) string {
	t.Helper()
	if err := unix.Mount(source, at, kind, flags, data); err != nil {
		t.Fatalf("mount %s at %s: %v", kind, at, err)
	}
	t.Cleanup(func() { Unmount(t, at) })
	return at
}

// Unmount unmounts once nobody uses the file system any more, and fails the test if somebody goes on to.
func Unmount(t testing.TB, at string) {
	t.Helper()
	var err error
	for range 100 {
		if err = unix.Unmount(at, 0); err != unix.EBUSY {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("unmount %s: %v", at, err)
		unix.Unmount(at, unix.MNT_DETACH)
	}
}

// Format makes a file system in a file.
func Format(kind, image string) error {
	force := map[string]string{"ext4": "-F", "xfs": "-f", "btrfs": "-f"}[kind]
	if out, err := exec.Command("mkfs."+kind, "-q", force, image).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.%s: %w: %s", kind, err, out)
	}
	return nil
}

// MakeDisk makes a file system in a sparse file and mounts it.
func MakeDisk(kind, image string, size int64, at string) error {
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	f.Close()
	if err != nil {
		return err
	}
	if err := Format(kind, image); err != nil {
		return err
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if out, err := exec.Command("mount", "-o", "loop", "-t", kind, image, at).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", kind, err, out)
	}
	return nil
}

// Disk is MakeDisk for as long as the test lasts. It returns the mount point and the file that is the disk.
func Disk(t testing.TB, kind string, size int64) (at, image string) {
	t.Helper()
	dir, err := os.MkdirTemp(Dir, kind+"-")
	Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	at, image = filepath.Join(dir, "at"), filepath.Join(dir, "img")
	Must(t, MakeDisk(kind, image, size, at))
	t.Cleanup(func() { Unmount(t, at) })
	return at, image
}
