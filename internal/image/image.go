// Package image makes the OCI image that brings Multus, the plugins and chandler to nodes: without Docker, without a
// distribution inside, and equal to the byte whenever and wherever it is made from equal parts. It writes the image as an
// OCI layout and pushes it to a registry.
package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// Where things are in the image, without the slash in front. Upstream's manifest and install_multus know multusDir, the
// charts know the other two.
const (
	multusDir   = "usr/src/multus-cni/bin"
	bundleDir   = "cni-plugins"
	chandlerBin = "usr/bin/chandler"
	licensesDir = "usr/share/licenses"
	sbomPath    = "usr/share/sbom/image.cdx.json"
)

// MaxCompressed is how large one platform's compressed layers are meant to be at most, in bytes. It is for callers to
// hold: a bundle of one's own may be larger with good reason.
const MaxCompressed = 35_000_000

// multusPrograms are the executables that upstream's DaemonSet runs or copies to the node.
var multusPrograms = []string{"install_multus", "multus-daemon", "multus-shim", "passthru"}

// Platform is what one platform's image is made from. Multus and Chandler are directories with the programs in bin/, and
// the licences of what these are linked from in licenses/<module>@<version>/. Multus has the patches that it was built
// with in patches/.
type Platform struct {
	Arch     string // as GOARCH spells it; the system is Linux
	Multus   string // bin/ holds install_multus, multus-daemon, multus-shim and passthru
	Chandler string // bin/ holds chandler
	Bundle   string // a bundle as internal/bundle describes it
}

// Spec is what an image is made from.
type Spec struct {
	Platforms []Platform
	Version   string    // of the image: a label
	Revision  string    // of chandler's source, if known: a label
	Created   time.Time // of everything in it; the zero Time is 1970-01-01
}

// Image is an OCI image index with the images of its platforms, whole and in memory. It does not change.
type Image struct {
	Digest    string // of the index: sha256:<hex>
	Platforms []Contents

	index *index
}

// Contents is what is in one platform's image.
type Contents struct {
	Platform   string  `json:"platform"` // as in linux/amd64
	Digest     string  `json:"digest"`   // of the platform's manifest
	Compressed int64   `json:"compressedBytes"`
	Size       int64   `json:"bytes"` // of all files
	Layers     []Layer `json:"layers"`
}

// Layer is one layer of an image.
type Layer struct {
	Name       string `json:"name"`
	Digest     string `json:"digest"`
	Compressed int64  `json:"compressedBytes"`
	Files      []File `json:"files"`
}

// File is one file or link of a layer.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"bytes"`            // 0 for a link
	LinkTo string `json:"linkTo,omitempty"` // of a symbolic link its target, of a hard link the file it is
}

// Build makes the image. It checks what it is given first: the bundle whole, and every program's machine and linking.
func Build(ctx context.Context, spec Spec) (*Image, error) {
	if len(spec.Platforms) == 0 {
		return nil, errors.New("no platform")
	}
	if spec.Created.IsZero() {
		spec.Created = time.Unix(0, 0)
	}
	spec.Created = spec.Created.UTC().Truncate(time.Second)
	result := &Image{index: &index{images: make(map[v1.Hash]v1.Image)}}
	for _, p := range spec.Platforms {
		img, contents, err := buildPlatform(ctx, spec, p)
		if err != nil {
			return nil, fmt.Errorf("build linux/%s: %w", p.Arch, err)
		}
		if err := result.index.add(img, p.Arch); err != nil {
			return nil, fmt.Errorf("add linux/%s to the index: %w", p.Arch, err)
		}
		result.Platforms = append(result.Platforms, contents)
	}
	digest, err := result.index.close(spec.annotations())
	if err != nil {
		return nil, fmt.Errorf("close index: %w", err)
	}
	result.Digest = digest.String()
	return result, nil
}

