package source

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Patch is one unified diff. It applies to exactly the lines it was made from, at exactly the place: what it changes is
// pinned by digest, so that anything else means that the pin moved and a person has to look.
type Patch struct {
	Name  string
	files []filePatch
}

// filePatch changes, makes (from nothing) or removes (to nothing) one file.
type filePatch struct {
	path    string // of slashes, relative to the tree
	creates bool
	removes bool
	hunks   []hunk
}

type hunk struct {
	header   string
	oldStart int // the first line the hunk is about, counted from 1; the line before it if it takes none
	old, new []string
}

// HunkError says that a hunk's lines are not where it says they are.
type HunkError struct {
	File      string
	Hunk      int // counted from 1 in its file
	Header    string
	Line      int // of the file, counted from 1
	Want, Got string
	Elsewhere int // the one line where all of the hunk's lines stand, if there is one
}

func (e *HunkError) Error() string {
	got := strconv.Quote(e.Got)
	if e.Got == "" {
		got = "the end of the file"
	}
	where := ""
	if e.Elsewhere > 0 {
		where = fmt.Sprintf("; its lines stand at %d now", e.Elsewhere)
	}
	return fmt.Sprintf("%s: hunk %d (%s): line %d is %s, not %q%s", e.File, e.Hunk, e.Header, e.Line, got, e.Want, where)
}

var hunkHeader = regexp.MustCompile(`^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@`)

// ParsePatch reads a unified diff as git and diff -u write it. Text around the diffs is skipped. What a diff can say
// beyond the change of lines (renames, modes, binary files) is refused, and so is a hunk that its header does not describe.
func ParsePatch(name string, data []byte) (*Patch, error) {
	p := &patchParser{name: name, lines: splitLines(data)}
	patch := &Patch{Name: name}
	for p.at < len(p.lines) {
		if strings.HasPrefix(p.peek(0), "diff --git ") {
			if err := p.gitHeader(); err != nil {
				return nil, err
			}
		}
		switch line := p.peek(0); {
		case strings.HasPrefix(line, "--- ") && strings.HasPrefix(p.peek(1), "+++ "):
			f, err := p.file()
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(patch.files, func(other filePatch) bool { return other.path == f.path }) {
				return nil, p.fail(p.at-1, "%s is changed twice", f.path)
			}
			patch.files = append(patch.files, f)
		case strings.HasPrefix(line, "@@ "):
			return nil, p.fail(p.at, "a hunk without a file")
		case strings.HasPrefix(line, "Binary files "):
			return nil, p.fail(p.at, "more than a change of lines")
		default:
			p.at++
		}
	}
	if len(patch.files) == 0 {
		return nil, fmt.Errorf("parse patch %s: changes nothing", name)
	}
	return patch, nil
}

type patchParser struct {
	name  string
	lines []string // with their line feeds
	at    int
}

func (p *patchParser) peek(n int) string { return lineAt(p.lines, p.at+n) }

func (p *patchParser) fail(at int, format string, args ...any) error {
	return fmt.Errorf("parse patch %s: line %d: %w", p.name, at+1, fmt.Errorf(format, args...))
}

// gitHeader passes over what git writes above a file's diff, if the diff of lines is all there is to it.
func (p *patchParser) gitHeader() error {
	for p.at++; !strings.HasPrefix(p.peek(0), "--- "); p.at++ {
		known := func(prefix string) bool { return strings.HasPrefix(p.peek(0), prefix) }
		if !slices.ContainsFunc([]string{"index ", "new file mode 100644", "deleted file mode "}, known) {
			return p.fail(p.at, "more than a change of lines: %q", strings.TrimSpace(p.peek(0)))
		}
	}
	return nil
}

