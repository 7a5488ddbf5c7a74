package pins

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	sumA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	sumB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	sumC = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
)

const smallPins = `# Kept.
plugins:
  module: example.com/plugins # kept too
  version: "v0.1.0" # and this
  staged:
    - {name: one, role: main}
  leftOut: [{name: gone, reason: of no use}]
  release: {sha256: {amd64: ` + sumA + `, "arm64": ` + sumB + `}}
  # Änderungen: kept.
  comparedWith:
    - {product: Talos, release: 1.13.6, carries: v0.1.0, writes: [one]}
`

// checkout is a folder of small pins, whose module is served from files in two versions of different needs.
func checkout(t *testing.T) Update {
	t.Helper()
	root := t.TempDir()
	proxy, cache := filepath.Join(root, "proxy"), filepath.Join(root, "cache")
	t.Cleanup(func() { // the Go command takes the right to write away
		_ = filepath.WalkDir(cache, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				return os.Chmod(path, 0o755)
			}
			return err
		})
	})
	plain := func(requires, imports, more string) map[string]string {
		files := map[string]string{
			"go.mod":                   "module example.com/plugins\n\ngo 1.24\n" + requires,
			"plugins/main/one/main.go": "package main\n" + imports + "\nfunc main() {}\n",
		}
		if more != "" {
			files["plugins/meta/"+more+"/main.go"] = "package main\n\nfunc main() {}\n"
		}
		return files
	}
	publish(t, proxy, "example.com/plugins", "v0.1.0", plain("", "", "gone"))
	publish(t, proxy, "example.com/plugins", "v0.2.0", plain("\nrequire example.com/needed v1.0.0\n", "\nimport _ \"example.com/needed\"\n", "fresh"))
	publish(t, proxy, "example.com/plugins", "v0.3.0", map[string]string{"go.mod": "module example.com/plugins\n\ngo 1.24\n",
		"plugins/main/two/main.go": "package main\n\nfunc main() {}\n"})
	publish(t, proxy, "example.com/needed", "v1.0.0", map[string]string{"go.mod": "module example.com/needed\n\ngo 1.24\n", "needed.go": "package needed\n"})

	u := Update{Folder: filepath.Join(root, "upstream"), Environ: append(os.Environ(), "GOPROXY=file://"+proxy, "GOSUMDB=off", "GOMODCACHE="+cache)}
	write(t, filepath.Join(u.Folder, FileName), smallPins)
	write(t, filepath.Join(u.Folder, PluginsDir, "go.mod"),
		"// Kept.\nmodule example.com/pinned\n\ngo 1.26.0\n\ntool example.com/plugins/plugins/main/one\n\nrequire example.com/plugins v0.1.0 // indirect\n")
	if _, err := u.goCommand(t.Context(), filepath.Join(u.Folder, PluginsDir), "mod", "tidy"); err != nil {
		t.Fatal(err)
	}
	return u
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func publish(t *testing.T, proxy, module, version string, files map[string]string) {
	t.Helper()
	at := filepath.Join(proxy, module, "@v", version)
	write(t, at+".info", fmt.Sprintf("{\"Version\": %q}", version))
	write(t, at+".mod", files["go.mod"])
	f, err := os.Create(at + ".zip")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	for name, text := range files {
		w, err := z.Create(module + "@" + version + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

// sums serves a digest of each architecture's tarball.
func sums(t *testing.T, byArch map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		part := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // version/arch.tgz.sha256
		arch, isSum := strings.CutSuffix(part[len(part)-1], ".tgz.sha256")
		sum, ok := byArch[arch]
		if !ok || !isSum {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, "%s  cni-plugins-linux-%s-%s.tgz\n", sum, arch, part[0])
	}))
	t.Cleanup(s.Close)
	return s.URL + "/{version}/{arch}.tgz"
}

// content is every file below a folder.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir+"/")] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestUpdate(t *testing.T) {
	u := checkout(t)
	before := content(t, u.Folder)
	u.Version, u.URL = "v0.2.0", sums(t, map[string]string{"amd64": sumC, "arm64": sumA})

	u.DryRun = true
	planned, err := u.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, content(t, u.Folder)); diff != "" {
		t.Errorf("a dry run changed\n%s", diff)
	}
	u.DryRun = false
	done, err := u.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(planned, done); diff != "" {
		t.Errorf("planned (-), done (+):\n%s", diff)
	}
	after := content(t, u.Folder)
	want := strings.NewReplacer(`version: "v0.1.0"`, `version: "v0.2.0"`, sumA, sumC, sumB, sumA).Replace(smallPins)
	if diff := cmp.Diff(want, after[FileName]); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"// Kept.\n", "example.com/plugins v0.2.0 // indirect", "example.com/needed v1.0.0 // indirect"} {
		if !strings.Contains(after["plugins/go.mod"], text) {
			t.Errorf("no %q in\n%s", text, after["plugins/go.mod"])
		}
	}
	if !strings.Contains(after["plugins/go.sum"], "example.com/needed v1.0.0 h1:") || strings.Contains(after["plugins/go.sum"], "v0.1.0") || len(after) != 3 {
		t.Errorf("%v", after)
	}
	if c := done.Changes; len(c) != 5 || c[0] != (Change{"plugins.version", "v0.1.0", "v0.2.0"}) || c[1].Now != sumC ||
		!strings.HasPrefix(c[4].Was, "h1:") || !strings.HasPrefix(c[4].Now, "h1:") || c[4].Was == c[4].Now {
		t.Errorf("%+v", c)
	}
	look := strings.Join(done.Look, "\n")
	for _, text := range []string{"Talos 1.13.6: carries v0.1.0, and staging replaces one by v0.2.0; of another release look it up in the cni package",
		"fresh (meta) is new: stage it, or leave it out", "gone is left out, and is not there any more"} {
		if !strings.Contains(look, text) {
			t.Errorf("no %q in\n%s", text, look)
		}
	}

	// And back: what only the newer version needed is dropped.
	u.Version, u.URL = "v0.1.0", sums(t, map[string]string{"amd64": sumA, "arm64": sumB})
	if _, err := u.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, content(t, u.Folder)); diff != "" {
		t.Errorf("there (-) and back (+):\n%s", diff)
	}
}

// Whatever fails, nothing is changed.
func TestUpdateFails(t *testing.T) {
	both := map[string]string{"amd64": sumC, "arm64": sumC}
	for _, test := range []struct {
		name, version string
		sums          map[string]string
		change        func(t *testing.T, u *Update)
		want          string
	}{
		{"no version", "newest", both, nil, `version "newest": want one such as v1.9.1`},
		{"version that is not there", "v0.9.0", both, nil, "download module: "},
		{"a digest is missing", "v0.2.0", map[string]string{"amd64": sumC}, nil, "look up release for arm64: get http"},
		{"a digest is none", "v0.2.0", map[string]string{"amd64": "<html>", "arm64": sumC}, nil, "look up release for amd64: \"<html>"},
		{"published anew", "v0.1.0", map[string]string{"amd64": sumA, "arm64": sumC}, nil, "the release v0.1.0 for arm64 has the digest " + sumC},
		{"a staged plugin is gone", "v0.3.0", both, nil, "move module: go mod tidy: exit status 1"},
		{"another source of the same version", "v0.1.0", map[string]string{"amd64": sumA, "arm64": sumB}, func(t *testing.T, u *Update) {
			name := filepath.Join(u.Folder, PluginsDir, "go.sum")
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			write(t, name, strings.Replace(string(text), "h1:", "h1:x", 1))
		}, "SECURITY ERROR"},
		{"module does not require it", "v0.2.0", both, func(t *testing.T, u *Update) {
			write(t, filepath.Join(u.Folder, PluginsDir, "go.mod"), "module example.com/pinned\n")
		}, "does not require example.com/plugins"},
		{"pins that are wrong", "v0.2.0", both, func(t *testing.T, u *Update) { write(t, filepath.Join(u.Folder, FileName), "plugins: {}\n") }, "plugins.module"},
		{"value that is not written as it reads", "v0.2.0", both, func(t *testing.T, u *Update) {
			write(t, filepath.Join(u.Folder, FileName), strings.Replace(smallPins, `"v0.1.0"`, `"v0.1\u002e0"`, 1))
		}, "plugins.version is not written as it reads"},
		{"address", "v0.2.0", both, func(_ *testing.T, u *Update) { u.URL = "https://example.com/{os}" }, "no placeholders but"},
		{"a place that cannot be written", "v0.2.0", both, func(t *testing.T, u *Update) {
			n := 0
			rename = func(from, to string) error {
				if n++; n == 2 {
					return errors.New("no space left on device")
				}
				return os.Rename(from, to)
			}
			t.Cleanup(func() { rename = os.Rename })
		}, "no space left on device"},
	} {
		t.Run(test.name, func(t *testing.T) {
			u := checkout(t)
			u.Version, u.URL = test.version, sums(t, test.sums)
			if test.change != nil {
				test.change(t, &u)
			}
			before := content(t, u.Folder)
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			done, err := u.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v, %v; want %q", done, err, test.want)
			}
			if diff := cmp.Diff(before, content(t, u.Folder)); diff != "" {
				t.Errorf("before (-), after (+):\n%s", diff)
			}
			if left, _ := os.ReadDir(tmp); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestUpdateCancelled(t *testing.T) {
	u := checkout(t)
	u.Version, u.URL = "v0.2.0", sums(t, map[string]string{"amd64": sumC, "arm64": sumC})
	before := content(t, u.Folder)
	because := errors.New("because")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(because)
	if _, err := u.Run(ctx); !errors.Is(err, because) {
		t.Error(err)
	}
	if diff := cmp.Diff(before, content(t, u.Folder)); diff != "" {
		t.Error(diff)
	}
}

func TestParseSum(t *testing.T) {
	for _, good := range []string{sumA, sumA + "\n", sumA + "  x.tgz\n", sumA + " *x.tgz\n", sumA + "  ./x.tgz\n"} {
		if got, err := parseSum([]byte(good), "x.tgz"); err != nil || got != sumA {
			t.Errorf("%q: %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", "x", sumA + "  y.tgz", sumA[1:], strings.ToUpper(sumA), sumA + " x.tgz " + sumB, "<html>\n<body>"} {
		if got, err := parseSum([]byte(bad), "x.tgz"); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
}

// The real file can be edited, and only at the values that are named.
func TestEditRealPins(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(upstream, FileName))
	if err != nil {
		t.Fatal(err)
	}
	old := load(t)
	edited, err := editValues(text, "plugins", map[string]string{"version": "v9.9.9", "release/sha256/amd64": sumA, "release/sha256/arm64": sumB})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(string(text), "  version: "+old.Plugins.Version, "  version: v9.9.9", 1)
	want = strings.NewReplacer(old.Plugins.Release.SHA256["amd64"], sumA, old.Plugins.Release.SHA256["arm64"], sumB).Replace(want)
	if diff := cmp.Diff(want, string(edited)); diff != "" {
		t.Error(diff)
	}
}
