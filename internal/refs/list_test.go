package refs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var shortDigest = regexp.MustCompile(`sha256-([0-9a-fA-F]{2})\b`)

// expand writes the short digests of the tests in full.
func expand(s string) string {
	return shortDigest.ReplaceAllStringFunc(s, func(m string) string {
		return "sha256:" + strings.Repeat(m[len("sha256-"):], 32)
	})
}

// tree is a packages tree in memory: contents by path.
type tree map[string]string

// treeOf reads the archive's files.
func treeOf(archive *txtar.Archive) tree {
	files := make(tree)
	for _, f := range archive.Files {
		files[f.Name] = expand(string(f.Data))
	}
	return files
}

func parseTree(text string) tree { return treeOf(txtar.Parse([]byte(text))) }

// write writes the tree below a new directory.
func (files tree) write(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// readTree reads what is below root, but for refs.yaml.
func readTree(t testing.TB, root string) tree {
	t.Helper()
	files := make(tree)
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.Type()&os.ModeSymlink != 0 {
			files[name], err = os.Readlink(path)
			return err
		}
		data, err := os.ReadFile(path)
		files[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// open opens the tree at root with its own refs.yaml.
func open(t testing.TB, root string) *Tree {
	t.Helper()
	config, err := ReadConfig(root, "")
	if err != nil {
		t.Fatal(err)
	}
	tr, err := Open(root, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// fixture is the tree of testdata with the bytes that an archive cannot hold, and as many generated packages as make it
// 500 references, and what there is to list.
func fixture(t testing.TB) (tree, []string) {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/tree.txtar")
	if err != nil {
		t.Fatal(err)
	}
	files := treeOf(archive)
	want := strings.Split(strings.TrimSpace(files["want"]), "\n")
	delete(files, "want")
	for name, change := range map[string]func(string) string{
		"apps/bom/values.yaml":         func(s string) string { return "\ufeff" + s },
		"apps/crlf/values.yaml":        func(s string) string { return "\ufeff" + strings.ReplaceAll(s, "\n", "\r\n") },
		"apps/images/images/crlf.tag":  func(s string) string { return "\ufeff" + strings.ReplaceAll(s, "\n", "\r\n") },
		"apps/images/images/noend.tag": func(s string) string { return strings.TrimSuffix(s, "\n") },
		"apps/cr/values.yaml":          func(s string) string { return strings.ReplaceAll(s, "\n", "\r") },
		"apps/aliases/values.yaml":     func(s string) string { return strings.Replace(s, "  <<: *other-base\n", "\n", 1) },
	} {
		if files[name] == "" {
			t.Fatalf("no file %s", name)
		}
		files[name] = change(files[name])
	}
	more, wantMore := generate(rand.New(rand.NewPCG(1, 2)), 500-len(want))
	for name, content := range more {
		files[name] = content
	}
	want = append(want, wantMore...)
	return files, want
}

// generate makes packages below gen/ that hold n references, one in each tag file and up to 20 in each values.yaml.
func generate(r *rand.Rand, n int) (tree, []string) {
	files := make(tree)
	var want []string
	for pkg := 0; len(want) < n; pkg++ {
		dir := fmt.Sprintf("gen/p%05d", pkg)
		var b strings.Builder
		line := 0
		write := func(format string, args ...any) {
			fmt.Fprintf(&b, format+"\n", args...)
			line += 1 + strings.Count(format, "\n")
		}
		for i := range min(1+r.IntN(20), n-len(want)) {
			name := fmt.Sprintf("gen/p%d-%d", pkg, i)
			digest := fmt.Sprintf("sha256:%064x", r.Uint64())
			tag := fmt.Sprintf("v1.%d.0", r.IntN(3))
			quote := []string{"", `"`, `'`}[r.IntN(3)]
			var shape Shape
			registry := "quay.io"
			switch r.IntN(6) {
			case 0:
				shape = ShapeScalar
				write("key%d: %squay.io/%s:%s@%s%s", i, quote, name, tag, digest, quote)
			case 1:
				shape = ShapeDigest
				write("key%d:\n  repository: quay.io/%s\n  tag: %s%s%s # tag\n  digest: %s", i, name, quote, tag, quote, digest)
			case 2:
				shape = ShapeTag
				write("key%d:\n  image:\n    registry: quay.io\n    repository: %s\n    tag: %s%s@%s%s", i, name, quote, tag, digest, quote)
			case 3:
				shape = ShapeGlobal
				write("key%d:\n  global:\n    images:\n      x: {repository: '%s', other: [a],\n          tag: %s%s@%s%s}", i, name, quote, tag, digest, quote)
			case 4:
				shape, tag = ShapeOCI, "-"
				write("key%d:\n  platformSourceUrl: oci://quay.io/%s\n  platformSourceRef: %sdigest=%s%s", i, name, quote, digest, quote)
			case 5:
				file := fmt.Sprintf("%s/images/i%d.tag", dir, i)
				files[file] = fmt.Sprintf("# %d\nquay.io/%s:%s@%s\n", i, name, tag, digest)
				want = append(want, strings.Join([]string{file + ":2", string(ShapeTagFile), registry, name, tag, digest}, " "))
				continue
			}
			want = append(want, strings.Join([]string{fmt.Sprintf("%s/values.yaml:%d", dir, line), string(shape), registry, name, tag, digest}, " "))
			if shape == ShapeGlobal {
				write("    registry:\n      address: quay.io")
			}
			write("other%d: {replicas: %d, enabled: true}\n", i, i)
		}
		files[dir+"/values.yaml"] = b.String()
		files[dir+"/Chart.yaml"] = "name: x\n"
	}
	return files, want
}

// show is a reference as the tests write it.
func show(r Reference) string {
	dash := func(s string) string {
		if s = strings.ReplaceAll(s, " ", ""); s == "" {
			return "-"
		}
		return s
	}
	registry := dash(r.Registry)
	if r.Incomplete {
		registry = "?"
	}
	return fmt.Sprintf("%s:%d %s %s %s %s %s", r.File, r.Line, r.Shape, registry, dash(r.Repository), dash(r.Tag), dash(r.Digest))
}

func showAll(list []Reference) []string {
	lines := []string{}
	for _, r := range list {
		lines = append(lines, show(r))
	}
	return lines
}

func TestListEverything(t *testing.T) {
	files, want := fixture(t)
	if len(want) != 500 {
		t.Errorf("the fixture has %d references, want 500", len(want))
	}
	got, err := open(t, files.write(t)).List(t.Context())
	if err != nil {
		t.Error(err)
	}
	lines := showAll(got)
	slices.Sort(lines)
	slices.Sort(want)
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("listed otherwise (-want +got):\n%s", diff)
	}
	for i, r := range got {
		holdPlace(t, []byte(files[r.File]), r)
		if i > 0 {
			p := got[i-1]
			if p.File > r.File || p.File == r.File && (p.Line > r.Line || p.Line == r.Line && p.Column > r.Column) {
				t.Errorf("%s:%d:%d is listed after %s:%d:%d", r.File, r.Line, r.Column, p.File, p.Line, p.Column)
			}
		}
	}
}

// holdPlace holds the places of a reference to the file's bytes.
func holdPlace(t *testing.T, src []byte, r Reference) {
	t.Helper()
	for _, part := range []struct {
		at   span
		want string
	}{{r.tag, r.Tag}, {r.digest, r.Digest}} {
		if !part.at.none() && string(src[part.at.start:part.at.end]) != part.want {
			t.Errorf("%s: %q stands where %q should", show(r), src[part.at.start:part.at.end], part.want)
		}
	}
	if !r.digest.none() {
		before := src[:r.digest.start]
		if line := 1 + bytes.Count(before, []byte("\n")); line != r.Line || r.Column != r.digest.start-bytes.LastIndexByte(before, '\n') {
			t.Errorf("%s: column %d; the digest is at %d in line %d", show(r), r.Column, r.digest.start, line)
		}
	}
}

// Without any one shape, fewer references are listed or they are listed otherwise.
func TestEveryShapeIsNeeded(t *testing.T) {
	files, want := fixture(t)
	slices.Sort(want)
	list := func(kinds func(place) bool, shapes []valuesShape) []string {
		root := open(t, files.write(t))
		places, errs := root.places(t.Context())
		if len(errs) > 0 {
			t.Fatal(errors.Join(errs...))
		}
		var all []Reference
		for _, p := range places {
			if !kinds(p) {
				continue
			}
			f := scanWith(p, []byte(files[p.path]), shapes)
			all = append(all, f.refs...)
		}
		lines := showAll(all)
		slices.Sort(lines)
		return lines
	}
	every := func(place) bool { return true }
	if diff := cmp.Diff(want, list(every, valuesShapes)); diff != "" {
		t.Fatalf("listed otherwise with every shape:\n%s", diff)
	}
	missed := func(got []string) (n int) {
		for _, line := range want {
			if _, ok := slices.BinarySearch(got, line); !ok {
				n++
			}
		}
		return n
	}
	for i, s := range valuesShapes {
		if n := missed(list(every, slices.Delete(slices.Clone(valuesShapes), i, i+1))); n < 20 {
			t.Errorf("without %s only %d references are missed", s.name, n)
		}
	}
	for shape, without := range map[Shape]func(place) bool{
		ShapeTagFile: func(p place) bool { return p.kind != kindTagFile },
		ShapeText:    func(p place) bool { return p.kind != kindText },
	} {
		if n := missed(list(without, valuesShapes)); n < 5 {
			t.Errorf("without %s only %d references are missed", shape, n)
		}
	}
}

func TestListErrors(t *testing.T) {
	for _, tt := range []struct {
		name, tree string
		want       []string // of the error
		listed     int
	}{
		{"a values.yaml that is a template", `
-- g/a/values.yaml --
a: 1
{{- if .x }}
image: ghcr.io/acme/a:v1@sha256-01
{{- end }}
-- g/b/values.yaml --
image: ghcr.io/acme/b:v1@sha256-01
`, []string{"g/a/values.yaml:2: parse YAML: "}, 1},
		{"an unquoted template in a value", `
-- g/a/values.yaml --
a: ghcr.io/acme/a:v1@sha256-01
b: {{ .x }}
c: ghcr.io/acme/c:v1@sha256-01
`, []string{"g/a/values.yaml:2: parse YAML: a key is a mapping"}, 2},
		{"what Helm does not read either", `
-- g/a/values.yaml --
a: "a\/b"
-- g/b/values.yaml --
%YAML 1.2
---
a: b
`, []string{"g/a/values.yaml: parse YAML: found unknown escape character", "g/b/values.yaml: parse YAML: found incompatible YAML document"}, 0},
		{"a tab", "-- g/a/values.yaml --\na:\n\tb: c\n", []string{"g/a/values.yaml:", "cannot start any token"}, 0},
		{"invalid UTF-8", "-- g/a/values.yaml --\na: \xff\n", []string{"g/a/values.yaml: parse YAML: invalid leading UTF-8 octet"}, 0},
		{"a control character", "-- g/a/values.yaml --\na: \x01\n", []string{"g/a/values.yaml: parse YAML: control characters"}, 0},
		{"UTF-16", "-- g/a/values.yaml --\n\xff\xfea\x00:\x00 \x001\x00\n\x00\n", []string{"g/a/values.yaml: is UTF-16"}, 0},
		{"the second document", `
-- g/a/values.yaml --
a: ghcr.io/acme/a:v1@sha256-01
---
b: [
`, []string{"g/a/values.yaml:"}, 1},
		{"an unknown anchor", "-- g/a/values.yaml --\na: *b\n", []string{"g/a/values.yaml: parse YAML: unknown anchor 'b'"}, 0},
		{"an empty tag file", "-- g/a/images/x.tag --\n# nothing\n\n", []string{"g/a/images/x.tag: holds no reference"}, 0},
		{"two references in a tag file", `
-- g/a/images/x.tag --
ghcr.io/acme/a:v1@sha256-01

ghcr.io/acme/b:v1@sha256-02
`, []string{"g/a/images/x.tag:3: holds more than one reference"}, 2},
		{"no reference in a tag file", "-- g/a/images/x.tag --\nGhcr.io/A b\n", []string{`g/a/images/x.tag:1: "Ghcr.io/A b" is not an image reference`}, 0},
		{"a declared file is missing", "-- refs.yaml --\nfiles: [a/b.yaml, refs.yaml/x]\n", []string{"a/b.yaml: is declared and missing", "refs.yaml/x: ", "not a directory"}, 0},
		{"a declared file is a directory", "-- refs.yaml --\nfiles: [a]\n-- a/x --\n", []string{"a: is not a regular file"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := open(t, parseTree(tt.tree).write(t)).List(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			var f *FileError
			if !errors.As(err, &f) {
				t.Errorf("error %v names no file", err)
			}
			if len(got) != tt.listed {
				t.Errorf("listed %d references, want %d: %v", len(got), tt.listed, got)
			}
		})
	}
}

// Links are not followed, in the tree or out of it; those where references would live are errors.
func TestListLinks(t *testing.T) {
	outside := parseTree("-- g/p/values.yaml --\nimage: ghcr.io/acme/outside:v1@sha256-01\n").write(t)
	for _, tt := range []struct {
		name, link, to string
		refused        bool
	}{
		{"values.yaml out of the tree", "g/a/values.yaml", outside + "/g/p/values.yaml", true},
		{"values.yaml in the tree", "g/a/values.yaml", "../p/values.yaml", true},
		{"values.yaml to itself", "g/a/values.yaml", "values.yaml", true},
		{"dangling values.yaml", "g/a/values.yaml", "nowhere", true},
		{"package out of the tree", "g/linked", outside + "/g/p", true},
		{"package in the tree", "g/linked", "p", true},
		{"group", "linked", outside + "/g", true},
		{"group, a loop", "g/loop", "..", true},
		{"images", "g/a/images", outside, true},
		{"tag file", "g/a/images/x.tag", outside + "/g/p/values.yaml", true},
		{"declared", "declared", outside + "/g/p/values.yaml", true},
		{"declared through a link", "through", "g", true},
		{"a file beside", "README.md", outside + "/g/p/values.yaml", false},
		{"a file in a package", "g/a/Makefile", outside + "/g/p/values.yaml", false},
		{"deeper", "g/a/charts", outside, false},
		{"dangling", "g/dangling", "nowhere", false},
		{"loop", "g/dangling", "dangling", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := parseTree("-- g/p/values.yaml --\nimage: ghcr.io/acme/inside:v1@sha256-02\n-- g/a/x --\n-- refs.yaml --\n")
			switch tt.link {
			case "declared":
				files["refs.yaml"] = "files: [declared]"
			case "through":
				files["refs.yaml"] = "files: [through/p/values.yaml]"
			}
			root := files.write(t)
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, tt.link)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(tt.to, filepath.Join(root, tt.link)); err != nil {
				t.Fatal(err)
			}
			got, err := open(t, root).List(t.Context())
			if want := "is a symbolic link, and links are not followed"; tt.refused != (err != nil) || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, refused %t", err, tt.refused)
			}
			if len(got) != 1 || got[0].Repository != "acme/inside" {
				t.Errorf("listed %v", got)
			}
			if !tt.refused || strings.HasPrefix(tt.name, "declared") {
				return
			}
			tr, err := Open(root, Config{Ignore: []string{tt.link}})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if _, err := tr.List(t.Context()); err != nil {
				t.Errorf("a link that is ignored: %v", err)
			}
		})
	}
}

func TestListLargeFile(t *testing.T) {
	var b strings.Builder
	n := 0
	for ; b.Len() < 5<<20; n++ {
		fmt.Fprintf(&b, "k%d:\n  repository: ghcr.io/acme/x%d\n  tag: \"v1@sha256:%064d\"\n  text: |\n    %s\n", n, n, n, strings.Repeat("long ", 40))
	}
	got, err := open(t, tree{"g/p/values.yaml": b.String()}.write(t)).List(t.Context())
	if err != nil || len(got) != n {
		t.Errorf("listed %d of %d references: %v", len(got), n, err)
	}
	too := tree{"g/p/values.yaml": "", "g/q/values.yaml": "a: b@sha256:12\n"}.write(t)
	if err := os.Truncate(filepath.Join(too, "g/p/values.yaml"), maxFile+1); err != nil {
		t.Fatal(err)
	}
	got, err = open(t, too).List(t.Context())
	if err == nil || err.Error() != "g/p/values.yaml: is larger than 64 MiB" || len(got) != 1 {
		t.Errorf("a file that is too large: %v, %v", got, err)
	}
}

// What an enemy writes takes no more than what anybody writes: nothing is expanded, and nothing is looked at again and again.
func TestListHostile(t *testing.T) {
	const pin = "ghcr.io/acme/x:v1@sha256-01"
	for name, text := range map[string]string{
		"aliases": func() string {
			var b strings.Builder
			b.WriteString("a0: &a0 [" + pin + "]\n")
			for i := 1; i < 200; i++ {
				fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), ", "))
			}
			return b.String()
		}(),
		"merges": func() string {
			var b strings.Builder
			b.WriteString("m0: &m0 {repository: ghcr.io/acme/x, tag: v1@sha256-01}\n")
			for i := 1; i < 10000; i++ {
				fmt.Fprintf(&b, "m%d: &m%d {<<: [*m%d, *m%d]}\n", i, i, i-1, max(0, i-2))
			}
			return b.String()
		}(),
		"nesting":    "a: " + pin + "\nb: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "\n",
		"long line":  "a: " + pin + "\nb: [" + strings.Repeat("{repository: x, tag: 1}, ", 10000) + "]\n",
		"long word":  "a: " + pin + "\nb: " + strings.Repeat("a:b/", 1<<18) + "\n",
		"long quote": "a: " + pin + "\nb: \"" + strings.Repeat(`\"`, 1<<19) + "@sha256:1\"\n",
		"ats":        "a: " + pin + "\nb: '" + strings.Repeat("@sha256:", 1<<14) + "'\n",
	} {
		t.Run(name, func(t *testing.T) {
			text := expand(text)
			if got := scanValues([]byte(text), valuesShapes); len(got.errs) > 0 || !strings.Contains(fmt.Sprint(showAll(got.refs)), "ghcr.io acme/x v1") {
				t.Errorf("listed %.200v, %v", showAll(got.refs), got.errs)
			}
			// The same as text, declared, checked and rewritten.
			root := tree{"refs.yaml": "files: [g/p/values.yaml, x]\nfirstParty: [ghcr.io/acme]\n", "g/p/values.yaml": text, "x": text}.write(t)
			tr := open(t, root)
			if _, err := tr.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := tr.Plan(t.Context(), "v1", "v2"); err != nil && !errors.As(err, new(*SurvivorsError)) {
				t.Error(err)
			}
		})
	}
	deep := scanValues([]byte(strings.Repeat("[", 200000)), valuesShapes)
	if len(deep.errs) == 0 {
		t.Error("no error for what nests too deep")
	}
}

func TestListStops(t *testing.T) {
	files, _ := fixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tr := open(t, files.write(t))
	if _, err := tr.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("list: %v", err)
	}
	if _, err := tr.Check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("check: %v", err)
	}
	if _, err := tr.Plan(ctx, "a", "b"); !errors.Is(err, context.Canceled) {
		t.Errorf("plan: %v", err)
	}
}

func TestOwned(t *testing.T) {
	list := scanValues([]byte(expand(`
- ghcr.io/acme/a:v1@sha256-01
- ghcr.io/acme-labs/a:v1@sha256-02
- ghcr.io/acme:v1@sha256-03
- acme/a:v1@sha256-04
- {tag: v1@sha256-05}
`)), valuesShapes).refs
	for prefix, want := range map[string]int{"ghcr.io/acme": 2, "ghcr.io/acme/": 2, "ghcr.io": 3, "docker.io/acme": 1, "ghcr.io/ac": 0} {
		if got := Owned(list, []string{prefix}); len(got) != want {
			t.Errorf("%s owns %v, want %d", prefix, got, want)
		}
	}
}
