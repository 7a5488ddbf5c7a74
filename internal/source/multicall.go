package source

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/chandler-cni/chandler/internal/bundle"
)

// The multi-call form is one executable that is any of the plugins, by the name that it is called by. Its packages are the
// plugins' main packages, copied for the build and changed in three places each, found in the syntax tree and edited as
// bytes: the package clause, and the names of main and init. All else (the module's pkg/, and what the main packages have
// below them) is imported from the real module, so that go.sum verifies it and nothing in it is a copy.
//
// A dispatcher is generated beside them. It runs the init functions of the plugin that was asked for, and of no other, in
// its own init: what they do, runtime.LockOSThread, counts on the main thread and only there.
//
// What the generator does not know it stops at: in a program with several mains, whatever runs before main, or looks at the
// command line, could make one plugin change another.

// UnknownError says what in a plugin's source the generator cannot tell to be harmless in one program with others.
type UnknownError struct {
	Plugin, Where, What string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("plugin %s: %s: %s, which has no known meaning in a multi-call build; build --form separate, or teach the generator",
		e.Plugin, e.Where, e.What)
}

// knownInit is the one body of an init function that may run in the dispatcher's place for it.
const knownInit = "runtime.LockOSThread()"

// multicall is one multi-call build.
type multicall struct {
	m       Module
	dir     string // of the generated module
	module  string // its path: that of the go.mod which is copied into it
	plugins []generated
}

// generated is what the dispatcher has to know of a plugin's copy.
type generated struct {
	Name    string
	Import  string
	Alias   string
	Inits   []string // functions to call in the dispatcher's init, in the order of the files
	MainFun string
}

// compileMulticall builds one executable of all plugins and enters it in the bundle under each name.
func (m Module) compileMulticall(ctx context.Context, g *goCommand, w *bundle.Writer, tmp string) error {
	c := multicall{m: m, dir: filepath.Join(tmp, "multicall")}
	if err := c.generate(ctx, g); err != nil {
		return err
	}
	if m.Progress != nil {
		m.Progress(fmt.Sprintf("%d plugins in one", len(m.Plugins)), 1, 1)
	}
	file := filepath.Join(tmp, "plugin")
	built := *g
	built.dir = c.dir
	if _, err := built.run(ctx, slices.Concat(m.buildFlags(), []string{"-o", file, "."})...); err != nil {
		return fmt.Errorf("compile multi-call: %w", err)
	}
	first := m.Plugins[0]
	if err := moveInto(w, first, file); err != nil {
		return err
	}
	for _, p := range m.Plugins[1:] {
		if _, err := w.Link(p.Name, p.Role, first.Name); err != nil {
			return err
		}
	}
	return nil
}

// generate writes the module that is compiled: the go.mod and go.sum of m, so that no dependency moves, a copy of each
// plugin's main package, and the dispatcher.
func (c *multicall) generate(ctx context.Context, g *goCommand) error {
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(c.m.Dir, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
			return err
		}
	}
	packages, err := c.list(ctx, g)
	if err != nil {
		return err
	}
	for i, p := range c.m.Plugins {
		pkg, ok := packages[p.Package]
		if !ok {
			return fmt.Errorf("plugin %s: go list does not know %s", p.Name, p.Package)
		}
		out, err := c.copyPlugin(p, pkg, fmt.Sprintf("plugin%d", i))
		if err != nil {
			return err
		}
		c.plugins = append(c.plugins, out)
	}
	source, err := c.dispatcher()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, "main.go"), source, 0o600)
}

// mainPackage is what the Go command says of a plugin's main package, for the machine that is built for.
type mainPackage struct {
	ImportPath, Name, Dir string
	GoFiles               []string
	// Files that a copy of GoFiles would leave behind.
	CgoFiles, CFiles, CXXFiles, HFiles, SFiles, SysoFiles, SwigFiles, EmbedFiles []string
}

