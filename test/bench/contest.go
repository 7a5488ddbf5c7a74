package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The ways of others, as scripts that bring $SRC/* into $DST.
const (
	// By temporary name and rename, and no more: what an init container without chandler does.
	plainLoop = `for f in "$SRC"/*; do
  n="${f##*/}"; t="$DST/.$n.tmp"
  rm -f "$t"; cp "$f" "$t"; chmod 0755 "$t"; mv -f "$t" "$DST/$n"
done`
	// Each file's digest is checked, it is run, and synced, before it is renamed.
	carefulLoop = `cd "$DST"
for f in "$SRC"/*; do
  n="${f##*/}"; t=".$n.tmp"
  rm -f "$t"; cp "$f" "$t"; chmod 0755 "$t"
  grep " $n\$" "$SUMS" | sed "s/ $n\$/ $t/" | sha256sum -c -s || exit 1
  CNI_COMMAND=VERSION "./$t" </dev/null >/dev/null || exit 1
  sync "$t" || exit 1
  mv -f "$t" "$n"
done`
	// Into the file that is there, which may be running.
	inPlace = `cp -f "$SRC"/* "$DST/"`
	// The old file goes first, and for a moment there is none.
	renameAway = `for f in "$SRC"/*; do
  n="${f##*/}"
  [ ! -e "$DST/$n" ] || mv -f "$DST/$n" "$DST/.$n.old"
  cp "$f" "$DST/$n"; chmod 0755 "$DST/$n"
done`
)

const (
	separate  = "separate" // the forms of a bundle
	multicall = "multicall"

	fresh     = "fresh" // what is there before
	update    = "update"
	unchanged = "unchanged"
)

var states = []string{fresh, update, unchanged}

// way is one that plugins get into a directory.
type way struct {
	name string
	form string   // of the bundle that chandler stages; the others copy the separate files
	args []string // of chandler
	// Of others: the shell and its script.
	shell  []string
	script string
}

const (
	oursSeparate = "chandler, separate bundle"
	oursUnprobed = "chandler, separate bundle, --no-probe"
	oursMulti    = "chandler, multi-call bundle"
	oursLinked   = "chandler, multi-call bundle, linked layout"
	theLoop      = "the loop, busybox"
	theCareful   = "the careful loop, busybox"
)

var busybox, dash = []string{"busybox", "sh"}, []string{"dash"}

var ways = []way{
	{name: oursSeparate, form: separate}, {name: oursUnprobed, form: separate, args: []string{"--no-probe"}},
	{name: oursMulti, form: multicall}, {name: oursLinked, form: multicall, args: []string{"--layout=linked"}},
	{name: theLoop, shell: busybox, script: plainLoop}, {name: "the loop, dash and coreutils", shell: dash, script: plainLoop},
	{name: theCareful, shell: busybox, script: carefulLoop},
	{name: "copy in place, busybox", shell: busybox, script: inPlace}, {name: "rename away, then copy, busybox", shell: busybox, script: renameAway},
}

// targets are the ratios that were asked for.
var targets = []struct {
	state, ours, theirs string
	most                float64
}{
	{unchanged, oursSeparate, theLoop, 0.5}, {fresh, oursSeparate, theCareful, 0.6}, {fresh, oursUnprobed, theLoop, 2.2},
	{fresh, oursMulti, theCareful, 0.5}, {fresh, oursLinked, theLoop, 0.55},
}

// place is a file system to measure on.
type place struct {
	name, dir string
	mounted   bool
}

// places makes the file systems that are measured: of files, as root; else there is the one that the work is done on.
func (e *env) places() ([]place, error) {
	if os.Geteuid() != 0 {
		return []place{{name: "the file system of " + e.tmp, dir: e.tmp}}, nil
	}
	var all []place
	for _, kind := range []string{"ext4", "xfs", "tmpfs"} {
		p := place{name: kind, dir: filepath.Join(e.tmp, kind), mounted: true}
		image := p.dir + ".img"
		steps := [][]string{{"truncate", "-s", "1G", image}, {"mkfs." + kind, "-q", image}, {"mount", "-o", "loop", image, p.dir}}
		if kind == "tmpfs" {
			steps = [][]string{{"mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", p.dir}}
		} else {
			p.name += " in a file"
		}
		if err := os.Mkdir(p.dir, 0o755); err != nil {
			return all, err
		}
		for _, s := range steps {
			if out, err := exec.Command(s[0], s[1:]...).CombinedOutput(); err != nil {
				return all, fmt.Errorf("%s: %w: %s", strings.Join(s, " "), err, out)
			}
		}
		all = append(all, p)
	}
	return all, nil
}

func closeAll(places []place) error {
	var errs []error
	for _, p := range places {
		if p.mounted {
			errs = append(errs, syscall.Unmount(p.dir, 0))
		}
	}
	return errors.Join(errs...)
}

// samples are what the rounds of one way gave.
type samples struct {
	took    []time.Duration
	written []int64 // bytes
}

// results are samples by state and way.
type results map[string]map[string]*samples

// measure runs every way in turn from every state. Cold, nothing that is read is in memory.
func (e *env) measure(p place, cold bool, rounds int) (results, error) {
	all := make(results)
	for _, state := range states {
		all[state] = make(map[string]*samples)
		for round := range rounds + 1 {
			for _, w := range ways {
				dst := filepath.Join(p.dir, "bin")
				if err := e.prepare(dst, state, w, cold); err != nil {
					return nil, fmt.Errorf("%s, %s: %w", state, w.name, err)
				}
				took, written, err := timed(e.command(w, dst))
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", state, w.name, err)
				}
				if round == 0 { // warms up
					all[state][w.name] = new(samples)
					continue
				}
				s := all[state][w.name]
				s.took, s.written = append(s.took, took), append(s.written, written)
			}
		}
	}
	return all, nil
}

func (e *env) command(w way, dst string) *exec.Cmd {
	if w.shell == nil {
		return e.stage(w.form, dst, w.args...)
	}
	cmd := exec.Command(w.shell[0], append(w.shell[1:], "-c", w.script)...)
	path := os.Getenv("PATH")
	if w.shell[0] == "busybox" {
		path = e.applets
	}
	cmd.Env = append(os.Environ(), "PATH="+path, "SRC="+filepath.Join(e.bundles[separate], "bin"), "DST="+dst, "SUMS="+e.sums)
	return cmd
}

// prepare brings the bin dir into a state, and lets the disk come to rest, so that none pays for another's writes.
func (e *env) prepare(dst, state string, w way, cold bool) error {
	if err := errors.Join(os.RemoveAll(dst), os.Mkdir(dst, 0o755)); err != nil {
		return err
	}
	switch state {
	case update:
		if out, err := exec.Command("sh", "-c", `cp "$0"/* "$1"/`, e.older, dst).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	case unchanged:
		if out, err := e.command(w, dst).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	syscall.Sync()
	if cold {
		return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
	}
	return nil
}

func (r results) table(w io.Writer) {
	fmt.Fprintf(w, "| | %s |\n|---|---|---|---|\n", strings.Join(states, " | "))
	for _, way := range ways {
		fmt.Fprintf(w, "| %s |", way.name)
		for _, state := range states {
			s := r[state][way.name]
			fmt.Fprintf(w, " %s (%s to %s), %.1f MB |", ms(median(s.took)), ms(slices.Min(s.took)), ms(slices.Max(s.took)), float64(median(s.written))/1e6)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}
