package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/chandler-cni/chandler/internal/bundle"
)

var someDigest = "sha256:" + strings.Repeat("0f3c", 16)

// reportOf makes a report of failures (name, cause, name, cause ...) and counts.
func reportOf(news, replaced, unchanged int, failures ...string) *Report {
	r := &Report{Outcome: Staged, Version: "v1.9.1", Bundle: someDigest, BinDir: "/opt/cni/bin", Plugins: []Result{}}
	for i := 0; i < len(failures); i += 2 {
		r.Plugins = append(r.Plugins, Result{Name: failures[i], Action: Failed, Cause: failures[i+1], Err: errors.New(failures[i+1])})
	}
	for action, n := range map[Action]int{New: news, Replaced: replaced, Unchanged: unchanged} {
		for i := range n {
			r.Plugins = append(r.Plugins, Result{Name: fmt.Sprintf("%s%d", action, i), Action: action})
		}
	}
	return r
}

// restoreOf makes a report of restoring.
func restoreOf(back, removed int, failed, left []Said) *Report {
	r := &Report{Outcome: Restored, BinDir: "/opt/cni/bin", Plugins: []Result{}}
	for _, f := range failed {
		r.Plugins = append(r.Plugins, Result{Name: f.Name, Action: Failed, Cause: f.Cause, Err: errors.New(f.Cause)})
	}
	for _, l := range left {
		r.Plugins = append(r.Plugins, Result{Name: l.Name, Action: Left, Cause: l.Cause})
	}
	for action, n := range map[Action]int{PutBack: back, Removed: removed} {
		for i := range n {
			r.Plugins = append(r.Plugins, Result{Name: fmt.Sprintf("p%d", i), Action: action})
		}
	}
	return r
}

// The words are interface: the text of the design, letter by letter.
func TestText(t *testing.T) {
	last := "staged 12 plugins v1.9.1 (bundle " + someDigest + ") into /opt/cni/bin: 9 new, 3 replaced, 0 unchanged\n"
	failures := []string{"bridge", "is a directory, left as it is", "portmap", "write: no space left on device; the old file was kept"}
	r := reportOf(9, 3, 0, failures...)
	head := "failed to install: bridge portmap\nbridge: is a directory, left as it is\n" +
		"portmap: write: no space left on device; the old file was kept\n"
	if got := r.Text(); got != head+last {
		t.Errorf("got\n%s\nwant\n%s", got, head+last)
	}
	r.Plugins = append(r.Plugins, Result{Name: "vlan", Action: Kept, Cause: "v1.9.1 (same version, different build)"}, Result{Name: "vrf", Action: Kept, Cause: "policy never, directory"})
	kept := "failed to install: bridge portmap\nkept: vlan vrf\n" + strings.SplitN(head, "\n", 2)[1] +
		"vlan: kept: v1.9.1 (same version, different build)\nvrf: kept: policy never, directory\n" + strings.TrimSuffix(last, "\n") + ", 2 kept\n"
	if got := r.Text(); got != kept {
		t.Errorf("got\n%s\nwant\n%s", got, kept)
	}
	r.Plugins = r.Plugins[:len(r.Plugins)-2]
	r.Warnings, r.Hints = []string{"one", "two"}, []string{"do"}
	if got := r.Text(); got != head+"warning: one\nwarning: two\nhint: do\n"+last {
		t.Errorf("got\n%s", got)
	}
	if got := reportOf(9, 3, 0).Text(); got != last {
		t.Errorf("a success says\n%s", got)
	}
	r = reportOf(9, 3, 0)
	r.Outcome = Planned
	if got := r.Text(); got != "would stage"+strings.TrimPrefix(last, "staged") {
		t.Errorf("a plan says\n%s", got)
	}
	back := restoreOf(3, 2, []Said{{"bridge", "rename: read-only file system; the staged file stays"}}, []Said{{"vlan", "is not what staging put there: script"}})
	if got, want := back.Text(), "failed to restore: bridge\nleft: vlan\nbridge: rename: read-only file system; the staged file stays\n"+
		"vlan: left: is not what staging put there: script\nrestored 5 plugins in /opt/cni/bin: 3 put back, 2 removed, 1 left\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	damage := &bundle.DamageError{Path: "bin/bridge", Err: bundle.ErrDigest}
	for want, r := range map[string]*Report{
		"no bundle at /cni-plugins; skipping staging\n":                           Skip("", "no bundle at /cni-plugins"),
		"bundle damaged: bin/bridge: digest mismatch; nothing was staged\n":       Staging.RefuseFor("", damage),
		"bundle unreadable: bin/bridge: input/output error; nothing was staged\n": Staging.RefuseFor("", &bundle.DamageError{Path: "bin/bridge", Err: syscall.EIO}),
		"interrupted; nothing was staged\n":                                       Staging.RefuseFor("", fmt.Errorf("plan: %w", context.Canceled)),
		"bin dir /b: open: permission denied; nothing was staged\n": Staging.RefuseFor("", &BinDirError{"/b",
			&fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}}),
		`panic: a\nb; staging broke off` + "\n": Staging.Break("", "panic: a\nb"),
	} {
		if got := r.Text(); got != want {
			t.Errorf("said %q, want %q", got, want)
		}
	}
}

