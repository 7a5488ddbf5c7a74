package bundle

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

var fromDir = Source{Kind: "dir"}

// create begins a bundle that is closed when the test ends.
func create(t *testing.T, out string) *Writer {
	t.Helper()
	w, err := Create(out, "v1.9.1", "amd64", fromDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func add(t *testing.T, w *Writer, name string, role Role, content []byte) {
	t.Helper()
	if _, err := w.Add(name, role, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
}

var (
	static  = plugintest.ELF("amd64", "")
	dynamic = plugintest.ELF("amd64", "/lib/ld.so")
	script  = []byte("#!/bin/sh\nexit 0\n")
)

// sample makes a bundle of one of each: a reference plugin, a second name of it, a script, and a dynamic executable.
func sample(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "bundle")
	w := create(t, out)
	add(t, w, "tuning", Meta, static)
	if _, err := w.Link("bridge", Main, "tuning"); err != nil {
		t.Fatal(err)
	}
	add(t, w, "hook", Extra, script)
	add(t, w, "cilium-cni", Extra, dynamic)
	for name, text := range map[string]string{"LICENSE": "all", "example.com/m@v1/NOTICE": "one"} {
		if err := w.License(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.SBOM([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	m, err := w.Commit()
	if err != nil {
		t.Fatal(err)
	}
	if got := names(m); !slices.Equal(got, []string{"bridge", "cilium-cni", "hook", "tuning"}) {
		t.Errorf("manifest names %q", got)
	}
	return out
}

func names(m *Manifest) []string {
	var n []string
	for _, p := range m.Plugins {
		n = append(n, p.Name)
	}
	return n
}

// tree describes every path under dir.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		rel, _ := filepath.Rel(dir, path)
		out[rel] = info.Mode().String() + " " + info.ModTime().UTC().Format(time.DateOnly)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustBeEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s was left behind", e.Name())
	}
}

func open(t *testing.T, path string) *Bundle {
	t.Helper()
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestWriteAndVerify(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	out := sample(t)

	b := open(t, out)
	for _, err := range b.Verify(t.Context()) {
		t.Error(err)
	}
	p, ok := b.Plugin("bridge")
	if !ok || p.Role != Main || p.Kind != plugin.ELF || p.Size != int64(len(static)) {
		t.Errorf("bridge: %+v", p)
	}
	if _, ok := b.Plugin("absent"); ok {
		t.Error("a plugin that is not there")
	}
	f, err := b.OpenPlugin(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, static) {
		t.Errorf("bridge holds %q, %v", got, err)
	}

	// A umask has no say, and nor has the clock.
	want := map[string]string{
		".": "drwxr-xr-x 1980-01-01", "bundle.json": "-rw-r--r-- 1980-01-01", "sbom.cdx.json": "-rw-r--r-- 1980-01-01",
		"bin": "drwxr-xr-x 1980-01-01", "bin/bridge": "-rwxr-xr-x 1980-01-01", "bin/cilium-cni": "-rwxr-xr-x 1980-01-01",
		"bin/hook": "-rwxr-xr-x 1980-01-01", "bin/tuning": "-rwxr-xr-x 1980-01-01",
		"licenses": "drwxr-xr-x 1980-01-01", "licenses/LICENSE": "-rw-r--r-- 1980-01-01",
		"licenses/example.com": "drwxr-xr-x 1980-01-01", "licenses/example.com/m@v1": "drwxr-xr-x 1980-01-01",
		"licenses/example.com/m@v1/NOTICE": "-rw-r--r-- 1980-01-01",
	}
	if diff := cmp.Diff(want, tree(t, out)); diff != "" {
		t.Error(diff)
	}
	bridge, err := os.Stat(filepath.Join(out, "bin/bridge"))
	if err != nil {
		t.Fatal(err)
	}
	tuning, err := os.Stat(filepath.Join(out, "bin/tuning"))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(bridge, tuning) {
		t.Error("bridge and tuning are two files")
	}
}

func TestReproducible(t *testing.T) {
	first, second := sample(t), sample(t)
	if a, b := open(t, first).Digest, open(t, second).Digest; a != b {
		t.Errorf("%s and %s", a, b)
	}
	if diff := cmp.Diff(tree(t, first), tree(t, second)); diff != "" {
		t.Error(diff)
	}
}

// What fails leaves nothing, wherever it fails and however deep the bundle was to stand.
func TestNothingLeft(t *testing.T) {
	for name, fail := range map[string]func(w *Writer) error{
		"given up": func(*Writer) error { return errors.New("so be it") },
		"bad plugin": func(w *Writer) error {
			_, err := w.Add("bridge", Main, strings.NewReader("text"))
			return err
		},
		"bad licence": func(w *Writer) error { return w.License("../x", nil) },
		"name taken": func(w *Writer) error {
			if err := os.MkdirAll(filepath.Join(w.out, "x"), 0o755); err != nil {
				return err
			}
			defer os.RemoveAll(w.out)
			_, err := w.Commit()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			w, err := Create(filepath.Join(dir, "a/b/bundle"), "v1.9.1", "amd64", fromDir)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Add("good", Extra, bytes.NewReader(script)); err != nil {
				t.Fatal(err)
			}
			if fail(w) == nil {
				t.Error("no failure")
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			mustBeEmpty(t, dir)
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"full/x", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	for _, test := range []struct {
		out, version, arch string
		source             Source
		want               error // nil: any
	}{
		{"full", "v1", "amd64", fromDir, ErrOccupied},
		{"file", "v1", "amd64", fromDir, syscall.ENOTDIR},
		{"file/x", "v1", "amd64", fromDir, syscall.ENOTDIR},
		{"dangling/x", "v1", "amd64", fromDir, fs.ErrNotExist},
		{"new", "", "amd64", fromDir, nil},
		{"new", "one two", "amd64", fromDir, nil},
		{"new", "v1", "", fromDir, nil},
		{"new", "v1", "AMD 64", fromDir, nil},
		{"new", "v1", "amd64", Source{}, nil},
		{"new", "v1", "amd64", Source{Kind: "thin air"}, nil},
	} {
		w, err := Create(filepath.Join(dir, test.out), test.version, test.arch, test.source)
		if err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%+v: %v", test, err)
		}
		if w != nil {
			t.Errorf("%+v: an error and a Writer", test)
		}
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Error(diff)
	}
	w := create(t, filepath.Join(dir, "empty"))
	add(t, w, "hook", Extra, script)
	if _, err := w.Commit(); err != nil {
		t.Errorf("in place of an empty directory: %v", err)
	}
}

// What Add and Link refuse is not in the bundle that is made of the rest.
func TestAddRefuses(t *testing.T) {
	out := filepath.Join(t.TempDir(), "bundle")
	w := create(t, out)
	add(t, w, "good", Main, static)
	add(t, w, "dyn", Extra, dynamic)
	var arch *plugin.ArchError
	for _, test := range []struct {
		name string
		role Role
		r    io.Reader
		want any // error or pointer to an error type; nil: any
	}{
		{"good", Main, bytes.NewReader(static), nil},
		{"../up", Main, bytes.NewReader(static), nil},
		{".hidden", Main, bytes.NewReader(static), nil},
		{"text", Extra, strings.NewReader("text"), plugin.ErrNotExecutable},
		{"empty", Extra, strings.NewReader(""), plugin.ErrNotExecutable},
		{"arm", Extra, bytes.NewReader(plugintest.ELF("arm64", "")), &arch},
		{"dynamic", Main, bytes.NewReader(dynamic), nil},
		{"script", IPAM, bytes.NewReader(script), nil},
		{"role", "boss", bytes.NewReader(static), nil},
		{"torn", Main, iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(static))), iotest.ErrTimeout},
	} {
		_, err := w.Add(test.name, test.role, test.r)
		if !matches(err, test.want) {
			t.Errorf("add %s: %v", test.name, err)
		}
	}
	for _, test := range []struct {
		name string
		role Role
		to   string
	}{
		{"good", Main, "good"},
		{"other", Main, "absent"},
		{"a/b", Main, "good"},
		{"reference", Main, "dyn"}, // not static
		{"role", "boss", "good"},
	} {
		if _, err := w.Link(test.name, test.role, test.to); err == nil {
			t.Errorf("link %+v succeeded", test)
		}
	}
	m, err := w.Commit()
	if err != nil {
		t.Fatal(err)
	}
	if got := names(m); !slices.Equal(got, []string{"dyn", "good"}) {
		t.Errorf("manifest names %q", got)
	}
	for _, err := range open(t, out).Verify(t.Context()) {
		t.Error(err)
	}
}

func matches(err error, want any) bool {
	switch want := want.(type) {
	case nil:
		return err != nil
	case error:
		return errors.Is(err, want)
	}
	return errors.As(err, want)
}

func TestLicenseStaysInside(t *testing.T) {
	w := create(t, filepath.Join(t.TempDir(), "bundle"))
	for _, name := range []string{"", ".", "..", "../bundle.json", "../bin/bridge", "/etc/x", "a/../../x"} {
		if err := w.License(name, []byte("x")); err == nil {
			t.Errorf("License(%q) succeeded", name)
		}
	}
}

func TestAbsentAndEmpty(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none")); err != ErrAbsent {
		t.Errorf("nothing there: %v", err)
	}
	if _, err := Open(dir); err != ErrEmpty {
		t.Errorf("empty directory: %v", err)
	}
	out := filepath.Join(dir, "bundle")
	if _, err := create(t, out).Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(out); err != ErrEmpty {
		t.Errorf("no plugins: %v", err)
	}
	file := filepath.Join(out, manifestName)
	var damage *DamageError
	if _, err := Open(file); !errors.As(err, &damage) || !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file: %v", err)
	}
}

// edit changes a bundle behind its back.
func edit(old, new string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		path := filepath.Join(dir, manifestName)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(data, []byte(old), []byte(new), 1)
		if bytes.Equal(data, changed) {
			t.Fatalf("no %q in the manifest", old)
		}
		if err := os.WriteFile(path, changed, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func do(f func(path string) error, elem ...string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		if err := f(filepath.Join(append([]string{dir}, elem...)...)); err != nil {
			t.Fatal(err)
		}
	}
}

func writer(data []byte, perm fs.FileMode) func(path string) error {
	return func(path string) error {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		return os.WriteFile(path, data, perm)
	}
}

func flipped(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)-1] ^= 1
	return b
}

// Damage is found by Open where the names do not fit, else by Verify, and is said of the right file.
func TestDamage(t *testing.T) {
	replaceBySymlink := func(target string) func(string) error {
		return func(path string) error { return errors.Join(os.RemoveAll(path), os.Symlink(target, path)) }
	}
	for _, test := range []struct {
		name   string
		change func(t *testing.T, dir string)
		opens  bool
		want   string
	}{
		{"no manifest", do(os.Remove, manifestName), false, "bundle.json: stat: no such file"},
		{"manifest is a link", do(replaceBySymlink("sbom.cdx.json"), manifestName), false, "bundle.json: open: not a regular file"},
		{"manifest is huge", do(writer(make([]byte, maxManifest+1), 0o644), manifestName), false, "bundle.json: read: file too large"},
		{"manifest is empty", do(writer(nil, 0o644), manifestName), false, "bundle.json: parse: unexpected end"},
		{"manifest is text", do(writer([]byte("hello"), 0o644), manifestName), false, "bundle.json: parse: "},
		{"manifest is null", do(writer([]byte("null"), 0o644), manifestName), false, "bundle.json: format 0 is unknown"},
		{"manifest twice", edit("\n}\n", "\n}\n{}"), false, "bundle.json: parse: invalid character"},
		{"older format", edit(`"formatVersion": 1`, `"formatVersion": 0`), false, "format 0 is unknown"},
		{"newer format", edit(`"formatVersion": 1`, `"formatVersion": 2, "news": []`), false, "format 2 is newer than this program reads (1)"},
		{"unknown field", edit(`"arch"`, `"extra": 1, "arch"`), false, `unknown field "extra"`},
		{"unknown field of a plugin", edit(`"name"`, `"mode": 1, "name"`), false, `unknown field "mode"`},
		{"name with a slash", edit(`"name": "bridge"`, `"name": "../bridge"`), false, `plugin name "../bridge"`},
		{"names out of order", edit(`"name": "bridge"`, `"name": "zzz"`), false, "out of order"},
		{"name twice", edit(`"name": "cilium-cni"`, `"name": "bridge"`), false, "named twice"},
		{"other name", edit(`"name": "bridge"`, `"name": "abc"`), false, "bin/abc: named in bundle.json and missing"},
		{"digest of nothing", edit(`"sha256": "`, `"sha256": "x`), false, `sha256 "x`},
		{"negative size", edit(`"size": `, `"size": -`), false, "is not between 1 and"},
		{"other size", edit(`"size": 17,`, `"size": 18,`), true, "bin/hook: size mismatch"},
		{"one digest, two sizes", edit(`"size": 176`, `"size": 177`), false, "have one digest and differ"},
		{"unknown kind", edit(`"kind": "elf"`, `"kind": "jar"`), false, `kind "jar" is unknown`},
		{"unknown role", edit(`"role": "main"`, `"role": "boss"`), false, `role "boss" is unknown`},
		{"unknown source", edit(`"kind": "dir"`, `"kind": "air"`), false, `source kind "air" is unknown`},
		{"no bin", do(os.RemoveAll, "bin"), false, "bin: open: no such file"},
		{"bin is a link", do(replaceBySymlink("licenses"), "bin"), false, "bin: open: not a directory"},
		{"missing plugin", do(os.Remove, "bin/hook"), false, "bin/hook: named in bundle.json and missing"},
		{"extra plugin", do(writer(script, 0o755), "bin/more"), false, `"bin/more": not named in bundle.json`},
		{"leftover in bin", do(writer(nil, 0o644), "bin/.nfs0001"), false, `"bin/.nfs0001": not named`},

		{"other architecture", edit(`"arch": "amd64"`, `"arch": "arm64"`), true, "bin/bridge: built for amd64, not for arm64"},
		{"other kind", edit(`"kind": "script"`, `"kind": "elf"`), true, "bin/hook: kind script, not elf"},
		{"demanding role", edit(`"role": "extra"`, `"role": "main"`), true, `bin/cilium-cni: not static: needs "/lib/ld.so"`},
		{"changed byte", do(writer(flipped(script), 0o755), "bin/hook"), true, "bin/hook: digest mismatch"},
		{"longer", do(writer(append(slices.Clone(script), 0), 0o755), "bin/hook"), true, "bin/hook: size mismatch"},
		{"empty", do(writer(nil, 0o755), "bin/hook"), true, "bin/hook: size mismatch"},
		{"mode", do(func(path string) error { return os.Chmod(path, 0o744) }, "bin/hook"), true, "bin/hook: mode 0744, not 0755"},
		{"set-id", do(func(path string) error { return os.Chmod(path, fs.ModeSetuid|0o755) }, "bin/hook"), true, "bin/hook: mode 4755, not 0755"},
		{"link out", do(replaceBySymlink("/bin/sh"), "bin/hook"), true, "bin/hook: open: not a regular file"},
		{"link inside", do(replaceBySymlink("tuning"), "bin/hook"), true, "bin/hook: open: not a regular file"},
		{"folder", do(func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }, "bin/hook"), true, "bin/hook: open: not a regular file"},
		{"fifo", do(func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o755)) }, "bin/hook"), true, "bin/hook: open: not a regular file"},
		{"stranger", do(writer(nil, 0o644), "notes"), true, `"notes": does not belong in a bundle`},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := sample(t)
			test.change(t, dir)
			b, err := Open(dir)
			if (err == nil) != test.opens {
				t.Fatalf("Open: %v", err)
			}
			found := []error{err}
			if err == nil {
				defer b.Close()
				found = b.Verify(t.Context())
			} else if b != nil {
				t.Error("an error and a Bundle")
			}
			if !slices.ContainsFunc(found, func(err error) bool { return strings.Contains(err.Error(), test.want) }) {
				t.Errorf("found %q; want %q", found, test.want)
			}
			for _, err := range found {
				var damage *DamageError
				if !errors.As(err, &damage) {
					t.Errorf("not a DamageError: %v", err)
				}
				if strings.Contains(err.Error(), dir) {
					t.Errorf("not relative to the bundle: %v", err)
				}
			}
		})
	}
}

