//go:build faults

package faults

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/faults/tracer"
)

// Guarantees 1 to 3, in the order of the system calls: each file is written, made executable, synced, closed, run and marked
// before it gets its name; and the directory is synced before anything is said. Guarantee 8, of restoring: what was there is in its
// place, and that is synced, before staging's marks go, and they are gone for good before the folder and before anything is said.
func TestOrder(t *testing.T) {
	for _, s := range scenes() {
		staged := s.bundle == ring.bundle && !s.noFlags && (len(s.foreign) == len(ring.names) || s.name == "fresh") && s.healed != nil && len(s.kept) == 0
		if !staged && !s.back || len(s.left) > 0 {
			continue // nothing is done, or less
		}
		t.Run(s.name, func(t *testing.T) {
			d := newTestDesk(t, ring.chandler)
			if err := s.prepare(d); err != nil {
				t.Fatal(err)
			}
			problems, err := s.order(d)
			if err != nil {
				t.Fatal(err)
			}
			if len(problems) > 0 {
				t.Errorf("%s", list(problems))
			}
		})
	}
}

// order runs the scene's staging, watches each call, and judges their order.
func (s *scene) order(d *desk) ([]problem, error) {
	if err := s.tree.make(d.dir); err != nil {
		return nil, err
	}
	o, err := d.run(func(*tracer.Call) (tracer.Action, unix.Errno) { return tracer.Watch, 0 }, s.args(d)...)
	if err != nil {
		return nil, err
	}
	var problems []problem
	for _, name := range ring.names {
		order := orderOf(o.calls, d, name, s.bundle)
		if s.back {
			order = backOrderOf(o.calls, d, name, s.after[name] == absent)
		}
		if order != "" {
			problems = append(problems, problem{"order", name + ": " + order})
		}
	}
	return problems, nil
}

// orderOf says what is wrong with the order of the calls for one name; empty if nothing is.
func orderOf(calls []tracer.Call, d *desk, name, bundle string) string {
	// Of each step its first call, or the last where the last counts. A call is of the file that is being written if it is in a
	// run's folder.
	var write, chmod, sync, closed, probe, marked, marks, first, placed, synced, said *tracer.Call
	folder := filepath.Join(d.dir, ".chandler")
	for i := range calls {
		c := &calls[i]
		if c.Result < 0 {
			continue
		}
		written := strings.HasPrefix(c.Path, folder+"/tmp/") && filepath.Base(c.Path) == name
		switch {
		case c.Name == "write" && written:
			write = c
		case (c.Name == "fchmod" || c.Name == "fchmodat" || c.Name == "chmod") && (written || c.Path == filepath.Join(d.dir, name)):
			chmod = c
		case c.Name == "fsync" && written:
			sync = c
		case c.Name == "close" && written && c.Wrote:
			closed = c
		case c.Name == "execve" && c.To == name && probe == nil:
			probe = c
		case c.Name == "openat" && c.Path == markOf(d.dir, bundle, name):
			marked = c
		case c.Name == "fsync" && c.Path == folder+"/staged" && marks == nil:
			marks = c
		case strings.HasPrefix(c.Name, "rename"), strings.HasPrefix(c.Name, "link"):
			if written && first == nil {
				first = c
			}
			if c.To == filepath.Join(d.dir, name) {
				placed = c
			}
		case c.Name == "fsync" && c.Path == d.dir:
			synced = c
		case c.Name == "openat" && c.Path == d.log, c.Name == "write" && c.Path == d.stdout:
			if said == nil {
				said = c
			}
		}
	}
	return inOrder([]step{{"write", write}, {"chmod", chmod}, {"sync", sync}, {"close", closed}, {"run", probe}, {"mark", marked},
		{"sync of the marks", marks}, {"first rename", first}, {"rename into place", placed}, {"sync of the directory", synced}, {"report", said}})
}

