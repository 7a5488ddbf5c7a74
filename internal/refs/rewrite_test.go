package refs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	from = "v1.0.0-rc.1"
	to   = "v1.0.0"
)

// rewrite plans and writes.
func rewrite(t testing.TB, root, from, to string) (*Change, error) {
	t.Helper()
	tr := open(t, root)
	c, err := tr.Plan(t.Context(), from, to)
	if err == nil {
		err = tr.Write(t.Context(), c)
	}
	return c, err
}

func TestRewrite(t *testing.T) {
	const before = `
-- refs.yaml --
firstParty: [ghcr.io/acme]
files: [g/p/manifest.yaml, g/p/values.yaml]
-- g/p/values.yaml --
# v1.0.0-rc.1 is what ghcr.io/acme/a:v1.0.0-rc.1@sha256-01 was.
scalar: 'ghcr.io/acme/a:v1.0.0-rc.1@sha256-01' # v1.0.0-rc.1
tag:   {"repository":   "ghcr.io/acme/b","tag":"v1.0.0-rc.1@sha256-02"  }
digest:
    tag:   v1.0.0-rc.1
    digest: sha256-03
    repository: ghcr.io/acme/c
inname: {image: ghcr.io/acme/d:v1.0.0-rc.1, digest: sha256-04}
global: {registry: {address: ghcr.io}, images: {e: {tag: v1.0.0-rc.1@sha256-05, repository: acme/e}}}
anchor: &anchor ghcr.io/acme/f:v1.0.0-rc.1@sha256-06
alias: [*anchor, *anchor]
shared: &shared v1.0.0-rc.1@sha256-07
g: {repository: ghcr.io/acme/g, tag: *shared}
h: {repository: ghcr.io/acme/h, tag: *shared}
oci: {platformSourceUrl: "oci://ghcr.io/acme/i:v1.0.0-rc.1", platformSourceRef: digest=sha256-08}
component: {repository: ghcr.io/acme/j, tag: 1.29-v1.0.0-rc.1@sha256-09}
component2: ghcr.io/acme/k:v1.0.0-rc.11@sha256-0a
third: quay.io/other/l:v1.0.0-rc.1@sha256-0b
third2: {repository: quay.io/other/m, tag: v1.0.0-rc.1}
third3: {<<: &base {repository: quay.io/other/n}, tag: v1.0.0-rc.1}
labs: ghcr.io/acme-labs/o:v1.0.0-rc.1@sha256-0c
block: |-
  ghcr.io/acme/p:v1.0.0-rc.1@sha256-0d
embedded: |
  spec: {image: "ghcr.io/acme/q:v1.0.0-rc.1@sha256-0e"}
version: v1.0.0-rc.1
appVersion: v1.0.0-rc.1
-- g/p/manifest.yaml --
{{ if .x }}
- image: ghcr.io/acme/r:v1.0.0-rc.1@sha256-0f
- image: quay.io/other/r:v1.0.0-rc.1@sha256-0f
{{ end }}
repository: ghcr.io/acme/s
tag: "v1.0.0-rc.1"
digest: sha256-10
-- g/p/images/t.tag --
# v1.0.0-rc.1
ghcr.io/acme/t:v1.0.0-rc.1@sha256-11
-- g/p/images/u.tag --
ghcr.io/acme/u:v1.0.0-rc.1
-- g/p/Chart.yaml --
version: v1.0.0-rc.1
appVersion: v1.0.0-rc.1
-- g/p/README.md --
image: ghcr.io/acme/a:v1.0.0-rc.1
-- g/p/Chart.lock --
tag: v1.0.0-rc.1
-- g/p/package-lock.json --
{"tag":"v1.0.0-rc.1"}
-- g/p/charts/c/values.yaml --
image: ghcr.io/acme/a:v1.0.0-rc.1@sha256-01
-- g/p/templates/x.yaml --
# image: ghcr.io/acme/a:v1.0.0-rc.1
image: quay.io/other/r:v1.0.0-rc.1
{"repository": "quay.io/other/r", "tag": "v1.0.0-rc.1"}
---
tag: v1.0.0-rc.1
repository: quay.io/other/r
---
percentag: v1.0.0-rc.1
images/v1.0.0-rc.1/x
the image v1.0.0-rc.1 is
`
	files := parseTree(before)
	root := files.write(t)
	c, err := rewrite(t, root, from, to)
	if err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(files)
	moved := 0
	for name, marks := range map[string]string{
		"g/p/values.yaml": "a b c d e f g h i p q", "g/p/manifest.yaml": "r s", "g/p/images/t.tag": "t", "g/p/images/u.tag": "u",
	} {
		var lines []string
		seen := make(map[string]bool)
		for _, line := range strings.Split(files[name], "\n") {
			for _, m := range strings.Fields(marks) {
				line = replaceOnce(line, "ghcr.io/acme/"+m+":"+from, "ghcr.io/acme/"+m+":"+to, seen)
			}
			switch {
			case strings.HasPrefix(line, "tag:   {"), strings.HasPrefix(line, "    tag:"), strings.HasPrefix(line, "global:"), strings.HasPrefix(line, "shared:"),
				strings.HasPrefix(line, `tag: "`):
				line = strings.Replace(line, from, to, 1)
			}
			lines = append(lines, line)
		}
		moved += len(strings.Fields(marks))
		want[name] = strings.Join(lines, "\n")
	}
	if diff := cmp.Diff(want, readTree(t, root)); diff != "" {
		t.Errorf("rewritten otherwise (-want +got):\n%s", diff)
	}
	if len(c.References) != moved || len(c.Files) != 4 {
		t.Errorf("%d references in %d files, want %d in 4:\n%v", len(c.References), len(c.Files), moved, c.References)
	}
	again, err := rewrite(t, root, from, to)
	if err != nil || len(again.References)+len(again.Files) != 0 {
		t.Errorf("again: %v, %v", again, err)
	}
}