func TestVerifyGoesOn(t *testing.T) {
	dir := sample(t)
	do(writer(flipped(script), 0o755), "bin/hook")(t, dir)
	do(writer(nil, 0o644), "one")(t, dir)
	do(writer(nil, 0o644), "two\nlines")(t, dir)
	b := open(t, dir)
	var said []string
	for _, err := range b.Verify(t.Context()) {
		said = append(said, err.Error())
	}
	want := []string{"bin/hook: digest mismatch", `"one": does not belong in a bundle`, `"two\nlines": does not belong in a bundle`}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found := b.Verify(ctx); len(found) != 1 || !errors.Is(found[0], context.Canceled) {
		t.Errorf("cancelled: %v", found)
	}
}

// A link whose target vanished, a plugin replaced after Open: the reader is told, and gets no file.
func TestOpenPluginAfterChange(t *testing.T) {
	dir := sample(t)
	b := open(t, dir)
	p, _ := b.Plugin("hook")
	do(os.Remove, "bin/hook")(t, dir)
	if f, err := b.OpenPlugin(p); f != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v", f, err)
	}
	do(writer([]byte("#!x"), 0o755), "bin/hook")(t, dir)
	if f, err := b.OpenPlugin(p); f != nil || !errors.Is(err, ErrSize) {
		t.Errorf("%v, %v", f, err)
	}
}

