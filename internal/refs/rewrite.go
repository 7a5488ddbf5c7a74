package refs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"go.yaml.in/yaml/v3"
)

// Change is what Rewrite does to a tree.
type Change struct {
	From, To   string
	References []Reference // as they were, in ascending order of file and position
	Files      []ChangedFile
}

// ChangedFile is one file of a Change.
type ChangedFile struct {
	File     string
	Old, New []byte
	edits    []udiff.Edit
}

// Diff is the change as a unified diff that patch and git take.
func (c *Change) Diff() (string, error) {
	var b strings.Builder
	for _, f := range c.Files {
		diff, err := udiff.ToUnified("a/"+f.File, "b/"+f.File, string(f.Old), f.edits, udiff.DefaultContextLines)
		if err != nil {
			return "", fmt.Errorf("diff %s: %w", f.File, err)
		}
		b.WriteString(diff)
	}
	return b.String(), nil
}

// Survivor is a tag that a rewrite would leave behind.
type Survivor struct {
	File string
	Line int
	Name string // of the image; empty where it is unknown
	Tag  string
}

func (s Survivor) String() string {
	name := s.Name
	if name == "" {
		name = "an unknown repository"
	}
	return fmt.Sprintf("%s:%d: %s still has the tag %s", s.File, s.Line, name, s.Tag)
}

// SurvivorsError says that nothing was rewritten, for these would have been left behind.
type SurvivorsError struct{ Survivors []Survivor }

func (e *SurvivorsError) Error() string {
	lines := make([]string, 0, len(e.Survivors)+1)
	for _, s := range e.Survivors {
		lines = append(lines, s.String())
	}
	return strings.Join(lines, "\n")
}

// CheckTag refuses what is not a tag.
func CheckTag(tag string) error {
	if !tagGrammar.MatchString(tag) {
		return fmt.Errorf("%q is not a tag", tag)
	}
	return nil
}

// Plan finds every first-party reference whose tag is from, and what moving it to to makes of the files. Nothing is
// written. Besides those of List, errors are ErrNoFirstParty, a *SurvivorsError, with which the Change is returned too,
// and a *FileError for a tag that cannot be moved by itself.
func (t *Tree) Plan(ctx context.Context, from, to string) (*Change, error) {
	if len(t.config.FirstParty) == 0 {
		return nil, ErrNoFirstParty
	}
	if err := errors.Join(CheckTag(from), CheckTag(to)); err != nil {
		return nil, err
	}
	c := &Change{From: from, To: to}
	var errs []error
	files := make(map[string]*file) // that have anything of the tag, as they are to be
	edited := make(map[string][]byte)
	err := t.each(ctx, func(f *file) {
		if !bytes.Contains(f.src, []byte(from)) && !slices.ContainsFunc(f.refs, func(r Reference) bool { return r.Tag == from }) {
			return
		}
		files[f.path] = f
		changed, refs, err := t.edit(f, from, to)
		if err != nil {
			errs = append(errs, err)
			return
		}
		if len(refs) > 0 {
			c.References = append(c.References, refs...)
			c.Files = append(c.Files, changed)
			files[f.path] = scan(f.place, changed.New)
			edited[f.path] = changed.New
		}
	})
	if err := errors.Join(err, errors.Join(errs...)); err != nil {
		return nil, err
	}
	survivors, err := t.survivors(ctx, from, files, edited)
	if err == nil && len(survivors) > 0 {
		err = &SurvivorsError{survivors}
	}
	return c, err
}