func (c *multicall) list(ctx context.Context, g *goCommand) (map[string]mainPackage, error) {
	out, err := g.run(ctx, "list", "-m")
	if err != nil {
		return nil, err
	}
	c.module = strings.TrimSpace(string(out))
	args := []string{"list", "-json"}
	for _, p := range c.m.Plugins {
		args = append(args, p.Package)
	}
	if out, err = g.run(ctx, args...); err != nil {
		return nil, err
	}
	packages := make(map[string]mainPackage)
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg mainPackage
		if err := dec.Decode(&pkg); err == io.EOF {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("parse the answer of go list: %w", err)
		}
		packages[pkg.ImportPath] = pkg
	}
}

// copyPlugin writes the plugin's main package as a package that can be imported.
func (c *multicall) copyPlugin(p Plugin, pkg mainPackage, alias string) (generated, error) {
	unknown := func(where, format string, args ...any) (generated, error) {
		return generated{}, &UnknownError{p.Name, where, fmt.Sprintf(format, args...)}
	}
	if pkg.Name != "main" {
		return unknown(pkg.ImportPath, "package %s", pkg.Name)
	}
	for _, files := range [][]string{pkg.CgoFiles, pkg.CFiles, pkg.CXXFiles, pkg.HFiles, pkg.SFiles, pkg.SysoFiles, pkg.SwigFiles, pkg.EmbedFiles} {
		if len(files) > 0 {
			return unknown(files[0], "a file that is not Go")
		}
	}
	out := generated{Name: p.Name, Alias: alias, MainFun: "Main", Import: path.Join(c.module, "plugins", p.Name)}
	dir := filepath.Join(c.dir, "plugins", p.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return generated{}, err
	}
	mains := 0
	for _, name := range pkg.GoFiles {
		src, err := os.ReadFile(filepath.Join(pkg.Dir, name))
		if err != nil {
			return generated{}, err
		}
		e := editor{plugin: p.Name, file: name, src: src, alias: alias, inits: len(out.Inits)}
		edited, err := e.edit()
		if err != nil {
			return generated{}, err
		}
		mains += e.mains
		for i := len(out.Inits); i < e.inits; i++ {
			out.Inits = append(out.Inits, initName(i))
		}
		if err := os.WriteFile(filepath.Join(dir, name), edited, 0o600); err != nil {
			return generated{}, err
		}
	}
	if mains != 1 {
		return unknown(pkg.ImportPath, "%d functions main", mains)
	}
	return out, nil
}

func initName(i int) string { return "Init" + strconv.Itoa(i) }

// editor changes one file of a main package.
type editor struct {
	plugin, file string
	src          []byte
	alias        string // the package's new name
	inits, mains int    // how many functions of the name were met, in earlier files too for inits

	fset  *token.FileSet
	edits []edit
}

// edit puts text in place of the bytes from start to end.
type edit struct {
	start, end int
	text       string
}

func (e *editor) edit() ([]byte, error) {
	e.fset = token.NewFileSet()
	f, err := parser.ParseFile(e.fset, e.file, e.src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", e.plugin, err)
	}
	e.replace(f.Name, e.alias)
	if err := e.checkFile(f); err != nil {
		return nil, err
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			err = e.function(d)
		case *ast.GenDecl:
			err = e.declaration(d)
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(e.edits, func(a, b edit) int { return cmp.Compare(a.start, b.start) })
	var out bytes.Buffer
	at := 0
	for _, ed := range e.edits {
		out.Write(e.src[at:ed.start])
		out.WriteString(ed.text)
		at = ed.end
	}
	out.Write(e.src[at:])
	return out.Bytes(), nil
}

func (e *editor) replace(id *ast.Ident, text string) {
	start := e.fset.Position(id.Pos()).Offset
	e.edits = append(e.edits, edit{start, start + len(id.Name), text})
}

func (e *editor) unknown(pos token.Pos, format string, args ...any) error {
	at := e.fset.Position(pos)
	return &UnknownError{e.plugin, fmt.Sprintf("%s:%d", e.file, at.Line), fmt.Sprintf(format, args...)}
}

// checkFile refuses what matters wherever it stands in a file.
func (e *editor) checkFile(f *ast.File) error {
	osName := ""
	for _, spec := range f.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
		switch imported {
		case "flag", "embed", "C", "plugin", "expvar", "net/http/pprof":
			return e.unknown(spec.Pos(), "the import of %q", imported)
		case "os":
			osName = "os"
			if spec.Name != nil {
				osName = spec.Name.Name
			}
		}
		if spec.Name != nil && spec.Name.Name == "." {
			return e.unknown(spec.Pos(), "a dot import")
		}
	}
	for _, group := range f.Comments {
		for _, comment := range group.List {
			for _, directive := range []string{"//go:linkname", "//go:embed", "//export ", "//go:cgo"} {
				if strings.HasPrefix(comment.Text, directive) {
					return e.unknown(comment.Pos(), "the directive %s", strings.TrimSpace(directive))
				}
			}
		}
	}
	var found error
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && osName != "" && x.Name == osName && n.Sel.Name == "Args" {
				found = e.unknown(n.Pos(), "os.Args")
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "main" {
				found = e.unknown(n.Pos(), "a call of main")
			}
		}
		return found == nil
	})
	return found
}

