package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

// fakeELF is a static executable, different for each thing it says.
func fakeELF(arch, says string) []byte { return append(plugintest.ELF(arch, ""), says...) }

func write(t testing.TB, path string, data []byte, perm fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, perm); err != nil {
		t.Fatal(err)
	}
}

// newPlatform makes the parts of one platform's image in a new folder, with modes that the image must not take over.
func newPlatform(t testing.TB, arch string) Platform {
	t.Helper()
	dir := t.TempDir()
	p := Platform{Arch: arch, Multus: filepath.Join(dir, "multus"), Chandler: filepath.Join(dir, "chandler"), Bundle: filepath.Join(dir, "bundle")}
	for _, name := range multusPrograms {
		write(t, filepath.Join(p.Multus, "bin", name), fakeELF(arch, name), 0o700)
	}
	write(t, filepath.Join(p.Multus, "licenses/example.com/multus@v4/LICENSE"), []byte("theirs"), 0o600)
	write(t, filepath.Join(p.Multus, "licenses/example.com/shared@v1/LICENSE"), []byte("shared"), 0o600)
	write(t, filepath.Join(p.Multus, "patches/0001-fix.patch"), []byte("--- a/f\n+++ b/f\n"), 0o600)
	write(t, filepath.Join(p.Chandler, "bin/chandler"), fakeELF(arch, "chandler"), 0o777)
	write(t, filepath.Join(p.Chandler, "licenses/example.com/shared@v1/LICENSE"), []byte("shared"), 0o666)
	w, err := bundle.Create(p.Bundle, "v1.9.1", arch, bundle.Source{Kind: "dir"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_, err = w.Add("bridge", bundle.Main, bytes.NewReader(fakeELF(arch, "all of them")))
	_, linkErr := w.Link("vlan", bundle.Main, "bridge")
	_, otherErr := w.Add("portmap", bundle.Meta, bytes.NewReader(fakeELF(arch, "by itself")))
	if err := errors.Join(err, linkErr, otherErr, w.License("example.com/plugins@v1/LICENSE", []byte("plugins"))); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return p
}

func build(t testing.TB, spec Spec) *Image {
	t.Helper()
	img, err := Build(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func bothPlatforms(t testing.TB) Spec {
	return Spec{Platforms: []Platform{newPlatform(t, "amd64"), newPlatform(t, "arm64")}, Version: "v4.3.0"}
}

func TestTwoBuildsHaveOneDigest(t *testing.T) {
	first, second := build(t, bothPlatforms(t)), build(t, bothPlatforms(t))
	if first.Digest != second.Digest {
		t.Errorf("built in two folders: %s and %s", first.Digest, second.Digest)
	}
	for i := range first.Platforms {
		for j, l := range first.Platforms[i].Layers {
			if other := second.Platforms[i].Layers[j]; l.Digest != other.Digest {
				t.Errorf("%s: layer %s differs", first.Platforms[i].Platform, l.Name)
			}
		}
	}
	spec := bothPlatforms(t)
	spec.Created = time.Unix(1_700_000_000, 5)
	if build(t, spec).Digest == first.Digest {
		t.Error("the time has no say")
	}
}

func TestOnlyWhatChangedIsSentAgain(t *testing.T) {
	spec := Spec{Platforms: []Platform{newPlatform(t, "amd64")}}
	before := build(t, spec).Platforms[0].Layers
	write(t, filepath.Join(spec.Platforms[0].Chandler, "bin/chandler"), fakeELF("amd64", "a release later"), 0o755)
	after := build(t, spec).Platforms[0].Layers
	var changed, order []string
	for i := range before {
		order = append(order, before[i].Name)
		if before[i].Digest != after[i].Digest {
			changed = append(changed, before[i].Name)
		}
	}
	if want := []string{"base", "multus", "plugins", "chandler", "about"}; !slices.Equal(order, want) {
		t.Errorf("layers are %v, want %v", order, want)
	}
	if want := []string{"chandler", "about"}; !slices.Equal(changed, want) {
		t.Errorf("changed layers are %v, want %v", changed, want)
	}
}

func TestIndex(t *testing.T) {
	spec := bothPlatforms(t)
	spec.Revision = "0123abc"
	img := build(t, spec)
	if err := validate.Index(img.index); err != nil {
		t.Error(err)
	}
	index, err := img.index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if index.MediaType != types.OCIImageIndex || index.SchemaVersion != 2 || len(index.Manifests) != 2 {
		t.Errorf("index of type %s, version %d, with %d manifests", index.MediaType, index.SchemaVersion, len(index.Manifests))
	}
	if a := index.Annotations; a["org.opencontainers.image.version"] != "v4.3.0" || a["org.opencontainers.image.revision"] != "0123abc" ||
		a["org.opencontainers.image.source"] != "https://github.com/chandler-cni/chandler" || a["org.opencontainers.image.created"] != "1970-01-01T00:00:00Z" {
		t.Errorf("annotations are %v", a)
	}
	if raw, _ := img.index.RawManifest(); bytes.Contains(raw, []byte("artifactType")) {
		t.Errorf("the index holds artifacts: %s", raw)
	}
	for i, d := range index.Manifests {
		arch := spec.Platforms[i].Arch
		if d.MediaType != types.OCIManifestSchema1 || d.Platform == nil || d.Platform.OS != "linux" || d.Platform.Architecture != arch {
			t.Errorf("manifest %d is %s for %v", i, d.MediaType, d.Platform)
		}
		one, err := img.index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		manifest, _ := one.Manifest()
		config, err := one.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if manifest.Config.MediaType != types.OCIConfigJSON || config.OS != "linux" || config.Architecture != arch {
			t.Errorf("configuration of type %s for %s/%s", manifest.Config.MediaType, config.OS, config.Architecture)
		}
		for _, l := range manifest.Layers {
			if l.MediaType != types.OCILayer {
				t.Errorf("layer of type %s", l.MediaType)
			}
		}
		c := config.Config
		if c.User != "" || !slices.Equal(c.Entrypoint, []string{"/usr/src/multus-cni/bin/multus-daemon"}) || c.Cmd != nil {
			t.Errorf("runs %v %v as %q", c.Entrypoint, c.Cmd, c.User)
		}
		if c.Labels["org.opencontainers.image.title"] != "multus" || manifest.Annotations["org.opencontainers.image.title"] != "multus" {
			t.Errorf("labels %v, annotations %v", c.Labels, manifest.Annotations)
		}
		if !config.Created.Equal(time.Unix(0, 0)) || len(config.History) != len(manifest.Layers) {
			t.Errorf("created %v, %d entries of history", config.Created, len(config.History))
		}
	}
}

// headers are all names of a platform's layers, in order.
func headers(t testing.TB, img *Image, platform int) []*tar.Header {
	t.Helper()
	index, _ := img.index.IndexManifest()
	one, err := img.index.Image(index.Manifests[platform].Digest)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := one.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var all []*tar.Header
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for archive := tar.NewReader(r); ; {
			h, err := archive.Next()
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			all = append(all, h)
		}
	}
	return all
}

func TestFiles(t *testing.T) {
	img := build(t, Spec{Platforms: []Platform{newPlatform(t, "amd64")}})
	got := make(map[string]string)
	for _, h := range headers(t, img, 0) {
		name := "/" + strings.TrimSuffix(h.Name, "/")
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s: owner %d:%d %q:%q, time %v", name, h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime)
		}
		if h.Mode&0o6000 != 0 || h.Mode&0o022 != 0 && name != "/tmp" && h.Typeflag != tar.TypeSymlink {
			t.Errorf("%s: mode %04o", name, h.Mode)
		}
		line := fmt.Sprintf("%c %04o", h.Typeflag, h.Mode)
		if h.Linkname != "" {
			line += " " + h.Linkname
		}
		if before, ok := got[name]; ok && before != line {
			t.Errorf("%s is %s and %s", name, before, line)
		}
		got[name] = line
	}
	want := map[string]string{
		"/etc/passwd":                            "0 0644",
		"/etc/group":                             "0 0644",
		"/tmp":                                   "5 1777",
		"/run":                                   "5 0755",
		"/root":                                  "5 0700",
		"/var/run":                               "2 0777 /run",
		"/usr/src/multus-cni/bin/multus-daemon":  "0 0755",
		"/usr/src/multus-cni/bin/multus-shim":    "0 0755",
		"/usr/src/multus-cni/bin/install_multus": "0 0755",
		"/usr/src/multus-cni/bin/passthru":       "0 0755",
		"/usr/bin/chandler":                      "0 0755",
		"/cni-plugins":                           "5 0755",
		"/cni-plugins/bundle.json":               "0 0644",
		"/cni-plugins/bin/bridge":                "0 0755",
		"/cni-plugins/bin/vlan":                  "1 0755 cni-plugins/bin/bridge",
		"/cni-plugins/bin/portmap":               "0 0755",
		"/usr/share/sbom/image.cdx.json":         "0 0644",
		"/usr/share/licenses/multus-patches":     "5 0755",
		"/usr/share/licenses/multus-patches/0001-fix.patch":  "0 0644",
		"/usr/share/licenses/example.com/multus@v4/LICENSE":  "0 0644",
		"/usr/share/licenses/example.com/plugins@v1/LICENSE": "0 0644",
		"/usr/share/licenses/example.com/shared@v1/LICENSE":  "0 0644",
	}
	for name, line := range want {
		if got[name] != line {
			t.Errorf("%s is %q, want %q", name, got[name], line)
		}
	}
}

func TestPartsThatDoNotBelong(t *testing.T) {
	tests := map[string]struct {
		spoil func(t *testing.T, p *Platform)
		want  string
	}{
		"a program of another machine": {func(t *testing.T, p *Platform) {
			write(t, filepath.Join(p.Multus, "bin/multus-shim"), fakeELF("arm64", ""), 0o755)
		}, "built for arm64, not for amd64"},
		"a dynamic program": {func(t *testing.T, p *Platform) {
			write(t, filepath.Join(p.Chandler, "bin/chandler"), []byte("#!/bin/sh\n"), 0o755)
		}, "not a static ELF executable"},
		"a program missing": {func(t *testing.T, p *Platform) {
			os.Remove(filepath.Join(p.Multus, "bin/passthru"))
		}, "holds 3 of install_multus"},
		"a program too many": {func(t *testing.T, p *Platform) {
			write(t, filepath.Join(p.Multus, "bin/cert-approver"), fakeELF("amd64", ""), 0o755)
		}, "cert-approver does not belong in the image"},
		"a damaged bundle": {func(t *testing.T, p *Platform) {
			write(t, filepath.Join(p.Bundle, "bin/portmap"), fakeELF("amd64", "by myself"), 0o755)
		}, "bin/portmap: digest mismatch"},
		"a bundle of another machine": {func(t *testing.T, p *Platform) { p.Bundle = newPlatform(t, "arm64").Bundle }, "built for arm64, not for amd64"},
		"no bundle":                   {func(t *testing.T, p *Platform) { p.Bundle += "x" }, "no bundle"},
		"two licences of one module": {func(t *testing.T, p *Platform) {
			write(t, filepath.Join(p.Chandler, "licenses/example.com/shared@v1/LICENSE"), []byte("another"), 0o644)
		}, "differs between two parts"},
		"a link among the licences": {func(t *testing.T, p *Platform) {
			os.Symlink("/etc/shadow", filepath.Join(p.Multus, "licenses/link"))
		}, "not a regular file"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPlatform(t, "amd64")
			test.spoil(t, &p)
			if _, err := Build(t.Context(), Spec{Platforms: []Platform{p}}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	t.Run("no platform", func(t *testing.T) {
		if _, err := Build(t.Context(), Spec{}); err == nil {
			t.Error("built")
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Build(ctx, Spec{Platforms: []Platform{newPlatform(t, "amd64")}}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestLayer(t *testing.T) {
	tests := map[string]struct {
		entries []entry
		want    string
	}{
		"twice":            {[]entry{file("a", nil), file("a", nil)}, "/a is there twice"},
		"file and folder":  {[]entry{file("a", nil), folder("a", 0o755)}, "/a is there twice"},
		"below a file":     {[]entry{file("a/b", nil), file("a", nil)}, "no directory"},
		"leaves the image": {[]entry{file("../a", nil)}, "none in an image"},
		"absolute":         {[]entry{file("/a", nil)}, "none in an image"},
		"link before":      {[]entry{{path: "a", same: "b"}, file("b", nil)}, "no file before it"},
		"link to nothing":  {[]entry{{path: "a", same: "0"}}, "no file before it"},
		"wrong size":       {[]entry{{path: "a", mode: 0o644, data: []byte("xy"), size: 1}}, "archive /a"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := newLayer(t.Context(), "l", test.entries, time.Unix(0, 0)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	t.Run("the order given does not matter", func(t *testing.T) {
		all := []entry{file("b/c", []byte("1")), folder("b", 0o700), file("b-a", []byte("2")), file("a", []byte("3"))}
		first, err := newLayer(t.Context(), "l", all, time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(all)
		second, err := newLayer(t.Context(), "l", all, time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		if first.digest != second.digest {
			t.Error("two digests")
		}
	})
	t.Run("a file that grows", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "f")
		write(t, path, []byte("x"), 0o755)
		e, err := program("f", path)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, []byte("xy"), 0o755)
		if _, err := newLayer(t.Context(), "l", []entry{e}, time.Unix(0, 0)); err == nil {
			t.Error("archived")
		}
		write(t, path, nil, 0o755)
		if _, err := newLayer(t.Context(), "l", []entry{e}, time.Unix(0, 0)); err == nil {
			t.Error("archived when it was shorter")
		}
	})
}

func TestTreeKeepsHardLinks(t *testing.T) {
	dir := t.TempDir()
	// In the order of a walk a/z is first, in that of a layer a-b is.
	write(t, filepath.Join(dir, "a/z"), []byte("x"), 0o600)
	if err := os.Link(filepath.Join(dir, "a/z"), filepath.Join(dir, "a-b")); err != nil {
		t.Fatal(err)
	}
	entries, err := tree("at", dir, func(string) fs.FileMode { return 0o644 })
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLayer(t.Context(), "l", entries, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if last := l.entries[len(l.entries)-1]; last.path != "at/a/z" || last.same != "at/a-b" {
		t.Errorf("%s is a link to %q", last.path, last.same)
	}
}

func TestTreeMayBeNamedByALink(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "real/f"), []byte("x"), 0o644)
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	entries, err := tree("at", filepath.Join(dir, "link"), func(string) fs.FileMode { return 0o644 })
	if err != nil || len(entries) != 2 || entries[1].path != "at/f" {
		t.Errorf("%+v, %v", entries, err)
	}
}

func TestSBOM(t *testing.T) {
	p := newPlatform(t, "amd64")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	this, err := program("usr/bin/this", self)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := program("usr/bin/foreign", filepath.Join(p.Chandler, "bin/chandler"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := p.sbom(Spec{Version: "v4.3.0"}, []entry{foreign, this, {path: "usr/bin/too", mode: 0o755, same: this.path}, file("etc/passwd", nil)})
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(data), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	byRef := make(map[string]cdx.Component)
	for _, c := range *bom.Components {
		if _, ok := byRef[c.BOMRef]; ok {
			t.Errorf("%s is there twice", c.BOMRef)
		}
		byRef[c.BOMRef] = c
	}
	for _, d := range *bom.Dependencies {
		if d.Dependencies == nil {
			continue
		}
		for _, ref := range *d.Dependencies {
			if _, ok := byRef[ref]; !ok {
				t.Errorf("%s depends on %s, which is not described", d.Ref, ref)
			}
		}
	}
	if at := byRef["file:/usr/bin/this"].Evidence; at == nil || len(*at.Occurrences) != 2 {
		t.Errorf("a program of two names is at %+v", at)
	}
	if byRef["file:/usr/bin/foreign"].Name == "" {
		t.Error("a program without build information is left out")
	}
	if byRef["pkg:golang/stdlib@"+strings.TrimPrefix(runtime.Version(), "go")].Name == "" {
		t.Errorf("the standard library is not described, only %v", slices.Collect(maps.Keys(byRef)))
	}
}

func TestSBOMOfAPatchedModule(t *testing.T) {
	doc := &document{patches: []patch{{"0001-fix.patch", []byte("--- a/f\n")}}, libraries: make(map[string]cdx.Component)}
	plain := doc.addLibrary(&debug.Module{Path: "example.com/m", Version: "v1.0.0+incompatible", Sum: "h1:x"})
	if c := doc.libraries[plain]; plain != "pkg:golang/example.com/m@v1.0.0%2Bincompatible" || c.Pedigree != nil || (*c.Properties)[0].Value != "h1:x" {
		t.Errorf("%s is %+v", plain, c)
	}
	changed := doc.addLibrary(&debug.Module{Path: "example.com/n", Version: "v2.0.0", Replace: &debug.Module{Path: "./n", Version: "(devel)"}})
	if c := doc.libraries[changed]; c.Version != "v2.0.0" || c.Pedigree == nil || (*c.Pedigree.Patches)[0].Diff.Text.Content != "--- a/f\n" {
		t.Errorf("%s is %+v", changed, c)
	}
}

func TestWriteLayout(t *testing.T) {
	img := build(t, bothPlatforms(t))
	const name = "ghcr.io/chandler-cni/multus:v4.3.0"
	dir := filepath.Join(t.TempDir(), "out")
	if err := img.WriteLayout(dir, name); err != nil {
		t.Fatal(err)
	}
	checkLayout(t, img, dir, name)

	archive := dir + ".tar"
	if err := img.WriteLayout(archive, name); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(t.TempDir(), "again.tar")
	if err := img.WriteLayout(again, name); err != nil {
		t.Fatal(err)
	}
	if other, _ := os.ReadFile(again); !bytes.Equal(data, other) {
		t.Error("two archives of one image differ")
	}
	extracted := t.TempDir()
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			content, _ := io.ReadAll(r)
			write(t, filepath.Join(extracted, h.Name), content, 0o644)
		}
	}
	checkLayout(t, img, extracted, name)

	for _, out := range []string{dir, archive} {
		if err := CheckOut(out); err == nil {
			t.Errorf("%s could be written over", out)
		}
		if err := img.WriteLayout(out, name); err == nil {
			t.Errorf("%s was written over", out)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".chandler-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func checkLayout(t *testing.T, img *Image, dir, name string) {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%d images", len(manifest.Manifests))
	}
	d := manifest.Manifests[0]
	if d.Digest.String() != img.Digest || d.MediaType != types.OCIImageIndex {
		t.Errorf("holds %s %s, not %s", d.MediaType, d.Digest, img.Digest)
	}
	if d.Annotations["io.containerd.image.name"] != name || d.Annotations["org.opencontainers.image.ref.name"] != "v4.3.0" {
		t.Errorf("named %v", d.Annotations)
	}
	inner, err := index.ImageIndex(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	of, err := inner.IndexManifest()
	if err != nil || len(of.Manifests) != 2 {
		t.Errorf("%+v, %v", of, err)
	}
	var marker struct{ ImageLayoutVersion string }
	data, err := os.ReadFile(filepath.Join(dir, "oci-layout"))
	if err := errors.Join(err, json.Unmarshal(data, &marker)); err != nil || marker.ImageLayoutVersion != "1.0.0" {
		t.Errorf("oci-layout is %s, %v", data, err)
	}
}

func TestContents(t *testing.T) {
	img := build(t, Spec{Platforms: []Platform{newPlatform(t, "arm64")}})
	c := img.Platforms[0]
	var compressed, size int64
	for _, l := range c.Layers {
		compressed += l.Compressed
		for _, f := range l.Files {
			size += f.Size
		}
	}
	if c.Platform != "linux/arm64" || c.Compressed != compressed || c.Size != size || size == 0 {
		t.Errorf("%+v", c)
	}
	manifest, _ := img.index.IndexManifest()
	if got := manifest.Manifests[0].Digest.String(); got != c.Digest {
		t.Errorf("digest %s, not %s", c.Digest, got)
	}
}

var _ v1.Layer = (*layer)(nil)
