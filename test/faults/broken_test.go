//go:build faults

package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/faults/tracer"
)

// brokenBuild is a mistake in our own source, kept as a patch in broken, and what of this ring catches it.
type brokenBuild struct {
	patch string
	check string // that has to find a problem
	find  func(s *scene, d *desk) ([]problem, error)
}

var brokenBuilds = []brokenBuild{
	{"no-sync", "order", func(s *scene, d *desk) ([]problem, error) { return s.order(d) }},
	{"chmod-after-rename", "whole", killedAt("renameat2")},
	{"fixed-temporary-name", "report", joinedAt("write")}, // they take each other's files away; the probe refuses one that both write
	{"ignored-close-error", "told", failedAt(unix.EIO, func(c tracer.Call) bool { return c.Name == "close" && c.Wrote })},
	{"unlink-and-rename", "absent", killedAt("unlinkat")},
	{"probe-after-publish", "report", failedAt(unix.EACCES, func(c tracer.Call) bool { return c.Name == "execve" })},
}

// killedAt kills the program after each of its calls of that name.
func killedAt(name string) func(s *scene, d *desk) ([]problem, error) {
	return func(s *scene, d *desk) ([]problem, error) {
		var found []problem
		for _, c := range s.calls {
			if c.Name != name {
				continue
			}
			if err := s.tree.make(d.dir); err != nil {
				return nil, err
			}
			k := death{fault: fault{name: c.Name, k: c.K, action: tracer.KillAfter}}
			if _, err := k.run(s, d); err != nil {
				return nil, err
			}
			_, problems := s.names(d)
			found = append(found, problems...)
		}
		return found, nil
	}
}

// failedAt makes each of the calls fail.
func failedAt(errno unix.Errno, which func(tracer.Call) bool) func(s *scene, d *desk) ([]problem, error) {
	return func(s *scene, d *desk) ([]problem, error) {
		var found []problem
		for _, c := range s.calls {
			if !which(c) {
				continue
			}
			_, problems, err := s.run(d, failing(c.Name, c.K, errno, "once"))
			if err != nil {
				return nil, err
			}
			found = append(found, problems...)
		}
		return found, nil
	}
}

// joinedAt lets another chandler of the same build stage another bundle at some of the calls of that name.
func joinedAt(name string) func(s *scene, d *desk) ([]problem, error) {
	return func(s *scene, d *desk) ([]problem, error) {
		another := installers[slices.IndexFunc(installers, func(in installer) bool { return in.ours })]
		var found []problem
		for _, c := range s.calls {
			if c.Name != name || c.K%8 != 0 {
				continue
			}
			problems, err := s.joined(d, another, c, "", nil)
			if err != nil {
				return nil, err
			}
			found = append(found, problems...)
		}
		return found, nil
	}
}

// A ring that finds nothing may be blind. Each mistake is made in a copy of the source, and the program that is built of it has
// to be found out, by the check that is meant for it, which finds nothing in the program as it is.
func TestBrokenBuildsAreFound(t *testing.T) {
	s := &scene{name: "over somebody's", args: stageArgs(ring.bundle, "--lock-wait", "0s"), bundle: ring.bundle, judge: carriedOut, healed: healed,
		foreign: ring.names, set: func(d *desk) error {
			err := place(d, ring.older)
			for _, name := range ring.names { // so that they are not what another chandler stages
				err = errors.Join(err, os.Chmod(filepath.Join(d.dir, name), 0o700))
			}
			return err
		}}
	if err := s.prepare(newTestDesk(t, ring.chandler)); err != nil {
		t.Fatal(err)
	}
	patches, err := filepath.Glob("broken/*.patch")
	if err != nil || len(patches) != len(brokenBuilds) {
		t.Fatalf("%d patches for %d builds (%v)", len(patches), len(brokenBuilds), err)
	}
	for _, b := range brokenBuilds {
		t.Run(b.patch, func(t *testing.T) {
			d := newTestDesk(t, ring.chandler)
			problems, err := b.find(s, d)
			if err != nil || len(problems) > 0 {
				t.Fatalf("in the program as it is (%v):\n%s", err, list(problems))
			}
			d.chandler = buildWith(t, "broken/"+b.patch+".patch")
			broken := *s
			if broken.calls, err = broken.plan(d); err != nil {
				t.Fatal(err)
			}
			if problems, err = b.find(&broken, d); err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(problems, func(p problem) bool { return p.check == b.check })
			if i < 0 {
				t.Fatalf("it was not found out by the check %q. What was found:\n%s", b.check, list(problems))
			}
			t.Logf("found out by %s (%d problems)", problems[i], len(problems))
		})
	}
}

// plan is the calls of a run that nothing is done to and nothing is demanded of.
func (s *scene) plan(d *desk) ([]tracer.Call, error) {
	if err := s.tree.make(d.dir); err != nil {
		return nil, err
	}
	o, err := d.run(s.decide(fault{}, new([]tracer.Call)), s.args(d)...)
	return o.calls, err
}

// buildWith builds chandler from a copy of the source that a patch was applied to.
func buildWith(t *testing.T, patch string) string {
	t.Helper()
	patch, err := filepath.Abs(patch)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		// A repository that the copy happens to lie in is none of git's business.
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
		}
		return nil
	}
	root, err := filepath.Abs("../..")
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "cmd"), 0o755)
	}
	err = errors.Join(err, run("cp", root+"/go.mod", root+"/go.sum", "."), run("cp", "-r", root+"/internal", "."), run("cp", "-r", root+"/cmd/chandler", "cmd/"))
	if err != nil {
		t.Fatal(err)
	}
	if err := run("git", "apply", "-p1", "-C1", patch); err != nil {
		t.Fatalf("the patch has to be made anew for the source as it is: %v", err)
	}
	// As the Makefile builds it.
	if err := run("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", "broken", "./cmd/chandler"); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "broken")
}
