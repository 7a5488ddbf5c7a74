package rig

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Must fails the test at the first of the errors.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Eventually waits until it is ok. It fails if that takes so long that it will never be.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in 20 s it did not come to this: %s", what)
		}
	}
}

// Sh runs a command that has to succeed, and returns what it printed.
func Sh(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Write writes a file of exactly that mode, whatever the umask is and whatever mode it had.
func Write(t testing.TB, path, text string, perm fs.FileMode) {
	t.Helper()
	Must(t, os.WriteFile(path, []byte(text), perm), os.Chmod(path, perm))
}

func Read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	Must(t, err)
	return string(data)
}

// Mkdir makes a directory and those above it, and returns its path.
func Mkdir(t testing.TB, path string) string {
	t.Helper()
	Must(t, os.MkdirAll(path, 0o755))
	return path
}

func Glob(t testing.TB, parts ...string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(parts...))
	Must(t, err)
	return paths
}

// SameFiles says whether two files hold the same bytes.
func SameFiles(a, b string) (bool, error) {
	ia, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	ib, err := os.Stat(b)
	if err != nil || ia.Size() != ib.Size() {
		return false, err
	}
	da, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	db, err := os.ReadFile(b)
	return bytes.Equal(da, db), err
}

// Digest is a file's as bundles and marks name it.
func Digest(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum is what watchers tell files apart by: quicker than a digest, since they read without a pause.
func Sum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }
