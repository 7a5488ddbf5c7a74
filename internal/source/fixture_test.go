package source_test

import (
	"archive/zip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/source"
)

// A module proxy of files, which serves a module that is laid out as the reference plugins' is and compiles in no time,
// and one that has no licence.
var published = map[string]map[string]string{
	"example.com/plugins": {
		"LICENSE":                           "do as you like\n",
		"NOTICE.txt":                        "made by hand\n",
		"license_check.go":                  "package plugins\n",
		"go.mod":                            "module example.com/plugins\n\ngo 1.24\n",
		"pkg/utils/buildversion/version.go": "package buildversion\n\nvar BuildVersion = \"unset\"\n",
		"plugins/main/one/main.go": "package main\n\nimport \"example.com/plugins/pkg/utils/buildversion\"\n\n" +
			"func main() { println(\"one\", buildversion.BuildVersion) }\n",
		"plugins/meta/two/main.go":    "package main\n\nfunc main() { println(\"two\") }\n",
		"plugins/main/flags/main.go":  "package main\n\nimport \"flag\"\n\nfunc main() { flag.Parse() }\n",
		"plugins/main/broken/main.go": "package main\n\nfunc main() { nothing() }\n",
	},
	"example.com/unlicensed": {
		"go.mod":  "module example.com/unlicensed\n\ngo 1.24\n",
		"main.go": "package main\n\nfunc main() {}\n",
	},
}

// consumer is the go.mod that requires what is published.
const consumer = `module example.com/consumer

go 1.26.0

tool (
	example.com/plugins/plugins/main/broken
	example.com/plugins/plugins/main/flags
	example.com/plugins/plugins/main/one
	example.com/plugins/plugins/meta/two
	example.com/unlicensed
)

require (
	example.com/plugins v0.1.0
	example.com/unlicensed v0.1.0
)
`

// prepared holds, once for all tests, a folder with the consuming module and the environment that finds the published ones.
var prepared = sync.OnceValues(func() (*preparation, error) {
	p := &preparation{dir: filepath.Join(scratch, "consumer")}
	proxy := filepath.Join(scratch, "proxy")
	for path, files := range published {
		if err := publish(filepath.Join(proxy, path, "@v"), path, files); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(p.dir, "go.mod"), []byte(consumer), 0o644); err != nil {
		return nil, err
	}
	p.environ = append(os.Environ(), "GOPROXY=file://"+proxy, "GOSUMDB=off", "GOMODCACHE="+filepath.Join(scratch, "modcache"))
	cmd := exec.Command("go", "mod", "tidy")
	// The cache is writable, so that it can be removed.
	cmd.Dir, cmd.Env = p.dir, append(p.environ, "GOFLAGS=-modcacherw", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go mod tidy: %w\n%s", err, out)
	}
	return p, nil
})

type preparation struct {
	dir     string
	environ []string
}

func publish(dir, path string, files map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"list": "v0.1.0\n", "v0.1.0.info": `{"Version":"v0.1.0"}`, "v0.1.0.mod": files["go.mod"]} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(dir, "v0.1.0.zip"))
	if err != nil {
		return err
	}
	defer f.Close()
	z := zip.NewWriter(f)
	for name, text := range files {
		w, err := z.Create(path + "@v0.1.0/" + name)
		if err != nil {
			return err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
	}
	return z.Close()
}

// fixture is a module of two plugins, in a folder that is the test's own.
func fixture(t *testing.T) source.Module {
	t.Helper()
	p, err := prepared()
	if err != nil {
		t.Fatal(err)
	}
	return source.Module{
		Dir: copyModule(t, p.dir), Path: "example.com/plugins", Version: "v0.1.0", Form: source.Separate, Arch: runtime.GOARCH, Environ: p.environ,
		Plugins: []source.Plugin{
			{Name: "one", Role: bundle.Main, Package: "example.com/plugins/plugins/main/one"},
			{Name: "two", Role: bundle.Meta, Package: "example.com/plugins/plugins/meta/two"},
		},
	}
}

// copyModule copies the go.mod and go.sum in dir to a folder that is the test's own.
func copyModule(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "module")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, text...), 0o644); err != nil {
		t.Fatal(err)
	}
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.TrimLeft(text, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
