package chandler_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/chandler-cni/chandler"

// source is one package, as far as the rules look at it.
type source struct {
	path    string              // below the module, such as internal/stage
	imports map[string][]string // what it imports, without its tests, and which files do
	files   []*ast.File
	fset    *token.FileSet
}

// rule is one thing that the code's shape promises. The reason is printed when it is broken.
type rule struct {
	name, why string
	check     func(p source) []string
}

const (
	std = "the standard library"
	x   = "golang.org/x"
)

// only is a rule that a package imports nothing but what is listed: std, x, or packages of this module.
func only(pkg, why string, allowed ...string) rule {
	return rule{pkg + " imports only " + strings.Join(allowed, ", "), why, func(p source) []string {
		if p.path != pkg {
			return nil
		}
		return p.importing(func(imported string) bool {
			first, _, _ := strings.Cut(imported, "/")
			switch {
			case !strings.Contains(first, "."):
				return !slices.Contains(allowed, std)
			case strings.HasPrefix(imported, x+"/"):
				return !slices.Contains(allowed, x)
			}
			return !slices.Contains(allowed, strings.TrimPrefix(imported, module+"/"))
		})
	}}
}

// importing lists the imports that bad says are not to be, with the files that have them.
func (p source) importing(bad func(imported string) bool) []string {
	var found []string
	for imported, files := range p.imports {
		if bad(imported) {
			found = append(found, fmt.Sprintf("%s imports %s (%s)", p.path, imported, strings.Join(files, ", ")))
		}
	}
	slices.Sort(found)
	return found
}

func (p source) below(dir string) bool { return p.path == dir || strings.HasPrefix(p.path, dir+"/") }

// calls lists where the package uses one of the names of an imported package.
func (p source) calls(pkg string, names ...string) []string {
	var found []string
	for _, f := range p.files {
		local := ""
		for _, spec := range f.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); path == pkg {
				local = filepath.Base(pkg)
				if spec.Name != nil {
					local = spec.Name.Name
				}
			}
		}
		if local == "" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(names, sel.Sel.Name) {
				if id, ok := sel.X.(*ast.Ident); ok && id.Name == local {
					found = append(found, fmt.Sprintf("%s: %s.%s", p.fset.Position(n.Pos()), pkg, sel.Sel.Name))
				}
			}
			return true
		})
	}
	return found
}

const (
	pluginPkg  = "internal/plugin"
	hostdirPkg = "internal/hostdir"
	bundlePkg  = "internal/bundle"
	stagePkg   = "internal/stage"
	rigPkg     = "test/rig"
)

var rules = []rule{
	only(pluginPkg, "it runs on nodes as part of a small static program, and everything else stands on it", std, x),
	only(hostdirPkg, "it has no policy: what to put where is its callers' business", std, x),
	only(bundlePkg, "a bundle is read on nodes too: what is needed only to make one belongs into internal/source", std, x, pluginPkg, hostdirPkg),
	only(stagePkg, "it runs as root on every node, where there is no network, no API server and no registry: whatever it imports runs "+
		"there too. Imports go one way: cmd, then stage, then bundle, then plugin and hostdir", std, x, bundlePkg, pluginPkg, hostdirPkg),
	only(rigPkg, "the rings judge the shipped programs from outside, and two modules of tests build on it", std, x, bundlePkg),
	{"go-containerregistry is imported only from internal/image and internal/refs",
		"a registry client is large, and has no business in a program that runs on nodes",
		func(p source) []string {
			if p.below("internal/image") || p.below("internal/refs") {
				return nil
			}
			return p.importing(func(imported string) bool {
				return strings.HasPrefix(imported, "github.com/google/go-containerregistry")
			})
		}},
	{"nothing below internal imports a program or the command line's library",
		"imports go one way: flags and exit codes belong to cmd, and internal/cli is what its programs share",
		func(p source) []string {
			if !p.below("internal") || p.below("internal/cli") {
				return nil
			}
			return p.importing(func(imported string) bool {
				return strings.HasPrefix(imported, "github.com/spf13/") || strings.HasPrefix(imported, module+"/cmd/") ||
					imported == module+"/internal/cli"
			})
		}},
	{"what makes executables for tests is imported by tests alone", "it is no part of the product",
		func(p source) []string {
			if p.below("test") {
				return nil
			}
			return p.importing(func(imported string) bool { return imported == module+"/internal/plugin/plugintest" })
		}},
	{"no package is called util, common or helpers", "such a name says nothing of what is in it, and so everything ends up there",
		func(p source) []string {
			switch name := filepath.Base(p.path); name {
			case "util", "utils", "common", "helper", "helpers", "misc", "shared":
				return []string{p.path}
			}
			return nil
		}},
	{"no package has an init function", "work that is done by importing cannot be left out, ordered or tested",
		func(p source) []string {
			var found []string
			for _, f := range p.files {
				for _, d := range f.Decls {
					if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
						found = append(found, p.fset.Position(fn.Pos()).String())
					}
				}
			}
			return found
		}},
	{"only the programs read the environment and exit", "below cmd, what a function does depends on its arguments, and it returns",
		func(p source) []string {
			if p.below("cmd") || p.below("test") {
				return nil
			}
			return append(p.calls("os", "Exit", "Getenv", "LookupEnv", "Environ"), p.calls("log", "Fatal", "Fatalf", "Fatalln")...)
		}},
}

// violations says of each broken rule where and why.
func violations(sources []source) []string {
	var found []string
	for _, r := range rules {
		for _, p := range sources {
			for _, where := range r.check(p) {
				found = append(found, fmt.Sprintf("%s\n  rule: %s\n  why:  %s", where, r.name, r.why))
			}
		}
	}
	return found
}

