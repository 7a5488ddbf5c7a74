package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/chandler-cni/chandler/internal/bundle"
)

// NoSourceError says that a bundle does not say what source it could be built from.
type NoSourceError struct{ Kind string }

func (e *NoSourceError) Error() string {
	switch e.Kind {
	case "release":
		return "was taken from upstream's tarball, which is not built here"
	case "dir":
		return "was packed from executables, whose source it does not know"
	}
	return fmt.Sprintf("of kind %q is not built from source", e.Kind)
}

// GoVersionError says that another toolchain is here than the one that a bundle was built with: the bytes would differ for
// that alone, and prove nothing.
type GoVersionError struct{ Want, Got string }

func (e *GoVersionError) Error() string { return "built with " + e.Want + ", and here is " + e.Got }

// SumError says that a module's source is not the one that a bundle was built from.
type SumError struct{ Module, Want, Got string }

func (e *SumError) Error() string {
	return fmt.Sprintf("built from %s of the sum %s, and go.sum here has %s", e.Module, e.Want, e.Got)
}

// ModuleOf is what a bundle says it was built from: its plugins of the reference set, the toolchain and the sum of the source.
// Dir and Environ are the caller's to set. Errors are *NoSourceError.
func ModuleOf(m *bundle.Manifest) (Module, error) {
	module, version, ok := strings.Cut(m.Source.Module, "@")
	if m.Source.Kind != "module" || !ok {
		return Module{}, &NoSourceError{m.Source.Kind}
	}
	out := Module{Path: module, Version: version, Form: m.Source.Form, Arch: m.Arch, Go: m.Source.Go, Sum: m.Source.Sum}
	for _, p := range m.Plugins {
		if p.Role.Reference() {
			out.Plugins = append(out.Plugins, Plugin{p.Name, p.Role, path.Join(module, "plugins", string(p.Role), p.Name)})
		}
	}
	if len(out.Plugins) == 0 {
		return Module{}, &NoSourceError{m.Source.Kind}
	}
	return out, nil
}

// Check builds the bundle in the directory dir once more and returns each difference. Plugins of the role extra are not built
// from this source: they are not compared, nor is the document that lists them. The error says why nothing could be compared.
func (m Module) Check(ctx context.Context, dir string) (differences []error, err error) {
	b, err := bundle.Open(dir)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	if found := b.Verify(ctx); len(found) > 0 {
		return nil, errors.Join(found...)
	}
	tmp, err := os.MkdirTemp("", "chandler-rebuild-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	out := filepath.Join(tmp, "bundle")
	if err := m.Bundle(ctx, out); err != nil {
		return nil, err
	}
	again, err := bundle.Open(out)
	if err != nil {
		return nil, err
	}
	defer again.Close()

	extras := false
	for _, p := range b.Manifest.Plugins {
		if !p.Role.Reference() {
			extras = true
			continue
		}
		if built, ok := again.Plugin(p.Name); ok && built.SHA256 != p.SHA256 {
			differences = append(differences, &bundle.DamageError{Path: path.Join("bin", p.Name),
				Err: fmt.Errorf("is sha256:%s, and its source makes sha256:%s", p.SHA256, built.SHA256)})
		}
	}
	texts, err := compareTexts(dir, out, !extras)
	if err != nil {
		return nil, err
	}
	differences = append(differences, texts...)
	if !extras && len(differences) == 0 && again.Digest != b.Digest {
		differences = append(differences, &bundle.DamageError{Path: "bundle.json", Err: errors.New("differs")})
	}
	return differences, nil
}

// compareTexts holds the licences, and the SBOM if it is told to, of the bundle in dir to those of the one in built.
func compareTexts(dir, built string, sbom bool) (differences []error, err error) {
	err = filepath.WalkDir(built, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(built, file)
		if err != nil {
			return err
		}
		licence := strings.HasPrefix(name, "licenses"+string(filepath.Separator))
		if d.IsDir() || !licence && (name != "sbom.cdx.json" || !sbom) {
			return nil
		}
		want, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		info, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			differences = append(differences, &bundle.DamageError{Path: name, Err: errors.New("is missing")})
			return nil
		case err != nil:
			return err
		}
		if info.Mode().IsRegular() && info.Size() == int64(len(want)) {
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || bytes.Equal(got, want) {
				return err
			}
		}
		differences = append(differences, &bundle.DamageError{Path: name, Err: errors.New("differs")})
		return nil
	})
	return differences, err
}