// file reads one file's header and hunks.
func (p *patchParser) file() (filePatch, error) {
	var f filePatch
	start := p.at
	from, err := p.path("--- ", "a/")
	if err != nil {
		return f, err
	}
	to, err := p.path("+++ ", "b/")
	if err != nil {
		return f, err
	}
	f.creates, f.removes = from == "", to == ""
	f.path = cmp.Or(to, from)
	switch {
	case f.creates && f.removes:
		return f, p.fail(start, "no file is named")
	case !f.creates && !f.removes && from != to:
		return f, p.fail(start, "%s becomes %s, which is more than a change of lines", from, to)
	}
	end, shift := 0, 0
	for strings.HasPrefix(p.peek(0), "@@ ") {
		at := p.at
		h, newStart, err := p.hunk()
		if err != nil {
			return f, err
		}
		first := h.first()
		if first < end {
			return f, p.fail(at, "the hunk overlaps the one before it or is out of order")
		}
		wantNew := first + shift + 1
		if len(h.new) == 0 {
			wantNew--
		}
		if newStart != wantNew {
			return f, p.fail(at, "the hunk makes line %d, and its header says %d", wantNew, newStart)
		}
		end, shift = first+len(h.old), shift+len(h.new)-len(h.old)
		f.hunks = append(f.hunks, h)
	}
	if len(f.hunks) == 0 {
		return f, p.fail(start, "no hunk follows")
	}
	if (f.creates || f.removes) && len(f.hunks) != 1 || f.creates && len(f.hunks[0].old) > 0 || f.removes && len(f.hunks[0].new) > 0 {
		return f, p.fail(start, "a file that is made or removed has one hunk, of added or of removed lines alone")
	}
	return f, nil
}

// path reads a header line's path, without the a/ or b/ in front. It is empty for /dev/null.
func (p *patchParser) path(marker, prefix string) (string, error) {
	line := strings.TrimPrefix(p.lines[p.at], marker)
	name, _, _ := strings.Cut(strings.TrimRight(line, "\r\n"), "\t") // a time may follow
	p.at++
	if name == "/dev/null" {
		return "", nil
	}
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || !fs.ValidPath(rest) || rest == "." || strings.ContainsAny(rest, "\\\"\x00") {
		return "", p.fail(p.at-1, "path %q: want %s and a plain relative path", name, prefix)
	}
	return rest, nil
}

