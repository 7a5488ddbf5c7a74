// Command bench runs chandler and the loops that other installers use in turn, in one run, over the same bytes on the same
// file system, and prints the medians, their ratio and what was written. Usage:
//
//	go run ./test/bench -chandler out/chandler -separate out/bundle-separate -multicall out/bundle [-dir DIR] [-rounds N]
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/chandler-cni/chandler/internal/bundle"
)

// The loop is what an init container without chandler does: by temporary name and rename, and no more.
const plainLoop = `for f in "$SRC"/*; do
  n="${f##*/}"; t="$DST/.$n.tmp"
  rm -f "$t"; cp "$f" "$t"; chmod 0755 "$t"; mv -f "$t" "$DST/$n"
done`

// The careful loop checks each file's digest, runs it, and syncs it, before it is renamed.
const carefulLoop = `cd "$DST"
for f in "$SRC"/*; do
  n="${f##*/}"; t=".$n.tmp"
  rm -f "$t"; cp "$f" "$t"; chmod 0755 "$t"
  grep " $n\$" "$SUMS" | sed "s/ $n\$/ $t/" | sha256sum -c -s || exit 1
  CNI_COMMAND=VERSION "./$t" </dev/null >/dev/null || exit 1
  sync "$t" || exit 1
  mv -f "$t" "$n"
done`

type contest struct {
	name   string
	form   string // of the bundle that chandler stages; the loops copy the separate files
	fresh  bool   // begins with an empty directory; else with one that is right already
	theirs string
	ours   []string
	target float64 // the ratio that is asked for, at most
}

const (
	separate  = "separate"
	multicall = "multicall"
)

var contests = []contest{
	{"unchanged, against the loop", separate, false, plainLoop, nil, 0.5},
	{"fresh, checked, probed, against the careful loop", separate, true, carefulLoop, nil, 0.6},
	{"fresh, checked, not probed, against the loop", separate, true, plainLoop, []string{"--no-probe"}, 2.2},
	{"fresh, checked, probed, against the careful loop", multicall, true, carefulLoop, nil, 0.5},
	{"the same, linked layout, against the loop", multicall, true, plainLoop, []string{"--layout=linked"}, 0.55},
	{"unchanged, against the loop", multicall, false, plainLoop, nil, 0.5},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	chandler := flag.String("chandler", "out/chandler", "the program")
	forms := map[string]*string{
		separate:  flag.String(separate, "out/bundle-separate", "the bundle with an executable each"),
		multicall: flag.String(multicall, "out/bundle", "the bundle with one for all"),
	}
	where := flag.String("dir", "out", "where to make the bin dirs: the file system that is measured")
	upstream := flag.String("upstream", "upstream", "the folder of the pins")
	rounds := flag.Int("rounds", 15, "how often each is run")
	flag.Parse()

	tmp, err := os.MkdirTemp(*where, "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	e := env{tmp: tmp, chandler: *chandler, bundles: make(map[string]string)}
	for _, p := range []*string{&e.tmp, &e.chandler, forms[separate], forms[multicall]} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	e.bundles[separate], e.bundles[multicall] = *forms[separate], *forms[multicall]
	b, err := bundle.Open(e.bundles[separate])
	if err != nil {
		return err
	}
	defer b.Close()
	if err := errors.Join(e.writeSums(b), e.installBusybox()); err != nil {
		return err
	}
	var bytes int64
	for _, p := range b.Manifest.Plugins {
		bytes += p.Size
	}
	fmt.Printf("%s, %d CPUs, %s; %d plugins, %.1f MB as separate files; %d rounds of each in turn\n\n",
		cpuModel(), runtime.NumCPU(), kernel(), len(b.Manifest.Plugins), float64(bytes)/1e6, *rounds)
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "bundle\tcase\tchandler\tspread\tthe other\tspread\tratio\tasked\twritten")
	for _, c := range contests {
		if err := e.hold(tw, c, *rounds); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if err := e.startUp(*rounds * 5); err != nil {
		return err
	}
	if err := e.space(); err != nil {
		return err
	}
	if err := e.sizes(*upstream); err != nil {
		return err
	}
	limit, err := e.diskLimit(bytes, *rounds)
	if err != nil {
		return err
	}
	fmt.Printf("\nthe disk's own limit: %s for the same bytes in one file with one fsync (median)\n", limit)
	peak, err := e.peak()
	if err != nil {
		return err
	}
	fmt.Printf("peak memory of chandler stage, fresh: %.1f MiB (asked 15)\n", float64(peak)/(1<<20))
	info, err := os.Stat(e.chandler)
	if err != nil {
		return err
	}
	fmt.Printf("chandler: %.2f MB (asked 8)\n", float64(info.Size())/1e6)
	return nil
}

type env struct {
	tmp, chandler, sums, applets string
	bundles                      map[string]string // by form
}

// installBusybox makes the loops' commands busybox's own, as they are in the images that run such loops.
func (e *env) installBusybox() error {
	e.applets = filepath.Join(e.tmp, "applets")
	if err := os.Mkdir(e.applets, 0o755); err != nil {
		return err
	}
	if out, err := exec.Command("busybox", "--install", "-s", e.applets).CombinedOutput(); err != nil {
		return fmt.Errorf("busybox --install (apt-get install busybox): %w: %s", err, out)
	}
	return nil
}

func (e *env) writeSums(b *bundle.Bundle) error {
	var lines strings.Builder
	for _, p := range b.Manifest.Plugins {
		fmt.Fprintf(&lines, "%s  %s\n", p.SHA256, p.Name)
	}
	e.sums = filepath.Join(e.tmp, "sums")
	return os.WriteFile(e.sums, []byte(lines.String()), 0o644)
}

func (e *env) hold(w io.Writer, c contest, rounds int) error {
	dst := filepath.Join(e.tmp, "bin")
	var ours, theirs []time.Duration
	var written []int64
	for i := range rounds + 1 {
		if err := e.prepare(dst, c); err != nil {
			return err
		}
		our, wrote, err := timed(e.stage(c.form, dst, c.ours...))
		if err != nil {
			return err
		}
		if err := e.prepare(dst, c); err != nil {
			return err
		}
		loop := exec.Command("busybox", "sh", "-c", c.theirs)
		loop.Env = append(os.Environ(), "PATH="+e.applets, "SRC="+filepath.Join(e.bundles[separate], "bin"), "DST="+dst, "SUMS="+e.sums)
		their, _, err := timed(loop)
		if err != nil {
			return err
		}
		if i > 0 { // the first warms the cache
			ours, theirs, written = append(ours, our), append(theirs, their), append(written, wrote)
		}
	}
	o, t := median(ours), median(theirs)
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%.1f MB\n", c.form, c.name, ms(o), spread(ours), ms(t), spread(theirs),
		float64(o)/float64(t), c.target, float64(median(written))/1e6)
	return nil
}