// replaceOnce replaces what is not in a comment.
func replaceOnce(line, old, new string, seen map[string]bool) string {
	if strings.HasPrefix(line, "#") || seen[old] || !strings.Contains(line, old) {
		return line
	}
	seen[old] = true
	return strings.Replace(line, old, new, 1)
}

// Line ends, the byte order mark and every other byte stay.
func TestRewriteKeepsBytes(t *testing.T) {
	crlf := "\ufeffa: ghcr.io/acme/a:v1.0.0-rc.1@sha256-01\r\nb:\r\n  tag: \"v1.0.0-rc.1@sha256-02\"   \r\n  repository: ghcr.io/acme/b\r\n\r\n  # ünï\r\nc: ghcr.io/acme/c:v1.0.0-rc.1@sha256-03"
	files := tree{
		"refs.yaml":        "firstParty: [ghcr.io/acme]\n",
		"g/p/values.yaml":  expand(crlf),
		"g/q/values.yaml":  expand(strings.ReplaceAll(crlf, "\r\n", "\r")),
		"g/p/images/a.tag": expand("\ufeff# x\r\nghcr.io/acme/d:v1.0.0-rc.1@sha256-04\r\n\r\n"),
	}
	root := files.write(t)
	if _, err := rewrite(t, root, from, to); err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(files)
	for _, name := range []string{"g/p/values.yaml", "g/q/values.yaml", "g/p/images/a.tag"} {
		want[name] = strings.ReplaceAll(files[name], from, to)
	}
	if diff := cmp.Diff(want, readTree(t, root)); diff != "" {
		t.Error(diff)
	}
}

func TestRewriteRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, from, to, tree, want string
	}{
		{"a tag shared with another owner's image", from, to, `
-- g/p/values.yaml --
a: &t v1.0.0-rc.1@sha256-01
b: {repository: ghcr.io/acme/b, tag: *t}
c: {repository: quay.io/other/c, tag: *t}
`, "g/p/values.yaml:1: the tag v1.0.0-rc.1 is shared, through an alias, with quay.io/other/c, which is not first-party"},
		{"a tag shared with another owner's image that is not pinned", from, to, `
-- g/p/values.yaml --
a: {repository: ghcr.io/acme/b, tag: &t v1.0.0-rc.1, digest: sha256-01}
c: {repository: quay.io/other/c, tag: *t}
`, "g/p/values.yaml:1: the tag v1.0.0-rc.1 is shared, through an alias, with quay.io/other/c, which is not first-party"},
		{"escapes", from, to, `
-- g/p/values.yaml --
a: "ghcr.io/acme/b:v1\x2e0.0-rc.1@sha256-01"
`, "g/p/values.yaml:1: the tag v1.0.0-rc.1 of ghcr.io/acme/b is written with escapes"},
		{"a plain string that would be a number", from, "1.10", `
-- g/p/values.yaml --
a: {repository: ghcr.io/acme/b, tag: v1.0.0-rc.1, digest: sha256-01}
`, "g/p/values.yaml:1: the tag 1.10 of ghcr.io/acme/b would be a number"},
		{"a plain number that would be another", "1.9", "1.10", `
-- g/p/values.yaml --
a: {repository: ghcr.io/acme/b, tag: 1.9, digest: sha256-01}
`, "would be a number"},
		{"a plain string that would be null", from, "null", `
-- g/p/values.yaml --
a: {repository: ghcr.io/acme/b, tag: v1.0.0-rc.1, digest: sha256-01}
`, "would be a number or another type"},
		{"a file that does not parse", from, to, `
-- g/p/values.yaml --
a: ghcr.io/acme/b:v1.0.0-rc.1@sha256-01
-- g/q/values.yaml --
a: [
`, "g/q/values.yaml:1: parse YAML"},
		{"a declared file that is missing", from, to, `
-- refs.yaml --
firstParty: [ghcr.io/acme]
files: [missing]
-- g/p/values.yaml --
a: ghcr.io/acme/b:v1.0.0-rc.1@sha256-01
`, "missing: is declared and missing"},
		{"not a tag", from, "a/b", "-- g/p/x --\n", `"a/b" is not a tag`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := parseTree(ownConfig + strings.TrimPrefix(tt.tree, "\n"))
			root := files.write(t)
			_, err := rewrite(t, root, tt.from, tt.to)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if diff := cmp.Diff(files, readTree(t, root)); diff != "" {
				t.Errorf("changed:\n%s", diff)
			}
		})
	}
	for _, tt := range []struct{ from, to string }{{"1.9", "1.11"}, {"1.9", "v1"}, {"5", "6"}, {"v1", "1.1.0"}} {
		root := parseTree(ownConfig + "-- g/p/values.yaml --\na: {repository: ghcr.io/acme/b, tag: " + tt.from + ", digest: sha256-01}\n").write(t)
		if _, err := rewrite(t, root, tt.from, tt.to); err != nil {
			t.Errorf("%s to %s: %v", tt.from, tt.to, err)
		}
	}
}