func (e *editor) function(d *ast.FuncDecl) error {
	if d.Recv != nil {
		return nil
	}
	switch d.Name.Name {
	case "main":
		e.mains++
		e.replace(d.Name, "Main")
	case "init":
		var body strings.Builder
		for _, s := range d.Body.List {
			if err := printer.Fprint(&body, e.fset, s); err != nil {
				return err
			}
			body.WriteByte('\n')
		}
		if got := strings.TrimSpace(body.String()); got != knownInit {
			return e.unknown(d.Pos(), "an init function that does %q", got)
		}
		e.replace(d.Name, initName(e.inits))
		e.inits++
	case "Main":
		return e.unknown(d.Pos(), "a function Main")
	default:
		if strings.HasPrefix(d.Name.Name, "Init") {
			if _, err := strconv.Atoi(d.Name.Name[len("Init"):]); err == nil {
				return e.unknown(d.Pos(), "a function %s", d.Name.Name)
			}
		}
	}
	return nil
}

// declaration refuses variables that are set by running something: it would run for every plugin.
func (e *editor) declaration(d *ast.GenDecl) error {
	if d.Tok != token.VAR {
		return nil
	}
	var found error
	for _, spec := range d.Specs {
		for _, value := range spec.(*ast.ValueSpec).Values {
			ast.Inspect(value, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncLit:
					return false // runs when it is called
				case *ast.CallExpr:
					found = e.unknown(n.Pos(), "a variable of the package that is set by a call")
				case *ast.UnaryExpr:
					if n.Op == token.ARROW {
						found = e.unknown(n.Pos(), "a variable of the package that is received")
					}
				}
				return found == nil
			})
		}
	}
	return found
}

var dispatcherTemplate = template.Must(template.New("main.go").Parse(`// Code generated for one build. DO NOT EDIT.

package main

import (
	"fmt"
	"os"
	"path/filepath"
{{range .}}
	{{.Alias}} {{printf "%q" .Import}}{{end}}
)

type plugin struct {
	inits []func()
	main  func()
}

var plugins = map[string]plugin{
{{range .}}	{{printf "%q" .Name}}: { {{if .Inits}}inits: []func(){ {{$p := .}}{{range .Inits}}{{$p.Alias}}.{{.}}, {{end}} }, {{end}}main: {{.Alias}}.{{.MainFun}} },
{{end}}}

const names = "{{range $i, $p := .}}{{if $i}} {{end}}{{$p.Name}}{{end}}"

func called() string { return filepath.Base(os.Args[0]) }

// What a plugin does in its init has to be done in ours: it is about the main thread.
func init() {
	for _, f := range plugins[called()].inits {
		f()
	}
}

func main() {
	p, ok := plugins[called()]
	if !ok {
		message := fmt.Sprintf("called as %q, but this executable is only: %s", called(), names)
		if os.Getenv("CNI_COMMAND") != "" {
			fmt.Printf("{\n    \"code\": 7,\n    \"msg\": %q\n}", message) // an error as a runtime reads it
		}
		fmt.Fprintln(os.Stderr, message)
		os.Exit(1)
	}
	p.main()
}
`))

func (c *multicall) dispatcher() ([]byte, error) {
	var out bytes.Buffer
	if err := dispatcherTemplate.Execute(&out, c.plugins); err != nil {
		return nil, err
	}
	return format.Source(out.Bytes())
}