// edit makes the edits of one file.
func (t *Tree) edit(f *file, from, to string) (ChangedFile, []Reference, error) {
	var moved []Reference
	at := make(map[span]bool)
	for _, r := range f.refs {
		if r.Tag != from || t.config.owner(r) != firstParty {
			continue
		}
		fail := func(format string, args ...any) (ChangedFile, []Reference, error) {
			return ChangedFile{}, nil, &FileError{File: f.path, Line: r.Line, Err: fmt.Errorf(format, args...)}
		}
		switch {
		case r.tag.none() || string(f.src[r.tag.start:r.tag.end]) != from:
			return fail("the tag %s of %s is written with escapes or over several lines, and cannot be replaced in place", from, r.Name())
		case r.plain && !plainly(from, to):
			return fail("the tag %s of %s would be a number or another type in YAML: quote it first", to, r.Name())
		}
		at[r.tag] = true
		moved = append(moved, r)
	}
	for _, r := range slices.Concat(f.refs, f.bare) {
		if at[r.tag] && t.config.owner(r) != firstParty {
			return ChangedFile{}, nil, &FileError{File: f.path, Line: r.Line,
				Err: fmt.Errorf("the tag %s is shared, through an alias, with %s, which is not first-party", from, r.Name())}
		}
	}
	if len(moved) == 0 {
		return ChangedFile{}, nil, nil
	}
	changed := ChangedFile{File: f.path, Old: f.src}
	for s := range at {
		changed.edits = append(changed.edits, udiff.Edit{Start: s.start, End: s.end, New: to})
	}
	udiff.SortEdits(changed.edits)
	var err error
	if changed.New, err = udiff.ApplyBytes(f.src, changed.edits); err != nil {
		return ChangedFile{}, nil, &FileError{File: f.path, Err: err}
	}
	if err := sameBut(f, scan(f.place, changed.New), at, to); err != nil {
		return ChangedFile{}, nil, &FileError{File: f.path, Err: err}
	}
	return changed, moved, nil
}

// sameBut holds what was edited to what was meant: every reference is still there, and the moved ones have the new tag.
func sameBut(before, after *file, moved map[span]bool, to string) error {
	if len(before.refs) != len(after.refs) || len(after.errs) > 0 {
		return errors.New("would not hold the same references with the new tag")
	}
	for i, r := range before.refs {
		want := r
		if moved[r.tag] {
			want.Tag = to
		}
		if got := after.refs[i]; got.String() != want.String() || got.Shape != want.Shape {
			return fmt.Errorf("would hold %s where %s is meant", got, want)
		}
	}
	return nil
}

// plainly reports whether to can take the place of from as a plain scalar: a string that stays one, or what is read as
// the same text again. 1.10 is the number 1.1.
func plainly(from, to string) bool {
	kind := func(s string) (tag, text string) {
		var n yaml.Node
		var v any
		if yaml.Unmarshal([]byte(s), &n) != nil || len(n.Content) == 0 || n.Decode(&v) != nil {
			return "", ""
		}
		return n.Content[0].ShortTag(), fmt.Sprint(v)
	}
	was, _ := kind(from)
	is, text := kind(to)
	return is == "!!str" || is == was && text == to
}

// survivors are the places that still have the tag from on a first-party or unknown repository.
func (t *Tree) survivors(ctx context.Context, from string, files map[string]*file, edited map[string][]byte) ([]Survivor, error) {
	var all []Survivor
	var errs []error
	skip := func(name string) bool { return vendored(name) || prose(name) }
	err := t.search(ctx, skip, edited, func(found found) {
		f := files[found.path]
		if f == nil && !bytes.Contains(found.src, []byte(from)) {
			return
		}
		if f == nil || found.packed {
			f = &file{place: place{path: found.name()}, scanner: newScanner(found.src)}
		}
		all = append(all, f.survivors(t.config, from)...)
	}, func(name string, err error) {
		if !errors.Is(err, errOutside) {
			errs = append(errs, &FileError{File: name, Err: err})
		}
	})
	return all, errors.Join(err, errors.Join(errs...))
}

