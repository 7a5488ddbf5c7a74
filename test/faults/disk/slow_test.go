//go:build faults

package disk

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
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
			dir := mkdir(t, filepath.Join(d.at, "bin"))
			place(t, ring.fewOlder, dir, "static", "sbr")
			d.sync()
			d.slow(crawling)
			start := time.Now()
			first := call{bundle: ring.few, dir: dir}.start(t)
			eventually(t, "the first has begun", func() bool { return len(glob(t, dir, ".chandler/tmp/*")) > 0 })
			second := call{bundle: ring.few, dir: dir, args: []string{"--lock-wait", "10m"}}.start(t)
			hasty := call{bundle: ring.few, dir: dir, args: []string{"--lock-wait", "100ms"}}.start(t)
			o := first.wait()
			took := time.Since(start)
			if o.code != 0 || len(o.failed())+len(o.report.Warnings) > 0 {
				t.Fatalf("the first: exit %d: %s", o.code, o.stderr)
			}
			holds(t, ring.few, dir, fewNames...)
			if o = hasty.wait(); o.code != 0 || len(o.failed()) > 0 || !strings.Contains(o.stderr, "another staging held the lock for 100ms; went on without it") {
				t.Fatalf("the hasty one: exit %d: %s", o.code, o.stderr)
			}
			second.wait().counts(t, 0, 0, 5, 0)
			d.slow(Slow{})
			if took < time.Second {
				t.Errorf("it took %s: the disk was not slow", took)
			}
			t.Logf("the first took %s", took.Round(10*time.Millisecond))
			holds(t, ring.few, dir, fewNames...)
			for _, name := range []string{"static", "sbr"} {
				if kept := glob(t, dir, ".chandler/originals", name, "*"); len(kept) != 1 {
					t.Errorf("%s: kept %v", name, kept)
				}
			}
			if left := litter(t, dir, fewNames...); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