func TestSurvivors(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		path       string // of the text, g/p/templates/x.yaml by default
		want       string // lines and names
	}{
		{name: "after image", text: "image: ghcr.io/acme/a:v1.0.0-rc.1", want: "1 ghcr.io/acme/a"},
		{name: "after a quoted image", text: `{"image" : "ghcr.io/acme/a:v1.0.0-rc.1"}`, want: "1 ghcr.io/acme/a"},
		{name: "after a key that ends in image", text: "\n  initImage: foo.example/x:v1.0.0-rc.1\nRELATED_IMAGE=ghcr.io/acme/b:v1.0.0-rc.1", want: "3 ghcr.io/acme/b"},
		{name: "after repository", text: "repository: ghcr.io/acme/a:v1.0.0-rc.1", want: "1 ghcr.io/acme/a"},
		{name: "after tag, unknown", text: "tag: v1.0.0-rc.1", want: "1 ?"},
		{name: "after an anchored tag", text: "tag: &t !!str 'v1.0.0-rc.1'", want: "1 ?"},
		{name: "after imageTag", text: "imageTag = \"v1.0.0-rc.1\"", want: "1 ?"},
		{name: "after a flag", text: "helm --set x --tag v1.0.0-rc.1\nkubectl run --image=ghcr.io/acme/a:v1.0.0-rc.1", want: "1 ?, 2 ghcr.io/acme/a"},
		{name: "before a digest", text: "x: v1.0.0-rc.1@sha256-01", want: "1 ?"},
		{name: "before a digest, in words", text: "see ghcr.io/acme/a:v1.0.0-rc.1@sha256-01.", want: "1 ghcr.io/acme/a"},
		{name: "a first-party name anywhere", text: "args: [ghcr.io/acme/a:v1.0.0-rc.1]", want: "1 ghcr.io/acme/a"},
		{name: "behind a scheme", text: "from: docker://ghcr.io/acme/a:v1.0.0-rc.1", want: "1 ghcr.io/acme/a"},
		{name: "a templated name", text: "image: \"{{ .Values.registry }}/acme/a:v1.0.0-rc.1\"\nimage: {{ .Values.image }}:v1.0.0-rc.1\nx: {{ .y }}:v1.0.0-rc.1", want: "1 ?, 2 ?"},
		{name: "beside a first-party repository", text: "- tag: v1.0.0-rc.1\n  repository: ghcr.io/acme/a\n- repository: quay.io/x/y\n  tag: v1.0.0-rc.1", want: "1 ghcr.io/acme/a"},
		{name: "beside a registry", text: "registry: ghcr.io\nrepository: acme/a\n\n# comment\n{{ if x }}\n  deeper: true\ntag: v1.0.0-rc.1", want: "7 ghcr.io/acme/a"},
		{name: "beside in one line", text: `{"a":{"tag":"v1.0.0-rc.1","repository":"ghcr.io/acme/a"},"b":{"tag":"v1.0.0-rc.1","repository":"quay.io/a/a"}}`, want: "1 ghcr.io/acme/a"},
		{name: "beside several", text: "repository: quay.io/x/y\nrepository: quay.io/x/z\ntag: v1.0.0-rc.1", want: "3 ?"},
		{name: "beside, but not in the same block", text: "a:\n  repository: quay.io/x/y\nb:\n  tag: v1.0.0-rc.1", want: "4 ?"},
		{name: "third-party", text: "image: quay.io/x/y:v1.0.0-rc.1\nimage: y:v1.0.0-rc.1@sha256-01"},
		{name: "another owner of that registry", text: "image: ghcr.io/acme-labs/y:v1.0.0-rc.1"},
		{name: "another tag", text: "image: ghcr.io/acme/a:v1.0.0-rc.11\ntag: xv1.0.0-rc.1\ntag: v1.0.0-rc.1-x\ntag: v1.0.0-rc.1.2"},
		{name: "a comment", text: "# image: ghcr.io/acme/a:v1.0.0-rc.1\nx: y # tag: v1.0.0-rc.1"},
		{name: "a # in quotes", text: "image: '# ' \"ghcr.io/acme/a:v1.0.0-rc.1\"", want: "1 ghcr.io/acme/a"},
		{name: "no position", text: "version: v1.0.0-rc.1\nurl: https://x/v1.0.0-rc.1/image/v1.0.0-rc.1\npath: image/v1.0.0-rc.1"},
		{name: "vendored", path: "g/p/charts/c/values.yaml", text: "image: ghcr.io/acme/a:v1.0.0-rc.1"},
		{name: "a package named charts", path: "charts/p/x", text: "image: ghcr.io/acme/a:v1.0.0-rc.1", want: "1 ghcr.io/acme/a"},
		{name: "Markdown", path: "g/p/README.md", text: "image: ghcr.io/acme/a:v1.0.0-rc.1"},
		{name: "a lock file", path: "g/p/Chart.lock", text: "image: ghcr.io/acme/a:v1.0.0-rc.1"},
		{name: "another lock file", path: "pnpm-lock.yaml", text: "image: ghcr.io/acme/a:v1.0.0-rc.1"},
		{name: "at the root", path: "x", text: "image: ghcr.io/acme/a:v1.0.0-rc.1", want: "1 ghcr.io/acme/a"},
		{name: "ignored", path: "g/p/testdata/x", text: "image: ghcr.io/acme/a:v1.0.0-rc.1"},
		{name: "ignored image", text: "image: ghcr.io/acme/dev:v1.0.0-rc.1"},
		{name: "unpinned in values.yaml", path: "g/p/values.yaml", text: "a: {repository: ghcr.io/acme/a, tag: v1.0.0-rc.1}\nb: ghcr.io/acme/b:v1.0.0-rc.1\nc:\n  tag: >-\n    v1.0.0-rc.1\n  image: ghcr.io/acme/c", want: "1 ghcr.io/acme/a, 2 ghcr.io/acme/b, 5 ghcr.io/acme/c"},
		{name: "incomplete in values.yaml", path: "g/p/values.yaml", text: "a: {tag: v1.0.0-rc.1@sha256-01}\nb: {tag: v1.0.0-rc.1}\nc: {repository: '{{ .x }}', tag: v1.0.0-rc.1@sha256-01}", want: "1 ?, 2 ?, 3 ?"},
		{name: "embedded in values.yaml", path: "g/p/values.yaml", text: "a: |\n  image: ghcr.io/acme/a:v1.0.0-rc.1@sha256-01", want: "2 ghcr.io/acme/a"},
		{name: "merged in values.yaml", path: "g/p/values.yaml", text: "x: &x {repository: quay.io/a/a}\ny: &y {repository: ghcr.io/acme/a}\na: {<<: *x, tag: v1.0.0-rc.1}\nb: {<<: *y, tag: v1.0.0-rc.1}", want: "4 ghcr.io/acme/a"},
		{name: "an incomplete tag file", path: "g/p/images/a.tag", text: "v1.0.0-rc.1@sha256-01", want: "1 ?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.path == "" {
				tt.path = "g/p/templates/x.yaml"
			}
			files := tree{
				"refs.yaml":       "firstParty: [ghcr.io/acme]\nignore: ['**/testdata/**', ghcr.io/acme/dev]\n",
				"h/p/values.yaml": expand("image: ghcr.io/acme/moved:v1.0.0-rc.1@sha256-aa\n"),
				tt.path:           expand(tt.text) + "\n",
			}
			root := files.write(t)
			c, err := rewrite(t, root, from, to)
			var survivors *SurvivorsError
			if tt.want == "" {
				if err != nil || len(c.References) != 1 {
					t.Fatalf("%v, %v", c, err)
				}
				return
			}
			if !errors.As(err, &survivors) {
				t.Fatalf("error %v", err)
			}
			var got []string
			for _, s := range survivors.Survivors {
				name := s.Name
				if name == "" {
					name = "?"
				}
				got = append(got, fmt.Sprintf("%d %s", s.Line, name))
				if s.File != tt.path || s.Tag != from {
					t.Errorf("survivor %+v", s)
				}
			}
			if strings.Join(got, ", ") != tt.want {
				t.Errorf("survivors %q, want %q", strings.Join(got, ", "), tt.want)
			}
			if diff := cmp.Diff(files, readTree(t, root)); diff != "" {
				t.Errorf("changed:\n%s", diff)
			}
			if len(c.References) != 1 {
				t.Errorf("the plan holds %v", c.References)
			}
		})
	}
}