func TestCheckVersion(t *testing.T) {
	for _, v := range []string{"v1.9.1", "7", "2026-01-02", "v1.0.0-rc.1+meta", strings.Repeat("v", 64)} {
		if err := CheckVersion(v); err != nil {
			t.Errorf("%q: %v", v, err)
		}
	}
	for _, v := range []string{"", "-v1", "v 1", "v1\n", "v1/2", "ü", strings.Repeat("v", 65)} {
		if CheckVersion(v) == nil {
			t.Errorf("%q is taken", v)
		}
	}
}

func TestManifestLimits(t *testing.T) {
	m := &Manifest{FormatVersion: FormatVersion, Version: "v1", Arch: "amd64", Source: fromDir}
	for i := range maxPlugins + 1 {
		m.Plugins = append(m.Plugins, Plugin{
			Name: "p" + strings.Repeat("0", i/26) + string(rune('a'+i%26)), SHA256: strings.Repeat("0", 64), Size: 1, Kind: plugin.Script, Role: Extra,
		})
	}
	if _, err := m.encode(); err == nil || !strings.Contains(err.Error(), "257 plugins are more than 256") {
		t.Error(err)
	}
	m.Plugins = m.Plugins[:maxPlugins]
	data, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > maxManifest {
		t.Errorf("a manifest of the most plugins has %d bytes and would be refused", len(data))
	}
	m.Plugins[1].Size = 2
	if _, err := m.encode(); err == nil || !strings.Contains(err.Error(), "have one digest and differ") {
		t.Error(err)
	}
}

