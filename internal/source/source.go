// Package source makes bundles from where plugins come from: the pinned Go module, or a directory of executables.
// Each makes the whole bundle or nothing.
package source

import (
	"context"
	"fmt"
	"path"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/sbom"
)

// makeBundle fills a new bundle at out, adds the extras and puts it in its place. When anything fails, nothing is at out.
func makeBundle(ctx context.Context, out, version, arch string, from bundle.Source, extras []Extra, fill func(*bundle.Writer) error) (err error) {
	w, err := bundle.Create(out, version, arch, from)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := w.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("clean up: %w", closeErr)
		}
	}()
	if err := fill(w); err != nil {
		return err
	}
	for _, e := range extras {
		if err := e.add(ctx, w); err != nil {
			return err
		}
	}
	if err := describeContent(w, version, arch); err != nil {
		return fmt.Errorf("make SBOM: %w", err)
	}
	if _, err := w.Commit(); err != nil {
		return fmt.Errorf("commit bundle: %w", err)
	}
	return nil
}

// describeContent gives the bundle a document of its plugins and what they are linked from, as their own build information
// has it.
func describeContent(w *bundle.Writer, version, arch string) error {
	var programs []sbom.Program
	at := make(map[string]int) // by digest: several names may be one executable
	for _, p := range w.Plugins() {
		name := path.Join("bin", p.Name)
		if i, ok := at[p.SHA256]; ok {
			programs[i].Paths = append(programs[i].Paths, name)
			continue
		}
		f, err := w.Open(p.Name)
		if err != nil {
			return err
		}
		defer f.Close() // a few dozen
		at[p.SHA256] = len(programs)
		programs = append(programs, sbom.Program{Paths: []string{name}, SHA256: p.SHA256, Size: p.Size, File: f})
	}
	doc, err := sbom.Make(sbom.Subject{Kind: sbom.Bundle, Name: "cni-plugins", Version: version, Platform: "linux/" + arch}, programs)
	if err != nil {
		return err
	}
	return w.SBOM(doc)
}
