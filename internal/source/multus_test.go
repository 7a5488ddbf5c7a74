package source_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/internal/pins"
	"github.com/chandler-cni/chandler/internal/source"
)

// multusFolder is a copy of the folder that pins Multus, the test's own.
func multusFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("../..", pins.Folder, source.MultusDir))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestMultusIsPatched(t *testing.T) {
	dir := multusFolder(t)
	m, err := source.NewMultus(t.Context(), dir, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	patches, err := os.ReadDir(filepath.Join(dir, "patches"))
	if err != nil || len(m.Patches) != len(patches) || len(patches) == 0 {
		t.Errorf("applied %v of %d patches, %v", m.Patches, len(patches), err)
	}
	data, err := os.ReadFile(filepath.Join(m.Tree, "pkg/multus/multus.go"))
	if err != nil || !strings.Contains(string(data), "hasInterface(netns, args.IfName)") {
		t.Errorf("the source is as published, %v", err)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if want := "multus-cni.v4 " + m.Version + " " + m.Sum + "\n"; err != nil || !strings.Contains(string(sums), want) {
		t.Errorf("go.sum does not hold %q, %v", want, err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(m.Tree); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy is left behind: %v", err)
	}
}

func TestMultusPatchThatNoLongerApplies(t *testing.T) {
	dir := multusFolder(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	const patch = "--- a/pkg/multus/doc.go\n+++ b/pkg/multus/doc.go\n@@ -1,2 +1,2 @@\n // not what stands there\n-x\n+y\n"
	if err := os.WriteFile(filepath.Join(dir, "patches/0099-late.patch"), []byte(patch), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := source.NewMultus(t.Context(), dir, os.Environ())
	var hunk *source.HunkError
	if !errors.As(err, &hunk) || !strings.Contains(err.Error(), "0099-late.patch") || hunk.File != "pkg/multus/doc.go" || hunk.Hunk != 1 {
		t.Errorf("%v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "chandler-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestMultusTakesOnlyPatches(t *testing.T) {
	dir := multusFolder(t)
	if err := os.WriteFile(filepath.Join(dir, "patches/0001-fix.patch.orig"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := source.NewMultus(t.Context(), dir, os.Environ()); err == nil || !strings.Contains(err.Error(), "0001-fix.patch.orig") {
		t.Errorf("%v", err)
	}
}

// A go.sum that names another source is not overruled by what the cache holds.
func TestMultusIsHeldToItsSum(t *testing.T) {
	dir := multusFolder(t)
	file := filepath.Join(dir, "go.sum")
	sums, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const real = "gopkg.in/k8snetworkplumbingwg/multus-cni.v4 v4.3.0 h1:k"
	changed := strings.Replace(string(sums), real, real[:len(real)-1]+"K", 1)
	if changed == string(sums) {
		t.Fatalf("go.sum does not hold %q", real)
	}
	if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := source.NewMultus(t.Context(), dir, os.Environ()); err == nil {
		t.Error("the source was taken")
	}
}
