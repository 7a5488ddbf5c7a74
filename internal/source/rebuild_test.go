package source_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
	"github.com/chandler-cni/chandler/internal/source"
)

func moduleOf(t *testing.T, m source.Module, dir string) source.Module {
	t.Helper()
	again, err := source.ModuleOf(verified(t, dir).Manifest)
	if err != nil {
		t.Fatal(err)
	}
	again.Dir, again.Environ = m.Dir, m.Environ
	return again
}

// One bundle is looked at in all ways: each build takes its time.
func TestCheck(t *testing.T) {
	built := fixture(t)
	dir := filepath.Join(t.TempDir(), "bundle")
	if err := built.Bundle(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	m := moduleOf(t, built, dir)
	if m.Form != source.Separate || len(m.Plugins) != 2 || m.Go == "" || m.Sum == "" {
		t.Errorf("%+v", m)
	}
	if differences, err := m.Check(t.Context(), dir); err != nil || len(differences) > 0 {
		t.Errorf("%v, %v", differences, err)
	}
	t.Run("differences", func(t *testing.T) { testCheckDifferences(t, m, dir) })
	t.Run("refuses", func(t *testing.T) { testCheckRefuses(t, m, dir) })
}

// Each difference is told: another program under a plugin's name, other texts.
func testCheckDifferences(t *testing.T, m source.Module, dir string) {
	b := verified(t, dir)
	forged := filepath.Join(t.TempDir(), "forged")
	w, err := bundle.Create(forged, b.Manifest.Version, b.Manifest.Arch, b.Manifest.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	one, err := os.Open(filepath.Join(dir, "bin/one"))
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	if _, err := w.Add("one", bundle.Main, one); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Add("two", bundle.Meta, strings.NewReader(string(plugintest.ELF(m.Arch, "")))); err != nil {
		t.Fatal(err)
	}
	if err := w.License("example.com/plugins@v0.1.0/LICENSE", []byte("all rights reserved\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	differences, err := m.Check(t.Context(), forged)
	if err != nil {
		t.Fatal(err)
	}
	said := errors.Join(differences...).Error()
	for _, want := range []string{"bin/two: is sha256:", ", and its source makes sha256:", "licenses/example.com/plugins@v0.1.0/LICENSE: differs",
		"licenses/example.com/plugins@v0.1.0/NOTICE.txt: is missing", "sbom.cdx.json: is missing"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in\n%s", want, said)
		}
	}
	if strings.Contains(said, "bin/one") {
		t.Error(said)
	}
}

// Plugins of the user's own are not built from this source, and do not keep the others from being compared. The SBOM names them too:
// what their build information says, as of the others every module that is linked, with its sum.
func TestCheckExtras(t *testing.T) {
	built := fixture(t)
	built.Form = source.Multicall
	hook := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(hook, plugintest.Script(""), 0o644); err != nil {
		t.Fatal(err)
	}
	built.Extras = []source.Extra{{Name: "mine", File: hook}}
	dir := filepath.Join(t.TempDir(), "bundle")
	if err := built.Bundle(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	b := verified(t, dir)
	if p, ok := b.Plugin("mine"); !ok || p.Role != bundle.Extra {
		t.Errorf("%+v", p)
	}
	m := moduleOf(t, built, dir)
	if differences, err := m.Check(t.Context(), dir); err != nil || len(differences) > 0 {
		t.Errorf("%v, %v", differences, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "sbom.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{m.Sum, b.Manifest.Plugins[0].SHA256, b.Manifest.Plugins[1].SHA256, "pkg:golang/example.com/plugins@v0.1.0",
		"pkg:golang/stdlib@" + strings.TrimPrefix(b.Manifest.Source.Go, "go"), `"location": "bin/two"`, `"location": "bin/mine"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// Where nothing can be compared, the reason is told, and nothing is compiled for it.
func testCheckRefuses(t *testing.T, good source.Module, dir string) {
	for _, test := range []struct {
		name   string
		change func(t *testing.T, m *source.Module)
		is     func(error) bool
		want   string
	}{
		{"another toolchain", func(_ *testing.T, m *source.Module) { m.Go = "go1.21.0" },
			func(err error) bool { var e *source.GoVersionError; return errors.As(err, &e) }, "built with go1.21.0, and here is go1."},
		{"another source", func(_ *testing.T, m *source.Module) { m.Sum = "h1:other" },
			func(err error) bool { var e *source.SumError; return errors.As(err, &e) }, "of the sum h1:other, and go.sum here has h1:"},
		{"another version", func(_ *testing.T, m *source.Module) { m.Version = "v0.2.0" },
			func(error) bool { return true }, "example.com/plugins is at v0.1.0 in"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := good
			m.Progress = func(name string, _, _ int) { t.Errorf("%s is compiled in vain", name) }
			test.change(t, &m)
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			if _, err := m.Check(t.Context(), dir); err == nil || !test.is(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
			mustBeAbsent(t, filepath.Join(tmp, "x"))
		})
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/one"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	var damage *bundle.DamageError
	if _, err := good.Check(t.Context(), dir); !errors.As(err, &damage) {
		t.Error(err)
	}
	var none *source.NoSourceError
	for _, kind := range []string{"dir", "release", "module"} {
		if _, err := source.ModuleOf(&bundle.Manifest{Source: bundle.Source{Kind: kind}}); !errors.As(err, &none) {
			t.Error(err)
		}
	}
}
