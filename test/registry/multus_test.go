//go:build registry

package registry

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/chandler-cni/chandler/internal/source"
)

// upstream is the checkout's folder of pins.
const upstream = "../../upstream"

// What the patch changes, and that it is the patch that changes it: the same test on the source as it is published fails
// where a container has no saved delegates, and nowhere else.
func TestMultusPatch(t *testing.T) {
	patched := newMultus(t, filepath.Join(upstream, source.MultusDir))
	if len(patched.Patches) == 0 {
		t.Fatal("no patch was applied")
	}
	if failed, out := testDel(t, patched.Tree); len(failed) > 0 {
		t.Errorf("patched, these fail: %v\n%s", failed, out)
	}

	published := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(upstream, source.MultusDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(published, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	failed, out := testDel(t, newMultus(t, published).Tree)
	if want := []string{"no-file", "no-file-no-namespace"}; !slices.Equal(failed, want) {
		t.Errorf("as published, these fail: %v, want %v\n%s", failed, want, out)
	}
}

// Upstream's own tests of the package, some of which the patch changes.
func TestMultusPatchedTree(t *testing.T) {
	m := newMultus(t, filepath.Join(upstream, source.MultusDir))
	if out, err := goTest(m.Tree, "./pkg/multus"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func newMultus(t *testing.T, dir string) *source.Multus {
	t.Helper()
	m, err := source.NewMultus(t.Context(), dir, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

var failedCase = regexp.MustCompile(`(?m)^ +--- FAIL: TestDelWithoutSavedDelegates/(\S+)`)

// testDel runs our test in a tree of Multus, and returns the cases that failed.
func testDel(t *testing.T, tree string) (failed []string, out []byte) {
	t.Helper()
	data, err := os.ReadFile("testdata/del_test.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "pkg/multus/chandler_del_test.go"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err = goTest(tree, "-v", "-run", "TestDelWithoutSavedDelegates", "./pkg/multus")
	for _, m := range failedCase.FindAllSubmatch(out, -1) {
		failed = append(failed, string(m[1]))
	}
	if err != nil && len(failed) == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	slices.Sort(failed)
	return failed, out
}

// goTest runs tests of Multus in a tree of it, with the versions that its own go.mod and go.sum name. The flags are those of
// the build, which has compiled most of it already. Upstream's tests leave the names of their network namespaces behind: here
// in a file system that goes with them.
func goTest(tree string, args ...string) ([]byte, error) {
	const private = `mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && exec "$@"`
	cmd := exec.Command("unshare", append([]string{"--mount", "--propagation=private", "sh", "-c", private, "sh",
		"go", "test", "-trimpath", "-vet=off", "-count=1"}, args...)...)
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off", "CGO_ENABLED=0")
	return cmd.CombinedOutput()
}
