package refs

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func gz(t *testing.T, content string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const ownConfig = "-- refs.yaml --\nfirstParty: [ghcr.io/acme]\n"

func check(t *testing.T, files tree) []string {
	t.Helper()
	v, err := open(t, files.write(t)).Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{}
	for _, f := range v.Findings {
		lines = append(lines, f.String())
	}
	return lines
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name, tree string
		want       string
	}{
		{"all is well", ownConfig + `
-- g/p/values.yaml --
image: ghcr.io/acme/a:v1@sha256-01
other: {repository: ghcr.io/acme/a, tag: v1, digest: sha256-01}
third: nginx@sha256-02
third2: nginx:1@sha256-03
oci: {platformSourceUrl: oci://ghcr.io/acme/packages, platformSourceRef: digest=sha256-04}
-- g/p/images/b.tag --
ghcr.io/acme/b:v1@sha256-05
-- g/p/templates/x.yaml --
image: ghcr.io/acme/notpinned:v1
`, ""},
		{"every first-party reference has a tag", ownConfig + `
-- g/p/values.yaml --
a: ghcr.io/acme/a@sha256-01
b: {repository: ghcr.io/acme/b, digest: sha256-02, tag: ""}
c: {repository: ghcr.io/acme/c, tag: "@sha256-03"}
-- g/p/images/d.tag --
ghcr.io/acme/d@sha256-04
`, `
g/p/images/d.tag:1: ghcr.io/acme/d@sha256-04 has no tag
g/p/values.yaml:1: ghcr.io/acme/a@sha256-01 has no tag
g/p/values.yaml:2: ghcr.io/acme/b@sha256-02 has no tag
g/p/values.yaml:3: ghcr.io/acme/c@sha256-03 has no tag
`},
		{"every first-party reference has a digest", `
-- refs.yaml --
firstParty: [ghcr.io/acme]
files: [g/p/manifest.yaml]
-- g/p/values.yaml --
a: ghcr.io/acme/a:v1
b: {repository: ghcr.io/acme/b, tag: v1}
c: {registry: ghcr.io, repository: acme/c, tag: v1, digest: ""}
d: {global: {registry: {address: ghcr.io}, images: {d: {repository: acme/d, tag: v1}}}}
e: {platformSourceUrl: oci://ghcr.io/acme/e, platformSourceRef: tag=v1}
f:
  image: ghcr.io/acme/f
g: |
  image: ghcr.io/acme/g:v1
h: {image: nginx:1, repository: 5}
arg: --image=ghcr.io/acme/arg:v1
# ghcr.io/acme/comment:v1
base: &base {repository: ghcr.io/acme/base}
derived: {<<: *base, tag: v1@sha256-01}
-- g/p/images/i.tag --
ghcr.io/acme/i:v1
-- g/p/images/j.tag --
nginx:1
-- g/p/manifest.yaml --
image: ghcr.io/acme/k:v1
image: ghcr.io/acme/l:v1@sha256-01
image: ghcr.io/acme/m:v1@sha256:{{ .digest }}
`, `
g/p/images/i.tag:1: ghcr.io/acme/i:v1 has no digest
g/p/manifest.yaml:1: ghcr.io/acme/k:v1 has no digest
g/p/values.yaml:1: ghcr.io/acme/a:v1 has no digest
g/p/values.yaml:2: ghcr.io/acme/b:v1 has no digest
g/p/values.yaml:3: ghcr.io/acme/c:v1 has no digest
g/p/values.yaml:4: ghcr.io/acme/d:v1 has no digest
g/p/values.yaml:5: ghcr.io/acme/e:v1 has no digest
g/p/values.yaml:7: ghcr.io/acme/f has no digest
g/p/values.yaml:9: ghcr.io/acme/g:v1 has no digest
g/p/values.yaml:11: ghcr.io/acme/arg:v1 has no digest
`},
		{"one image has one digest", ownConfig + `
-- g/p/values.yaml --
- ghcr.io/acme/a:v1@sha256-01
- ghcr.io/acme/a:v2@sha256-02
- nginx:1@sha256-03
- index.docker.io/library/nginx:1@sha256-04
- {registry: docker.io, repository: nginx, tag: 1@sha256-03}
-- g/q/images/a.tag --
ghcr.io/acme/a:v1@sha256-05
`, `
g/p/values.yaml:4: docker.io/library/nginx:1 has sha256-04 here and sha256-03 in g/p/values.yaml:3
g/q/images/a.tag:1: ghcr.io/acme/a:v1 has sha256-05 here and sha256-01 in g/p/values.yaml:1
`},
		{"digests and tags are well-formed", ownConfig + `
-- g/p/values.yaml --
- ghcr.io/acme/a:v1@sha256:abc
- quay.io/b/b:v1@sha256-AA
- quay.io/b/c:v1@sha512:ab
- {repository: quay.io/b/d, digest: 0123456789abcdef0123456789abcdef}
- {repository: quay.io/b/e, tag: "a+b@sha256-01"}
- {repository: quay.io/b/f, tag: "{{ .v }}@sha256-01"}
`, `
g/p/values.yaml:1: ghcr.io/acme/a:v1@sha256:abc: the digest is not sha256: and 64 lowercase hexadecimal digits
g/p/values.yaml:2: quay.io/b/b:v1@sha256-AA: the digest is not sha256: and 64 lowercase hexadecimal digits
g/p/values.yaml:3: quay.io/b/c:v1@sha512:ab: the digest is not sha256: and 64 lowercase hexadecimal digits
g/p/values.yaml:4: quay.io/b/d@0123456789abcdef0123456789abcdef: the digest is not sha256: and 64 lowercase hexadecimal digits
g/p/values.yaml:5: quay.io/b/e:a+b@sha256-01: "a+b" is not a tag
`},
		{"incomplete references are notes", ownConfig + `
-- g/p/values.yaml --
tag: v1@sha256-01
image: "{{ .x }}/a:v1@sha256-02"
`, `
g/p/values.yaml:1: note: :v1@sha256-01 is incomplete: no repository stands beside it
g/p/values.yaml:2: note: {{ .x }}/a:v1@sha256-02 is incomplete: no repository stands beside it
`},
		{"declared files", `
-- refs.yaml --
firstParty: [ghcr.io/acme]
files: [missing.yaml, empty.yaml, full.yaml, g/p/values.yaml]
-- empty.yaml --
image: ghcr.io/acme/a
-- full.yaml --
image: ghcr.io/acme/a:v1@sha256-01
-- g/p/values.yaml --
a: 1
`, `
empty.yaml: is declared and holds no reference
g/p/values.yaml: is declared and holds no reference
missing.yaml: is declared and missing
`},
		{"files that should be readable", ownConfig + `
-- g/p/values.yaml --
a: [
-- g/p/images/a.tag --
-- g/q/values.yaml --
- nginx@sha256-01
`, `
g/p/images/a.tag: holds no reference
g/p/values.yaml:1: parse YAML: did not find expected node content
`},
		{"nothing to check", ownConfig, `
.: no reference in the whole tree
`},
		{"digests outside the places", ownConfig + `
-- README.md --
Pull ghcr.io/acme/a@sha256-01.
-- g/p/values.yaml --
- nginx@sha256-02
- --image=ghcr.io/acme/arg:v1@sha256-03
- checksum: sha256-04
- block: |
    image: ghcr.io/acme/block:v1@sha256-05
# ghcr.io/acme/comment:v1@sha256-06
- x # sha256-07
-- g/p/templates/x.yaml --
image: ghcr.io/acme/templates:v1@sha256-08
-- g/p/charts/c/values.yaml --
image: ghcr.io/acme/vendored:v1@sha256-09
-- g/p/Chart.lock --
digest: sha256-0a
-- deep/er/than/that/values.yaml --
image: ghcr.io/acme/deep:v1@sha256:abc
-- .git/x --
sha256-0b
-- fine --
sha256 sha256: sha256:abc sha256-xyz
`, `
README.md:1: sha256-01 is outside the places of references
deep/er/than/that/values.yaml:1: sha256:abc is outside the places of references
g/p/Chart.lock:1: sha256-0a is outside the places of references
g/p/charts/c/values.yaml:1: sha256-09 is outside the places of references
g/p/templates/x.yaml:1: sha256-08 is outside the places of references
g/p/values.yaml:2: sha256-03 is outside the places of references
g/p/values.yaml:3: sha256-04 is outside the places of references
g/p/values.yaml:5: sha256-05 is outside the places of references
g/p/values.yaml:6: note: sha256-06 in a comment
g/p/values.yaml:7: note: sha256-07 in a comment
`},
		{"what is declared is inside", `
-- refs.yaml --
firstParty: [ghcr.io/acme]
files: [g/p/values.yaml, g/p/templates/x.yaml]
-- g/p/values.yaml --
- nginx@sha256-02
- --image=ghcr.io/acme/arg:v1@sha256-03
- block: |
    image: ghcr.io/acme/block:v1@sha256-05
- same: {repository: nginx, tag: 2@sha256-01, digest: sha256-01}
- escaped: {repository: "ngin\x78", tag: "3@sha256-07"}
-- g/p/templates/x.yaml --
image: ghcr.io/acme/templates:v1@sha256-08
`, ""},
		{"ignored files and images", `
-- refs.yaml --
firstParty: [ghcr.io/acme]
ignore: ["**/charts/**", "**/Chart.lock", "ghcr.io/acme/dev-*", "g/skipped"]
-- g/p/values.yaml --
- ghcr.io/acme/dev-tools@sha256-01
- ghcr.io/acme/dev-box:v1
- ghcr.io/acme/strict@sha256-02
-- g/p/charts/c/values.yaml --
image: ghcr.io/acme/vendored:v1@sha256-09
-- g/p/Chart.lock --
digest: sha256-0a
-- g/skipped/values.yaml --
a: [
-- g/skipped/images/a.tag --
ghcr.io/acme/a
`, `
g/p/values.yaml:3: ghcr.io/acme/strict@sha256-02 has no tag
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := []string{}
			if tt.want != "" {
				want = strings.Split(strings.TrimSpace(expand(tt.want)), "\n")
			}
			if diff := cmp.Diff(want, check(t, parseTree(tt.tree))); diff != "" {
				t.Errorf("found otherwise (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckLooksIntoGzip(t *testing.T) {
	files := parseTree(ownConfig + "-- g/p/values.yaml --\n- nginx@sha256-02\n")
	files["g/p/files/manifest.gz"] = gz(t, expand("a\nimage: ghcr.io/acme/a:v1@sha256-01\n# sha256-03\n"))
	files["g/p/files/nothing"] = gz(t, "nothing")
	files["g/p/files/cut.gz"] = gz(t, expand(strings.Repeat("a sha256-04\n", 50)))[:30]
	files["g/p/files/bad.tgz"] = "\x1f\x8bnot gzip"
	files["g/p/files/named.gz"] = "not packed"
	files["g/p/files/bomb.gz"] = gz(t, strings.Repeat("\x00", maxFile+1))
	want := []string{
		"g/p/files/bad.tgz: unpack gzip: gzip: invalid header",
		"g/p/files/bomb.gz: unpack gzip: is larger than 64 MiB",
		"g/p/files/cut.gz: unpack gzip: unexpected EOF",
		expand("g/p/files/manifest.gz (unpacked):2: sha256-01 is outside the places of references"),
		expand("g/p/files/manifest.gz (unpacked):3: note: sha256-03 in a comment"),
	}
	if diff := cmp.Diff(want, check(t, files)); diff != "" {
		t.Errorf("found otherwise (-want +got):\n%s", diff)
	}
}

// A gzip file whose reference begins where the packed file's would is not taken for known.
func TestCheckPackedDeclared(t *testing.T) {
	files := parseTree("-- refs.yaml --\nfirstParty: [ghcr.io/acme]\nfiles: [x.gz]\n-- g/p/values.yaml --\n- nginx@sha256-02\n")
	files["x.gz"] = gz(t, expand("image: ghcr.io/acme/a:v1@sha256-01\n"))
	want := []string{
		"x.gz: is declared and holds no reference",
		expand("x.gz (unpacked):1: sha256-01 is outside the places of references"),
	}
	if diff := cmp.Diff(want, check(t, files)); diff != "" {
		t.Errorf("found otherwise (-want +got):\n%s", diff)
	}
}

func TestCheckLinks(t *testing.T) {
	root := parseTree(ownConfig + "-- g/p/values.yaml --\n- nginx@sha256-02\n").write(t)
	outside := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(outside, []byte(expand("sha256-01")), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"g/p/out": outside, "g/p/in": "values.yaml", "g/p/loop": "loop", "g/p/nowhere": "x"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	v, err := open(t, root).Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Finding{{"g/p/out", 0, "is a symbolic link out of the tree, and is not looked into", true}}
	if diff := cmp.Diff(want, v.Findings); diff != "" {
		t.Error(diff)
	}
}

func TestCheckFixture(t *testing.T) {
	files, want := fixture(t)
	v, err := open(t, files.write(t)).Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v.References != len(want) || v.Errors() == 0 || v.Notes() == 0 {
		t.Errorf("%d references, %d errors, %d notes", v.References, v.Errors(), v.Notes())
	}
	for _, f := range v.Findings {
		if strings.HasPrefix(f.File, "gen/") {
			t.Errorf("a finding in what was generated: %s", f)
		}
	}
}

func TestNoFirstParty(t *testing.T) {
	tr, err := Open(t.TempDir(), Config{Ignore: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if _, err := tr.Check(t.Context()); !errors.Is(err, ErrNoFirstParty) {
		t.Errorf("check: %v", err)
	}
	if _, err := tr.Plan(t.Context(), "a", "b"); !errors.Is(err, ErrNoFirstParty) {
		t.Errorf("plan: %v", err)
	}
}

func TestConfig(t *testing.T) {
	for text, want := range map[string]string{
		"":          "",
		"# nothing": "",
		"files: [a/b.yaml]\nfirstParty: [ghcr.io/acme, ghcr.io/acme/, 'localhost:5000', docker.io/x/y]\nignore: ['**/charts/**']\n": "",
		"fils: [a]":                        "field fils not found",
		"files: a":                         "cannot unmarshal",
		"files: [a]\nfiles: [b]":           "already defined",
		"files: [a]\n---\nfiles: [b]":      "more than one document",
		"files: [/etc/passwd]":             `files: "/etc/passwd" is not a path below the root`,
		"files: [../x]":                    `files: "../x" is not a path below the root`,
		"files: [a/../b]":                  `files: "a/../b" is not a path below the root`,
		"files: ['']":                      `files: "" is not a path below the root`,
		"files: [.]":                       `files: "." is not a path below the root`,
		"files: [a, a]":                    `files: "a" is there twice`,
		"firstParty: [acme]":               `firstParty: "acme" does not begin with a registry, as docker.io/acme does`,
		"firstParty: ['']":                 `does not begin with a registry`,
		"firstParty: ['ghcr.io/Acme']":     `"ghcr.io/Acme" is not the beginning of an image's name`,
		"firstParty: ['ghcr.io/a:v1']":     `"ghcr.io/a:v1" is not the beginning of an image's name`,
		"firstParty: ['https://ghcr.io/']": `is not the beginning of an image's name`,
		"ignore: ['a[']":                   `ignore: "a[" is not a glob`,
		"ignore: ['']":                     `ignore: "" is not a glob`,
	} {
		root := tree{"refs.yaml": text}.write(t)
		_, err := ReadConfig(root, "")
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "refs.yaml")):
			t.Errorf("%q: error %v, want %q and the file's name", text, err, want)
		}
	}
	if _, err := ReadConfig(t.TempDir(), ""); err != nil {
		t.Errorf("no refs.yaml: %v", err)
	}
	if _, err := ReadConfig("", filepath.Join(t.TempDir(), "x")); err == nil {
		t.Error("a configuration that was named and is missing is no error")
	}
	other := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(other, []byte("firstParty: [ghcr.io/other]"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := ReadConfig(tree{"refs.yaml": "broken: ["}.write(t), other)
	if err != nil || len(c.FirstParty) != 1 || c.FirstParty[0] != "ghcr.io/other" {
		t.Errorf("another file: %v, %v", c, err)
	}
}
