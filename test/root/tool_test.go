//go:build root

package root

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/test/rig"
)

// verify runs chandler verify and returns its exit code and what it printed.
func verify(t testing.TB, bundle, dir string) (int, string) {
	t.Helper()
	rig.Runs.Add(1)
	cmd := exec.Command(rig.Chandler, "verify", "--bundle", bundle, "--bin-dir", dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// gate is a bundle that holds staging between checking and publishing: one of its plugins is a script that, when it is
// probed, says that it was reached and waits to be let through.
type gate struct {
	bundle, dir string
}

const gateName = "zz-gate"

func newGate(t testing.TB, base string) gate {
	t.Helper()
	g := gate{filepath.Join(t.TempDir(), "bundle"), t.TempDir()}
	script := fmt.Sprintf("#!/bin/sh\n: >%[1]s/reached\nwhile [ ! -e %[1]s/open ]; do sleep 0.01; done\n"+
		`echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'`+"\n", g.dir)
	rig.Must(t, rig.Compose(g.bundle, rig.Version, func(w *bundle.Writer) error {
		if err := rig.AddFrom(w, base, rig.Names(t, base), ""); err != nil {
			return err
		}
		_, err := w.Add(gateName, bundle.Extra, strings.NewReader(script))
		return err
	}))
	t.Cleanup(g.open)
	return g
}

func (g gate) reached(t testing.TB) {
	t.Helper()
	rig.Eventually(t, "staging comes to the gate", func() bool { return rig.Exists(filepath.Join(g.dir, "reached")) })
}

func (g gate) open() { os.WriteFile(filepath.Join(g.dir, "open"), nil, 0o644) }

// cowrite is other software that owns some of the names: it renames its own files into place, over and over. Arguments are
// the directory, the bundle that its files come from, and the names. It answers each line with how often it has done so.
func cowrite() int {
	dir, from, names := os.Args[1], os.Args[2], os.Args[3:]
	asked := rig.Lines()
	for done := 0; ; done++ {
		select {
		case _, ok := <-asked:
			if !ok {
				return 0
			}
			fmt.Println(done)
		default:
		}
		for _, name := range names {
			tmp := filepath.Join(dir, "."+name+".cowriter")
			data, err := os.ReadFile(filepath.Join(from, "bin", name))
			if err == nil {
				err = os.WriteFile(tmp, data, 0o755)
			}
			if err == nil {
				err = os.Rename(tmp, filepath.Join(dir, name))
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// bind makes dir appear at another path as well, as a container's volume does, with the given flags (MS_RDONLY, MS_NOEXEC).
func bind(t testing.TB, dir, at string, flags uintptr) string {
	t.Helper()
	rig.Mounted(t, dir, at, "", unix.MS_BIND, "")
	if flags != 0 {
		rig.Must(t, unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""))
	}
	return at
}

func tmpfs(t testing.TB, data string) string {
	t.Helper()
	return rig.Mounted(t, "tmpfs", t.TempDir(), "tmpfs", 0, data)
}
