package refs

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzValues(f *testing.F) {
	files, _ := fixture(f)
	for name, content := range files {
		if strings.HasSuffix(name, "values.yaml") && !strings.HasPrefix(name, "gen/p0000") {
			f.Add([]byte(content))
		}
	}
	f.Add([]byte("{{ .x }}"))
	f.Add([]byte("\xff\xfea\x00"))
	f.Fuzz(func(t *testing.T, src []byte) {
		fuzzFile(t, place{path: "g/p/values.yaml", kind: kindValues}, src)
		fuzzFile(t, place{path: "g/p/values.yaml", kind: kindValues, declared: true}, src)
	})
}

func FuzzText(f *testing.F) {
	files, _ := fixture(f)
	for name, content := range files {
		if !strings.HasPrefix(name, "gen/") {
			f.Add([]byte(content))
		}
	}
	f.Add([]byte("tag: v1@sha256:1\n{repository: x,tag: v1}\nimage={{ a }}:v1"))
	f.Fuzz(func(t *testing.T, src []byte) {
		fuzzFile(t, place{path: "x", declared: true}, src)
		fuzzFile(t, place{path: "g/p/images/x.tag", kind: kindTagFile}, src)
	})
}

// fuzzFile holds to the bytes whatever is found in them, and moves each tag there and back.
func fuzzFile(t *testing.T, p place, src []byte) {
	given := bytes.Clone(src)
	f := scan(p, src)
	for _, r := range f.refs {
		holdPlace(t, src, r)
		if lines := 1 + bytes.Count(src, []byte("\n")); r.Line < 1 || r.Line > lines || r.Column < 1 || r.Column > len(src)+1 {
			t.Errorf("%d:%d is not in %d lines", r.Line, r.Column, lines)
		}
		if r.File != p.path || r.Shape == "" || r.Incomplete != (r.Registry == "") || !r.Incomplete && r.Repository == "" {
			t.Errorf("file, shape or name: %s", show(r))
		}
		if r.Tag == "" && r.Digest == "" && p.kind != kindTagFile {
			t.Errorf("neither tag nor digest: %s", show(r))
		}
	}
	// Without a shape that overlaps, each place is listed once for each name.
	type pin struct {
		at   int
		name string
	}
	seen := make(map[pin]bool)
	for _, r := range f.refs {
		key := pin{r.digest.start, string(r.Shape) + r.Name() + ":" + r.Tag}
		if !r.digest.none() && seen[key] && p.kind != kindValues { // in YAML, two mappings may share a digest and repeat a name
			t.Errorf("listed twice: %s", show(r))
		}
		seen[key] = true
	}
	config := Config{FirstParty: []string{"ghcr.io", "docker.io", "quay.io"}}
	f.unpinned(config)
	const other = "zz9.x"
	tr := &Tree{config: config}
	for _, r := range f.refs[:min(len(f.refs), 3)] {
		if CheckTag(r.Tag) != nil || !utf8.ValidString(r.Tag) || r.Tag == other || bytes.Contains(src, []byte(other)) {
			continue
		}
		f.survivors(config, r.Tag)
		changed, moved, err := tr.edit(f, r.Tag, other)
		if err != nil || len(moved) == 0 {
			continue
		}
		back, again, err := tr.edit(scan(p, changed.New), other, r.Tag)
		if err != nil {
			// A string may not become a number again.
			continue
		}
		if len(again) != len(moved) || !bytes.Equal(back.New, src) {
			t.Errorf("%q there and back: %q, %q", r.Tag, changed.New, back.New)
		}
	}
	if !bytes.Equal(given, src) {
		t.Error("the bytes were written to")
	}
}
