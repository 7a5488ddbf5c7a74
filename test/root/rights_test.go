//go:build root

package root

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A node's directory may belong to another user, with mode 0755, while this process is root without CAP_DAC_OVERRIDE: each
// plugin is named, one hint says what would help, nothing is changed, and the container completes.
func TestForeignOwner(t *testing.T) {
	const owner = 997
	without := []string{"setpriv", "--bounding-set=-dac_override"}
	dir := t.TempDir()
	place(t, ring.fewOlder, dir, "static")
	if err := os.Chown(dir, owner, owner); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	o := call{bundle: ring.few, dir: dir, wrap: without, args: []string{"--shown-as", "/opt/cni/bin"}}.run(t)
	o.counts(t, 0, 0, 0, 4)
	for name, cause := range o.failed() {
		if !strings.Contains(cause, "permission denied") {
			t.Fatalf("%s: %s", name, cause)
		}
	}
	if len(o.report.Hints) != 1 || !strings.Contains(o.report.Hints[0], "/opt/cni/bin belongs to uid 997 with mode 0755") ||
		!strings.Contains(o.report.Hints[0], "CAP_DAC_OVERRIDE") {
		t.Fatalf("hints: %q", o.report.Hints)
	}
	unchanged(t, before, tree(t, dir))
	if o := (call{bundle: ring.few, dir: dir, wrap: without, args: []string{"--strict"}}).run(t); o.code != 1 {
		t.Fatalf("--strict: exit %d", o.code)
	}
	// The capability alone is enough.
	o = call{bundle: ring.few, dir: dir, wrap: []string{"setpriv", "--bounding-set=-all,+dac_override"}}.run(t)
	o.counts(t, 3, 1, 0, 0)
	holds(t, ring.few, dir)
	clean(t, ring.few, dir)

	t.Run("with everything in place", func(t *testing.T) {
		call{bundle: ring.few, dir: dir, wrap: without}.run(t).counts(t, 0, 0, 4, 0)
	})
	t.Run("as the owner", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
		p := call{bundle: ring.few, dir: dir}.command(t)
		os.Chmod(p.log, 0o666)
		for up := filepath.Dir(p.log); up != ring.dir; up = filepath.Dir(up) {
			os.Chmod(up, 0o755)
		}
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner, Gid: owner}
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.wait().counts(t, 4, 0, 0, 0)
		for _, name := range fewNames {
			info, err := os.Lstat(filepath.Join(dir, name))
			if err != nil || info.Mode() != 0o755 || info.Sys().(*syscall.Stat_t).Uid != owner {
				t.Fatalf("%s: %v %v", name, info, err)
			}
		}
		// Root takes over what is not its own: file owner and folder are not as root would leave them.
		o := stage(t, ring.few, dir)
		if o.code != 0 || len(o.failed()) != 4 {
			t.Fatalf("exit %d: %s", o.code, o.stderr)
		}
		o.says(t, "belongs to uid 997")
	})
}

// A process with no capability at all, as root of a directory of its own, needs none.
func TestNoCapabilities(t *testing.T) {
	none := []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"}
	for _, mask := range []int{0o022, 0o077, 0o000} {
		t.Run(fmt.Sprintf("umask %03o", mask), func(t *testing.T) {
			// Umask is of the whole process, so it is set in the child.
			wrap := append([]string{"busybox", "sh", "-c", fmt.Sprintf(`umask %03o; exec "$@"`, mask), "sh"}, none...)
			dir := t.TempDir()
			call{bundle: ring.few, dir: dir, wrap: wrap}.run(t).counts(t, 4, 0, 0, 0)
			holds(t, ring.few, dir)
			clean(t, ring.few, dir)
			if info, err := os.Stat(filepath.Join(dir, ".chandler")); err != nil || info.Mode().Perm() != 0o700 {
				t.Fatalf("%v %v", info, err)
			}
			call{bundle: ring.few, dir: dir, wrap: wrap}.run(t).counts(t, 0, 0, 4, 0)
			call{bundle: ring.fewOlder, dir: dir, wrap: wrap}.run(t).counts(t, 0, 4, 0, 0)
			holds(t, ring.fewOlder, dir)
			clean(t, ring.few, dir)
			deep := filepath.Join(t.TempDir(), "opt/cni/bin")
			call{bundle: ring.few, dir: deep, wrap: wrap, args: []string{"--create"}}.run(t).counts(t, 4, 0, 0, 0)
			for up := deep; filepath.Base(up) != "001" && strings.Contains(up, "opt"); up = filepath.Dir(up) {
				if info, err := os.Stat(up); err != nil || info.Mode().Perm() != 0o755 {
					t.Fatalf("%s: %v %v", up, info, err)
				}
			}
		})
	}
	t.Run("over another user's files", func(t *testing.T) {
		dir := t.TempDir()
		place(t, ring.fewOlder, dir)
		before := make(map[string]identity)
		for _, name := range fewNames {
			if err := os.Chown(filepath.Join(dir, name), 997, 997); err != nil {
				t.Fatal(err)
			}
			before[name] = identify(t, filepath.Join(dir, name))
		}
		if err := os.Chmod(filepath.Join(dir, "static"), 0o700); err != nil { // unreadable without capabilities
			t.Fatal(err)
		}
		before["static"] = identify(t, filepath.Join(dir, "static"))
		call{bundle: ring.few, dir: dir, wrap: none}.run(t).counts(t, 0, 4, 0, 0)
		holds(t, ring.few, dir)
		clean(t, ring.few, dir)
		for _, name := range fewNames {
			if kept := originals(t, dir, name); len(kept) != 1 || identify(t, kept[0]) != before[name] {
				t.Fatalf("%s: kept %v", name, kept)
			}
		}
	})
}

// Guarantee 7: mode and owner are part of what is right, and set-id bits are not.
func TestModeAndOwnerAreBroughtBack(t *testing.T) {
	dir := t.TempDir()
	stage(t, ring.few, dir).counts(t, 4, 0, 0, 0)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.Chmod(at("host-local"), 0o644), os.Chown(at("sbr"), 997, 0), syscall.Chmod(at("static"), 0o4755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if code, out := verify(t, ring.few, dir); code != 1 || !strings.Contains(out, "1 ok, 3 wrong") {
		t.Fatalf("verify: exit %d\n%s", code, out)
	}
	stage(t, ring.few, dir).counts(t, 0, 3, 1, 0)
	holds(t, ring.few, dir)
}
