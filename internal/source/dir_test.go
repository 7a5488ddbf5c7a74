package source_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
	"github.com/chandler-cni/chandler/internal/source"
)

var script = []byte("#!/bin/sh\nexit 0\n")

// folder makes a directory of the given files.
func folder(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// verified opens the bundle at path and holds it to its manifest.
func verified(t *testing.T, path string) *bundle.Bundle {
	t.Helper()
	b, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	for _, err := range b.Verify(t.Context()) {
		t.Error(err)
	}
	return b
}

func mustBeAbsent(t *testing.T, out string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(out))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s was left behind", e.Name())
	}
}

func TestDir(t *testing.T) {
	arm, dynamic := plugintest.ELF("arm64", ""), plugintest.ELF("arm64", "/lib/ld.so")
	for _, test := range []struct {
		name  string
		files map[string][]byte
		arch  string // asked for
		want  string // of the bundle
	}{
		{"ELF and script", map[string][]byte{"a": arm, "b": dynamic, "hook.sh": script}, "", "arm64"},
		{"as asked", map[string][]byte{"a": arm, "b": script}, "arm64", "arm64"},
		{"scripts", map[string][]byte{"hook": script}, "", runtime.GOARCH},
		{"scripts as asked", map[string][]byte{"hook": script}, "s390x", "s390x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "bundle")
			from := folder(t, test.files)
			if err := (source.Dir{From: from, Version: "v7", Arch: test.arch}).Bundle(t.Context(), out); err != nil {
				t.Fatal(err)
			}
			m := verified(t, out).Manifest
			if m.Arch != test.want || m.Version != "v7" || m.Source != (bundle.Source{Kind: "dir"}) || len(m.Plugins) != len(test.files) {
				t.Errorf("%+v", m)
			}
			for _, p := range m.Plugins {
				if p.Role != bundle.Extra || p.Size != int64(len(test.files[p.Name])) {
					t.Errorf("%+v", p)
				}
			}
		})
	}
}

func TestDirRefuses(t *testing.T) {
	amd, arm := plugintest.ELF("amd64", ""), plugintest.ELF("arm64", "")
	for _, test := range []struct {
		name   string
		files  map[string][]byte
		change func(dir string) error
		arch   string
		want   []string // parts of the error; DIR stands for the directory
		is     error
	}{
		{name: "mixed", files: map[string][]byte{"a": script, "b": amd, "c": arm}, is: source.ErrMixed,
			want: []string{"DIR/b is built for amd64, DIR/c for arm64"}},
		{name: "other than asked", files: map[string][]byte{"a": amd}, arch: "arm64",
			want: []string{"DIR/a: built for amd64, not for arm64"}},
		{name: "no nodes", files: map[string][]byte{"a": plugintest.ELF("mips", "")},
			want: []string{"DIR/a: built for EM_MIPS, which no node has"}},
		{name: "empty", want: []string{"DIR: no executables"}},
		{name: "every bad file", files: map[string][]byte{"README.md": []byte("# Hi\n"), "ok": script, "empty": nil, ".hidden": script, "a b": script},
			want: []string{"DIR/README.md: neither an ELF executable nor a script", "DIR/empty: neither", `DIR/.hidden: plugin name ".hidden"`, `DIR/a b: plugin name "a b"`},
			is:   plugin.ErrNotExecutable},
		{name: "link", change: func(dir string) error { return os.Symlink("/bin/sh", filepath.Join(dir, "sh")) },
			want: []string{"DIR/sh: is a symlink; only regular files are packed"}},
		{name: "folder", change: func(dir string) error { return os.Mkdir(filepath.Join(dir, "sub"), 0o755) },
			want: []string{"DIR/sub: is a directory"}},
		{name: "fifo", change: func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o755) },
			want: []string{"DIR/pipe: is a fifo"}},
		{name: "truncated", files: map[string][]byte{"a": amd[:100]},
			want: []string{"DIR/a: not a usable ELF executable: truncated"}},
		{name: "absent", change: os.RemoveAll, want: []string{"open DIR: no such file"}, is: fs.ErrNotExist},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := folder(t, test.files)
			if test.change != nil {
				if err := test.change(dir); err != nil {
					t.Fatal(err)
				}
			}
			out := filepath.Join(t.TempDir(), "deep/bundle")
			err := source.Dir{From: dir, Version: "v1", Arch: test.arch}.Bundle(t.Context(), out)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if want = strings.ReplaceAll(want, "DIR", dir); !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want %q", err, want)
				}
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%v is not %v", err, test.is)
			}
			mustBeAbsent(t, filepath.Dir(out))
		})
	}
}

func TestDirBadVersionLeavesNothing(t *testing.T) {
	out := filepath.Join(t.TempDir(), "bundle")
	if (source.Dir{From: folder(t, map[string][]byte{"a": script}), Version: "one two"}).Bundle(t.Context(), out) == nil {
		t.Error("no error")
	}
	mustBeAbsent(t, out)
}

func TestDirCancelled(t *testing.T) {
	because := errors.New("because")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(because)
	out := filepath.Join(t.TempDir(), "bundle")
	err := source.Dir{From: folder(t, map[string][]byte{"a": script}), Version: "v1"}.Bundle(ctx, out)
	if !errors.Is(err, because) {
		t.Error(err)
	}
	mustBeAbsent(t, out)
}

func TestDirReproducible(t *testing.T) {
	files := map[string][]byte{"a": script, "b": plugintest.ELF("amd64", "")}
	var digests []string
	for range 2 {
		out := filepath.Join(t.TempDir(), "bundle")
		if err := (source.Dir{From: folder(t, files), Version: "v1"}).Bundle(t.Context(), out); err != nil {
			t.Fatal(err)
		}
		digests = append(digests, verified(t, out).Digest)
	}
	if diff := cmp.Diff(digests[0], digests[1]); diff != "" {
		t.Error(diff)
	}
}
