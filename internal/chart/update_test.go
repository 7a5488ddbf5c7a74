package chart

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// copyCheckout copies what an update touches, with a Go module that pins Multus.
func copyCheckout(t *testing.T, gomod, gosum string) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{moduleFile: gomod, moduleSums: gosum}
	for _, path := range []string{manifestFile, reliedOnFile, chartFile} {
		files[path] = string(readFile(t, filepath.Join(checkout, path)))
	}
	for path, text := range files {
		if text == "" {
			continue
		}
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// appVersion is what the checkout's chart says.
func appVersion(t *testing.T) string {
	return string(appVersionLine.FindSubmatch(readFile(t, filepath.Join(checkout, chartFile)))[1])
}

const gomod = `// Why this module exists.
module example.org/multus

go 1.26.0

tool gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus-daemon

require (
	example.org/direct v1.0.0
	example.org/other v1.2.3 // indirect
	gopkg.in/k8snetworkplumbingwg/multus-cni.v4 v4.3.0 // indirect
)
`

func TestUpdateMovesTheModule(t *testing.T) {
	root := copyCheckout(t, gomod, "")
	tidied := ""
	u := Update{Root: root, Version: "v4.9.9", File: filepath.Join(checkout, manifestFile),
		tidy: func(_ context.Context, dir string) error { tidied = dir; return nil }}
	changes, err := u.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) != 3 || changes[0].Done != "unchanged" || changes[1] != (Change{chartFile, appVersion(t), "v4.9.9", "changed"}) || changes[2] != (Change{moduleFile, "v4.3.0", "v4.9.9", "changed"}) {
		t.Errorf("changes are %+v", changes)
	}
	if tidied != filepath.Join(root, "upstream/multus") {
		t.Errorf("tidied %q", tidied)
	}
	mod := string(readFile(t, filepath.Join(root, moduleFile)))
	for _, want := range []string{"// Why this module exists.", "multus-cni.v4 v4.9.9", "example.org/direct v1.0.0", "cmd/multus-daemon"} {
		if !strings.Contains(mod, want) {
			t.Errorf("go.mod lost %q:\n%s", want, mod)
		}
	}
	if strings.Contains(mod, "example.org/other") {
		t.Errorf("what only the old version needed is still required:\n%s", mod)
	}
	meta := string(readFile(t, filepath.Join(root, chartFile)))
	if want := strings.Replace(string(readFile(t, filepath.Join(checkout, chartFile))), "appVersion: "+appVersion(t), "appVersion: v4.9.9", 1); meta != want {
		t.Errorf("Chart.yaml is\n%s", meta)
	}

	// Once more: nothing to do, nothing tidied.
	tidied = ""
	changes, err = u.Run(context.Background())
	if err != nil || tidied != "" {
		t.Errorf("%v, tidied %q", err, tidied)
	}
	for _, c := range changes {
		if c.Done != "unchanged" {
			t.Errorf("%+v", c)
		}
	}
}

func TestUpdateDryRun(t *testing.T) {
	root := copyCheckout(t, gomod, "")
	u := Update{Root: root, Version: "v4.9.9", File: filepath.Join(checkout, manifestFile), DryRun: true,
		tidy: func(context.Context, string) error { t.Error("tidied in a dry run"); return nil }}
	changes, err := u.Run(context.Background())
	if err != nil || changes[2].Done != "changed" {
		t.Errorf("%+v, %v", changes, err)
	}
	if got := string(readFile(t, filepath.Join(root, moduleFile))); got != gomod {
		t.Errorf("a dry run wrote go.mod:\n%s", got)
	}
}

func TestUpdateRefuses(t *testing.T) {
	good := filepath.Join(checkout, manifestFile)
	for name, c := range map[string]struct {
		change func(u *Update, root string)
		says   string
	}{
		"no version": {func(u *Update, _ string) { u.Version = "4.3.0" }, "want one such as v4.3.0"},
		"half a one": {func(u *Update, _ string) { u.Version = "v4.3" }, "want one such as v4.3.0"},
		"no file":    {func(u *Update, _ string) { u.File = "/nowhere" }, "read manifest"},
		"no list":    {func(u *Update, root string) { os.Remove(filepath.Join(root, reliedOnFile)) }, "what the chart relies on"},
		"two versions": {func(u *Update, root string) {
			os.WriteFile(filepath.Join(root, chartFile), []byte("appVersion: a\nappVersion: b\n"), 0o644)
		}, "2 lines of appVersion"},
		"bad go.mod": {func(u *Update, root string) { os.WriteFile(filepath.Join(root, moduleFile), []byte("nonsense"), 0o644) }, "read upstream/multus/go.mod"},
		"other go.mod": {func(u *Update, root string) {
			os.WriteFile(filepath.Join(root, moduleFile), []byte("module x\n"), 0o644)
		}, "does not require"},
		"large": {func(u *Update, root string) {
			u.File = filepath.Join(root, "large")
			os.WriteFile(u.File, make([]byte, maxManifest+1), 0o644)
		}, "more than"},
		"bad address":    {func(u *Update, _ string) { u.File, u.URL = "", "http://127.0.0.1:1/x" }, "get manifest"},
		"strange scheme": {func(u *Update, _ string) { u.File, u.URL = "", "gopher://x" }, "get manifest"},
	} {
		root := copyCheckout(t, gomod, "")
		u := Update{Root: root, Version: "v4.9.9", File: good, tidy: func(context.Context, string) error { t.Errorf("%s: tidied", name); return nil }}
		c.change(&u, root)
		if _, err := u.Run(context.Background()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if got := readFile(t, filepath.Join(root, manifestFile)); string(got) != string(readFile(t, good)) {
			t.Errorf("%s: the manifest was written", name)
		}
	}
}

func TestUpdateSaysWhatIsHalfDone(t *testing.T) {
	root := copyCheckout(t, gomod, "")
	broken := errors.New("no network")
	u := Update{Root: root, Version: "v4.9.9", File: filepath.Join(checkout, manifestFile), tidy: func(context.Context, string) error { return broken }}
	changes, err := u.Run(context.Background())
	if !errors.Is(err, broken) || len(changes) != 3 || !strings.Contains(err.Error(), "where the version has been changed") {
		t.Errorf("%+v, %v", changes, err)
	}
}

// A sum that the checkout has is a second opinion on what the go command brought.
func TestUpdateHoldsTheModuleToGoSum(t *testing.T) {
	root := copyCheckout(t, "", MultusModule+" v4.3.0 h1:AAAA\n")
	u := Update{Root: root, Version: "v4.3.0", DryRun: true, Environ: os.Environ()}
	if _, err := u.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "upstream/multus/go.sum has h1:AAAA") {
		t.Errorf("got %v", err)
	}
	u.Version = "v4.3.99"
	if _, err := u.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "download "+MultusModule+"@v4.3.99") {
		t.Errorf("a version that is none: %v", err)
	}
}
