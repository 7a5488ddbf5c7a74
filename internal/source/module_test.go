package source_test

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/pins"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/source"
)

// The real module, which takes some 20 s to compile for the first time, is built once in each form for all tests that look
// at the result, and once more to compare. Everything else is tested on the small module of fixture_test.go.

const upstream = "../../" + pins.Folder

// reference is the pinned module, with its go.mod in dir.
func reference(dir, form string) (source.Module, error) {
	p, err := pins.Load(filepath.Join(upstream, pins.FileName))
	if err != nil {
		return source.Module{}, err
	}
	m := source.Module{Dir: dir, Path: p.Plugins.Module, Version: p.Plugins.Version, Form: form, Arch: runtime.GOARCH, Environ: os.Environ()}
	for _, s := range p.Plugins.Staged {
		m.Plugins = append(m.Plugins, source.Plugin{Name: s.Name, Role: s.Role, Package: p.Plugins.Package(s)})
	}
	return m, nil
}

// scratch is removed when this package's tests end: what several tests share lies in it.
var scratch string

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "chandler-source-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(scratch); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// built makes the bundle of the reference plugins, once in each form.
var built = map[string]func() (string, error){
	source.Separate:  sync.OnceValues(func() (string, error) { return buildReference(source.Separate) }),
	source.Multicall: sync.OnceValues(func() (string, error) { return buildReference(source.Multicall) }),
}

func buildReference(form string) (string, error) {
	m, err := reference(filepath.Join(upstream, pins.PluginsDir), form)
	if err != nil {
		return "", err
	}
	out := filepath.Join(scratch, "reference-"+form)
	return out, m.Bundle(context.Background(), out)
}

func openBuilt(t *testing.T, form string) (*bundle.Bundle, string) {
	t.Helper()
	path, err := built[form]()
	if err != nil {
		t.Fatal(err)
	}
	return verified(t, path), path
}

// eachForm runs test with the built bundle of each form.
func eachForm(t *testing.T, test func(t *testing.T, form string, b *bundle.Bundle, path string)) {
	for _, form := range []string{source.Separate, source.Multicall} {
		t.Run(form, func(t *testing.T) {
			b, path := openBuilt(t, form)
			test(t, form, b, path)
		})
	}
}

func TestReferencePlugins(t *testing.T) { eachForm(t, testReferencePlugins) }

