package refs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Finding is something that Check has to say. A note fails nothing.
type Finding struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // 0 where it is about the whole file
	Message string `json:"message"`
	Note    bool   `json:"note"`
}

func (f Finding) String() string {
	where := f.File
	if f.Line > 0 {
		where = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	if f.Note {
		return where + ": note: " + f.Message
	}
	return where + ": " + f.Message
}

// Verdict is what Check found, in ascending order of file and line.
type Verdict struct {
	References int       `json:"references"`
	FirstParty int       `json:"firstParty"`
	Files      int       `json:"files"` // that hold references
	Findings   []Finding `json:"findings"`
}

// Errors counts the findings that are no notes.
func (v *Verdict) Errors() int {
	n := 0
	for _, f := range v.Findings {
		if !f.Note {
			n++
		}
	}
	return n
}

// Notes counts the findings that are.
func (v *Verdict) Notes() int { return len(v.Findings) - v.Errors() }

// ErrNoFirstParty says that a Config names nobody's own images, and so nothing can be held to a rule.
var ErrNoFirstParty = errors.New("no first-party images are named")

// Check holds the tree to its rules: every first-party reference has a tag and a digest, an artifact's pair a digest; one
// image, which is a name and a tag, has one digest everywhere; digests are well-formed; each declared file is there and
// holds a reference; and nothing that looks like a digest is anywhere else in the tree. It goes on as far as it can; an
// error is ErrNoFirstParty or the context's.
func (t *Tree) Check(ctx context.Context) (*Verdict, error) {
	if len(t.config.FirstParty) == 0 {
		return nil, ErrNoFirstParty
	}
	c := &checker{config: t.config, verdict: &Verdict{Findings: []Finding{}},
		pins: make(map[string]Reference), known: make(map[string]map[int]bool)}
	err := t.each(ctx, c.file)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	c.unread(err)
	if c.verdict.References == 0 {
		c.fail(".", 0, "no reference in the whole tree")
	}
	err = t.search(ctx, func(string) bool { return false }, nil, c.outside, func(name string, err error) {
		if errors.Is(err, errOutside) {
			c.note(name, 0, "%v", err)
		} else {
			c.fail(name, 0, "%v", err)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(c.verdict.Findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	c.verdict.Findings = slices.Compact(c.verdict.Findings)
	return c.verdict, nil
}

type checker struct {
	config  Config
	verdict *Verdict
	pins    map[string]Reference    // the first reference of each name and tag
	known   map[string]map[int]bool // of each file, where the digests of references begin
}

func (c *checker) fail(file string, line int, format string, args ...any) {
	c.verdict.Findings = append(c.verdict.Findings, Finding{file, line, fmt.Sprintf(format, args...), false})
}

func (c *checker) note(file string, line int, format string, args ...any) {
	c.verdict.Findings = append(c.verdict.Findings, Finding{file, line, fmt.Sprintf(format, args...), true})
}

// unread makes a finding of each file that could not be read.
func (c *checker) unread(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			c.unread(err)
		}
		return
	}
	var f *FileError
	if errors.As(err, &f) && !c.config.ignores(f.File) {
		c.fail(f.File, f.Line, "%v", f.Err)
	}
}

func (c *checker) file(f *file) {
	if c.config.ignores(f.path) {
		return
	}
	known := make(map[int]bool)
	c.known[f.path] = known
	if len(f.refs) > 0 {
		c.verdict.Files++
	} else if f.declared {
		c.fail(f.path, 0, "is declared and %v", errNoReference)
	}
	for _, r := range f.refs {
		c.verdict.References++
		for _, at := range append([]span{r.digest}, r.also...) {
			known[at.start] = !at.none()
		}
		c.reference(r)
	}
	for _, r := range f.unpinned(c.config) {
		if c.config.owner(r) == firstParty {
			c.verdict.FirstParty++
			c.fail(r.File, r.Line, "%s has no digest", r)
		}
	}
}

func (c *checker) reference(r Reference) {
	own := c.config.owner(r)
	if own == ignored {
		return
	}
	if r.Digest != "" && !digestGrammar.MatchString(r.Digest) {
		c.fail(r.File, r.Line, "%s: the digest is not sha256: and 64 lowercase hexadecimal digits", r)
	}
	if r.Tag != "" && !templated(r.Tag) && !tagGrammar.MatchString(r.Tag) {
		c.fail(r.File, r.Line, "%s: %q is not a tag", r, r.Tag)
	}
	if own == unknown {
		c.note(r.File, r.Line, "%s is incomplete: no repository stands beside it", r)
		return
	}
	if own == firstParty {
		c.verdict.FirstParty++
		if r.Tag == "" && r.Shape != ShapeOCI {
			c.fail(r.File, r.Line, "%s has no tag", r)
		}
		if r.Digest == "" {
			c.fail(r.File, r.Line, "%s has no digest", r)
		}
	}
	if r.Digest == "" {
		return
	}
	image := r
	image.Digest = ""
	first, ok := c.pins[image.String()]
	if !ok {
		c.pins[image.String()] = r
	} else if first.Digest != r.Digest {
		c.fail(r.File, r.Line, "%s has %s here and %s in %s:%d", image, r.Digest, first.Digest, first.File, first.Line)
	}
}

// outside reports what looks like a digest and is not one of a reference. In a comment it is a note: nothing is pulled
// by it.
func (c *checker) outside(f found) {
	known := c.known[f.path]
	var s *scanner
	for from := 0; ; {
		at := bytes.Index(f.src[from:], []byte("sha256:"))
		if at < 0 {
			return
		}
		at += from
		from = at + len("sha256:")
		n := digestRun(f.src[from:])
		like := n >= 32 && isHex(string(f.src[from:from+32])) || n > 0 && at > 0 && f.src[at-1] == '@'
		if !like || known[at] && !f.packed {
			continue
		}
		if s == nil {
			s = newScanner(f.src)
		}
		line, _ := s.at(at)
		comment := s.commented(at)
		digest := f.src[at : from+min(n, 128)]
		if comment {
			c.note(f.name(), line, "%s in a comment", digest)
		} else {
			c.fail(f.name(), line, "%s is outside the places of references", digest)
		}
	}
}

// unpinned are the references of a file that have a name and no digest: those that stand where one would, and the
// configured owners' wherever they stand with a tag.
func (f *file) unpinned(config Config) []Reference {
	bare := slices.Clone(f.bare)
	var known []span
	for _, r := range f.bare {
		known = append(known, r.tag)
	}
	for _, r := range f.refs {
		known = append(known, r.tag)
	}
	if f.kind == kindTagFile {
		return bare
	}
	for _, prefix := range config.FirstParty {
		needle := []byte(strings.TrimRight(prefix, "/") + "/")
		for from := 0; ; {
			at := bytes.Index(f.src[from:], needle)
			if at < 0 {
				break
			}
			at += from
			end := at
			for end < len(f.src) && end-at < maxHead && nameByte(f.src[end]) {
				end++
			}
			from = end
			if at > 0 && tagByte(f.src[at-1]) || end < len(f.src) && f.src[end] == '@' {
				continue
			}
			name, tag := cutTag(strings.TrimRight(string(f.src[at:end]), ".:/"))
			r := Reference{File: f.path, Tag: tag}
			r.name("", name)
			r.tag = span{at + len(name) + 1, at + len(name) + 1 + len(tag)}
			if tag == "" || r.Incomplete || f.commented(at) || slices.Contains(known, r.tag) {
				continue
			}
			r.Line, r.Column = f.at(at)
			bare, known = append(bare, r), append(known, r.tag)
		}
	}
	return bare
}
