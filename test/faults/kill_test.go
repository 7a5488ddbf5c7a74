//go:build faults

package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/faults/tracer"
	"github.com/chandler-cni/chandler/test/rig"
)

// place copies the plugins of a bundle, as another installer would have.
func place(d *desk, bundle string) error {
	var errs []error
	for _, name := range ring.names {
		data, err := os.ReadFile(filepath.Join(bundle, "bin", name))
		path := filepath.Join(d.dir, name)
		errs = append(errs, err, os.WriteFile(path, data, 0o755), os.Chmod(path, 0o755))
	}
	return errors.Join(errs...)
}

// lethal are the scenes of kills. Whatever stands under a name can be executed.
func lethal() []*scene {
	theirs := func(d *desk) error { return place(d, ring.older) }
	ours := func(d *desk) error { return stagedBefore(d, ring.older) }
	back := func(d *desk) error { return errors.Join(theirs(d), stagedBefore(d, ring.bundle)) }
	all := []*scene{
		{name: "fresh", args: stageArgs(ring.bundle), bundle: ring.bundle, set: nothing},
		{name: "over somebody's", args: stageArgs(ring.bundle), bundle: ring.bundle, set: theirs, foreign: ring.names},
		{name: "over our own", args: stageArgs(ring.bundle), bundle: ring.bundle, set: ours},
		{name: "one file, separate", args: stageArgs(ring.multi), bundle: ring.multi, set: theirs, foreign: ring.names},
		{name: "one file, linked", args: stageArgs(ring.multi, "--layout", "linked"), bundle: ring.multi, set: ours},
		{name: "without flags of rename", args: stageArgs(ring.bundle), bundle: ring.bundle, set: theirs, foreign: ring.names, noFlags: true},
		{name: "restore", args: restoreArgs, bundle: ring.bundle, set: back, foreign: ring.names, back: true},
		{name: "restore without flags of rename", args: restoreArgs, bundle: ring.bundle, set: back, foreign: ring.names, back: true, noFlags: true},
	}
	for _, s := range all {
		s.judge, s.healed = carriedOut, healed
	}
	return all
}

// Guarantees 1 and 3: chandler is killed before or after any of its system calls, or at a random instant, or once more on what
// the first kill has left. Each name is then what it was or what it is to be, four processes that look it up, read and execute
// it without a pause never see anything else, and the next plain run brings everything right and leaves nothing behind.
func TestKilledAnywhere(t *testing.T) {
	var dead killed
	ring.reported = append(ring.reported, dead.String)
	w := rig.StartWatchers(t, 4)
	for _, s := range lethal() {
		t.Run(s.name, func(t *testing.T) {
			d := newTestDesk(t, ring.chandler)
			if err := s.prepare(d); err != nil {
				t.Fatal(err)
			}
			must := true // be there
			w.Right = make(map[string][]uint32)
			for _, name := range ring.names {
				for _, it := range []thing{s.before[name], s.after[name]} {
					if it == absent {
						must = false
					} else {
						w.Right[name] = append(w.Right[name], it.sum)
					}
				}
			}
			kill := func(deaths ...death) {
				t.Helper()
				if err := s.tree.make(d.dir); err != nil {
					t.Fatal(err)
				}
				w.Over(d.dir, must)
				said := ""
				for _, k := range deaths {
					o, err := k.run(s, d)
					if err != nil {
						t.Fatal(err)
					}
					dead.count(k, o)
					said += fmt.Sprintf("%s\n", k)
					if _, problems := s.names(d); len(problems) > 0 {
						t.Errorf("killed at %s\n%s", said, list(problems))
					}
				}
				o, err := d.run(nil, s.args(d)...)
				if err != nil {
					t.Fatal(err)
				}
				if problems := s.healed(s, &try{desk: d, outcome: o}); len(problems) > 0 {
					t.Errorf("killed at %s\n%s", said, list(problems))
				}
				w.Over("", false)
				seen := w.Saw()
				dead.looks.Add(int64(seen.Looks))
				dead.executed.Add(int64(seen.Runs))
				if len(seen.Wrong) > 0 {
					t.Errorf("killed at %s\nanother process saw: %s", said, strings.Join(seen.Wrong, "\n"))
				}
			}
			random := drawn(s.name)
			took := s.takes(t, d)
			for _, at := range s.deaths(random) {
				kill(at)
			}
			// 10,000 in all, of which the half is at system calls.
			n := 10
			if ring.full {
				n = 700
			}
			for i := range n {
				first := death{after: time.Duration(random.Int64N(int64(took)))}
				if i%3 == 2 {
					kill(first, death{after: time.Duration(random.Int64N(int64(took)))})
				} else {
					kill(first)
				}
			}
		})
	}
	if late, all := dead.late.Load(), dead.random.Load(); late > all/2 {
		t.Errorf("%d of %d kills came after the run's end", late, all)
	}
	if missed, met := dead.missed.Load(), dead.atCalls.Load(); missed*20 > met {
		t.Errorf("%d kills met no system call, and %d did", missed, met)
	}
}

// deaths are the kills at system calls: before and after each of them, or in the sampled mode each but those of long rows, once.
func (s *scene) deaths(random *rand.Rand) []death {
	var all []death
	row := make(map[string]int)
	for _, i := range random.Perm(len(s.calls)) {
		c := s.calls[i]
		before := fault{name: c.Name, k: c.K, action: tracer.KillBefore, mode: "killed before"}
		after := fault{name: c.Name, k: c.K, action: tracer.KillAfter, mode: "killed after"}
		switch {
		case ring.full:
			all = append(all, death{fault: before}, death{fault: after})
		case row[c.Name] < 2:
			row[c.Name]++
			all = append(all, death{fault: []fault{before, after}[random.IntN(2)]})
		}
	}
	return all
}

// takes measures a run.
func (s *scene) takes(t *testing.T, d *desk) time.Duration {
	t.Helper()
	if err := s.tree.make(d.dir); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := d.run(nil, s.args(d)...); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// death is a kill at a system call, or some time after the start.
type death struct {
	fault fault
	after time.Duration
}

func (k death) String() string {
	if k.fault.name != "" {
		return k.fault.String()
	}
	return k.after.String()
}

// run runs the scene's command to its death, and returns by what signal it ended.
func (k death) run(s *scene, d *desk) (syscall.Signal, error) {
	if k.fault.name != "" {
		var hits []tracer.Call
		o, err := d.run(s.decide(k.fault, &hits), s.args(d)...)
		return o.signal, err
	}
	// Neither is waited for elsewhere, nor by another thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	rig.Runs.Add(1)
	cmd := exec.Command(d.chandler, s.args(d)...)
	cmd.Env = []string{}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	time.Sleep(k.after)
	cmd.Process.Kill()
	cmd.Wait()
	return cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), nil
}

// killed counts.
type killed struct {
	atCalls, missed, random, late, looks, executed atomic.Int64
}

func (k *killed) count(at death, signal syscall.Signal) {
	switch {
	case at.fault.name == "":
		k.random.Add(1)
		if signal != syscall.SIGKILL {
			k.late.Add(1)
		}
	case signal == syscall.SIGKILL:
		k.atCalls.Add(1)
	default:
		k.missed.Add(1)
	}
}

func (k *killed) String() string {
	if k.random.Load() == 0 {
		return ""
	}
	return fmt.Sprintf("%d kills, %d of them at a system call (and %d too late); 4 processes looked %d times and executed %d times",
		k.atCalls.Load()+k.random.Load()-k.late.Load(), k.atCalls.Load(), k.late.Load(), k.looks.Load(), k.executed.Load())
}
