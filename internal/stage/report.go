package stage

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Outcome is how a run as a whole ended.
type Outcome string

const (
	Staged         Outcome = "staged"          // it ran; single plugins may have failed
	Planned        Outcome = "planned"         // a dry run of staging: nothing was changed
	Restored       Outcome = "restored"        // it ran; single plugins may have failed
	RestorePlanned Outcome = "restore planned" // a dry run of restoring: nothing was changed
	Skipped        Outcome = "skipped"         // there was nothing to stage
	Refused        Outcome = "refused"         // nothing was done: the bundle or the bin dir does not allow it
	Broken         Outcome = "broken"          // a fault of this program ended it: how far it came is not known
)

// ran says whether the plugins were gone through one by one.
func (o Outcome) ran() bool { return o == Staged || o == Planned || o.restores() }

func (o Outcome) restores() bool { return o == Restored || o == RestorePlanned }

// Action is what was, or in a dry run would be, done under one name.
type Action string

const (
	New       Action = "new"
	Replaced  Action = "replaced"
	Unchanged Action = "unchanged"
	Kept      Action = "kept" // not replaced: the policy keeps what is there
	Failed    Action = "failed"

	// Of restoring.
	PutBack Action = "put back" // the newest original has its name again
	Removed Action = "removed"  // nothing stood there before staging came, and nothing does now
	Left    Action = "left"     // what stands there is not what staging put there
)

// Report is what a run found and did. Text and ParseText are its form for people, on stderr and in the termination log;
// its JSON form is the result on stdout.
type Report struct {
	Outcome  Outcome  `json:"outcome"`
	Message  string   `json:"message,omitempty"` // why, when Skipped, Refused or Broken
	Version  string   `json:"version,omitempty"` // of the bundle's plugins
	Bundle   string   `json:"bundle,omitempty"`  // sha256:<hex> of bundle.json
	BinDir   string   `json:"binDir"`            // as the host knows it
	Plugins  []Result `json:"plugins"`
	Warnings []string `json:"warnings,omitempty"`
	Hints    []string `json:"hints,omitempty"` // what to do about it; the command line's to add
	Err      error    `json:"-"`               // why, when Refused, to branch on
}

// Result is the entry of one plugin.
type Result struct {
	Name      string      `json:"name"`
	Found     Found       `json:"found"`
	Action    Action      `json:"action"`
	SHA256    string      `json:"sha256,omitempty"`    // of the bundle's file; of what was put back, if it could be read
	Original  string      `json:"original,omitempty"`  // where what was replaced is kept, or where what is put back lay, below the bin dir
	Own       bool        `json:"own,omitempty"`       // what was replaced was staged earlier and nobody has written to it: none of it is kept
	Dropped   bool        `json:"dropped,omitempty"`   // what was replaced was somebody else's and is not kept: NoKeep
	Changed   bool        `json:"changed,omitempty"`   // what was put back was written to after it was replaced
	Contended *Contention `json:"contended,omitempty"` // replaced again and again
	Reason    Reason      `json:"reason,omitempty"`    // why it was kept, in a word
	Cause     string      `json:"cause,omitempty"`     // why it failed, was kept or was left
	Err       error       `json:"-"`                   // why it failed, to branch on
}

// Contention says that another program has put a file of its own under a name before each of the last runs.
type Contention struct {
	Runs   int    `json:"runs"`   // in a row
	SHA256 string `json:"sha256"` // of the file that was there before the last one; "unread" if it could not be read
}

// Count returns how many plugins ended with the given action.
func (r *Report) Count(a Action) int {
	n := 0
	for _, p := range r.Plugins {
		if p.Action == a {
			n++
		}
	}
	return n
}

// Complete says whether every plugin is as it should be: in place, or kept by the policy; put back, removed, or left as another's.
func (r *Report) Complete() bool {
	switch r.Outcome {
	case Skipped:
		return true
	case Refused, Broken:
		return false
	}
	return r.Count(Failed) == 0
}

// TextLimit is how much of a termination message Kubernetes keeps, in bytes.
const TextLimit = 4096

const (
	failedPrefix  = "failed to install: "
	unputPrefix   = "failed to restore: "
	keptPrefix    = "kept: "
	leftPrefix    = "left: "
	warningPrefix = "warning: "
	hintPrefix    = "hint: "
	cutNotice     = "(cut; the container's log has it all)"
)

// Text is the report in the words of the termination log: what failed and why, what to know of, what to do, and last what
// was staged. A run with nothing to say but the last line is that line alone.
func (r *Report) Text() string {
	head, body, last := r.text()
	return strings.Join(append(append(head, body...), last), "\n") + "\n"
}

// TextWithin is Text in at most limit bytes. The names that failed and the last line are kept in any case; hints, warnings
// and then causes are cut.
func (r *Report) TextWithin(limit int) string {
	if text := r.Text(); len(text) <= limit {
		return text
	}
	head, body, last := r.text()
	room := limit - len(last) - len(cutNotice) - 2
	for _, l := range head {
		room -= len(l) + 1
	}
	lines := head
	for _, l := range body {
		if room -= len(l) + 1; room < 0 {
			break
		}
		lines = append(lines, l)
	}
	text := strings.Join(append(lines, cutNotice, last), "\n") + "\n"
	// Only names or paths beyond all measure get here.
	return cutTo(text, limit)
}

