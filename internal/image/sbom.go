package image

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom is a CycloneDX document of the image's executables and the modules they are linked from, as the build information
// in them says. What was built here by changing a module carries the changes. Equal executables make equal documents.
func (p Platform) sbom(spec Spec, entries []entry) ([]byte, error) {
	patches, err := p.patches()
	if err != nil {
		return nil, err
	}
	doc := &document{patches: patches, libraries: make(map[string]cdx.Component)}
	for _, e := range entries {
		if e.mode.Perm()&0o111 == 0 || !e.mode.IsRegular() {
			continue
		}
		if e.same != "" {
			doc.alsoAt(e)
			continue
		}
		if err := doc.addProgram(e); err != nil {
			return nil, fmt.Errorf("read build information of /%s: %w", e.path, err)
		}
	}

	image := cdx.Component{BOMRef: "image", Type: cdx.ComponentTypeContainer, Name: "multus", Version: spec.Version,
		Properties: &[]cdx.Property{{Name: "platform", Value: "linux/" + p.Arch}}}
	top := cdx.Dependency{Ref: image.BOMRef, Dependencies: &[]string{}}
	components := slices.Clone(doc.programs)
	for _, c := range doc.programs {
		*top.Dependencies = append(*top.Dependencies, c.BOMRef)
	}
	for _, ref := range slices.Sorted(maps.Keys(doc.libraries)) {
		components = append(components, doc.libraries[ref])
	}
	dependencies := append([]cdx.Dependency{top}, doc.dependencies...)
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &image, Timestamp: spec.Created.Format(time.RFC3339)}
	bom.Components, bom.Dependencies = &components, &dependencies

	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_5); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// document gathers what an SBOM is made of.
type document struct {
	patches      []patch
	programs     []cdx.Component          // in order of their paths
	libraries    map[string]cdx.Component // by reference
	dependencies []cdx.Dependency         // of the programs, in their order
}

// alsoAt adds a further name to the program that e is a hard link to.
func (d *document) alsoAt(e entry) {
	for i := range d.programs {
		if at := d.programs[i].Evidence.Occurrences; d.programs[i].Name == "/"+e.same {
			*at = append(*at, cdx.EvidenceOccurrence{Location: "/" + e.path})
		}
	}
}

func (d *document) addProgram(e entry) error {
	f, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	program := cdx.Component{
		BOMRef: "file:/" + e.path, Type: cdx.ComponentTypeApplication, Name: "/" + e.path,
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(h.Sum(nil))}},
		Evidence: &cdx.Evidence{Occurrences: &[]cdx.EvidenceOccurrence{{Location: "/" + e.path}}},
	}
	depends := cdx.Dependency{Ref: program.BOMRef, Dependencies: &[]string{}}
	// What says nothing of itself, a script or another language's program, is listed all the same.
	if info, err := buildinfo.Read(f); err == nil {
		program.Version = version(info.Main)
		modules := []*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
		if info.Main.Path != "" {
			modules = append(modules, &info.Main)
		}
		for _, m := range append(modules, info.Deps...) {
			*depends.Dependencies = append(*depends.Dependencies, d.addLibrary(m))
		}
	}
	d.programs = append(d.programs, program)
	d.dependencies = append(d.dependencies, depends)
	return nil
}

// addLibrary enters a module and returns its reference.
func (d *document) addLibrary(m *debug.Module) string {
	purl := "pkg:golang/" + m.Path
	if v := version(*m); v != "" {
		purl += "@" + strings.ReplaceAll(v, "+", "%2B")
	}
	c := cdx.Component{BOMRef: purl, PackageURL: purl, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: version(*m)}
	if m.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go.sum", Value: m.Sum}}
	}
	// A module taken from a directory is the copy that a patch was applied to.
	if m.Replace != nil && len(d.patches) > 0 {
		patches := make([]cdx.Patch, len(d.patches))
		for i, p := range d.patches {
			patches[i] = cdx.Patch{Type: cdx.PatchTypeUnofficial,
				Diff: &cdx.Diff{Text: &cdx.AttachedText{ContentType: "text/x-diff", Content: string(p.text)}}}
		}
		c.Pedigree = &cdx.Pedigree{Patches: &patches, Notes: "changed before it was built"}
	}
	d.libraries[purl] = c
	return purl
}

// version is a module's version, empty for one that was built from its working tree.
func version(m debug.Module) string {
	if m.Version == "(devel)" {
		return ""
	}
	return m.Version
}