// backOrderOf is orderOf for restoring: gone says that the name is taken away.
func backOrderOf(calls []tracer.Call, d *desk, name string, gone bool) string {
	folder := filepath.Join(d.dir, ".chandler")
	slot, staged := filepath.Join(folder, "originals", name), filepath.Join(folder, "staged")
	mark := regexp.MustCompile("^" + regexp.QuoteMeta(staged) + "/(.*)@[0-9a-f]{64}$")
	// The last of each, or the first after another one.
	var placed, dropped, slotSynced, dropSynced, ended, synced, unmarked, last, marksSynced, dismantled, again, said *tracer.Call
	for i := range calls {
		c := &calls[i]
		if c.Result < 0 {
			continue
		}
		renames := strings.HasPrefix(c.Name, "rename") || strings.HasPrefix(c.Name, "link")
		switch {
		case renames && (!gone && c.To == filepath.Join(d.dir, name) || gone && c.Path == filepath.Join(d.dir, name)):
			placed, dropped, slotSynced, synced = c, nil, nil, nil
		case gone && c.Name == "unlinkat" && c.Path == away(d.dir, name), strings.HasPrefix(c.To, slot+"/done-"):
			dropped, dropSynced = c, nil
		case !gone && c.Name == "unlinkat" && filepath.Dir(c.Path) == slot:
			ended = c
		case c.Name == "unlinkat" && mark.MatchString(c.Path):
			if mark.FindStringSubmatch(c.Path)[1] == name && unmarked == nil {
				unmarked = c
			}
			last, marksSynced = c, nil
		case c.Name == "unlinkat" && c.Path == folder:
			dismantled, again = c, nil
		case c.Name == "fsync" && c.Path == slot:
			if slotSynced == nil {
				slotSynced = c
			}
			if dropSynced == nil {
				dropSynced = c
			}
		case c.Name == "fsync" && c.Path == staged && marksSynced == nil:
			marksSynced = c
		case c.Name == "fsync" && c.Path == d.dir:
			if synced == nil {
				synced = c
			}
			again = c
		case (c.Name == "openat" && c.Path == d.log || c.Name == "write" && c.Path == d.stdout) && said == nil:
			said = c
		}
	}
	if gone {
		slotSynced = synced // there is none, or nothing has come out of it
	}
	steps := []step{{"rename", placed}, {"sync of the directory", synced}, {"giving up of the staged file", dropped},
		{"sync of its originals after that", dropSynced}}
	if gone { // it goes at once
		steps = []step{{"rename", placed}, {"removal of the staged file", dropped}, {"sync of the directory", synced}}
	}
	wrong := inOrder(append(steps, step{"removal of its marks", unmarked}, step{"removal of the last mark", last},
		step{"sync of the marks", marksSynced}, step{"report", said}))
	if wrong == "" {
		wrong = inOrder([]step{{"rename", placed}, {"sync of its originals", slotSynced}, {"removal of its marks", unmarked}})
	}
	if wrong == "" && !gone {
		wrong = inOrder([]step{{"sync of the marks", marksSynced}, {"removal of the staged file", ended}, {"report", said}})
	}
	if wrong == "" && dismantled != nil {
		wrong = inOrder([]step{{"sync of the marks", marksSynced}, {"removal of the folder", dismantled}, {"last sync of the directory", again}, {"report", said}})
	}
	return wrong
}

// step is a call that has to come after another one.
type step struct {
	what string
	call *tracer.Call
}

// inOrder says which of the steps is missing, or did not wait for the one before it.
func inOrder(steps []step) string {
	for i, step := range steps {
		if step.call == nil {
			return "no " + step.what
		}
		// The two renames are one where nothing stood.
		if i > 0 && steps[i-1].call != step.call && steps[i-1].call.End > step.call.Begin {
			return fmt.Sprintf("the %s (%s) did not wait for the %s (%s)", step.what, step.call, steps[i-1].what, steps[i-1].call)
		}
	}
	return ""
}
