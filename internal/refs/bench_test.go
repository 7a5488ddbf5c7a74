package refs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What listing may take. The time is the processor's, of all cores together: the machine may have other work.
const (
	benchFiles      = 20_000
	benchReferences = 10_000
	maxTime         = 5 * time.Second
	maxMiB          = 200
)

// grow writes a tree of the given numbers of files and references below a new directory.
func grow(b *testing.B, files, references int) string {
	b.Helper()
	root := b.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			b.Fatal(err)
		}
		files--
	}
	made, _ := generate(rand.New(rand.NewPCG(3, 4)), references)
	for name, content := range made {
		write(name, content)
	}
	write(ConfigName, "firstParty: [quay.io/gen]\nfiles: []\n")
	// Half of the rest are read as well: packages' values without a reference. The others are what charts are made of.
	text := strings.Repeat("# Values.\nreplicas: 3\nresources:\n  limits: {cpu: 100m, memory: 64Mi}\nlist:\n- a: b\n  c: [1, 2, 3]\n", 10)
	for i := 0; files > 0; i++ {
		if i%2 == 0 {
			write(fmt.Sprintf("more/p%d/values.yaml", i), text)
		} else {
			write(fmt.Sprintf("more/p%d/charts/c/templates/x%d.yaml", i/2%1000*2, i), text)
		}
	}
	return root
}

func BenchmarkList(b *testing.B) {
	root := grow(b, benchFiles, benchReferences)
	resetPeak(b)
	before := cpu(b)
	for b.Loop() {
		list, err := open(b, root).List(b.Context())
		if err != nil || len(list) != benchReferences {
			b.Fatalf("%d references, %v", len(list), err)
		}
	}
	each, mib := (cpu(b)-before)/time.Duration(b.N), peak(b)
	b.ReportMetric(each.Seconds(), "cpu-s/op")
	b.ReportMetric(float64(mib), "peak-MiB")
	if each > maxTime || mib > maxMiB {
		b.Errorf("took %v and %d MiB, want no more than %v and %d MiB", each, mib, maxTime, maxMiB)
	}
}

func BenchmarkCheck(b *testing.B) {
	root := grow(b, benchFiles, benchReferences)
	resetPeak(b)
	for b.Loop() {
		if v, err := open(b, root).Check(b.Context()); err != nil || v.References != benchReferences || len(v.Findings) > 0 {
			b.Fatalf("%+v, %v", v, err)
		}
	}
	b.ReportMetric(float64(peak(b)), "peak-MiB")
}

func BenchmarkPlan(b *testing.B) {
	root := grow(b, benchFiles, benchReferences)
	resetPeak(b)
	for b.Loop() {
		if c, err := open(b, root).Plan(b.Context(), "v1.0.0", "v2.0.0"); err != nil || len(c.References) == 0 {
			b.Fatalf("%v", err)
		}
	}
	b.ReportMetric(float64(peak(b)), "peak-MiB")
}

func BenchmarkLargeFile(b *testing.B) {
	var s strings.Builder
	for i := 0; s.Len() < 5<<20; i++ {
		fmt.Fprintf(&s, "k%d:\n  image:\n    repository: ghcr.io/acme/x%d\n    tag: \"v1@sha256:%064d\"\n  list: [a, b, c]\n", i, i, i)
	}
	root := tree{"g/p/values.yaml": s.String()}.write(b)
	resetPeak(b)
	for b.Loop() {
		if _, err := open(b, root).List(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(peak(b)), "peak-MiB")
}

// resetPeak makes this process's present memory its peak.
func resetPeak(b *testing.B) {
	b.Helper()
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		b.Fatal(err)
	}
}

// peak is the most memory, in MiB, that this process has had resident.
func peak(b *testing.B) int {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		b.Fatal(err)
	}
	return kib >> 10
}

// cpu is the processor time that this process has taken.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