func FuzzParseManifest(f *testing.F) {
	m := Manifest{FormatVersion: FormatVersion, Version: "v1.9.1", Arch: "amd64",
		Source: Source{Kind: "module", Form: "separate", Module: "example.com/m@v1", Sum: "h1:x", Go: "go1.26.8"},
		Plugins: []Plugin{
			{Name: "bridge", SHA256: strings.Repeat("a", 64), Size: 1, Kind: plugin.ELF, Role: Main},
			{Name: "hook", SHA256: strings.Repeat("b", 64), Size: 2, Kind: plugin.Script, Role: Extra},
		}}
	seed, err := m.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"formatVersion":2,"anything":{}}`))
	f.Add([]byte(`{"formatVersion":1,"version":"v1","arch":"arm64","source":{"kind":"dir"},"plugins":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data)
		if err != nil {
			return
		}
		for _, p := range m.Plugins {
			if plugin.CheckName(p.Name) != nil || filepath.Base(p.Name) != p.Name {
				t.Errorf("plugin name %q", p.Name)
			}
		}
		spelled, err := m.encode()
		if err != nil {
			t.Fatalf("parsed and cannot be written: %v", err)
		}
		again, err := ParseManifest(spelled)
		if err != nil {
			t.Fatalf("written and cannot be parsed: %v", err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Error(diff)
		}
	})
}