// prepare makes the bin dir empty, or right, and lets the disk come to rest, so that neither pays for the other's writes.
func (e *env) prepare(dst string, c contest) error {
	if c.fresh {
		if err := os.RemoveAll(dst); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	if !c.fresh {
		if out, err := e.stage(c.form, dst).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	syscall.Sync()
	return nil
}

func (e *env) stage(form, dst string, args ...string) *exec.Cmd {
	return exec.Command(e.chandler, append([]string{"stage", "--strict", "--termination-log=", "--bundle", e.bundles[form], "--bin-dir", dst}, args...)...)
}

// timed runs a command and returns how long it took and how many bytes it caused to be written (the kernel's count).
func timed(cmd *exec.Cmd) (time.Duration, int64, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, stderr.String())
	}
	took := time.Since(start)
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return took, usage.Oublock * 512, nil
}

// startUp compares how long a plugin of the two forms takes to answer VERSION, one after the other in turn.
func (e *env) startUp(rounds int) error {
	took := make(map[string][]time.Duration)
	for range rounds {
		for form, dir := range e.bundles {
			cmd := exec.Command(filepath.Join(dir, "bin", "bridge"))
			cmd.Env = []string{"CNI_COMMAND=VERSION"}
			d, _, err := timed(cmd)
			if err != nil {
				return err
			}
			took[form] = append(took[form], d)
		}
	}
	m, s := median(took[multicall]), median(took[separate])
	fmt.Printf("\nstart-up of bridge (VERSION): multicall %.2f ms, separate %.2f ms, ratio %.2f (asked 1.10)\n",
		float64(m)/1e6, float64(s)/1e6, float64(m)/float64(s))
	return nil
}

// space says what each form and layout takes on the node, after staging and at the worst moment of an update, when every new
// file lies beside the old one.
func (e *env) space() error {
	for _, c := range []struct{ form, layout string }{{separate, "separate"}, {multicall, "separate"}, {multicall, "linked"}} {
		dst := filepath.Join(e.tmp, "space")
		if err := os.Mkdir(dst, 0o755); err != nil {
			return err
		}
		if out, err := e.stage(c.form, dst, "--layout="+c.layout).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		seen := make(map[uint64]bool)
		var size int64
		err := filepath.WalkDir(dst, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if st := info.Sys().(*syscall.Stat_t); !seen[st.Ino] {
				seen[st.Ino] = true
				size += st.Blocks * 512
			}
			return nil
		})
		if err := errors.Join(err, os.RemoveAll(dst)); err != nil {
			return err
		}
		fmt.Printf("on the node, %s bundle, %s layout: %.1f MB, %.1f MB at the worst moment of an update\n",
			c.form, c.layout, float64(size)/1e6, float64(2*size)/1e6)
	}
	return nil
}

// diskLimit is what the same bytes take when nothing is done but writing them.
func (e *env) diskLimit(bytes int64, rounds int) (string, error) {
	var took []time.Duration
	path := filepath.Join(e.tmp, "limit")
	for range rounds {
		syscall.Sync()
		cmd := exec.Command("dd", "if=/dev/zero", "of="+path, "bs=1M", "conv=fsync", "count="+strconv.FormatInt(bytes>>20, 10))
		d, _, err := timed(cmd)
		if err != nil {
			return "", err
		}
		took = append(took, d)
		if err := os.Remove(path); err != nil {
			return "", err
		}
	}
	return ms(median(took)), nil
}

// peak returns the largest resident set of a fresh staging, in bytes, as the kernel counted it for chandler alone.
func (e *env) peak() (int64, error) {
	dst := filepath.Join(e.tmp, "peak")
	defer os.RemoveAll(dst)
	if err := os.Mkdir(dst, 0o755); err != nil {
		return 0, err
	}
	// The usage of a process that was waited for includes its children's; without the probe it has none.
	cmd := e.stage(separate, dst, "--no-probe")
	if err := cmd.Run(); err != nil {
		return 0, err
	}
	return cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10, nil
}

func median[T cmp.Ordered](d []T) T {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

func spread(d []time.Duration) string { return ms(slices.Min(d)) + " to " + ms(slices.Max(d)) }

func ms(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d)/1e6) }

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

func kernel() string {
	out, err := exec.Command("uname", "-sr").Output()
	if err != nil {
		return "unknown kernel"
	}
	return strings.TrimSpace(string(out))
}
