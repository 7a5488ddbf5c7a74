//go:build root

package root

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chandler-cni/chandler/test/rig"
)

// A node's directory may belong to another user, with mode 0755, while this process is root without CAP_DAC_OVERRIDE: each
// plugin is named, one hint says what would help, nothing is changed, and the container completes.
func TestForeignOwner(t *testing.T) {
	const owner = 997
	without := []string{"setpriv", "--bounding-set=-dac_override"}
	dir := t.TempDir()
	rig.Place(t, ring.fewOlder, dir, "static")
	if err := os.Chown(dir, owner, owner); err != nil {
		t.Fatal(err)
	}
	before := rig.Tree(t, dir)
	o := rig.Call{Bundle: ring.few, Dir: dir, Wrap: without, Args: []string{"--shown-as", "/opt/cni/bin"}}.Run(t)
	o.Counts(t, 0, 0, 0, 4)
	for name, cause := range o.Failed() {
		if !strings.Contains(cause, "permission denied") {
			t.Fatalf("%s: %s", name, cause)
		}
	}
	if len(o.Report.Hints) != 1 || !strings.Contains(o.Report.Hints[0], "/opt/cni/bin belongs to uid 997 with mode 0755") ||
		!strings.Contains(o.Report.Hints[0], "CAP_DAC_OVERRIDE") {
		t.Fatalf("hints: %q", o.Report.Hints)
	}
	rig.Unchanged(t, before, rig.Tree(t, dir))
	if o := (rig.Call{Bundle: ring.few, Dir: dir, Wrap: without, Args: []string{"--strict"}}).Run(t); o.Code != 1 {
		t.Fatalf("--strict: exit %d", o.Code)
	}
	// The capability alone is enough.
	o = rig.Call{Bundle: ring.few, Dir: dir, Wrap: []string{"setpriv", "--bounding-set=-all,+dac_override"}}.Run(t)
	o.Counts(t, 3, 1, 0, 0)
	rig.Holds(t, ring.few, dir)
	rig.Clean(t, ring.few, dir)

	t.Run("a folder that is closed to it", func(t *testing.T) {
		folder := filepath.Join(dir, ".chandler")
		rig.Must(t, os.Chown(folder, owner, owner))
		defer os.Chown(folder, 0, 0)
		closed := []string{"setpriv", "--bounding-set=-dac_override,-dac_read_search"}
		o := rig.Call{Verb: "restore", Dir: dir, Wrap: closed, Args: []string{"--shown-as", "/opt/cni/bin"}}.Run(t)
		if o.Code != 1 || o.Report.Outcome != "refused" {
			t.Fatalf("exit %d: %s", o.Code, o.Stderr)
		}
		o.Says(t, "hint: /opt/cni/bin/.chandler belongs to uid 997 with mode 0700, and this process (uid 0) has no CAP_DAC_OVERRIDE")
	})
	t.Run("with everything in place", func(t *testing.T) {
		rig.Call{Bundle: ring.few, Dir: dir, Wrap: without}.Run(t).Counts(t, 0, 0, 4, 0)
	})
	t.Run("as the owner", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
		p := rig.Call{Bundle: ring.few, Dir: dir}.Command(t)
		os.Chmod(p.Log, 0o666)
		for up := filepath.Dir(p.Log); up != rig.Dir; up = filepath.Dir(up) {
			os.Chmod(up, 0o755)
		}
		p.Cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner, Gid: owner}
		if err := p.Cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.Wait().Counts(t, 4, 0, 0, 0)
		for _, name := range fewNames {
			info, err := os.Lstat(filepath.Join(dir, name))
			if err != nil || info.Mode() != 0o755 || info.Sys().(*syscall.Stat_t).Uid != owner {
				t.Fatalf("%s: %v %v", name, info, err)
			}
		}
		// Root takes over what is not its own: file owner and folder are not as root would leave them.
		o := rig.Stage(t, ring.few, dir)
		if o.Code != 0 || len(o.Failed()) != 4 {
			t.Fatalf("exit %d: %s", o.Code, o.Stderr)
		}
		o.Says(t, "belongs to uid 997")
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
			rig.Call{Bundle: ring.few, Dir: dir, Wrap: wrap}.Run(t).Counts(t, 4, 0, 0, 0)
			rig.Holds(t, ring.few, dir)
			rig.Clean(t, ring.few, dir)
			if info, err := os.Stat(filepath.Join(dir, ".chandler")); err != nil || info.Mode().Perm() != 0o700 {
				t.Fatalf("%v %v", info, err)
			}
			rig.Call{Bundle: ring.few, Dir: dir, Wrap: wrap}.Run(t).Counts(t, 0, 0, 4, 0)
			rig.Call{Bundle: ring.fewOlder, Dir: dir, Wrap: wrap}.Run(t).Counts(t, 0, 4, 0, 0)
			rig.Holds(t, ring.fewOlder, dir)
			rig.Clean(t, ring.few, dir)
			deep := filepath.Join(t.TempDir(), "opt/cni/bin")
			rig.Call{Bundle: ring.few, Dir: deep, Wrap: wrap, Args: []string{"--create"}}.Run(t).Counts(t, 4, 0, 0, 0)
			for up := deep; filepath.Base(up) != "001" && strings.Contains(up, "opt"); up = filepath.Dir(up) {
				if info, err := os.Stat(up); err != nil || info.Mode().Perm() != 0o755 {
					t.Fatalf("%s: %v %v", up, info, err)
				}
			}
		})
	}
	t.Run("over another user's files", func(t *testing.T) {
		dir := t.TempDir()
		rig.Place(t, ring.fewOlder, dir)
		before := make(map[string]rig.Identity)
		for _, name := range fewNames {
			if err := os.Chown(filepath.Join(dir, name), 997, 997); err != nil {
				t.Fatal(err)
			}
			before[name] = rig.Identify(t, filepath.Join(dir, name))
		}
		if err := os.Chmod(filepath.Join(dir, "static"), 0o700); err != nil { // unreadable without capabilities
			t.Fatal(err)
		}
		before["static"] = rig.Identify(t, filepath.Join(dir, "static"))
		rig.Call{Bundle: ring.few, Dir: dir, Wrap: none}.Run(t).Counts(t, 0, 4, 0, 0)
		rig.Holds(t, ring.few, dir)
		rig.Clean(t, ring.few, dir)
		for _, name := range fewNames {
			rig.Kept(t, dir, name, before[name])
		}
	})
}

// Guarantee 7: mode and owner are part of what is right, and set-id bits are not.
func TestModeAndOwnerAreBroughtBack(t *testing.T) {
	dir := t.TempDir()
	rig.Stage(t, ring.few, dir).Counts(t, 4, 0, 0, 0)
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
	rig.Stage(t, ring.few, dir).Counts(t, 0, 3, 1, 0)
	rig.Holds(t, ring.few, dir)
}
