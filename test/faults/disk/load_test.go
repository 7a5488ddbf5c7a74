//go:build faults

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/test/rig"
)

// Runs in a row, each of which has something to do now and then: nothing grows, neither in the directory nor in the program.
func TestManyInARow(t *testing.T) {
	n := 60
	if ring.full {
		n = 500
	}
	dir := t.TempDir()
	rig.Write(t, filepath.Join(dir, "static"), "#!/bin/sh\n# theirs\n", 0o755)
	var peaks []int64
	names := 0
	for i := range n {
		b := ring.few
		if i/2%2 == 1 { // two of each: one that changes all, and one that changes nothing
			b = ring.fewOlder
		}
		o, peak := measured(t, rig.Call{Bundle: b, Dir: dir})
		if o.Code != 0 || len(o.Failed())+len(o.Report.Warnings) > 0 {
			t.Fatalf("run %d: exit %d: %s", i, o.Code, o.Stderr)
		}
		peaks = append(peaks, peak)
		rig.Clean(t, ring.few, dir)
		switch now := len(rig.Tree(t, dir)); {
		case i == 3: // both bundles have been here
			names = now
		case i > 3 && now != names:
			t.Fatalf("%d names after run %d, %d after the third", now, i, names)
		}
	}
	rig.Holds(t, map[bool]string{false: ring.few, true: ring.fewOlder}[(n-1)/2%2 == 1], dir, fewNames...)
	first, last := peaks[:20], peaks[n-20:]
	slices.Sort(first)
	slices.Sort(last)
	t.Logf("%d runs; %.1f MB of memory for one of the first twenty, %.1f MB for one of the last; %d names in the directory",
		n, float64(first[10])/1e6, float64(last[10])/1e6, names)
	if last[10] > first[10]*5/4 {
		t.Error("it grows")
	}
}

// measured runs chandler and says how many bytes of memory it or a plugin that it ran took at most. A process begins with
// what the one that started it has, so that one has to be small.
func measured(t testing.TB, c rig.Call) (rig.Outcome, int64) {
	t.Helper()
	kib := filepath.Join(t.TempDir(), "kib")
	c.Wrap = []string{"busybox", "time", "-f", "%M", "-o", kib}
	o := c.Run(t)
	n, err := strconv.ParseInt(strings.TrimSpace(rig.Read(t, kib)), 10, 64)
	rig.Must(t, err)
	return o, n << 10
}

// Fifty runs at once wait for each other, each with a few open files, and leave what one would have left.
func TestFiftyAtOnce(t *testing.T) {
	n := 20
	if ring.full {
		n = 50
	}
	dir := t.TempDir()
	rig.Place(t, ring.fewOlder, dir, "static", "sbr")
	before := rig.Identify(t, filepath.Join(dir, "static"))
	var all []*rig.Process
	for range n {
		all = append(all, rig.Call{Bundle: ring.few, Dir: dir, Args: []string{"--lock-wait", "10m"}}.Start(t))
	}
	most := 0
	for _, p := range all {
		open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Cmd.Process.Pid))
		most = max(most, len(open))
	}
	changed := 0
	for _, p := range all {
		o := p.Wait()
		if o.Code != 0 || len(o.Failed())+len(o.Report.Warnings) > 0 {
			t.Fatalf("exit %d: %s", o.Code, o.Stderr)
		}
		for _, r := range o.Report.Plugins {
			if r.Action != "unchanged" {
				changed++
			}
		}
	}
	if changed != len(fewNames) {
		t.Errorf("%d plugins were staged, want each once", changed)
	}
	if most > 32 {
		t.Errorf("one had %d files open", most)
	}
	rig.Holds(t, ring.few, dir, fewNames...)
	rig.Clean(t, ring.few, dir)
	rig.Kept(t, dir, "static", before)
	rig.Stage(t, ring.few, dir).Counts(t, 0, 0, 5, 0)
}
