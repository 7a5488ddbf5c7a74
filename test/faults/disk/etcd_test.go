//go:build faults

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

// BenchmarkBesideEtcd measures what staging does to a program that syncs small writes to the same disk, as etcd does: how
// long 8 KiB and an fdatasync take it, alone and while chandler stages, and how long chandler takes. CHANDLER_OTHER names
// another chandler to measure in turn with the first. It asserts nothing: read it.
//
//	go test -tags faults -run '^$' -bench BesideEtcd -benchtime 5x ./disk
func BenchmarkBesideEtcd(b *testing.B) {
	// A small cloud disk: 2 ms a flush, 100 MB a second.
	small := Slow{Write: 50 * time.Microsecond, Flush: 2 * time.Millisecond, PerMB: 10 * time.Millisecond}
	programs := map[string]string{"": rig.Chandler}
	if other := os.Getenv("CHANDLER_OTHER"); other != "" {
		programs["other "] = other
	}
	for _, where := range []string{"slow ext4", "slow xfs", "machine"} {
		for _, form := range []string{"fresh", "update", "separate"} {
			for _, which := range []string{"", "other "} {
				program, ok := programs[which]
				if !ok {
					continue
				}
				b.Run(which+where+" "+form, func(b *testing.B) {
					rig.Chandler = program
					var at string
					if where == "machine" {
						var err error
						at, err = os.MkdirTemp(filepath.Dir(programs[""]), "beside-etcd-")
						rig.Must(b, err)
						b.Cleanup(func() { os.RemoveAll(at) })
					} else {
						d := newDisk(b, 640<<20)
						d.format(where[len("slow "):])
						d.slow(small)
						at = d.at
					}
					besideEtcd(b, at, form)
				})
			}
		}
	}
	rig.Chandler = programs[""]
}

func besideEtcd(b *testing.B, at, form string) {
	log, err := os.Create(filepath.Join(at, "wal"))
	rig.Must(b, err)
	defer log.Close()
	block := make([]byte, 8<<10)
	put := func() time.Duration {
		start := time.Now()
		_, err := log.Write(block)
		rig.Must(b, err, unix.Fdatasync(int(log.Fd())))
		return time.Since(start)
	}
	var alone, beside, took []time.Duration
	for b.Loop() {
		dir, bundle := rig.Mkdir(b, filepath.Join(at, "bin")), rig.Multicall
		switch form {
		case "update":
			rig.Place(b, rig.Separate, dir, rig.Reference...)
		case "separate":
			bundle = rig.Separate
		}
		f, err := os.Open(at)
		rig.Must(b, err, unix.Syncfs(int(f.Fd())))
		f.Close()
		for range 100 {
			alone = append(alone, put())
		}
		start := time.Now()
		p := rig.Call{Bundle: bundle, Dir: dir}.Start(b)
		ended := make(chan rig.Outcome, 1)
		go func() { ended <- p.Wait(); took = append(took, time.Since(start)); close(ended) }()
		for len(ended) == 0 {
			beside = append(beside, put())
		}
		if o := <-ended; o.Code != 0 || len(o.Failed()) > 0 {
			b.Fatal(o.Stderr)
		}
		<-ended
		rig.Must(b, os.RemoveAll(dir))
	}
	for what, all := range map[string][]time.Duration{"alone": alone, "beside": beside} {
		slices.Sort(all)
		for _, p := range []int{50, 99, 100} {
			at := all[min(len(all)*p/100, len(all)-1)]
			b.ReportMetric(float64(at.Microseconds())/1000, fmt.Sprintf("ms-%s-p%d", what, p))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(len(beside))/float64(b.N), "syncs")
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "ms-staging")
	b.ReportMetric(0, "ns/op")
}