func TestSurvivorsInGzip(t *testing.T) {
	files := tree{"refs.yaml": "firstParty: [ghcr.io/acme]\n", "g/p/values.yaml": "a: 1\n",
		"g/p/x.gz": gz(t, "a\nimage: ghcr.io/acme/a:v1.0.0-rc.1\n"), "g/p/charts/x.tgz": gz(t, "image: ghcr.io/acme/a:v1.0.0-rc.1\n")}
	_, err := rewrite(t, files.write(t), from, to)
	if want := "g/p/x.gz (unpacked):2: ghcr.io/acme/a still has the tag v1.0.0-rc.1"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// three is a tree in which a rewrite changes three files.
var three = parseTree(ownConfig + `
-- a/p/values.yaml --
- ghcr.io/acme/a:v1.0.0-rc.1@sha256-01
-- b/p/values.yaml --
- ghcr.io/acme/b:v1.0.0-rc.1@sha256-02
-- c/p/values.yaml --
- ghcr.io/acme/c:v1.0.0-rc.1@sha256-03
`)

// stats are modes and times by name.
func stats(t *testing.T, root string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if !d.IsDir() {
			st := info.Sys().(*syscall.Stat_t)
			all[path] = fmt.Sprint(info.Mode(), info.ModTime(), info.Size(), st.Uid, st.Gid)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRewriteAllOrNone(t *testing.T) {
	errFault := errors.New("injected")
	for fail := range 4 {
		root := three.write(t)
		if err := os.Chmod(filepath.Join(root, "b/p/values.yaml"), 0o640); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		for name := range three {
			if err := os.Chtimes(filepath.Join(root, name), old, old); err != nil {
				t.Fatal(err)
			}
		}
		before := stats(t, root)
		tr := open(t, root)
		rename, calls := tr.rename, 0
		tr.rename = func(from, to string) error {
			if calls++; calls == fail+1 {
				return &os.LinkError{Op: "rename", Old: from, New: to, Err: errFault}
			}
			return rename(from, to)
		}
		c, err := tr.Plan(t.Context(), from, to)
		if err != nil || len(c.Files) != 3 {
			t.Fatal(c, err)
		}
		err = tr.Write(t.Context(), c)
		if fail == 3 {
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(filepath.Join(root, "b/p/values.yaml")); err != nil || info.Mode() != 0o640 {
				t.Errorf("the mode is %v, %v", info.Mode(), err)
			}
			for name, content := range readTree(t, root) {
				if content != strings.ReplaceAll(three[name], from, to) {
					t.Errorf("%s is %q", name, content)
				}
			}
			continue
		}
		var f *FileError
		if !errors.Is(err, errFault) || !errors.As(err, &f) || f.File != c.Files[fail].File {
			t.Errorf("rename %d fails: error %v", fail, err)
		}
		if diff := cmp.Diff(three, readTree(t, root)); diff != "" {
			t.Errorf("rename %d fails: changed\n%s", fail, diff)
		}
		if diff := cmp.Diff(before, stats(t, root)); diff != "" {
			t.Errorf("rename %d fails: modes, times or owners changed\n%s", fail, diff)
		}
	}
}

func TestRewriteStopsHalfWay(t *testing.T) {
	root := three.write(t)
	tr := open(t, root)
	c, err := tr.Plan(t.Context(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	rename := tr.rename
	tr.rename = func(from, to string) error { cancel(); return rename(from, to) }
	if err := tr.Write(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(three, readTree(t, root)); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
}

// A file that somebody else changes is neither overwritten nor put back.
func TestRewriteMeanwhile(t *testing.T) {
	theirs := "theirs\n"
	for name, disturb := range map[string]func(root string) error{
		"changed": func(root string) error {
			return os.WriteFile(filepath.Join(root, "b/p/values.yaml"), []byte(theirs), 0o644)
		},
		"removed": func(root string) error { return os.Remove(filepath.Join(root, "b/p/values.yaml")) },
		"a link": func(root string) error {
			path := filepath.Join(root, "b/p/values.yaml")
			return errors.Join(os.Rename(path, path+".old"), os.Symlink("values.yaml.old", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := three.write(t)
			tr := open(t, root)
			c, err := tr.Plan(t.Context(), from, to)
			if err != nil {
				t.Fatal(err)
			}
			rename := tr.rename
			tr.rename = func(from, to string) error {
				if to == "a/p/values.yaml" {
					if err := disturb(root); err != nil {
						t.Fatal(err)
					}
				}
				return rename(from, to)
			}
			disturbed := three.write(t)
			if err := disturb(disturbed); err != nil {
				t.Fatal(err)
			}
			if err := tr.Write(t.Context(), c); err == nil || !strings.HasPrefix(err.Error(), "b/p/values.yaml: ") {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(readTree(t, disturbed), readTree(t, root)); diff != "" {
				t.Errorf("changed:\n%s", diff)
			}
		})
	}
	t.Run("changed after it was rewritten", func(t *testing.T) {
		root := three.write(t)
		tr := open(t, root)
		c, err := tr.Plan(t.Context(), from, to)
		if err != nil {
			t.Fatal(err)
		}
		rename := tr.rename
		tr.rename = func(from, to string) error {
			if to == "c/p/values.yaml" {
				if err := os.WriteFile(filepath.Join(root, "a/p/values.yaml"), []byte(theirs), 0o644); err != nil {
					t.Fatal(err)
				}
				return syscall.EIO
			}
			return rename(from, to)
		}
		err = tr.Write(t.Context(), c)
		if err == nil || !strings.Contains(err.Error(), "a/p/values.yaml: put back: was changed meanwhile") || !errors.Is(err, syscall.EIO) {
			t.Errorf("error %v", err)
		}
		got := readTree(t, root)
		if got["a/p/values.yaml"] != theirs || got["b/p/values.yaml"] != three["b/p/values.yaml"] || got["c/p/values.yaml"] != three["c/p/values.yaml"] {
			t.Errorf("the tree is %q", got)
		}
		if got[stagingName+"/old/a/p/values.yaml"] != three["a/p/values.yaml"] {
			t.Error("the old file is lost")
		}
		if _, err := rewrite(t, root, from, to); err == nil || !errors.Is(err, ErrStaging) {
			t.Errorf("a rewrite beside what was left: %v", err)
		}
	})
}

func TestRewriteReadOnly(t *testing.T) {
	root := three.write(t)
	path := filepath.Join(root, "b/p/values.yaml")
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	if _, err := rewrite(t, root, from, to); err == nil || err.Error() != "b/p/values.yaml: is read-only" {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(three, readTree(t, root)); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
}

func TestDiffApplies(t *testing.T) {
	files := maps.Clone(three)
	files["b/p/values.yaml"] = expand("# x\r\n\r\na: ghcr.io/acme/b:v1.0.0-rc.1@sha256-02 # v1.0.0-rc.1\r\nb: 1\r\n") + strings.Repeat("\r\n", 20) + expand("c: ghcr.io/acme/c:v1.0.0-rc.1@sha256-03")
	rewritten, patched := files.write(t), files.write(t)
	tr := open(t, rewritten)
	c, err := tr.Plan(t.Context(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, readTree(t, rewritten)); diff != "" {
		t.Errorf("planning changed:\n%s", diff)
	}
	diff, err := c.Diff()
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Write(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "apply", "-p1", "--whitespace=nowarn", "-")
	cmd.Dir, cmd.Stdin = patched, strings.NewReader(diff)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, out, diff)
	}
	if diff := cmp.Diff(readTree(t, rewritten), readTree(t, patched)); diff != "" {
		t.Error(diff)
	}
}

// Over generated trees that do not hold TO, rewriting and rewriting back gives every file its bytes again, and in between
// the references are the same but for the tag.
func TestRewriteAndBack(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		files := randomTree(r)
		for name, content := range files {
			if strings.Contains(content, "v9.9.9") {
				t.Fatalf("%s holds TO", name)
			}
		}
		root := files.write(t)
		before, err := open(t, root).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := rewrite(t, root, from, "v9.9.9")
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if len(c.References) == 0 {
			t.Errorf("seed %d rewrote nothing", seed)
		}
		after, err := open(t, root).List(t.Context())
		if err != nil || len(after) != len(before) {
			t.Fatalf("seed %d: %d references, were %d: %v", seed, len(after), len(before), err)
		}
		own := Config{FirstParty: []string{"ghcr.io/acme"}}
		for i, b := range before {
			want := b.String()
			if b.Tag == from && own.owner(b) == firstParty {
				want = strings.Replace(want, ":"+from, ":v9.9.9", 1)
			}
			if after[i].String() != want || after[i].File != b.File || after[i].Line != b.Line {
				t.Errorf("seed %d: %s:%d %s, want %s", seed, after[i].File, after[i].Line, after[i], want)
			}
		}
		if _, err := rewrite(t, root, "v9.9.9", from); err != nil {
			t.Fatalf("seed %d, back: %v", seed, err)
		}
		if diff := cmp.Diff(files, readTree(t, root)); diff != "" {
			t.Fatalf("seed %d: not the same bytes:\n%s", seed, diff)
		}
	}
}

// randomTree makes a tree of references in every shape and style, of several owners and tags.
func randomTree(r *rand.Rand) tree {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	digest := func() string { return fmt.Sprintf("sha256:%064x", r.Uint64()) }
	quote := func(s string) string { q := pick("", `"`, `'`); return q + s + q }
	name := func() (registry, repository string) {
		return pick("ghcr.io", "ghcr.io", "quay.io"), pick("acme/", "acme/", "acme-labs/", "other/") + pick("a", "b", "c/d")
	}
	tag := func() string {
		return pick(from, from, from, "1.2.3", "v1.0.0-rc.10", "1-v1.0.0-rc.1", "latest", "2.0")
	}
	comment := func() string { return pick("", "", " # "+from, "   # 'ghcr.io/acme/a:"+from+"@"+digest()+"'", "  ") }
	files := tree{"refs.yaml": "firstParty: [ghcr.io/acme]\nfiles: [g/p0/values.yaml, manifest.txt]\n"}
	entry := func(i int) string {
		registry, repository := name()
		full := registry + "/" + repository
		switch r.IntN(11) {
		case 0:
			return fmt.Sprintf("k%d:  %s%s\n", i, quote(full+":"+tag()+"@"+digest()), comment())
		case 1:
			return fmt.Sprintf("k%d:\n  repository: %s%s\n  tag: %s%s\n  digest: %s\n", i, quote(full), comment(), quote(tag()), comment(), quote(digest()))
		case 2:
			return fmt.Sprintf("k%d:\n  digest: %s\n  registry: %s\n\n  tag: %s%s\n  repository: %s\n", i, digest(), registry, tag(), comment(), repository)
		case 3:
			return fmt.Sprintf("k%d:\n    image:\n      registry: %s\n      repository: %s\n      tag: %s%s\n", i, registry, repository, quote(tag()+"@"+digest()), comment())
		case 4:
			return fmt.Sprintf("k%d: {registry: '%s', \"repository\": %s, tag: %s}\n", i, registry, repository, quote(tag()+"@"+digest()))
		case 5:
			return fmt.Sprintf("k%d:\n  global:\n    images: {a: {tag: %s, repository: %s}}\n    registry:\n      address: %s\n", i, quote(tag()+"@"+digest()), repository, registry)
		case 6:
			return fmt.Sprintf("k%d:\n  platformSourceUrl: oci://%s:%s\n  platformSourceRef: digest=%s\n", i, full, tag(), digest())
		case 7:
			return fmt.Sprintf("k%d: &a%d %s%s\nl%d: [*a%d, *a%d]\n", i, i, quote(full+":"+tag()+"@"+digest()), comment(), i, i, i)
		case 8:
			return fmt.Sprintf("k%d: &a%d {repository: %s, x: 1}\nl%d:\n  <<: *a%d\n  tag: %s\n", i, i, full, i, i, quote(tag()+"@"+digest()))
		case 9:
			return fmt.Sprintf("k%d: %s\n  %s:%s@%s\n", i, pick("|", ">-", ">", "|-", "!!str", ""), full, tag(), digest())
		default:
			return fmt.Sprintf("ü%d: {\"ы\": [1, ~, {}], repository: [], tag: {}, version: %s}%s\n", i, from, comment())
		}
	}
	for p := range 1 + r.IntN(6) {
		var b strings.Builder
		fmt.Fprintf(&b, "first: ghcr.io/acme/first:%s@%s\n", from, digest())
		for i := range r.IntN(12) {
			b.WriteString(entry(i))
			if r.IntN(5) == 0 {
				b.WriteString(pick("\n", "# "+from+"\n", "---\n", "---\n# x\n"))
			}
		}
		text := b.String()
		if r.IntN(3) == 0 {
			text = strings.ReplaceAll(text, "\n", "\r\n")
		}
		if r.IntN(3) == 0 {
			text = "\ufeff" + text
		}
		if r.IntN(4) == 0 {
			text = strings.TrimRight(text, "\r\n")
		}
		files[fmt.Sprintf("g/p%d/values.yaml", p)] = text
		registry, repository := name()
		files[fmt.Sprintf("g/p%d/images/x.tag", p)] = pick("", "# "+from+"\n", "\ufeff") + registry + "/" + repository + ":" + tag() + pick("", "@"+digest()) + pick("", "\n", "\r\n", "  # x\n\n")
		files[fmt.Sprintf("g/p%d/README.md", p)] = "image: ghcr.io/acme/a:" + from + "\n"
	}
	registry, repository := name()
	files["manifest.txt"] = fmt.Sprintf("{{ if x }}\nimage: %s/%s:%s@%s%s\n{{ end }}\n- repository: ghcr.io/acme/x\n  tag: %s\n", registry, repository, tag(), digest(), comment(),
		quote(tag()+"@"+digest()))
	return files
}

func TestPlanIsInOrder(t *testing.T) {
	root := three.write(t)
	c, err := open(t, root).Plan(t.Context(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range c.Files {
		names = append(names, f.File)
	}
	if !slices.IsSorted(names) || len(names) != 3 {
		t.Errorf("files %v", names)
	}
}
