package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/chandler-cni/chandler/internal/stage"
)

// wantHint holds that there is one hint, and that it has each of the texts.
func wantHint(t *testing.T, hints []string, texts ...string) {
	t.Helper()
	if len(hints) != 1 {
		t.Errorf("hints %q", hints)
		return
	}
	for _, text := range texts {
		if !strings.Contains(hints[0], text) {
			t.Errorf("no %q in %q", text, hints[0])
		}
	}
}

func refused(task stage.Task, err error) []string {
	return hints(task, task.RefuseFor("/opt/cni/bin", &stage.BinDirError{Path: "/opt/cni/bin", Err: err}), stage.Options{BinDir: "/none"})
}

// Whatever finds the folder in the wrong hands, the hint has both ways out, and neither loses the originals.
func TestFolderHints(t *testing.T) {
	owner := &stage.OwnerError{Path: ".chandler", UID: 12345}
	failed := &stage.Report{Outcome: stage.Staged, BinDir: "/opt/cni/bin", Plugins: []stage.Result{{Name: "bridge", Action: stage.Failed, Err: owner}}}
	single := stage.OriginalErrors{{Name: "bridge", Path: ".chandler/originals/bridge", Err: owner}}
	for name, got := range map[string][]string{
		"stage": hints(stage.Staging, failed, stage.Options{BinDir: "/none"}), "restore": refused(stage.Restoring, owner),
		"originals": originalsHints(&stage.BinDirError{Path: "/opt/cni/bin", Err: owner}, nil, "/opt/cni/bin", "/none"),
		"one":       originalsHints(single, single, "/opt/cni/bin", "/none"),
	} {
		t.Run(name, func(t *testing.T) {
			wantHint(t, got, "chown -R "+strconv.Itoa(os.Geteuid())+" /opt/cni/bin/.chandler", "the originals lie in it", "if somebody else made .chandler, ")
		})
	}
	wantHint(t, refused(stage.Restoring, &stage.TakenError{Path: ".chandler", Mounted: true}), "unmount what is mounted on .chandler")
	wantHint(t, refused(stage.Restoring, &stage.TakenError{Path: ".chandler"}), "in the place of .chandler", "if the folder itself was moved")
}

// What is said to restoring is of restoring.
func TestRestoringHints(t *testing.T) {
	io := &fs.PathError{Op: "readdirent", Path: "x", Err: syscall.EIO}
	wantHint(t, refused(stage.Restoring, io), "what the bin dir lies on cannot be read")
	wantHint(t, refused(stage.Staging, io), "what the bundle lies on cannot be read")
	for _, err := range []error{io, stage.ErrNotMounted, stage.ErrBusy, stage.ErrReplaced, syscall.EMFILE, &stage.TakenError{Path: ".chandler"}} {
		for _, said := range append(refused(stage.Restoring, err), stage.Restoring.RefuseFor("/b", err).LastLine()) {
			if strings.Contains(said, "staging") || strings.Contains(said, "staged") || strings.Contains(said, "bundle") {
				t.Errorf("restoring is told %q", said)
			}
		}
	}
}

// The hint names what would be replaced, and no more than that, in the words of both who may read it.
func TestNewerHint(t *testing.T) {
	r := &stage.Report{Outcome: stage.Staged, Plugins: []stage.Result{
		{Name: "bridge", Action: stage.Kept, Reason: stage.IsNewer}, {Name: "ptp", Action: stage.Kept, Reason: stage.SameVersion},
		{Name: "vlan", Action: stage.Kept, Reason: stage.IsNewer},
	}}
	wantHint(t, hints(stage.Staging, r, stage.Options{}), "--policy-for bridge=replace,vlan=replace brings", "stagePolicyFor")
}

// On an overlay, removing a file by hand can hide another for good.
func TestNotKeptHint(t *testing.T) {
	r := &stage.Report{Outcome: stage.Restored, Plugins: []stage.Result{{Name: "bridge", Action: stage.Failed, Err: stage.ErrNotKept}}}
	wantHint(t, hints(stage.Restoring, r, stage.Options{BinDir: "/none"}), "remove it by hand")
	wantHint(t, []string{notKeptHint(true)}, "overlay", "whiteout", "only where there is none")
}

// A file that cannot be dropped since it, or its folder, is immutable.
func TestImmutableOriginal(t *testing.T) {
	const at = ".chandler/originals/bridge/1-unread"
	err := stage.OriginalErrors{{Name: "bridge", Path: at, Err: &fs.PathError{Op: "remove", Path: "x", Err: syscall.EPERM}}}
	real := immutable
	t.Cleanup(func() { immutable = real })
	for which, want := range map[string]string{
		"1-unread": "/opt/cni/bin/" + at + " is immutable; chattr -i lets it be removed",
		".":        "/opt/cni/bin/" + filepath.Dir(at) + " is immutable; chattr -i lets what is in it be removed",
	} {
		immutable = func(path, name string) bool {
			return filepath.Clean(path) == filepath.Join("/host", filepath.Dir(at)) && name == which
		}
		wantHint(t, originalsHints(errors.Join(err), err, "/opt/cni/bin", "/host"), want)
	}
}

// What keeps a name from being changed can be an attribute of any folder that it passes through, or the directory's sticky bit.
func TestNotPermitted(t *testing.T) {
	dir := t.TempDir()
	r := &stage.Report{BinDir: "/opt/cni/bin", Outcome: stage.Staged, Plugins: []stage.Result{
		{Name: "bridge", Action: stage.Failed, Err: &fs.PathError{Op: "rename", Path: "x", Err: syscall.EPERM}},
	}}
	if said := hints(stage.Staging, r, stage.Options{BinDir: dir}); len(said) > 0 {
		t.Errorf("%q", said)
	}
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if said := hints(stage.Staging, r, stage.Options{BinDir: dir}); len(said) > 0 { // it is the owner's
		t.Errorf("%q", said)
	}
	wantHint(t, []string{stickyHint("/opt/cni/bin", dir, os.Geteuid()+1)}, "/opt/cni/bin is sticky", "CAP_FOWNER", "chmod -t")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	real := immutable
	t.Cleanup(func() { immutable = real })
	for _, folder := range []string{".chandler", ".chandler/tmp", ".chandler/staged", ".chandler/originals", ".chandler/originals/bridge"} {
		immutable = func(path, name string) bool { return filepath.Join(path, name) == filepath.Join(dir, folder) }
		wantHint(t, hints(stage.Staging, r, stage.Options{BinDir: dir}), "/opt/cni/bin/"+folder+" is immutable; chattr -i")
	}
}
