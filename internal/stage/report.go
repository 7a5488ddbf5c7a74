package stage

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Outcome is how a run as a whole ended.
type Outcome string

const (
	Staged  Outcome = "staged"  // it ran; single plugins may have failed
	Planned Outcome = "planned" // a dry run: nothing was changed
	Skipped Outcome = "skipped" // there was nothing to stage
	Refused Outcome = "refused" // nothing was staged: the bundle or the bin dir does not allow it
	Broken  Outcome = "broken"  // a fault of this program ended it: how far it came is not known
)

// Action is what was, or in a dry run would be, done under one name.
type Action string

const (
	New       Action = "new"
	Replaced  Action = "replaced"
	Unchanged Action = "unchanged"
	Failed    Action = "failed"
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
	Name     string `json:"name"`
	Found    Found  `json:"found"`
	Action   Action `json:"action"`
	SHA256   string `json:"sha256"`             // of the bundle's file
	Original string `json:"original,omitempty"` // where what was replaced is kept, below the bin dir
	Cause    string `json:"cause,omitempty"`    // why it failed
	Err      error  `json:"-"`                  // the same, to branch on
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

// Complete says whether every plugin of the bundle is in place.
func (r *Report) Complete() bool {
	switch r.Outcome {
	case Skipped:
		return true
	case Staged, Planned:
		return r.Count(Failed) == 0
	}
	return false
}

// TextLimit is how much of a termination message Kubernetes keeps, in bytes.
const TextLimit = 4096

const (
	failedPrefix  = "failed to install: "
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
	var names []string
	if r.Outcome == Refused { // nothing of it counts for the directory that is used now
		return nil, notes(r), r.LastLine()
	}
	for _, p := range r.Plugins {
		if p.Action == Failed {
			names = append(names, p.Name)
			body = append(body, p.Name+": "+Printable(p.Cause))
		}
	}
	if len(names) > 0 {
		head = []string{failedPrefix + strings.Join(names, " ")}
	}
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

// LastLine says in one line what was staged, or why nothing was.
func (r *Report) LastLine() string {
	if r.Outcome != Staged && r.Outcome != Planned {
		return Printable(r.Message)
	}
	verb := "staged"
	if r.Outcome == Planned {
		verb = "would stage"
	}
	n, o, u := r.Count(New), r.Count(Replaced), r.Count(Unchanged)
	return fmt.Sprintf("%s %d plugins %s (bundle %s) into %s: %d new, %d replaced, %d unchanged",
		verb, n+o+u, r.Version, r.Bundle, Printable(r.BinDir), n, o, u)
}

// Summary is what can be read back from a report's text.
type Summary struct {
	Outcome                  Outcome
	Failed                   []Failure
	Warnings, Hints          []string
	Cut                      bool // some causes, warnings or hints did not fit
	Version, Bundle, BinDir  string
	New, Replaced, Unchanged int
	Message                  string // when Skipped, Refused or Broken
}

// Failure is one plugin that could not be installed. Cause is empty if it was cut.
type Failure struct{ Name, Cause string }

var lastLine = regexp.MustCompile(`^(staged|would stage) (\d+) plugins (\S+) \(bundle (sha256:[0-9a-f]{64})\) into (.+): (\d+) new, (\d+) replaced, (\d+) unchanged$`)

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
	if err := s.parseLast(last); err != nil {
		return nil, err
	}
	if len(lines) > 0 {
		if names, ok := strings.CutPrefix(lines[0], failedPrefix); ok {
			lines = lines[1:]
			for _, name := range strings.Split(names, " ") {
				s.Failed = append(s.Failed, Failure{Name: name})
			}
		}
	}
	// The causes come in the order of the names, each with its name, so that no cause can pass for another line.
	for i := range s.Failed {
		if len(lines) > 0 && lines[0] == cutNotice {
			break
		}
		if len(lines) == 0 || !strings.HasPrefix(lines[0], s.Failed[i].Name+": ") {
			return nil, fmt.Errorf("parse report: no cause for %s", s.Failed[i].Name)
		}
		s.Failed[i].Cause, lines = lines[0][len(s.Failed[i].Name)+2:], lines[1:]
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

func (s *Summary) parseLast(line string) error {
	m := lastLine.FindStringSubmatch(line)
	switch {
	case m != nil:
		var counts [4]int
		for i, text := range []string{m[2], m[6], m[7], m[8]} {
			n, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("parse report: %w", err)
			}
			counts[i] = n
		}
		s.Outcome = Staged
		if m[1] != string(Staged) {
			s.Outcome = Planned
		}
		s.Version, s.Bundle, s.BinDir = m[3], m[4], m[5]
		s.New, s.Replaced, s.Unchanged = counts[1], counts[2], counts[3]
		if counts[0] != s.New+s.Replaced+s.Unchanged {
			return fmt.Errorf("parse report: %d plugins do not add up", counts[0])
		}
	case strings.HasSuffix(line, skippedSuffix):
		s.Outcome, s.Message = Skipped, line
	case strings.HasSuffix(line, refusedSuffix):
		s.Outcome, s.Message = Refused, line
	case strings.HasSuffix(line, brokenSuffix):
		s.Outcome, s.Message = Broken, line
	default:
		return fmt.Errorf("parse report: %q is no report's last line", line)
	}
	return nil
}

// How the last line ends tells these apart for a reader that has no exit code.
const (
	skippedSuffix = "; skipping staging"
	refusedSuffix = "; nothing was staged"
	brokenSuffix  = "; staging broke off"
)

// Skip is the report of a run that had nothing to stage.
func Skip(binDir, why string) *Report {
	return &Report{Outcome: Skipped, BinDir: binDir, Plugins: []Result{}, Message: why + skippedSuffix}
}

// Refuse is the report of a run that could stage nothing.
func Refuse(binDir, why string) *Report {
	return &Report{Outcome: Refused, BinDir: binDir, Plugins: []Result{}, Message: why + refusedSuffix}
}

// Break is the report of a run that this program's own fault ended. The next run clears up.
func Break(binDir, why string) *Report {
	return &Report{Outcome: Broken, BinDir: binDir, Plugins: []Result{}, Message: why + brokenSuffix}
}

// RefuseFor is Refuse for an error of the bundle or the bin dir.
func RefuseFor(binDir string, err error) *Report {
	r := Refuse(binDir, refusal(err))
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
