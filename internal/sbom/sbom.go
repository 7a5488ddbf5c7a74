// Package sbom describes programs, and the Go modules that they are linked from, as a CycloneDX document. What it says of a
// program is what the build information in it says. Equal programs make equal documents: nothing in one is random, and its
// only time is one that the caller gives.
package sbom

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/chandler-cni/chandler/internal/plugin"
)

// Kind is what the whole is that the programs are parts of.
type Kind string

const (
	Image  Kind = "image"
	Bundle Kind = "bundle"
)

// Subject is the whole that a document is about.
type Subject struct {
	Kind          Kind
	Name, Version string
	Platform      string    // as in linux/amd64
	Created       time.Time // the zero Time: the document says none
}

// Patch is a change that was made to a module before it was built.
type Patch struct{ Text []byte }

// Program is one executable of the whole. Its first path names it; the others are links to the same file.
type Program struct {
	Paths  []string
	SHA256 string // lowercase hexadecimal
	Size   int64
	File   io.ReaderAt
}

// Make makes the document. Programs are in it in their order. Of a module that was built from a changed copy it tells the patches.
func Make(subject Subject, programs []Program, patches ...Patch) ([]byte, error) {
	doc := &document{patches: patches, libraries: make(map[string]cdx.Component)}
	for _, p := range programs {
		if err := doc.add(p); err != nil {
			return nil, fmt.Errorf("read build information of %s: %w", p.Paths[0], err)
		}
	}
	return doc.encode(subject)
}

// document gathers what an SBOM is made of.
type document struct {
	patches      []Patch
	programs     []cdx.Component
	libraries    map[string]cdx.Component // by reference
	dependencies []cdx.Dependency         // of the programs, in their order
}

func (d *document) add(p Program) error {
	name := p.Paths[0]
	var at []cdx.EvidenceOccurrence
	for _, path := range p.Paths {
		at = append(at, cdx.EvidenceOccurrence{Location: path})
	}
	program := cdx.Component{
		BOMRef: "file:" + name, Type: cdx.ComponentTypeApplication, Name: name,
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: p.SHA256}},
		Evidence: &cdx.Evidence{Occurrences: &at},
	}
	depends := cdx.Dependency{Ref: program.BOMRef, Dependencies: &[]string{}}
	described, err := plugin.Describe(p.File, p.Size)
	if err != nil && !says(err) {
		return err
	}
	program.Version = described.Version
	info, err := plugin.BuildInfo(p.File, p.Size)
	switch {
	case err == nil:
		modules := []*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
		if info.Main.Path != "" {
			modules = append(modules, &info.Main)
		}
		for _, m := range append(modules, info.Deps...) {
			*depends.Dependencies = append(*depends.Dependencies, d.addLibrary(m))
		}
	case !says(err):
		return err
	}
	d.programs = append(d.programs, program)
	d.dependencies = append(d.dependencies, depends)
	return nil
}

// says whether an error is what a file says of itself, rather than that it could not be read. What has no build information,
// a script or another language's program, is listed all the same.
func says(err error) bool {
	var format *plugin.FormatError
	return errors.Is(err, plugin.ErrNoBuildInfo) || errors.Is(err, plugin.ErrNotExecutable) || errors.As(err, &format)
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
				Diff: &cdx.Diff{Text: &cdx.AttachedText{ContentType: "text/x-diff", Content: string(p.Text)}}}
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

func (d *document) encode(s Subject) ([]byte, error) {
	whole := cdx.Component{BOMRef: string(s.Kind), Type: cdx.ComponentTypeApplication, Name: s.Name, Version: s.Version,
		Properties: &[]cdx.Property{{Name: "platform", Value: s.Platform}}}
	if s.Kind == Image {
		whole.Type = cdx.ComponentTypeContainer
	}
	top := cdx.Dependency{Ref: whole.BOMRef, Dependencies: &[]string{}}
	components := slices.Clone(d.programs)
	for _, c := range d.programs {
		*top.Dependencies = append(*top.Dependencies, c.BOMRef)
	}
	for _, ref := range slices.Sorted(maps.Keys(d.libraries)) {
		components = append(components, d.libraries[ref])
	}
	dependencies := append([]cdx.Dependency{top}, d.dependencies...)
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &whole}
	if !s.Created.IsZero() {
		bom.Metadata.Timestamp = s.Created.Format(time.RFC3339)
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_5); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
