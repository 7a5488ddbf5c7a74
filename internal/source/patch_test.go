package source

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newTree makes a tree of files in a folder of its own.
func newTree(t testing.TB, files map[string]string) *os.Root {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func TestPatchApplies(t *testing.T) {
	tests := map[string]struct{ before, patch, after string }{
		"a line changed": {"1\n2\n3\n", "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@ func x\n 1\n-2\n+two\n 3\n", "1\ntwo\n3\n"},
		"prose, a git header and a signature around": {"1\n", "From: someone\n\nWhy: --- so\n---\n f | 2 +-\n\n" +
			"diff --git a/f b/f\nindex 123..456 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-1\n+one\n-- \n2.39.5\n", "one\n"},
		"two hunks, the first of which moves the second": {"1\n2\n3\n4\n5\n6\n",
			"--- a/f\n+++ b/f\n@@ -1,2 +1,4 @@\n 1\n+a\n+b\n 2\n@@ -5,2 +7,1 @@\n 5\n-6\n", "1\na\nb\n2\n3\n4\n5\n"},
		"lines put in without context":       {"1\n2\n", "--- a/f\n+++ b/f\n@@ -1,0 +2,1 @@\n+between\n", "1\nbetween\n2\n"},
		"lines taken out without context":    {"1\n2\n3\n", "--- a/f\n+++ b/f\n@@ -2,1 +1,0 @@\n-2\n", "1\n3\n"},
		"a last line without a line feed":    {"1\n2", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n 1\n-2\n\\ No newline at end of file\n+2\n", "1\n2\n"},
		"a line feed taken from the last":    {"1\n", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-1\n+1\n\\ No newline at end of file\n", "1"},
		"blank context whose space was lost": {"1\n\n3\n", "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n 1\n\n-3\n+three\n", "1\n\nthree\n"},
		"times behind the names":             {"1\n", "--- a/f\t2026-01-01 00:00:00\n+++ b/f\t2026-01-01 00:00:01\n@@ -1 +1 @@\n-1\n+one\n", "one\n"},
		"a line that looks like a header":    {"- a/f\n", "--- a/f\n+++ b/f\n@@ -1 +1,2 @@\n-- a/f\n+++ b/f\n+x\n", "++ b/f\nx\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := ParsePatch("p", []byte(test.patch))
			if err != nil {
				t.Fatal(err)
			}
			tree := newTree(t, map[string]string{"f": test.before})
			if err := p.Apply(tree); err != nil {
				t.Fatal(err)
			}
			if got, _ := tree.ReadFile("f"); string(got) != test.after {
				t.Errorf("got %q, want %q", got, test.after)
			}
		})
	}
}

func TestPatchMakesAndRemovesFiles(t *testing.T) {
	p, err := ParsePatch("p", []byte("--- /dev/null\n+++ b/new/file\n@@ -0,0 +1,2 @@\n+1\n+2\n--- a/old\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n"))
	if err != nil {
		t.Fatal(err)
	}
	tree := newTree(t, map[string]string{"old": "x\n"})
	if err := p.Apply(tree); err != nil {
		t.Fatal(err)
	}
	if got, _ := tree.ReadFile("new/file"); string(got) != "1\n2\n" {
		t.Errorf("new/file holds %q", got)
	}
	if _, err := tree.Stat("old"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("old is still there: %v", err)
	}
	if err := p.Apply(tree); err == nil || !strings.Contains(err.Error(), "new/file: is there already") {
		t.Errorf("applied again: %v", err)
	}
}

func TestPatchThatNoLongerApplies(t *testing.T) {
	const patch = "--- a/one\n+++ b/one\n@@ -1 +1 @@\n-1\n+one\n--- a/dir/f\n+++ b/dir/f\n@@ -1 +1 @@\n-a\n+A\n@@ -3,2 +3,2 @@ in f\n c\n-d\n+D\n"
	p, err := ParsePatch("0007-fix.patch", []byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ f, want string }{
		"another line": {"a\nb\nc\nx\n", `patch 0007-fix.patch no longer applies: dir/f: hunk 2 (@@ -3,2 +3,2 @@): line 4 is "x\n", not "d\n"`},
		"moved": {"a\nb\nb\nc\nd\n", `patch 0007-fix.patch no longer applies: dir/f: hunk 2 (@@ -3,2 +3,2 @@): line 3 is "b\n", not "c\n"; ` +
			`its lines stand at 4 now`},
		"moved, and twice there": {"a\nc\nd\nc\nd\n", `patch 0007-fix.patch no longer applies: dir/f: hunk 2 (@@ -3,2 +3,2 @@): line 3 is "d\n", not "c\n"`},
		"shorter":                {"a\nb\nc\n", `patch 0007-fix.patch no longer applies: dir/f: hunk 2 (@@ -3,2 +3,2 @@): line 4 is the end of the file, not "d\n"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tree := newTree(t, map[string]string{"one": "1\n", "dir/f": test.f})
			err := p.Apply(tree)
			var hunk *HunkError
			if !errors.As(err, &hunk) || err.Error() != test.want {
				t.Fatalf("got  %v\nwant %s", err, test.want)
			}
			if got, _ := tree.ReadFile("one"); string(got) != "1\n" {
				t.Errorf("a file before the one that failed was written: %q", got)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		err := p.Apply(newTree(t, map[string]string{"one": "1\n"}))
		if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "0007-fix.patch") {
			t.Error(err)
		}
	})
}

func TestPatchRefused(t *testing.T) {
	tests := map[string]struct{ patch, want string }{
		"nothing":              {"words\n", "changes nothing"},
		"a hunk alone":         {"@@ -1 +1 @@\n-1\n+2\n", "without a file"},
		"no hunk":              {"--- a/f\n+++ b/f\n", "no hunk follows"},
		"too short":            {"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-1\n+2\n", "shorter"},
		"too long":             {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-1\n+2\n+3\n", "longer"},
		"lines miscounted":     {"--- a/f\n+++ b/f\n@@ -1,1 +1,2 @@\n-1\n-2\n+3\n", "longer"},
		"no change":            {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n 1\n", "changes nothing"},
		"leaves the tree":      {"--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-1\n+2\n", "plain relative path"},
		"absolute":             {"--- a//etc/f\n+++ b//etc/f\n@@ -1 +1 @@\n-1\n+2\n", "plain relative path"},
		"no prefix":            {"--- f\n+++ f\n@@ -1 +1 @@\n-1\n+2\n", "plain relative path"},
		"renamed":              {"--- a/f\n+++ b/g\n@@ -1 +1 @@\n-1\n+2\n", "more than a change of lines"},
		"renamed by git":       {"diff --git a/f b/g\nsimilarity index 100%\nrename from f\nrename to g\n", "more than a change of lines"},
		"a mode":               {"diff --git a/f b/f\nold mode 100644\nnew mode 100755\n", "more than a change of lines"},
		"an executable":        {"diff --git a/f b/f\nnew file mode 100755\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+1\n", "more than a change of lines"},
		"binary":               {"Binary files a/f and b/f differ\n", "more than a change of lines"},
		"twice":                {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-1\n+2\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-2\n+3\n", "changed twice"},
		"out of order":         {"--- a/f\n+++ b/f\n@@ -5 +5 @@\n-5\n+6\n@@ -1 +1 @@\n-1\n+2\n", "out of order"},
		"overlapping":          {"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n@@ -2 +2 @@\n-2\n+4\n", "overlaps"},
		"new lines elsewhere":  {"--- a/f\n+++ b/f\n@@ -5 +7 @@\n-5\n+6\n", "its header says 7"},
		"made with old lines":  {"--- /dev/null\n+++ b/f\n@@ -1 +1 @@\n-1\n+2\n", "one hunk"},
		"two nothings":         {"--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-1\n+2\n", "no file is named"},
		"line 0":               {"--- a/f\n+++ b/f\n@@ -0,1 +1,1 @@\n-1\n+2\n", "counted from 1"},
		"a header's own count": {"--- a/f\n+++ b/f\n@@ -1,x +1 @@\n-1\n+2\n", "not a hunk's header"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := ParsePatch("p", []byte(test.patch)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// A patch that takes all lines of one text and puts those of another must make one of the other, whatever the two are,
// and must not touch a third.
func FuzzPatchReplacesAll(f *testing.F) {
	f.Add("1\n2\n3", "one\n\n\\ No newline\n", "1\n2\n")
	f.Add("--- a/f\n+++ b/f\n@@ -1 +1 @@\n", "\r\n", "")
	f.Add("x\n", "", "x")
	f.Fuzz(func(t *testing.T, before, after, other string) {
		if before == after || before == "" {
			t.Skip()
		}
		var patch strings.Builder
		fmt.Fprintf(&patch, "--- a/f\n+++ b/f\n@@ -1,%d +%d,%d @@\n", len(splitLines([]byte(before))), min(1, len(after)), len(splitLines([]byte(after))))
		for mark, text := range map[string]string{"-": before, "+": after} {
			for _, line := range splitLines([]byte(text)) {
				patch.WriteString(mark + line)
				if !strings.HasSuffix(line, "\n") {
					patch.WriteString("\n\\ No newline at end of file\n")
				}
			}
		}
		p, err := ParsePatch("p", []byte(patch.String()))
		if err != nil {
			t.Fatalf("%v\n%s", err, patch.String())
		}
		if got, err := p.files[0].apply([]byte(before)); err != nil || string(got) != after {
			t.Fatalf("got %q and %v, want %q", got, err, after)
		}
		if got, err := p.files[0].apply([]byte(other)); err == nil && !strings.HasPrefix(other, before) {
			t.Fatalf("made %q of %q", got, other)
		}
	})
}

// Whatever a patch says, it is refused or it applies, and stays within the tree.
func FuzzParsePatch(f *testing.F) {
	f.Add([]byte("diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n"), "1\n2\n")
	f.Add([]byte("--- /dev/null\n+++ b/d/f\n@@ -0,0 +1 @@\n+1\n\\ No newline at end of file\n"), "")
	f.Add([]byte("--- a/f\n+++ b/f\n@@ -999999999,0 +1000000000 @@\n+1\n"), "")
	f.Fuzz(func(t *testing.T, patch []byte, data string) {
		p, err := ParsePatch("p", patch)
		if err != nil {
			return
		}
		for _, f := range p.files {
			f.apply([]byte(data)) // must not panic, whatever file it is of
		}
	})
}
