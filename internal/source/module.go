package source

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/chandler-cni/chandler/internal/bundle"
)

// Module is a Go module whose main packages are plugins, built here with the Go command.
//
// The module is required by the go.mod in Dir, and go.sum there is what verifies its source and that of all it needs:
// the Go command compares each module with it, one from its cache too, and Dir may replace none. Two builds of one Module
// with one toolchain are equal to the byte, wherever and for whomever they are made.
type Module struct {
	Dir     string // holds the go.mod and go.sum
	Path    string // of the module
	Version string // which Dir must require; what the plugins call themselves
	Plugins []Plugin
	Form    string // Separate or Multicall
	Arch    string // as GOARCH spells it

	// Environ is the caller's environment. The Go command keeps from it, and from what "go env -w" has set, where things
	// are and whom to trust; nothing that has a say in what comes out.
	Environ []string

	// Progress, if set, is called before the compilation of the i-th of n plugins, counted from 1.
	Progress func(name string, i, n int)
}

// The forms of what a module is built into: an executable each, or one that answers to all the names.
const (
	Separate  = "separate"
	Multicall = "multicall"
)

// Plugin is one of a module's plugins.
type Plugin struct {
	Name    string
	Role    bundle.Role
	Package string // the import path of its main package
}

// Bundle compiles the plugins and makes the bundle at out, where nothing, or an empty directory, may stand.
// Errors of the Go command are *GoError. When ctx ends, so does the build, and its error is the cause of that.
func (m Module) Bundle(ctx context.Context, out string) (err error) {
	if m.Form != Separate && m.Form != Multicall {
		return fmt.Errorf("form %q is neither %s nor %s", m.Form, Separate, Multicall)
	}
	tmp, err := os.MkdirTemp("", "chandler-build-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()

	g, err := m.newGoCommand(ctx, tmp)
	if err != nil {
		return fmt.Errorf("find the Go toolchain: %w", err)
	}
	linked, err := m.linkedModules(ctx, g)
	if err != nil {
		return fmt.Errorf("read module: %w", err)
	}
	from := bundle.Source{Kind: "module", Form: m.Form, Module: m.Path + "@" + m.Version, Sum: linked[m.Path].Sum, Go: g.version}
	return makeBundle(out, m.Version, m.Arch, from, func(w *bundle.Writer) error {
		compile := m.compileSeparate
		if m.Form == Multicall {
			compile = m.compileMulticall
		}
		if err := compile(ctx, g, w, tmp); err != nil {
			return err
		}
		return addLicenses(w, g, linked)
	})
}

// buildFlags are those of "go build", as upstream builds its releases, and stripped. Static linking comes from CGO_ENABLED=0;
// the bundle checks it.
func (m Module) buildFlags() []string {
	return []string{"build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w -X " + m.Path + "/pkg/utils/buildversion.BuildVersion=" + m.Version}
}

// compileSeparate builds the plugins one after another. On two cores that takes as long as one "go build" of all of them while the
// build cache is cold (18 and 19 s), where the compiler keeps both cores busy either way, and 3.4 s instead of 1.3 s when
// nothing but linking is left. For that it says which one it is at and which one failed, and needs the room of one.
func (m Module) compileSeparate(ctx context.Context, g *goCommand, w *bundle.Writer, tmp string) error {
	for i, p := range m.Plugins {
		if m.Progress != nil {
			m.Progress(p.Name, i+1, len(m.Plugins))
		}
		file := filepath.Join(tmp, "plugin")
		if _, err := g.run(ctx, slices.Concat(m.buildFlags(), []string{"-o", file, p.Package})...); err != nil {
			return fmt.Errorf("compile %s: %w", p.Name, err)
		}
		if err := moveInto(w, p, file); err != nil {
			return err
		}
	}
	return nil
}

func moveInto(w *bundle.Writer, p Plugin, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := w.Add(p.Name, p.Role, f); err != nil {
		return err
	}
	return os.Remove(file)
}

// module is what the Go command says of one.
type module struct {
	Path, Version string
	Sum           string // h1:..., as go.sum has it
	Dir           string // its source
	Replace       *struct{ Path string }
}

// name is what a module's licences are kept under.
func (m module) name() string {
	if m.Version == "" { // the checkout itself
		return m.Path
	}
	return m.Path + "@" + m.Version
}

// linkedModules returns the modules that any of the plugins is linked from, by path, if go.sum holds each to its release.
// They are downloaded and verified if they are not yet.
func (m Module) linkedModules(ctx context.Context, g *goCommand) (map[string]module, error) {
	linked, err := m.listModules(ctx, g)
	if err != nil {
		return nil, err
	}
	for _, l := range linked {
		if l.Version == "" || l.Replace != nil {
			return nil, fmt.Errorf("%s does not come from its release: nothing would verify its source", l.Path)
		}
	}
	if got := linked[m.Path].Version; got != m.Version {
		return nil, fmt.Errorf("%s is at %s in %s, not at %s", m.Path, cmp.Or(got, "no version"), filepath.Join(m.Dir, "go.mod"), m.Version)
	}
	return linked, nil
}

// listModules returns the modules that any of the plugins is linked from, by path, wherever they come from.
func (m Module) listModules(ctx context.Context, g *goCommand) (map[string]module, error) {
	args := []string{"list", "-deps", "-json=Module"}
	for _, p := range m.Plugins {
		args = append(args, p.Package)
	}
	out, err := g.run(ctx, args...)
	if err != nil {
		return nil, err
	}
	linked := make(map[string]module)
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct{ Module *module }
		if err := dec.Decode(&pkg); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("parse the answer of go list: %w", err)
		}
		if pkg.Module == nil { // the standard library
			continue
		}
		linked[pkg.Module.Path] = *pkg.Module
	}
	return linked, nil
}