// hunk reads one hunk: as many lines as its header says, and not one more.
func (p *patchParser) hunk() (h hunk, newStart int, err error) {
	at := p.at
	m := hunkHeader.FindStringSubmatch(p.lines[p.at])
	if m == nil {
		return h, 0, p.fail(at, "not a hunk's header: %q", strings.TrimSpace(p.lines[at]))
	}
	h.header = m[0]
	number := func(s, absent string) int {
		n, _ := strconv.Atoi(cmp.Or(s, absent)) // at most nine digits, by the expression
		return n
	}
	h.oldStart, newStart = number(m[1], "0"), number(m[3], "0")
	oldLeft, newLeft := number(m[2], "1"), number(m[4], "1")
	if h.oldStart == 0 && oldLeft > 0 {
		return h, 0, p.fail(at, "lines are counted from 1")
	}
	changes := false
	for p.at++; oldLeft > 0 || newLeft > 0; p.at++ {
		line := p.peek(0)
		if line == "" {
			return h, 0, p.fail(at, "the hunk is shorter than its header says")
		}
		mark, text := line[0], line[1:]
		if mark == '\n' || mark == '\r' { // a blank line of context whose space an editor took
			mark, text = ' ', line
		}
		bare := strings.HasPrefix(p.peek(1), `\`) // "\ No newline at end of file"
		if bare {
			if text = strings.TrimSuffix(text, "\n"); text == "" {
				return h, 0, p.fail(p.at, "a line of nothing, not even a line feed")
			}
		}
		switch mark {
		case ' ':
			h.old, h.new = append(h.old, text), append(h.new, text)
			oldLeft--
			newLeft--
		case '-':
			h.old = append(h.old, text)
			oldLeft--
			changes = true
		case '+':
			h.new = append(h.new, text)
			newLeft--
			changes = true
		default:
			return h, 0, p.fail(p.at, "the hunk is shorter than its header says")
		}
		if oldLeft < 0 || newLeft < 0 {
			return h, 0, p.fail(p.at, "the hunk is longer than its header says")
		}
		if bare {
			p.at++
		}
	}
	if !changes {
		return h, 0, p.fail(at, "the hunk changes nothing")
	}
	// What git writes below the last hunk is "-- " and its version; another line of a diff is one that was not counted.
	if next := p.peek(0); strings.HasPrefix(next, " ") || strings.HasPrefix(next, "+") ||
		strings.HasPrefix(next, "-") && !strings.HasPrefix(next, "--- ") && strings.TrimSpace(next) != "--" {
		return h, 0, p.fail(p.at, "the hunk is longer than its header says")
	}
	return h, newStart, nil
}

// first is the number, counted from 0, of the first line the hunk takes, or goes before if it takes none.
func (h hunk) first() int {
	if len(h.old) == 0 {
		return h.oldStart
	}
	return h.oldStart - 1
}

// Apply changes the tree. Every file is worked out before the first is written, so that a *HunkError leaves it untouched.
func (p *Patch) Apply(tree *os.Root) error {
	results := make([][]byte, len(p.files))
	for i, f := range p.files {
		data, err := tree.ReadFile(f.path)
		switch {
		case f.creates && err == nil:
			return fmt.Errorf("patch %s no longer applies: %s: is there already", p.Name, f.path)
		case f.creates && errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fmt.Errorf("patch %s no longer applies: %w", p.Name, err)
		}
		if results[i], err = f.apply(data); err != nil {
			return fmt.Errorf("patch %s no longer applies: %w", p.Name, err)
		}
		if f.removes && len(results[i]) > 0 {
			return fmt.Errorf("patch %s no longer applies: %s: more is in it than the patch removes", p.Name, f.path)
		}
	}
	for i, f := range p.files {
		if err := f.write(tree, results[i]); err != nil {
			return fmt.Errorf("apply patch %s: %w", p.Name, err)
		}
	}
	return nil
}

func (f filePatch) write(tree *os.Root, data []byte) error {
	if f.removes {
		return tree.Remove(f.path)
	}
	if f.creates {
		if err := tree.MkdirAll(path.Dir(f.path), 0o755); err != nil {
			return err
		}
	}
	return tree.WriteFile(f.path, data, 0o644)
}

func (f filePatch) apply(data []byte) ([]byte, error) {
	lines := splitLines(data)
	var out []string
	at := 0
	for n, h := range f.hunks {
		if line, ok := h.matches(lines, h.first()); !ok {
			return nil, &HunkError{File: f.path, Hunk: n + 1, Header: h.header, Line: h.first() + line + 1,
				Want: lineAt(h.old, line), Got: lineAt(lines, h.first()+line), Elsewhere: h.elsewhere(lines)}
		}
		out = append(append(out, lines[at:h.first()]...), h.new...)
		at = h.first() + len(h.old)
	}
	out = append(out, lines[at:]...)
	for i, line := range out {
		if i < len(out)-1 && !strings.HasSuffix(line, "\n") {
			return nil, fmt.Errorf("%s: line %d has no line feed and is not the last", f.path, i+1)
		}
	}
	return []byte(strings.Join(out, "")), nil
}

// matches says whether the hunk's lines stand at line at, counted from 0, and if not which of them is the first that does not.
func (h hunk) matches(lines []string, at int) (int, bool) {
	if at > len(lines) {
		return 0, false
	}
	for i, want := range h.old {
		if lineAt(lines, at+i) != want {
			return i, false
		}
	}
	return 0, true
}

// elsewhere finds the one line, counted from 1, where the hunk's lines stand. It is 0 if there is none or several.
func (h hunk) elsewhere(lines []string) int {
	found := 0
	for at := range lines {
		if _, ok := h.matches(lines, at); ok && len(h.old) > 0 {
			if found > 0 {
				return 0
			}
			found = at + 1
		}
	}
	return found
}

// lineAt is a line with its line feed, or nothing past the end: no line is empty.
func lineAt(lines []string, at int) string {
	if at < len(lines) {
		return lines[at]
	}
	return ""
}

// splitLines cuts data after each line feed. The last line has none if data does not end with one.
func splitLines(data []byte) []string {
	lines := strings.SplitAfter(string(data), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}