// load reads the module's packages, without tests and without modules of their own below it.
func load(t *testing.T, root string) []source {
	t.Helper()
	byPath := make(map[string]*source)
	var paths []string
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, modErr := os.Lstat(filepath.Join(file, "go.mod"))
			if name := d.Name(); file != root && (modErr == nil || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		p := byPath[dir]
		if p == nil {
			p = &source{path: filepath.ToSlash(dir), imports: make(map[string][]string), fset: token.NewFileSet()}
			byPath[dir] = p
			paths = append(paths, dir)
		}
		return p.add(file, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	var sources []source
	for _, path := range paths {
		sources = append(sources, *byPath[path])
	}
	return sources
}

func (p *source) add(file string, text any) error {
	f, err := parser.ParseFile(p.fset, file, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p.files = append(p.files, f)
	for _, spec := range f.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		p.imports[path] = append(p.imports[path], filepath.Base(file))
	}
	return nil
}

// TestArchitecture holds the code to its shape.
func TestArchitecture(t *testing.T) {
	sources := load(t, ".")
	for _, v := range violations(sources) {
		t.Error(v)
	}
	// Packages that were renamed would leave their rules without anything to look at.
	for _, path := range []string{pluginPkg, hostdirPkg, bundlePkg, stagePkg, rigPkg, "cmd/chandler", "cmd/chandlerctl"} {
		if !slices.ContainsFunc(sources, func(p source) bool { return p.path == path }) {
			t.Errorf("no package %s: the rules about it hold nothing", path)
		}
	}
}

// TestArchitectureRules holds that each rule fails where it should, and says why.
func TestArchitectureRules(t *testing.T) {
	for _, test := range []struct {
		path, code string
		want       string // the rule that is broken, or none
	}{
		{"internal/stage", `package stage; import ("os"; "golang.org/x/sys/unix"; "github.com/chandler-cni/chandler/internal/bundle")`, ""},
		{"internal/stage", `package stage; import "github.com/chandler-cni/chandler/internal/source"`, "internal/stage imports only"},
		{"internal/stage", `package stage; import "github.com/chandler-cni/chandler/internal/bundle/more"`, "internal/stage imports only"},
		{"internal/stage", `package stage; import _ "github.com/klauspost/compress/zstd"`, "internal/stage imports only"},
		{"internal/stage", `package stage; import y "gopkg.in/yaml.v3"`, "internal/stage imports only"},
		{"internal/stage", `package stage; import "golang.org/xyz"`, "internal/stage imports only"},
		{"internal/bundle", `package bundle; import ("github.com/chandler-cni/chandler/internal/hostdir"; "github.com/chandler-cni/chandler/internal/plugin")`, ""},
		{"internal/bundle", `package bundle; import "github.com/chandler-cni/chandler/internal/stage"`, "internal/bundle imports only"},
		{"internal/hostdir", `package hostdir; import "github.com/chandler-cni/chandler/internal/plugin"`, "internal/hostdir imports only"},
		{"internal/plugin", `package plugin; import "github.com/chandler-cni/chandler/internal/hostdir"`, "internal/plugin imports only"},
		{"internal/image", `package image; import "github.com/google/go-containerregistry/pkg/v1"`, ""},
		{"internal/refs", `package refs; import "github.com/google/go-containerregistry/pkg/v1"`, ""},
		{"internal/source", `package source; import "github.com/google/go-containerregistry/pkg/v1"`, "go-containerregistry"},
		{"test/rig", `package rig; import "github.com/chandler-cni/chandler/internal/stage"`, "test/rig imports only"},
		{"cmd/chandler", `package main; import "github.com/google/go-containerregistry/pkg/v1"`, "go-containerregistry"},
		{"internal/source", `package source; import "github.com/spf13/cobra"`, "nothing below internal"},
		{"internal/source", `package source; import "github.com/chandler-cni/chandler/internal/cli"`, "nothing below internal"},
		{"internal/source", `package source; import "github.com/chandler-cni/chandler/internal/plugin/plugintest"`, "tests alone"},
		{"internal/util", `package util`, "no package is called"},
		{"internal/source/helpers", `package helpers`, "no package is called"},
		{"cmd/chandler", `package main; func init() {}`, "init function"},
		{"cmd/chandler", `package main; type t struct{}; func (t) init() {}`, ""},
		{"internal/pins", `package pins; import "os"; func f() { os.Exit(1) }`, "only the programs"},
		{"internal/pins", `package pins; import env "os"; var v = env.Getenv("X")`, "only the programs"},
		{"internal/pins", `package pins; import "log"; func f() { log.Fatal() }`, "only the programs"},
		{"internal/pins", `package pins; import "os"; var v = os.Getpid()`, ""},
		{"cmd/chandlerctl", `package main; import "os"; func main() { os.Exit(len(os.Getenv("X"))) }`, ""},
	} {
		p := source{path: test.path, imports: make(map[string][]string), fset: token.NewFileSet()}
		if err := p.add("made-up.go", test.code); err != nil {
			t.Fatal(err)
		}
		got := violations([]source{p})
		switch {
		case test.want == "" && len(got) > 0:
			t.Errorf("%s in %s is said to break a rule:\n%s", test.code, test.path, strings.Join(got, "\n"))
		case test.want != "" && (len(got) != 1 || !strings.Contains(got[0], "rule: ") || !strings.Contains(got[0], test.want) ||
			!strings.Contains(got[0], "why:  ") || !strings.Contains(got[0], "made-up.go") && !strings.HasPrefix(got[0], test.path)):
			t.Errorf("%s in %s: got %d violations, want one of %q:\n%s", test.code, test.path, len(got), test.want, strings.Join(got, "\n"))
		}
	}
}