func TestComplete(t *testing.T) {
	for _, test := range []struct {
		r    *Report
		want bool
	}{
		{reportOf(1, 1, 1), true}, {reportOf(0, 0, 0), true}, {reportOf(5, 0, 0, "a", "b"), false},
		{Skip("", "x"), true}, {Staging.Refuse("", "x"), false}, {Staging.Break("", "x"), false},
	} {
		if got := test.r.Complete(); got != test.want {
			t.Errorf("%s: %t", test.r.Text(), got)
		}
	}
}

// Foreign words make no lines of their own, and reach no terminal as a command.
func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain text; ü 漢": "plain text; ü 漢", "a\nb": `a\nb`, "a\r\tb": `a\r\tb`, "\x1b[2J": `\x1b[2J`, "\x00": `\x00`, "\u0085": `\u0085`,
		"\u2028": `\u2028`, "\u202e": `\u202e`, "\xff": `\ufffd`, "\u00a0": `\u00a0`, "'": "'", "": "",
	} {
		if got := Printable(in); got != want || Printable(got) != got {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// summaryOf is what a report's text must be read back as.
func summaryOf(r *Report) *Summary {
	s := &Summary{Outcome: r.Outcome}
	for _, p := range r.Plugins {
		switch said := (Said{p.Name, Printable(p.Cause)}); p.Action {
		case Failed:
			s.Failed = append(s.Failed, said)
		case Kept, Left:
			s.Kept = append(s.Kept, said)
		}
	}
	for _, w := range r.Warnings {
		s.Warnings = append(s.Warnings, Printable(w))
	}
	for _, h := range r.Hints {
		s.Hints = append(s.Hints, Printable(h))
	}
	if !r.Outcome.ran() {
		s.Message = Printable(r.Message)
		return s
	}
	s.PutBack, s.Removed = r.Count(PutBack), r.Count(Removed)
	s.Version, s.Bundle, s.BinDir = r.Version, r.Bundle, Printable(r.BinDir)
	s.New, s.Replaced, s.Unchanged = r.Count(New), r.Count(Replaced), r.Count(Unchanged)
	return s
}

func checkRoundTrip(t *testing.T, r *Report) {
	t.Helper()
	text := r.Text()
	s, err := ParseText(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff(summaryOf(r), s); diff != "" {
		t.Errorf("read back (-want +got):\n%s\nof\n%s", diff, text)
	}
	if i := strings.IndexFunc(text, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); i >= 0 {
		t.Errorf("not printable at %d: %q", i, text)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(data, &again); err != nil || again.Outcome != r.Outcome || len(again.Plugins) != len(r.Plugins) {
		t.Errorf("as JSON: %v\n%s", err, data)
	}
	checkWithin(t, r, TextLimit)
}

// checkWithin holds a cut text to its limit, and to what may not be cut.
func checkWithin(t *testing.T, r *Report, limit int) {
	t.Helper()
	cut := r.TextWithin(limit)
	if len(cut) > limit {
		t.Fatalf("%d bytes, limit %d", len(cut), limit)
	}
	if len(r.Text()) <= limit {
		if cut != r.Text() {
			t.Errorf("cut what fits: %q", cut)
		}
		return
	}
	head, _, last := r.text()
	if len(strings.Join(append(head, cutNotice, last, ""), "\n")) > limit {
		return // beyond all measure
	}
	s, err := ParseText(cut)
	if err != nil {
		t.Fatalf("limit %d: %v\n%s", limit, err, cut)
	}
	whole := summaryOf(r)
	if !s.Cut || len(s.Failed) != len(whole.Failed) || s.Message != whole.Message || s.New != whole.New || s.BinDir != whole.BinDir {
		t.Errorf("limit %d: %+v", limit, s)
	}
	for i, f := range s.Failed {
		if f.Name != whole.Failed[i].Name || f.Cause != "" && f.Cause != whole.Failed[i].Cause {
			t.Errorf("limit %d: %+v, want %+v", limit, f, whole.Failed[i])
		}
	}
	for i, w := range s.Warnings {
		if w != whole.Warnings[i] {
			t.Errorf("limit %d: warning %q, want %q", limit, w, whole.Warnings[i])
		}
	}
}

func TestParseText(t *testing.T) {
	full := reportOf(1, 2, 3, "warning", "hint: x", "hint", "warning: y", "failed", "failed to install: z", "a", cutNotice, "b", "")
	full.Warnings = []string{"hint: no", cutNotice, "failed to install: a", "staged 1 plugins"}
	full.Hints = []string{"warning: no", cutNotice}
	keeping := reportOf(1, 0, 0, "kept", "kept: a")
	keeping.Plugins = append(keeping.Plugins, Result{Name: "a", Action: Kept, Cause: "kept: b: 1 kept"}, Result{Name: "hint", Action: Kept, Cause: cutNotice})
	odd := reportOf(0, 0, 1)
	odd.BinDir = "/a b: 1 new, 2 replaced, 3 unchanged) into /c: 4 new"
	for _, r := range []*Report{
		reportOf(0, 0, 0), reportOf(3, 2, 1), full, odd, reportOf(0, 0, 0, "a", "x\ny\x1b[1m"), keeping,
		restoreOf(0, 0, nil, nil), restoreOf(1, 2, []Said{{"left", "left: x"}}, []Said{{"a", "failed to restore: b"}, {"warning", "kept: y"}}),
		Skip("/b", "no bundle at /a; nothing was staged"), Staging.Refuse("/b", "x; skipping staging"), Staging.Refuse("", ""), Staging.Break("", "y; nothing was staged"),
	} {
		checkRoundTrip(t, r)
		for limit := range len(r.Text()) + 2 {
			checkWithin(t, r, limit)
		}
	}
	refused := Staging.Refuse("/b", "why")
	refused.Warnings, refused.Hints = []string{"w"}, []string{"h"}
	checkRoundTrip(t, refused)
}

// What another program wrote, or what was cut by somebody else, is an error and not a report.
func TestParseTextErrors(t *testing.T) {
	good := reportOf(1, 1, 1, "a", "x").Text()
	for _, text := range []string{
		"", "\n", "hello\n", strings.TrimSuffix(good, "\n"), good + "more\n", good + "\n", strings.Replace(good, "a: x", "b: x", 1),
		strings.Replace(good, "a: x\n", "", 1), "odd\n" + good, strings.Replace(good, "staged 3", "staged 4", 1),
		strings.Replace(good, "1 new", "99999999999999999999 new", 1), strings.Replace(good, someDigest, "sha256:x", 1),
		strings.Replace(good, "unchanged", "unchanged, 1 kept", 1), strings.Replace(good, "unchanged", "unchanged, 0 kept", 1),
		"left: b\nb: left: x\n" + restoreOf(1, 1, nil, nil).Text(), strings.Replace(restoreOf(1, 1, nil, nil).Text(), "restored 2", "restored 3", 1),
		strings.Replace(good, "a: x\n", "a: x\nhint: h\nwarning: w\n", 1),
		strings.Replace(good, "a: x\n", "a: x\n"+cutNotice+"\n"+cutNotice+"\n", 1),
	} {
		if s, err := ParseText(text); err == nil {
			t.Errorf("%q was read as %+v", text, s)
		}
	}
}

// Ten failures with causes of any length fit into a termination message with their names.
func TestTextWithinKeepsFailures(t *testing.T) {
	var failures []string
	for i := range 14 {
		failures = append(failures, fmt.Sprintf("plugin-%d", i), strings.Repeat("ü", 300*i))
	}
	r := reportOf(0, 0, 0, failures...)
	r.Warnings = []string{strings.Repeat("w", 5000)}
	text := r.TextWithin(TextLimit)
	s, err := ParseText(text)
	if err != nil || !s.Cut || len(s.Failed) != 14 || len(text) > TextLimit {
		t.Fatalf("%d bytes, %+v, %v", len(text), s, err)
	}
	if s.Failed[3].Cause == "" || s.Failed[13].Cause != "" || len(s.Warnings) > 0 {
		t.Errorf("cut in another order: %+v", s)
	}
	// Beyond all measure there is as much of it as fits, in whole characters.
	r.BinDir = strings.Repeat("ü", 5000)
	if text := r.TextWithin(TextLimit); len(text) > TextLimit || len(text) < TextLimit-4 || strings.ContainsRune(text, unicode.ReplacementChar) {
		t.Errorf("%d bytes", len(text))
	}
}

func FuzzReport(f *testing.F) {
	f.Add("bridge", "is a directory, left as it is", "warning", "hint: x", "/opt/cni/bin", "a warning", "a hint", uint8(3), uint8(0))
	f.Add("hint", cutNotice, "a", "x\ny", "/a: 1 new, 2 replaced, 3 unchanged", "", "warning: x", uint8(0), uint8(1))
	f.Add("a", "", "b", "", "\x1b[1m", "\n", "\xff\u202e", uint8(255), uint8(2))
	f.Add("a", "", "b", "", "no bundle", "", "", uint8(0), uint8(3))
	f.Add("left", "left: x", "kept", "kept: a", "no bundle", "", "", uint8(5), uint8(5))
	f.Add("left", "left: x", "kept", "kept: a", "no bundle", "", "", uint8(4), uint8(5))
	f.Add("kept", "kept: a", "hint", "hint: x", "no bundle", "hint: x", "hint: x", uint8(4), uint8(0))
	f.Fuzz(func(t *testing.T, name1, cause1, name2, cause2, path, warning, hint string, n, outcome uint8) {
		var failures []string
		for _, p := range [][2]string{{name1, cause1}, {name2, cause2}} {
			// The bundle's manifest lets no other names in.
			if name := strings.Map(func(c rune) rune {
				if c < 0x80 && (unicode.IsLetter(c) || unicode.IsDigit(c) || strings.ContainsRune("._+-", c)) {
					return c
				}
				return -1
			}, p[0]); name != "" {
				failures = append(failures, name[:min(len(name), 128)], p[1])
			}
		}
		r := reportOf(int(n>>4), int(n>>2&3), int(n&3), failures...)
		r.Warnings, r.Hints = []string{warning}, []string{hint, hint}
		untouched := Kept
		switch outcome % 7 {
		case 1:
			r.Outcome = Planned
		case 5, 6:
			r = restoreOf(int(n>>4), int(n>>2&3), nil, nil)
			for i := 0; i < len(failures); i += 2 {
				r.Plugins = append(r.Plugins, Result{Name: failures[i], Action: Failed, Cause: failures[i+1]})
			}
			r.Warnings, r.Hints, untouched = []string{warning}, []string{hint, hint}, Left
			if outcome%7 == 6 {
				r.Outcome = RestorePlanned
			}
		case 2:
			r = Staging.Refuse(path, cause1)
			r.Warnings = []string{warning}
		case 3:
			r = Skip(path, cause1)
		case 4:
			r = Staging.Break(path, cause1)
		}
		if r.Outcome.ran() {
			r.BinDir = "/" + path
			if n&1 == 1 && len(failures) > 0 {
				r.Plugins = append(r.Plugins, Result{Name: failures[0], Action: untouched, Cause: cause2})
			}
		}
		checkRoundTrip(t, r)
		checkWithin(t, r, int(n)*4)
	})
}

// textOf writes a summary as the report that it could have come from.
func textOf(s *Summary) string {
	r := reportOf(s.New, s.Replaced, s.Unchanged)
	r.Outcome, r.Message, r.Version, r.Bundle, r.BinDir, r.Warnings, r.Hints = s.Outcome, s.Message, s.Version, s.Bundle, s.BinDir, s.Warnings, s.Hints
	untouched := Kept
	if s.Outcome.restores() {
		r, untouched = restoreOf(s.PutBack, s.Removed, nil, nil), Left
		r.Outcome, r.BinDir, r.Warnings, r.Hints = s.Outcome, s.BinDir, s.Warnings, s.Hints
	}
	for _, f := range s.Failed {
		r.Plugins = append(r.Plugins, Result{Name: f.Name, Cause: f.Cause, Action: Failed})
	}
	for _, k := range s.Kept {
		r.Plugins = append(r.Plugins, Result{Name: k.Name, Cause: k.Cause, Action: untouched})
	}
	return r.Text()
}

// Whatever is read, reading it panics never, and what was understood is understood the same once it is written down.
func FuzzParseText(f *testing.F) {
	full := reportOf(1, 2, 3, "warning", "hint: x", "hint", "warning: y")
	full.Warnings, full.Hints = []string{"w"}, []string{"h"}
	for _, r := range []*Report{full, reportOf(1, 0, 0), restoreOf(2, 1, []Said{{"a", "b"}}, []Said{{"c", "left: d"}}), Skip("", "x"), Staging.Refuse("", "y")} {
		f.Add(r.Text())
		f.Add(r.TextWithin(250))
	}
	f.Add("failed to install: a  b\na: x\n: \nb: \nx; skipping staging\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseText(text)
		if err != nil || s.New+s.Replaced+s.Unchanged > 1000 || s.New > 1000 || s.Replaced > 1000 || s.Unchanged > 1000 {
			return
		}
		s.Cut = false
		first := textOf(s)
		again, err := ParseText(first)
		if err != nil {
			t.Fatalf("%v\n%q\nof\n%q", err, first, text)
		}
		if second := textOf(again); second != first {
			t.Errorf("%q\nbecame\n%q", first, second)
		}
	})
}

// The report says whose it was that was replaced, and what became of it; a plan says the same beforehand.
func TestWhoseWasReplaced(t *testing.T) {
	for name, theirs := range map[string]bool{"ours": false, "theirs": true} {
		for _, noKeep := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, no keep %t", name, noKeep), func(t *testing.T) {
				bin := t.TempDir()
				stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
				if theirs {
					write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
				}
				o := Options{BinDir: bin, NoKeep: noKeep}
				for _, dry := range []bool{true, false} {
					o.DryRun = dry
					got := result(t, stage(t, packed(t, "v2", ref("bridge", "v2")), o), "bridge")
					if got.Action != Replaced || got.Own == theirs || got.Dropped != (theirs && noKeep) || (got.Original != "") != (theirs && !noKeep && !dry) {
						t.Errorf("dry %t: %+v", dry, got)
					}
				}
			})
		}
	}
}
