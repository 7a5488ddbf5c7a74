//go:build faults

package disk

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/rig"
)

// crawling is a disk that has trouble: a fifth of a second for a flush.
var crawling = Slow{Write: 5 * time.Millisecond, Flush: 200 * time.Millisecond, PerMB: 20 * time.Millisecond}

// On a slow disk staging takes its time and comes to its end. A second one waits for it and finds everything done; one that
// does not want to wait goes on without the lock, and says so.
func TestSlowDisk(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			d := newDisk(t, sizes[kind])
			d.format(kind)
			dir := rig.Mkdir(t, filepath.Join(d.at, "bin"))
			rig.Place(t, ring.fewOlder, dir, "static", "sbr")
			d.sync()
			d.slow(crawling)
			start := time.Now()
			first := rig.Call{Bundle: ring.few, Dir: dir}.Start(t)
			rig.Eventually(t, "the first has begun", func() bool { return len(rig.Glob(t, dir, ".chandler/tmp/*")) > 0 })
			second := rig.Call{Bundle: ring.few, Dir: dir, Args: []string{"--lock-wait", "10m"}}.Start(t)
			hasty := rig.Call{Bundle: ring.few, Dir: dir, Args: []string{"--lock-wait", "100ms"}}.Start(t)
			o := first.Wait()
			took := time.Since(start)
			if o.Code != 0 || len(o.Failed())+len(o.Report.Warnings) > 0 {
				t.Fatalf("the first: exit %d: %s", o.Code, o.Stderr)
			}
			rig.Holds(t, ring.few, dir, fewNames...)
			if o = hasty.Wait(); o.Code != 0 || len(o.Failed()) > 0 || !strings.Contains(o.Stderr, "another staging held the lock for 100ms; went on without it") {
				t.Fatalf("the hasty one: exit %d: %s", o.Code, o.Stderr)
			}
			second.Wait().Counts(t, 0, 0, 5, 0)
			d.slow(Slow{})
			if took < time.Second {
				t.Errorf("it took %s: the disk was not slow", took)
			}
			t.Logf("the first took %s", took.Round(10*time.Millisecond))
			rig.Holds(t, ring.few, dir, fewNames...)
			for _, name := range []string{"static", "sbr"} {
				if kept := rig.Originals(t, dir, name); len(kept) != 1 {
					t.Errorf("%s: kept %v", name, kept)
				}
			}
			rig.Clean(t, ring.few, dir)
		})
	}
}