func testReferencePlugins(t *testing.T, form string, b *bundle.Bundle, path string) {
	p, err := pins.Load(filepath.Join(upstream, pins.FileName))
	if err != nil {
		t.Fatal(err)
	}
	var got []pins.Staged
	for _, p := range b.Manifest.Plugins {
		got = append(got, pins.Staged{Name: p.Name, Role: p.Role})
	}
	if diff := cmp.Diff(p.Plugins.Staged, got); diff != "" {
		t.Errorf("pinned (-), built (+):\n%s", diff)
	}

	// The recorded sum is go.sum's own.
	sums, err := os.ReadFile(filepath.Join(upstream, pins.PluginsDir, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	src := b.Manifest.Source
	if line := p.Plugins.Module + " " + p.Plugins.Version + " " + src.Sum + "\n"; !strings.HasPrefix(src.Sum, "h1:") || !strings.Contains(string(sums), line) {
		t.Errorf("sum %q is not in go.sum", src.Sum)
	}
	if src.Kind != "module" || src.Form != form || src.Module != p.Plugins.Module+"@"+p.Plugins.Version || !strings.HasPrefix(src.Go, "go1.") {
		t.Errorf("source: %+v", src)
	}

	for _, file := range []string{"licenses/" + src.Module + "/LICENSE", "licenses/github.com/vishvananda/netlink@v1.3.1/LICENSE"} {
		if text, err := os.ReadFile(filepath.Join(path, file)); err != nil || !bytes.Contains(text, []byte("Apache License")) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Every plugin answers VERSION, and calls itself what upstream's own build does.
func TestReferencePluginsRun(t *testing.T) { eachForm(t, testReferencePluginsRun) }

func testReferencePluginsRun(t *testing.T, _ string, b *bundle.Bundle, path string) {
	for _, p := range b.Manifest.Plugins {
		file := filepath.Join(path, "bin", p.Name)
		f, err := b.OpenPlugin(p)
		if err != nil {
			t.Fatal(err)
		}
		versions, err := plugin.Probe(t.Context(), f, file, p.Name)
		f.Close()
		if err != nil || !slices.Contains(versions, "1.0.0") {
			t.Errorf("%s: %q, %v", p.Name, versions, err)
		}
		out, err := exec.Command(file).CombinedOutput()
		if want := "CNI " + p.Name + " plugin " + b.Manifest.Version; err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%s says %q, %v; want %q", p.Name, out, err, want)
		}
	}
}

// The same bytes come out in another folder, for a caller with other ideas of flags and instruction sets.
func TestReferenceReproducible(t *testing.T) { eachForm(t, testReferenceReproducible) }

func testReferenceReproducible(t *testing.T, form string, b *bundle.Bundle, _ string) {
	m, err := reference(copyModule(t, filepath.Join(upstream, pins.PluginsDir)), form)
	if err != nil {
		t.Fatal(err)
	}
	goenv := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(goenv, []byte("GOAMD64=v3\nGOARM64=v9.0\nGOFLAGS=-tags=netgo\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Environ = append(m.Environ, "GOENV="+goenv, "GOFLAGS=-race -ldflags=-w", "GOAMD64=v2", "GOOS=windows", "GOARCH=386",
		"CGO_ENABLED=1", "CC=false", "GOEXPERIMENT=nogreenteagc", "GOWORK="+goenv, "GO111MODULE=off")
	out := filepath.Join(t.TempDir(), "elsewhere")
	if err := m.Bundle(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if got := verified(t, out).Digest; got != b.Digest {
		t.Errorf("two builds: %s and %s", b.Digest, got)
	}
}

// The multi-call form is one small file under every name, and under any other says which names it serves.
func TestMulticall(t *testing.T) {
	b, path := openBuilt(t, source.Multicall)
	distinct, err := b.Distinct()
	if err != nil || len(distinct) != 1 {
		t.Errorf("%d distinct files, %v", len(distinct), err)
	}
	if size := distinct[0].Size; size > 5.8e6 {
		t.Errorf("%d bytes are more than 5.8 MB", size)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(filepath.Join(path, "bin", "bridge"), other); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(other)
	cmd.Env = []string{"CNI_COMMAND=ADD"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var answer struct{ Msg string }
	if err == nil || json.Unmarshal(out, &answer) != nil {
		t.Errorf("%v, %s", err, out)
	}
	for _, said := range []string{answer.Msg, stderr.String()} {
		if !strings.Contains(said, `called as "other"`) || !strings.Contains(said, "bandwidth bridge firewall") {
			t.Errorf("says %q", said)
		}
	}
}

// What the generator does not know stops the build, which leaves nothing.
func TestMulticallUnknown(t *testing.T) {
	m := fixture(t)
	m.Form = source.Multicall
	m.Plugins = append(m.Plugins, source.Plugin{Name: "flags", Role: bundle.Main, Package: "example.com/plugins/plugins/main/flags"})
	out := filepath.Join(t.TempDir(), "bundle")
	var unknown *source.UnknownError
	if err := m.Bundle(t.Context(), out); !errors.As(err, &unknown) || unknown.Plugin != "flags" {
		t.Error(err)
	}
	mustBeAbsent(t, out)
}

// go.sum has the last word on the source, also of a module that is in the cache already, whatever the caller's settings
// of proxies and checksum databases are.
func TestSumVerifiesSource(t *testing.T) {
	dir := copyModule(t, filepath.Join(upstream, pins.PluginsDir))
	m, err := reference(dir, source.Separate)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	line := m.Path + " " + m.Version + " h1:"
	i := bytes.Index(sums, []byte(line))
	if i < 0 {
		t.Fatalf("no %q in go.sum", line)
	}
	wrong, missing := bytes.Clone(sums), bytes.Clone(sums)
	wrong[i+len(line)] ^= 1
	missing = slices.Delete(missing, i, i+bytes.IndexByte(missing[i:], '\n')+1)
	for _, test := range []struct {
		sums []byte
		want string
	}{
		{wrong, "SECURITY ERROR"},
		{missing, "missing go.sum entry"},
	} {
		if err := os.WriteFile(filepath.Join(dir, "go.sum"), test.sums, 0o644); err != nil {
			t.Fatal(err)
		}
		m.Environ = append(os.Environ(), "GONOSUMDB=*", "GONOSUMCHECK=1", "GOSUMDB=off", "GOPRIVATE=*", "GOINSECURE=*", "GOFLAGS=-mod=mod")
		out := filepath.Join(t.TempDir(), "bundle")
		err := m.Bundle(t.Context(), out)
		var failed *source.GoError
		if !errors.As(err, &failed) || !strings.Contains(failed.Stderr, test.want) {
			t.Errorf("%v; want %q", err, test.want)
		}
		mustBeAbsent(t, out)
		if after, err := os.ReadFile(filepath.Join(dir, "go.sum")); err != nil || !bytes.Equal(after, test.sums) {
			t.Errorf("go.sum was changed: %v", err)
		}
	}
}

func TestModule(t *testing.T) {
	m := fixture(t)
	m.Arch = "arm64"
	var progress []string
	m.Progress = func(name string, i, n int) { progress = append(progress, fmt.Sprintf("%d/%d %s", i, n, name)) }
	out := filepath.Join(t.TempDir(), "bundle")
	if err := m.Bundle(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	b := verified(t, out)
	if b.Manifest.Arch != "arm64" || len(b.Manifest.Plugins) != 2 {
		t.Errorf("%+v", b.Manifest)
	}
	if diff := cmp.Diff([]string{"1/2 one", "2/2 two"}, progress); diff != "" {
		t.Error(diff)
	}
	for _, file := range []string{"LICENSE", "NOTICE.txt"} {
		if _, err := os.Stat(filepath.Join(out, "licenses/example.com/plugins@v0.1.0", file)); err != nil {
			t.Error(err)
		}
	}
	info, err := buildinfo.ReadFile(filepath.Join(out, "bin/one"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Main.Path != m.Path || info.Main.Sum != b.Manifest.Source.Sum || info.GoVersion != b.Manifest.Source.Go {
		t.Errorf("built from %+v with %s; recorded %+v", info.Main, info.GoVersion, b.Manifest.Source)
	}
}

func TestModuleFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(t *testing.T, m *source.Module)
		want   []string
	}{
		{"compile error", func(t *testing.T, m *source.Module) { m.Plugins[1].Package = "example.com/plugins/plugins/main/broken" },
			[]string{"compile two: go build: exit status 1\n", "plugins/main/broken/main.go:3:15: undefined: nothing"}},
		{"no such package", func(t *testing.T, m *source.Module) { m.Plugins[1].Package = "example.com/plugins/plugins/main/absent" },
			[]string{"read module: go list: exit status 1\n", "plugins/main/absent"}},
		{"not a main package", func(t *testing.T, m *source.Module) {
			m.Plugins[1].Package = "example.com/plugins/pkg/utils/buildversion"
		}, []string{"add plugin two: neither an ELF executable nor a script"}},
		{"other version", func(t *testing.T, m *source.Module) { m.Version = "v0.2.0" },
			[]string{"example.com/plugins is at v0.1.0 in ", "not at v0.2.0"}},
		{"other module", func(t *testing.T, m *source.Module) { m.Path = "example.com/others" },
			[]string{"example.com/others is at no version"}},
		{"replaced by a folder", func(t *testing.T, m *source.Module) {
			appendTo(t, filepath.Join(m.Dir, "go.mod"), "replace example.com/plugins => ../fork\n")
			fork := filepath.Join(filepath.Dir(m.Dir), "fork")
			writeFiles(t, fork, map[string]string{
				"go.mod": "module example.com/plugins\n", "plugins/main/one/main.go": "package main\nfunc main() {}\n",
				"plugins/meta/two/main.go": "package main\nfunc main() {}\n"})
		}, []string{"example.com/plugins does not come from its release"}},
		{"no licence", func(t *testing.T, m *source.Module) {
			m.Plugins[1].Package = "example.com/unlicensed"
		}, []string{"keep licences of example.com/unlicensed: there is none"}},
		{"no module there", func(t *testing.T, m *source.Module) { m.Dir = t.TempDir() },
			[]string{"go list: exit status 1\n", "go.mod"}},
		{"no directory there", func(t *testing.T, m *source.Module) { m.Dir = filepath.Join(t.TempDir(), "none") },
			[]string{"find the Go toolchain: ", "no such file or directory"}},
		{"another architecture than Go has", func(t *testing.T, m *source.Module) { m.Arch = "z80" },
			[]string{"unsupported GOOS/GOARCH pair linux/z80"}},
		{"no Go", func(t *testing.T, m *source.Module) { t.Setenv("PATH", t.TempDir()) },
			[]string{"find the Go toolchain: ", exec.ErrNotFound.Error()}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := fixture(t)
			test.change(t, &m)
			tmp, out := t.TempDir(), filepath.Join(t.TempDir(), "deep/bundle")
			t.Setenv("TMPDIR", tmp)
			err := m.Bundle(t.Context(), out)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want %q", err, want)
				}
			}
			mustBeAbsent(t, filepath.Dir(out))
			mustBeAbsent(t, filepath.Join(tmp, "x"))
		})
	}
}

func TestModuleOccupied(t *testing.T) {
	m := fixture(t)
	m.Progress = func(name string, _, _ int) { t.Errorf("%s is compiled in vain", name) }
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "mine"), []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Bundle(t.Context(), out); !errors.Is(err, bundle.ErrOccupied) {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(out, "mine")); err != nil || string(text) != "precious" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestModuleCancelled(t *testing.T) {
	because := errors.New("because")
	for when, progress := range map[string]int{"before": 0, "at the first": 1, "at the second": 2} {
		t.Run(when, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			m := fixture(t)
			if progress == 0 {
				cancel(because)
			}
			m.Progress = func(_ string, i, _ int) {
				if i == progress {
					cancel(because)
				}
			}
			tmp, out := t.TempDir(), filepath.Join(t.TempDir(), "deep/bundle")
			t.Setenv("TMPDIR", tmp)
			if err := m.Bundle(ctx, out); !errors.Is(err, because) {
				t.Error(err)
			}
			mustBeAbsent(t, filepath.Dir(out))
			mustBeAbsent(t, filepath.Join(tmp, "x"))
		})
	}
}

// A compiler that hangs ends with the build, be it one that heeds an interrupt or one that does not.
func TestModuleCancelEndsCompilers(t *testing.T) {
	real, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	source.SetPatience(t, 200*time.Millisecond)
	for _, trap := range []string{"", "trap '' INT"} {
		t.Run(trap, func(t *testing.T) {
			bin, running := t.TempDir(), filepath.Join(t.TempDir(), "running")
			fake := "#!/bin/sh\n[ \"$1\" = build ] || exec " + real + " \"$@\"\n" + trap + "\nsleep 600 &\necho $! >" + running + ".new\nmv " + running + ".new " + running + "\nwait\n"
			if err := os.WriteFile(filepath.Join(bin, "go"), []byte(fake), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for ctx.Err() == nil {
					if _, err := os.Stat(running); err == nil {
						cancel()
					}
					time.Sleep(5 * time.Millisecond)
				}
			}()
			out := filepath.Join(t.TempDir(), "bundle")
			if err := fixture(t).Bundle(ctx, out); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			mustBeAbsent(t, out)
			pid, err := os.ReadFile(running)
			if err != nil {
				t.Fatal(err)
			}
			mustEnd(t, strings.TrimSpace(string(pid)))
		})
	}
}

// mustEnd fails if the process goes on. A zombie that nobody reaps has ended.
func mustEnd(t *testing.T, pid string) {
	t.Helper()
	for range 200 {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if errors.Is(err, fs.ErrNotExist) || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s goes on", pid)
}
