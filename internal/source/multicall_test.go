package source

import (
	"errors"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/internal/bundle"
)

// The editor's result, with the bytes that it did not have to touch as they were.
func TestEditor(t *testing.T) {
	const src = `// Copyright of somebody.

//go:build linux

package main // the program

import "runtime"

var answer   =   map[string]int{ "main": 42 }

func init() {
	// this ensures that main runs on the main thread
	runtime.LockOSThread()
}

type t struct{}

func (t) main() {}

func (t) init() {}

func main() { _ = "package main"; t{}.main() }
`
	want := strings.NewReplacer(
		"package main // the", "package plugin7 // the",
		"func init() {\n\t//", "func Init2() {\n\t//",
		"func main() { _", "func Main() { _",
	).Replace(src)
	e := editor{plugin: "p", file: "p.go", src: []byte(src), alias: "plugin7", inits: 2}
	got, err := e.edit()
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if e.inits != 3 || e.mains != 1 {
		t.Errorf("%d inits, %d mains", e.inits, e.mains)
	}
}

func TestEditorStopsAtWhatItDoesNotKnow(t *testing.T) {
	for _, test := range []struct{ name, src, want string }{
		{"init", "func init() { println(1) }", `an init function that does "println(1)"`},
		{"init that does more", "import \"runtime\"\nfunc init() { runtime.LockOSThread(); x = 1 }", "an init function"},
		{"empty init", "func init() {}", `an init function that does ""`},
		{"flag", `import "flag"`, `the import of "flag"`},
		{"flag by another name", `import f "flag"`, `the import of "flag"`},
		{"cgo", `import "C"`, `the import of "C"`},
		{"embed", "import _ \"embed\"\n//go:embed x\nvar x string", `the import of "embed"`},
		{"embed directive", "//go:embed x\nvar x string", "the directive //go:embed"},
		{"linkname", "//go:linkname a b\nfunc a()", "the directive //go:linkname"},
		{"dot import", `import . "os"`, "a dot import"},
		{"os.Args", "import \"os\"\nfunc f() { _ = os.Args }", "os.Args"},
		{"os.Args by another name", "import sys \"os\"\nfunc f() { _ = sys.Args[0] }", "os.Args"},
		{"call of main", "func f() { main() }", "a call of main"},
		{"variable set by a call", "var x = f()\nfunc f() int { return 1 }", "set by a call"},
		{"variable set by a call within", "var x = []int{1, f()}\nfunc f() int { return 1 }", "set by a call"},
		{"variable received", "var c chan int\nvar x = <-c", "is received"},
		{"a Main of its own", "func Main() {}", "a function Main"},
		{"an Init of its own", "func Init0() {}", "a function Init0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := editor{plugin: "bridge", file: "bridge.go", src: []byte("package main\n" + test.src + "\n"), alias: "x"}
			out, err := e.edit()
			var unknown *UnknownError
			if !errors.As(err, &unknown) {
				t.Fatalf("error %v, result\n%s", err, out)
			}
			if unknown.Plugin != "bridge" || !strings.HasPrefix(unknown.Where, "bridge.go:") || !strings.Contains(unknown.What, test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
		})
	}
}

func TestEditorAllows(t *testing.T) {
	for _, src := range []string{
		"import \"os\"\nfunc f() { os.Exit(1) }",
		"var f = func() int { return g() }\nfunc g() int { return 1 }",
		"func Initialise() {}",
		"const x = 1 << 3",
	} {
		e := editor{plugin: "p", file: "p.go", src: []byte("package main\n" + src + "\n"), alias: "x"}
		if _, err := e.edit(); err != nil {
			t.Errorf("%s: %v", src, err)
		}
	}
}

// The dispatcher is Go, whatever the plugins are called.
func TestDispatcher(t *testing.T) {
	c := multicall{plugins: []generated{
		{Name: "host-local", Import: "x.org/plugins/host-local", Alias: "plugin0", MainFun: "Main"},
		{Name: "bridge", Import: "x.org/plugins/bridge", Alias: "plugin1", MainFun: "Main", Inits: []string{"Init0", "Init1"}},
	}}
	src, err := c.dispatcher()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.ParseFile(token.NewFileSet(), "main.go", src, 0); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`"host-local": {main: plugin0.Main}`, `inits: []func(){plugin1.Init0, plugin1.Init1}`, `names = "host-local bridge"`} {
		if !strings.Contains(string(src), want) {
			t.Errorf("no %s in\n%s", want, src)
		}
	}
}

func TestMainPackageStops(t *testing.T) {
	c := multicall{dir: t.TempDir()}
	p := Plugin{Name: "bridge", Role: bundle.Main, Package: "x.org/bridge"}
	for name, pkg := range map[string]mainPackage{
		"library":  {Name: "bridge"},
		"assembly": {Name: "main", SFiles: []string{"a.s"}},
		"embedded": {Name: "main", EmbedFiles: []string{"a.txt"}},
		"cgo":      {Name: "main", CgoFiles: []string{"a.go"}},
		"no main":  {Name: "main"},
	} {
		var unknown *UnknownError
		if _, err := c.copyPlugin(p, pkg, "x"); !errors.As(err, &unknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