func cutTo(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

func (r *Report) text() (head, body []string, last string) {
	if r.Outcome == Refused { // nothing of it counts for the directory that is used now
		return nil, notes(r), r.LastLine()
	}
	failed, untouched := failedPrefix, keptPrefix
	if r.Outcome.restores() {
		failed, untouched = unputPrefix, leftPrefix
	}
	list := func(prefix, before string, actions ...Action) {
		var names []string
		for _, p := range r.Plugins {
			if slices.Contains(actions, p.Action) {
				names = append(names, p.Name)
				body = append(body, p.Name+": "+before+Printable(p.Cause))
			}
		}
		if len(names) > 0 {
			head = append(head, prefix+strings.Join(names, " "))
		}
	}
	list(failed, "", Failed)
	list(untouched, untouched, Kept, Left)
	return head, append(body, notes(r)...), r.LastLine()
}

func notes(r *Report) (lines []string) {
	for _, w := range r.Warnings {
		lines = append(lines, warningPrefix+Printable(w))
	}
	for _, h := range r.Hints {
		lines = append(lines, hintPrefix+Printable(h))
	}
	return lines
}

// LastLine says in one line what was done, or why nothing was.
func (r *Report) LastLine() string {
	switch r.Outcome {
	case Restored, RestorePlanned:
		back, removed := r.Count(PutBack), r.Count(Removed)
		return fmt.Sprintf("%s %d plugins in %s: %d put back, %d removed, %d left",
			verbs[r.Outcome], back+removed, Printable(r.BinDir), back, removed, r.Count(Left))
	case Staged, Planned:
		n, o, u, k := r.Count(New), r.Count(Replaced), r.Count(Unchanged), r.Count(Kept)
		line := fmt.Sprintf("%s %d plugins %s (bundle %s) into %s: %d new, %d replaced, %d unchanged",
			verbs[r.Outcome], n+o+u, r.Version, r.Bundle, Printable(r.BinDir), n, o, u)
		if k > 0 {
			line += fmt.Sprintf(", %d kept", k)
		}
		return line
	}
	return Printable(r.Message)
}

// verbs begin the last line.
var verbs = map[Outcome]string{Staged: "staged", Planned: "would stage", Restored: "restored", RestorePlanned: "would restore"}

// Summary is what can be read back from a report's text.
type Summary struct {
	Outcome                  Outcome
	Failed, Kept             []Said // Kept is what restoring has left, too
	Warnings, Hints          []string
	Cut                      bool // some causes, warnings or hints did not fit
	Version, Bundle, BinDir  string
	New, Replaced, Unchanged int    // of staging
	PutBack, Removed         int    // of restoring
	Message                  string // when Skipped, Refused or Broken
}

// Said is what the text says of one plugin. Cause is empty if it was cut.
type Said struct{ Name, Cause string }

var (
	stageLine   = regexp.MustCompile(`^(staged|would stage) (\d+) plugins (\S+) \(bundle (sha256:[0-9a-f]{64})\) into (.+): (\d+) new, (\d+) replaced, (\d+) unchanged(?:, (\d+) kept)?$`)
	restoreLine = regexp.MustCompile(`^(restored|would restore) (\d+) plugins in (.+): (\d+) put back, (\d+) removed, (\d+) left$`)
)

// ParseText reads back what Text and TextWithin wrote. What the last line does not look like is an error: a truncated
// message, or another program's.
func ParseText(text string) (*Summary, error) {
	body, ok := strings.CutSuffix(text, "\n")
	if !ok {
		return nil, fmt.Errorf("parse report: the last line is not whole")
	}
	lines := strings.Split(body, "\n")
	last := lines[len(lines)-1]
	lines = lines[:len(lines)-1]
	s := new(Summary)
	kept, err := s.parseLast(last)
	if err != nil {
		return nil, err
	}
	failed, untouched := failedPrefix, keptPrefix
	if s.Outcome.restores() {
		failed, untouched = unputPrefix, leftPrefix
	}
	heads := func(prefix string) (said []Said) {
		if len(lines) > 0 {
			if names, ok := strings.CutPrefix(lines[0], prefix); ok {
				lines = lines[1:]
				for _, name := range strings.Split(names, " ") {
					said = append(said, Said{Name: name})
				}
			}
		}
		return said
	}
	s.Failed = heads(failed)
	if kept > 0 { // else the line is the cause of a plugin that is called left or kept
		s.Kept = heads(untouched)
	}
	if len(s.Kept) != kept {
		return nil, fmt.Errorf("parse report: %d names kept or left, and not %d", len(s.Kept), kept)
	}
	// The causes come in the order of the names, each with its name, so that no cause can pass for another line.
	causes := func(said []Said, before string) error {
		for i := range said {
			if len(lines) > 0 && lines[0] == cutNotice {
				return nil
			}
			prefix := said[i].Name + ": " + before
			if len(lines) == 0 || !strings.HasPrefix(lines[0], prefix) {
				return fmt.Errorf("parse report: no cause for %s", said[i].Name)
			}
			said[i].Cause, lines = lines[0][len(prefix):], lines[1:]
		}
		return nil
	}
	if err := errors.Join(causes(s.Failed, ""), causes(s.Kept, untouched)); err != nil {
		return nil, err
	}
	for _, l := range lines {
		if w, ok := strings.CutPrefix(l, warningPrefix); ok && len(s.Hints) == 0 {
			s.Warnings = append(s.Warnings, w)
		} else if h, ok := strings.CutPrefix(l, hintPrefix); ok {
			s.Hints = append(s.Hints, h)
		} else if l == cutNotice && !s.Cut {
			s.Cut = true
		} else {
			return nil, fmt.Errorf("parse report: unexpected line %q", l)
		}
	}
	return s, nil
}

// parseLast reads the last line, and returns how many plugins it says were kept or left.
func (s *Summary) parseLast(line string) (kept int, err error) {
	// counts reads numbers, the first of which must be the sum of those that follow it but the last.
	counts := func(texts ...string) (n []int, err error) {
		for _, text := range texts {
			v := 0
			if text != "" {
				if v, err = strconv.Atoi(text); err != nil {
					return nil, fmt.Errorf("parse report: %w", err)
				}
			}
			n = append(n, v)
		}
		sum := 0
		for _, v := range n[1 : len(n)-1] {
			sum += v
		}
		if n[0] != sum {
			return nil, fmt.Errorf("parse report: %d plugins do not add up", n[0])
		}
		return n, nil
	}
	if m := stageLine.FindStringSubmatch(line); m != nil {
		n, err := counts(m[2], m[6], m[7], m[8], m[9])
		if err != nil {
			return 0, err
		}
		if m[9] != "" && n[4] == 0 {
			return 0, fmt.Errorf("parse report: 0 kept is not said")
		}
		s.Outcome = outcomeOf(m[1])
		s.Version, s.Bundle, s.BinDir = m[3], m[4], m[5]
		s.New, s.Replaced, s.Unchanged = n[1], n[2], n[3]
		return n[4], nil
	}
	if m := restoreLine.FindStringSubmatch(line); m != nil {
		n, err := counts(m[2], m[4], m[5], m[6])
		if err != nil {
			return 0, err
		}
		s.Outcome, s.BinDir = outcomeOf(m[1]), m[3]
		s.PutBack, s.Removed = n[1], n[2]
		return n[3], nil
	}
	for suffix, outcome := range lastSuffixes {
		if strings.HasSuffix(line, suffix) {
			s.Outcome, s.Message = outcome, line
			return 0, nil
		}
	}
	return 0, fmt.Errorf("parse report: %q is no report's last line", line)
}

func outcomeOf(verb string) Outcome {
	for o, v := range verbs {
		if v == verb {
			return o
		}
	}
	return ""
}

// Task is what a run was for.
type Task string

const (
	Staging   Task = "stage"
	Restoring Task = "restore"
)

// How the last line ends tells these apart for a reader that has no exit code.
const (
	skippedSuffix   = "; skipping staging"
	unstagedSuffix  = "; nothing was staged"
	unrestoreSuffix = "; nothing was restored"
	brokenSuffix    = "; staging broke off"
	brokenBack      = "; restoring broke off"
)

var lastSuffixes = map[string]Outcome{
	skippedSuffix: Skipped, unstagedSuffix: Refused, unrestoreSuffix: Refused, brokenSuffix: Broken, brokenBack: Broken,
}

func (t Task) suffix(staging, restoring string) string {
	if t == Restoring {
		return restoring
	}
	return staging
}

// Skip is the report of a run that had nothing to stage.
func Skip(binDir, why string) *Report {
	return &Report{Outcome: Skipped, BinDir: binDir, Plugins: []Result{}, Message: why + skippedSuffix}
}

// Refuse is the report of a run that could do nothing.
func (t Task) Refuse(binDir, why string) *Report {
	return &Report{Outcome: Refused, BinDir: binDir, Plugins: []Result{}, Message: why + t.suffix(unstagedSuffix, unrestoreSuffix)}
}

// Break is the report of a run that this program's own fault ended. The next run clears up.
func (t Task) Break(binDir, why string) *Report {
	return &Report{Outcome: Broken, BinDir: binDir, Plugins: []Result{}, Message: why + t.suffix(brokenSuffix, brokenBack)}
}

// RefuseFor is Refuse for an error of the bundle or the bin dir.
func (t Task) RefuseFor(binDir string, err error) *Report {
	r := t.Refuse(binDir, t.refusal(err))
	r.Err = err
	return r
}

// Printable keeps foreign text (names, targets, a plugin's own words) from making lines of its own in a report, or from
// reaching a terminal as a command.
func Printable(s string) string {
	clean := func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }
	if strings.IndexFunc(s, clean) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if clean(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