func (f *file) survivors(config Config, from string) []Survivor {
	var all []Survivor
	known := make(map[int]bool) // where tags that the shapes know begin
	add := func(r Reference) {
		if own := config.owner(r); own == firstParty || own == unknown {
			s := Survivor{File: f.path, Line: r.Line, Tag: from}
			if own == firstParty {
				s.Name = r.Name()
			}
			all = append(all, s)
		}
	}
	for _, list := range [][]Reference{f.refs, f.bare} {
		for _, r := range list {
			if r.Tag == from {
				known[r.tag.start] = true
				add(r)
			}
		}
	}
	for start := 0; ; {
		at := bytes.Index(f.src[start:], []byte(from))
		if at < 0 {
			break
		}
		at += start
		start = at + 1
		end := at + len(from)
		if known[at] || at > 0 && (tagByte(f.src[at-1]) || f.src[at-1] == '/') || end < len(f.src) && tagByte(f.src[end]) || f.commented(at) {
			continue
		}
		if r, ok := f.inPosition(config, at, end); ok {
			r.File = f.path
			r.Line, _ = f.at(at)
			add(r)
		}
	}
	slices.SortFunc(all, func(a, b Survivor) int { return cmp.Or(cmp.Compare(a.Line, b.Line), strings.Compare(a.Name, b.Name)) })
	return slices.Compact(all)
}

// templateBefore is a key, and the front of its value, which is filled in later.
var templateBefore = regexp.MustCompile(`([0-9A-Za-z._-]+)["']?[ \t]*(?::=|[:=])[ \t]*["']?[^ \t"']*(?:\{\{[^{}]*\}\}|\$\{[^{}]*\}|\$\([^()]*\))[^ \t"']*$`)

// inPosition reads a tag at [at,end) as part of a reference: behind the name of one, after a key that ends in image,
// repository or tag, or before a digest. The reference is incomplete where the name is unknown.
func (f *file) inPosition(config Config, at, end int) (Reference, bool) {
	r := Reference{Incomplete: true}
	digestMarkAt, _ := digestMark(f.src[:min(len(f.src), end+len("@sha256:")+8)], end)
	beforeDigest := digestMarkAt == end
	if at > 0 && f.src[at-1] == ':' {
		start := f.head(at - 1)
		name := string(f.src[start : at-1])
		before := f.before(start)
		switch {
		case bytes.HasSuffix(before, []byte("}")) || bytes.HasSuffix(before, []byte(")")):
			return r, beforeDigest || inTemplate(f.before(at))
		case name != "" && !inKey(f.before(at)):
			r.name("", strings.TrimLeft(name[strings.LastIndex(name, "://")+1:], ":/"))
			if r.Incomplete {
				return r, beforeDigest || inKey(before)
			}
			return r, beforeDigest || inKey(before) || owned(r.Name(), config.FirstParty)
		}
	}
	if !beforeDigest && !inKey(f.before(at)) && !inTemplate(f.before(at)) {
		return r, false
	}
	f.besideTag(&r, at)
	return r, true
}

// inKey reports whether before ends in a key of a reference and what parts it from its value. Space alone does so behind
// a command's flag.
func inKey(before []byte) bool {
	key, parted := keyBefore(before)
	return refKey(string(key)) && (parted || key[0] == '-')
}

// inTemplate reports whether before ends in such a key and a value that something is filled into.
func inTemplate(before []byte) bool {
	if !bytes.ContainsAny(before, "})") {
		return false
	}
	m := templateBefore.FindSubmatch(before)
	return m != nil && refKey(string(m[1]))
}

// refKey reports whether the last word of a key is image, repository or tag: RELATED_IMAGE, initImage and image.tag are,
// and percentag is not.
func refKey(key string) bool {
	for _, word := range []string{keyImage, keyRepository, keyTag} {
		at := len(key) - len(word)
		if at < 0 || !strings.EqualFold(key[at:], word) {
			continue
		}
		if at == 0 || !isLetter(key[at-1]) || 'A' <= key[at] && key[at] <= 'Z' && 'a' <= key[at-1] && key[at-1] <= 'z' {
			return true
		}
	}
	return false
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
