// Command bench runs chandler and the loops that other installers use in turn, in one run, over the same bytes on the same
// file systems, and writes what it measured as a page. Usage:
//
//	go run ./test/bench -chandler out/chandler -separate out/bundle-separate -multicall out/bundle [-dir DIR] [-rounds N] [-page FILE]
//
// As root it measures file systems made for it, and with cold caches too; otherwise the one that -dir is on.
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
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
)

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
	where := flag.String("dir", "out", "where to work")
	upstream := flag.String("upstream", "upstream", "the folder of the pins")
	rounds := flag.Int("rounds", 7, "how often each is run")
	chandlerctl := flag.String("chandlerctl", "out/chandlerctl", "the other program, which makes images")
	page := flag.String("page", "", "the file to write; standard output if empty")
	flag.Parse()

	tmp, err := os.MkdirTemp(*where, "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	e := env{tmp: tmp, chandler: *chandler, chandlerctl: *chandlerctl, bundles: make(map[string]string)}
	for _, p := range []*string{&e.tmp, &e.chandler, &e.chandlerctl, forms[separate], forms[multicall]} {
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
	if err := errors.Join(e.writeSums(b), e.installBusybox(), e.makeOlder(b)); err != nil {
		return err
	}
	var text strings.Builder
	if err := e.write(&text, b, *upstream, *rounds); err != nil {
		return err
	}
	if *page != "" {
		return os.WriteFile(*page, []byte(text.String()), 0o644)
	}
	_, err = io.WriteString(os.Stdout, text.String())
	return err
}

// write measures everything and writes the page.
func (e *env) write(w io.Writer, b *bundle.Bundle, upstream string, rounds int) (err error) {
	var bytes int64
	for _, p := range b.Manifest.Plugins {
		bytes += p.Size
	}
	fmt.Fprintf(w, `# Benchmarks

Made by `+"`make bench`"+` on %s, %d CPUs, %s, %s. The bytes are the %d plugins of %s, %.1f MB as separate files. Everything is run in turn, %d
rounds after one that warms up; a cell has the median, the least and the most, and the bytes that the kernel counts as written. Before each run the disk comes to rest.

`, cpuModel(), runtime.NumCPU(), memory(), kernel(), len(b.Manifest.Plugins), b.Manifest.Version, float64(bytes)/1e6, rounds)
	places, err := e.places()
	defer func() { err = errors.Join(err, closeAll(places)) }()
	if err != nil {
		return err
	}
	var warm results
	for i, p := range places {
		r, err := e.measure(p, false, rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(w, "## %s, warm caches\n\n", p.name)
		r.table(w)
		if i == 0 {
			warm = r
		}
	}
	if os.Geteuid() == 0 {
		r, err := e.measure(places[0], true, rounds)
		if err != nil {
			return fmt.Errorf("%s, cold: %w", places[0].name, err)
		}
		fmt.Fprintf(w, "## %s, cold caches\n\nWhat is read has left memory before each run: the programs, the bundle and what is in the bin dir.\n\n", places[0].name)
		r.table(w)
	}
	limit, err := e.diskLimit(places[0].dir, bytes, rounds)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "## Against what was asked\n\nOn %s, warm.\n\n| | chandler | the other | ratio | asked, at most |\n|---|---|---|---|---|\n", places[0].name)
	for _, t := range targets {
		o, t2 := median(warm[t.state][t.ours].took), median(warm[t.state][t.theirs].took)
		fmt.Fprintf(w, "| %s: %s, against %s | %s | %s | %.2f | %.2f |\n", t.state, t.ours, t.theirs, ms(o), ms(t2), float64(o)/float64(t2), t.most)
	}
	fmt.Fprintf(w, "\nThe disk's own limit, `dd` of the same bytes into one file with one fsync: %s.\n\n## Size and memory\n\n| | measured | asked, at most |\n|---|---|---|\n", limit)
	return errors.Join(e.startUp(w, rounds*5), e.peak(w), e.program(w), e.sizes(w, upstream), e.space(w))
}

type env struct {
	tmp, chandler, chandlerctl, sums, applets, older string
	bundles                                          map[string]string // by form
}

// makeOlder makes what an update finds: the same plugins with other bytes, of somebody else's.
func (e *env) makeOlder(b *bundle.Bundle) error {
	e.older = filepath.Join(e.tmp, "older")
	if err := os.Mkdir(e.older, 0o755); err != nil {
		return err
	}
	for _, p := range b.Manifest.Plugins {
		data, err := os.ReadFile(filepath.Join(e.bundles[separate], "bin", p.Name))
		if err == nil {
			err = os.WriteFile(filepath.Join(e.older, p.Name), append(data, "older"...), 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
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

// startUp compares how long a plugin of the two forms takes to answer VERSION, one after the other in turn. Both are copied
// first: how a file came into the cache decides how fast it starts.
func (e *env) startUp(w io.Writer, rounds int) error {
	took := make(map[string][]time.Duration)
	programs := make(map[string]string)
	for form, dir := range e.bundles {
		data, err := os.ReadFile(filepath.Join(dir, "bin", "bridge"))
		if err != nil {
			return err
		}
		programs[form] = filepath.Join(e.tmp, "start-"+form, "bridge")
		if err := errors.Join(os.Mkdir(filepath.Dir(programs[form]), 0o755), os.WriteFile(programs[form], data, 0o755)); err != nil {
			return err
		}
	}
	for range rounds {
		for form, program := range programs {
			cmd := exec.Command(program)
			cmd.Env = []string{"CNI_COMMAND=VERSION"}
			d, _, err := timed(cmd)
			if err != nil {
				return err
			}
			took[form] = append(took[form], d)
		}
	}
	m, s := median(took[multicall]), median(took[separate])
	fmt.Fprintf(w, "| start-up of bridge (VERSION), multicall against separate | %.2f / %.2f ms, %.2f | 1.10 |\n",
		float64(m)/1e6, float64(s)/1e6, float64(m)/float64(s))
	return nil
}

// space says what each form and layout takes on the node, after staging and at the worst moment of an update, when every new
// file lies beside the old one.
func (e *env) space(w io.Writer) error {
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
		fmt.Fprintf(w, "| on the node, %s bundle, %s layout; at the worst moment of an update | %.1f MB; %.1f MB | |\n",
			c.form, c.layout, float64(size)/1e6, float64(2*size)/1e6)
	}
	return nil
}

// diskLimit is what the same bytes take when nothing is done but writing them.
func (e *env) diskLimit(dir string, bytes int64, rounds int) (string, error) {
	var took []time.Duration
	path := filepath.Join(dir, "limit")
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

// peak tells the largest resident set of a staging, as the kernel counted it for chandler alone.
func (e *env) peak(w io.Writer) error {
	dst := filepath.Join(e.tmp, "peak")
	defer os.RemoveAll(dst)
	if err := os.Mkdir(dst, 0o755); err != nil {
		return err
	}
	for _, state := range []string{fresh, unchanged} {
		// What a process waited for includes its children; without the probe it has none.
		kib, err := residentOf(e.stage(separate, dst, "--no-probe"))
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "| peak memory of `chandler stage`, %s | %.1f MiB | 15 MiB |\n", state, float64(kib)/1024)
	}
	return nil
}

// residentOf runs a command and returns its largest resident set in KiB. A process counts that of the one that it was forked
// from, so it is started by a small one, and inherited.
func residentOf(cmd *exec.Cmd) (int64, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	out, err := exec.Command("dash", append([]string{"-c", `"$@" >/dev/null & echo $!`, "dash"}, cmd.Args...)...).Output()
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return 0, err
	}
	var status syscall.WaitStatus
	var usage syscall.Rusage
	if _, err := syscall.Wait4(pid, &status, 0, &usage); err != nil || status.ExitStatus() != 0 {
		return 0, fmt.Errorf("%s: exit %d, %w", cmd, status.ExitStatus(), err)
	}
	return usage.Maxrss, nil
}

func (e *env) program(w io.Writer) error {
	info, err := os.Stat(e.chandler)
	if err == nil {
		fmt.Fprintf(w, "| `chandler` | %.2f MB | 8 MB |\n", float64(info.Size())/1e6)
	}
	return err
}

func median[T cmp.Ordered](d []T) T {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

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

func memory() string {
	data, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(data)) {
		if kib, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			n, _ := strconv.ParseFloat(strings.Fields(kib)[0], 64)
			return fmt.Sprintf("%.0f GiB of memory", n/(1<<20))
		}
	}
	return "memory unknown"
}
