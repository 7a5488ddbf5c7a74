package scenario

import (
	"archive/tar"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every image reference of the charts, rendered with the digest of the image that was just built, is one that `refs check`
// accepts, and it finds them: a chart that loses the digest is not accepted.
func TestChartsReferences(t *testing.T) {
	digest := indexDigest(t, ring.image)
	root := filepath.Join(ring.work, "packages")
	check := func(sets string) (string, error) {
		t.Helper()
		for _, chart := range []string{"multus", "platform"} {
			dir := filepath.Join(root, "system", chart)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			args := []string{chart}
			if chart == "multus" {
				args = append(args, "--set", sets)
			}
			if err := os.WriteFile(filepath.Join(dir, "values.yaml"), []byte(ring.render(t, args...)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return ring.tool(ring.chandlerctl, "refs", "check", root, "--output", "json")
	}
	config := "firstParty: [ghcr.io/chandler-cni]\n"
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "refs.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	pinned := "stageCniPlugins=true,image.digest=" + digest
	if out, err := check(pinned); err != nil {
		t.Errorf("refs check: %v\n%s", err, out)
	}
	listed, err := ring.tool(ring.chandlerctl, "refs", "list", root, "--first-party", "ghcr.io/chandler-cni")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(listed, digest); n != 3 { // the daemon's container and the two init containers
		t.Errorf("%d references to the image, not 3:\n%s", n, listed)
	}
	if out, err := check("stageCniPlugins=true"); err == nil {
		t.Errorf("references without a digest are accepted:\n%s", out)
	}
}

// indexDigest reads the digest that the archive of an OCI layout says its image has.
func indexDigest(t *testing.T, archive string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if err != nil {
			t.Fatalf("%s: no index.json: %v", archive, err)
		}
		if h.Name != "index.json" {
			continue
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		var index struct{ Manifests []struct{ Digest string } }
		if err := json.Unmarshal(data, &index); err != nil || len(index.Manifests) != 1 {
			t.Fatalf("index.json: %s: %v", data, err)
		}
		return index.Manifests[0].Digest
	}
}