// annotations are the standard ones of the index and of each manifest, and the labels of each configuration.
func (s Spec) annotations() map[string]string {
	a := map[string]string{
		"org.opencontainers.image.created":     s.Created.Format(time.RFC3339),
		"org.opencontainers.image.title":       "multus",
		"org.opencontainers.image.description": "Multus CNI with the CNI reference plugins, and chandler, which stages them onto nodes",
		"org.opencontainers.image.url":         "https://github.com/chandler-cni/chandler",
		"org.opencontainers.image.source":      "https://github.com/chandler-cni/chandler",
		"org.opencontainers.image.vendor":      "chandler-cni",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     s.Version,
		"org.opencontainers.image.revision":    s.Revision,
	}
	maps.DeleteFunc(a, func(_, value string) bool { return value == "" })
	return a
}

func buildPlatform(ctx context.Context, spec Spec, p Platform) (v1.Image, Contents, error) {
	parts, err := p.parts(ctx, spec)
	if err != nil {
		return nil, Contents{}, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	contents := Contents{Platform: "linux/" + p.Arch}
	for _, part := range parts {
		l, err := newLayer(ctx, part.name, part.entries, spec.Created)
		if err != nil {
			return nil, Contents{}, fmt.Errorf("make layer %s: %w", part.name, err)
		}
		img, err = mutate.Append(img, mutate.Addendum{
			Layer:   l,
			History: v1.History{Created: v1.Time{Time: spec.Created}, CreatedBy: "chandlerctl image build: " + part.name},
		})
		if err != nil {
			return nil, Contents{}, fmt.Errorf("add layer %s: %w", part.name, err)
		}
		contents.add(l)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, Contents{}, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", p.Arch
	config.Created = v1.Time{Time: spec.Created}
	// No User: root, by number and in effect, since everything that the image is for writes to the node as root.
	config.Config = v1.Config{
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Entrypoint: []string{"/" + multusDir + "/multus-daemon"},
		WorkingDir: "/",
		Labels:     spec.annotations(),
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, Contents{}, fmt.Errorf("set configuration: %w", err)
	}
	img = mutate.Annotations(img, spec.annotations()).(v1.Image)
	digest, err := img.Digest()
	if err != nil {
		return nil, Contents{}, err
	}
	contents.Digest = digest.String()
	return img, contents, nil
}

func (c *Contents) add(l *layer) {
	out := Layer{Name: l.name, Digest: l.digest.String(), Compressed: int64(len(l.gz))}
	for _, e := range l.entries {
		if e.mode.IsDir() {
			continue
		}
		out.Files = append(out.Files, File{Path: "/" + e.path, Size: e.size, LinkTo: e.linkTo()})
		c.Size += e.size
	}
	c.Compressed += out.Compressed
	c.Layers = append(c.Layers, out)
}

func (e entry) linkTo() string {
	if e.same != "" {
		return "/" + e.same
	}
	return e.target
}

// part is what one layer is made of.
type part struct {
	name    string
	entries []entry
}

// parts are the image's layers, those that change least often first, so that an update brings as few as it can: the base
// never, Multus and the plugins with their releases, chandler with every release of its own, and what describes all of
// them whenever one does.
func (p Platform) parts(ctx context.Context, spec Spec) ([]part, error) {
	multus, err := p.programs(p.Multus, multusDir, multusPrograms...)
	if err != nil {
		return nil, err
	}
	plugins, err := p.plugins(ctx)
	if err != nil {
		return nil, err
	}
	chandler, err := p.programs(p.Chandler, path.Dir(chandlerBin), path.Base(chandlerBin))
	if err != nil {
		return nil, err
	}
	about, err := p.licenses()
	if err != nil {
		return nil, fmt.Errorf("gather licences: %w", err)
	}
	sbom, err := p.sbom(spec, slices.Concat(multus, plugins, chandler))
	if err != nil {
		return nil, fmt.Errorf("make SBOM: %w", err)
	}
	return []part{
		{"base", base()},
		{"multus", multus},
		{"plugins", plugins},
		{"chandler", chandler},
		{"about", append(about, file(sbomPath, sbom))},
	}, nil
}

// base is what is left of a distribution.
func base() []entry {
	return []entry{
		// multus-daemon asks for the current user's name, and ends with a crash if nothing knows it.
		file("etc/passwd", []byte("root:x:0:0:root:/root:/sbin/nologin\n")),
		file("etc/group", []byte("root:x:0:\n")),
		folder("root", 0o700),
		folder("run", 0o755),
		folder("tmp", fs.ModeSticky|0o777),
		// Runtimes name network namespaces by /var/run/netns, and mount the node's at /run/netns.
		{path: "var/run", mode: fs.ModeSymlink | 0o777, target: "/run"},
	}
}

// programs are the named executables of a directory's bin/, which must be all that is there.
func (p Platform) programs(from, at string, names ...string) ([]entry, error) {
	there, err := os.ReadDir(filepath.Join(from, "bin"))
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, d := range there {
		source := filepath.Join(from, "bin", d.Name())
		if !slices.Contains(names, d.Name()) {
			return nil, fmt.Errorf("%s does not belong in the image", source)
		}
		e, err := program(path.Join(at, d.Name()), source)
		if err != nil {
			return nil, err
		}
		if err := p.checkProgram(e); err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		entries = append(entries, e)
	}
	if len(entries) < len(names) {
		return nil, fmt.Errorf("%s holds %d of %s", filepath.Join(from, "bin"), len(entries), strings.Join(names, ", "))
	}
	return entries, nil
}

// checkProgram finds what would not run in an image that has no libraries, or on this platform.
func (p Platform) checkProgram(e entry) error {
	f, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := plugin.Identify(f, e.size)
	if err != nil {
		return err
	}
	if !info.Static() {
		return errors.New("is not a static ELF executable")
	}
	return info.CheckArch(p.Arch)
}

// plugins is the bundle, checked as it is read: an image must not spread damage.
func (p Platform) plugins(ctx context.Context) ([]entry, error) {
	b, err := bundle.Open(p.Bundle)
	if err != nil {
		return nil, fmt.Errorf("open bundle %s: %w", p.Bundle, err)
	}
	defer b.Close()
	if err := errors.Join(b.Verify(ctx)...); err != nil {
		return nil, fmt.Errorf("verify bundle %s: %w", p.Bundle, err)
	}
	if b.Manifest.Arch != p.Arch {
		return nil, fmt.Errorf("bundle %s: %w", p.Bundle, &plugin.ArchError{File: b.Manifest.Arch, Node: p.Arch})
	}
	entries, err := tree(bundleDir, p.Bundle, func(name string) fs.FileMode {
		if path.Dir(name) == "bin" {
			return 0o755
		}
		return 0o644
	})
	if err != nil {
		return nil, fmt.Errorf("read bundle %s: %w", p.Bundle, err)
	}
	return entries, nil
}

// licenses are the licences of all programs, and the changes that were made to Multus. The parts share modules: where
// two have one file, it must be the same.
func (p Platform) licenses() ([]entry, error) {
	var all []entry
	for _, from := range []string{p.Multus, p.Bundle, p.Chandler} {
		entries, err := tree(licensesDir, filepath.Join(from, "licenses"), func(string) fs.FileMode { return 0o644 })
		if errors.Is(err, fs.ErrNotExist) {
			continue // a bundle of the user's own plugins may know none
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.mode.IsDir() {
				continue
			}
			// Hard links among licences would tie this layer's parts together for nothing.
			source := e.source
			if e.same != "" {
				source = filepath.Join(from, "licenses", filepath.FromSlash(strings.TrimPrefix(e.same, licensesDir+"/")))
			}
			data, err := os.ReadFile(source)
			if err != nil {
				return nil, err
			}
			if all, err = addOnce(all, file(e.path, data)); err != nil {
				return nil, err
			}
		}
	}
	patches, err := p.patches()
	if err != nil {
		return nil, err
	}
	for _, patch := range patches {
		all = append(all, file(path.Join(licensesDir, "multus-patches", patch.name), patch.text))
	}
	return all, nil
}

func addOnce(all []entry, e entry) ([]entry, error) {
	for _, other := range all {
		if other.path == e.path {
			if string(other.data) != string(e.data) {
				return nil, fmt.Errorf("/%s differs between two parts of the image", e.path)
			}
			return all, nil
		}
	}
	return append(all, e), nil
}

type patch struct {
	name string
	text []byte
}

// patches are the changes that Multus was built with, in the order they were made.
func (p Platform) patches() ([]patch, error) {
	dir := filepath.Join(p.Multus, "patches")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var patches []patch
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		patches = append(patches, patch{e.Name(), text})
	}
	return patches, nil
}
